"""The near side of `tools/openvino_worker.py`: ONNX files under the OpenVINO execution provider of another environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import ModelRunError
from octavo.runtime.timing import Latency

__all__ = ["OpenVino", "OpenVinoSession"]

WORKER = Path(__file__).parent / "tools" / "openvino_worker.py"


class OpenVino:
    """A worker process; use as a context manager.

    Args:
        python: the interpreter of an environment with onnxruntime-openvino.
    """

    def __init__(self, python: Path) -> None:
        self.python = python

    def __enter__(self) -> OpenVino:
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        command = [str(self.python), str(WORKER), str(theirs_in), str(theirs_out)]
        self.process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.requests, self.answers = Connection(ours_out, readable=False), Connection(ours_in, writable=False)
        return self

    def __exit__(self, *exception: object) -> None:
        self.requests.close()
        self.process.wait()
        self.answers.close()

    def ask(self, *request: Any) -> Any:
        """One request.

        Raises:
            ModelRunError: the worker died or could not do it.
        """
        try:
            self.requests.send(request)
            answer = self.answers.recv()
        except (EOFError, BrokenPipeError) as error:
            raise ModelRunError(
                f"the OpenVINO worker died at {request[:2]}", f"try `{self.python} -c 'import onnxruntime'`"
            ) from error
        if isinstance(answer, Exception):
            raise ModelRunError(f"OpenVINO: {str(answer).splitlines()[0]}", "leave --openvino-python out for this file") from answer
        return answer

    def latencies(self, names: list[str], tensor: np.ndarray, *, rounds: int, warmup: int) -> dict[str, Latency]:
        """Time loaded files, interleaved among each other, in the worker."""
        taken = self.ask("time", tensor, rounds, warmup, names)
        return {name: Latency(np.array(samples)) for name, samples in taken.items()}


class OpenVinoSession:
    """One loaded file, with the part of `octavo.runtime.session.Session` that scoring needs."""

    def __init__(self, worker: OpenVino, name: str, path: Path) -> None:
        self.worker, self.name = worker, name
        self.inputs = [""]
        self.outputs = worker.ask("load", name, str(path))

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run on the one input, whatever it is called."""
        (tensor,) = feeds.values()
        return dict(zip(self.outputs, self.worker.ask("run", self.name, tensor), strict=True))
