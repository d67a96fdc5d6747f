"""Native code that ends a process: the end is told in words, and nothing else changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from octavo.errors import ModelRunError
from octavo.runtime.benchmark import peak_memory_mib

SCRIPT = """
import faulthandler, os, signal, sys, time
import numpy as np
from octavo import cli
from octavo.errors import DataError
from octavo.runtime.session import Session

def main():
    session = Session({file!r}, threads=1)
    session.run({{"x": np.zeros(4, np.float32)}})
    {ends}

cli.run(main)
"""
CRASH = "faulthandler._sigsegv(True)"


def graph(path: Path) -> Path:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path
    )
    return path


def ended(path: Path, ends: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = path / "quantize_fp16.py"
    script.write_text(SCRIPT.format(file=str(graph(path / "model.onnx")), ends=ends))
    command = [sys.executable, str(script), "--model", "x"]
    there = {key: value for key, value in os.environ.items() if key != "PYTHONFAULTHANDLER"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=there | environment)


@pytest.mark.parametrize(
    ("ends", "number", "words"), [(CRASH, signal.SIGSEGV, "Segmentation fault"), ("os.abort()", signal.SIGABRT, "Aborted")]
)
def test_a_crash_names_the_stage_the_file_and_the_way_out(tmp_path, ends, number, words):
    """And where in Python it was; the process still ends by its signal."""
    done = ended(tmp_path, ends)
    assert done.returncode == -number
    assert "in main" in done.stderr
    error, mend = done.stderr.splitlines()[-2:]
    assert error == (
        f"error: quantize_fp16 --model x: native code ended the process ({words}), ONNX Runtime's last graph was "
        f"{tmp_path / 'model.onnx'}; outputs are as they were"
    )
    assert "`fp16.keep_float`" in mend


def test_a_model_written_over_while_it_is_read_is_said_to_be(tmp_path):
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1 << 19], bytes(4 << 19), raw=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1 << 19]) for name in "xy")
    of_weights = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    onnx.save(helper.make_model(of_weights, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "large.onnx")
    ends = "from octavo.graph.io import load; model = load('large.onnx'); open('large.onnx', 'wb'); "
    done = ended(tmp_path, f"os.chdir({str(tmp_path)!r}); {ends}model.graph.initializers['w'].const_value.tobytes()")
    assert done.returncode == -signal.SIGBUS
    error, mend = done.stderr.splitlines()[-2:]
    assert "native code ended the process (Bus error)" in error
    assert "written over" in mend


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ("pass", 0, ""),
        ("raise DataError('wrong')", 2, "error: wrong\n"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", 143, "terminated; outputs are as they were\n"),
        # A shell's background jobs, pytest among them, begin with this signal ignored.
        (
            "signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
            130,
            "interrupted; outputs are as they were\n",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_other_ends_are_as_they_were(tmp_path, ends, code, said):
    done = ended(tmp_path, ends)
    assert (done.returncode, done.stderr) == (code, said)


def test_ctrl_c_while_a_script_still_imports_is_no_traceback():
    """Before `run`; the process ends by the signal, which shells call 130."""
    words = "from octavo import cli\nimport os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    words += "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted; outputs are as they were\n")
    other = subprocess.run([sys.executable, "-c", "from octavo import cli; 1 / 0"], capture_output=True, text=True, check=False)
    assert (other.returncode, other.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")


def test_faulthandler_that_is_on_already_is_left_alone(tmp_path):
    done = ended(tmp_path, CRASH, PYTHONFAULTHANDLER="1")
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "to mend" not in done.stderr


def test_nobody_is_left_behind(tmp_path):
    """The shell that waits for a crash ends with the process, and before it where that goes on."""
    done = ended(tmp_path, "import psutil; print(len(psutil.Process().children()))")
    assert (done.returncode, done.stdout) == (0, "1\n")
    words = "from octavo import cli\ncli.run(lambda: None)\nimport psutil\nprint(len(psutil.Process().children()))"
    assert subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout == "0\n"


def test_a_process_that_measures_memory_says_which_signal_ended_it(tmp_path, monkeypatch):
    """Its stderr is empty then."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -SEGV $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelRunError, match="native code ended it \\(Segmentation fault\\)"):
        peak_memory_mib(tmp_path / "model.onnx", {}, provider="cpu", threads=1)
