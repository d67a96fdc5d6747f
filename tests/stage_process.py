"""Stage scripts in processes of their own, each forked from a server that has the libraries imported already.

That saves each run the one to two seconds in which a new interpreter imports them. Nothing of octavo is imported before the fork;
`dvc repro` in test_pipeline.py runs the same scripts as a user does.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

__all__ = ["run_stage"]

# This module is imported anew in each process: it imports nothing that the server has not.
STAGES = Path(__file__).parents[1] / "stages"
LIBRARIES = """cv2 numpy onnx onnx_ir onnxruntime.quantization onnxscript.version_converter PIL.ImageOps pydantic.main
pytest rich.progress scipy.sparse.csgraph yaml"""
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(LIBRARIES.split())


def run_stage(name: str, *arguments: str) -> CompletedProcess[str]:
    """Run stages/<name>.py in this folder: its exit code and what it wrote, as from `subprocess.run`."""
    script = STAGES / f"{name}.py"
    with tempfile.TemporaryDirectory() as folder:
        written = [Path(folder, stream) for stream in ("stdout", "stderr")]
        process = _SERVER.Process(target=_main, args=([str(script), *arguments], Path.cwd(), dict(os.environ), written))
        process.start()
        process.join()
        texts = [path.read_text(encoding="utf-8") for path in written]
    return CompletedProcess([str(script), *arguments], process.exitcode, *texts)


def _main(command: list[str], folder: Path, environment: dict[str, str], written: list[Path]) -> None:
    for descriptor, path in enumerate(written, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    sys.path.insert(0, str(STAGES))
    runpy.run_path(command[0], run_name="__main__")
