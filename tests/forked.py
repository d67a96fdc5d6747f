"""Stage scripts, `dvc` and `octavo` in processes of their own, each forked from a server that has the libraries imported already.

That saves each run the one to two seconds in which a new interpreter imports them. Nothing of octavo is imported before the fork.
What DVC runs is started as a user's is, and test_pipeline.py starts DVC as a user does, too.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

__all__ = ["run_dvc", "run_octavo", "run_stage"]

# This module is imported anew in each process: it imports nothing that the server has not.
STAGES = Path(__file__).parents[1] / "stages"
LIBRARIES = """cv2 dvc.cli dvc.commands.repro dvc.output dvc.repo.reproduce dvc_data.index numpy onnx onnx_ir
onnxruntime.quantization onnxscript.version_converter PIL.ImageOps pydantic.main pytest rich.progress scipy.sparse.csgraph yaml"""
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(LIBRARIES.split())


def run_stage(name: str, *arguments: str) -> CompletedProcess[str]:
    """Run stages/<name>.py in this folder: its exit code and what it wrote, as from `subprocess.run`."""
    return _run(_stage, [str(STAGES / f"{name}.py"), *arguments], Path.cwd(), os.environ)


def run_dvc(folder: Path, arguments: tuple[str, ...], environment: Mapping[str, str]) -> CompletedProcess[str]:
    """Run `dvc` in a folder, as above."""
    return _run(_dvc, ["dvc", *arguments], folder, environment)


def run_octavo(folder: Path, arguments: tuple[str, ...], environment: Mapping[str, str]) -> CompletedProcess[str]:
    """Run `python -m octavo` in a folder, as above."""
    return _run(_octavo, ["octavo", *arguments], folder, environment)


def _stage(command: list[str]) -> None:
    sys.path.insert(0, str(STAGES))
    runpy.run_path(command[0], run_name="__main__")


def _dvc(command: list[str]) -> None:
    from dvc.cli import main

    sys.exit(main(command[1:]))


def _octavo(command: list[str]) -> None:
    sys.path[:0] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    runpy.run_module("octavo", run_name="__main__", alter_sys=True)


def _run(what, command: list[str], folder: Path, environment: Mapping[str, str]) -> CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as scratch:
        written = [Path(scratch, stream) for stream in ("stdout", "stderr")]
        for path in written:  # A process that never gets to them has an exit code to tell.
            path.touch()
        process = _SERVER.Process(target=_main, args=(what, command, folder.resolve(), dict(environment), written))
        process.start()
        process.join()
        texts = [path.read_text(encoding="utf-8") for path in written]
    return CompletedProcess(command, process.exitcode, *texts)


def _main(what, command: list[str], folder: Path, environment: dict[str, str], written: list[Path]) -> None:
    for descriptor, path in enumerate(written, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    what(command)
