"""Freed memory goes back to the system."""

import ctypes
import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from test_int8_choice import CALIBRATION, statistics_of, uneven

from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8.draft import Draft
from octavo.runtime import tensors
from octavo.runtime.memory import return_freed
from octavo.runtime.session import Session

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's allocator alone is told"
)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_was_freed_between_blocks_that_live_on_goes_back():
    """Below glibc's least threshold for mapping (128 KiB); its own trim gives back the heap's end alone."""
    blocks = [np.ones(100 << 10, np.uint8) for _ in range(800)]
    living = blocks[::8]
    full = resident()
    del blocks
    assert full - resident() < 30 << 20, "or nothing is tested"
    return_freed()
    assert full - resident() > 50 << 20
    assert all(block.all() for block in living)


@pytest.mark.parametrize("large", [False, True])
def test_what_large_networks_were_written_as_before_is_let_go(monkeypatch, large):
    monkeypatch.setattr(tensors, "_LARGE", 0 if large else 1 << 20)
    model = prepared(uneven())
    draft = Draft(model, statistics_of(model), Int8(method="minmax"), {}, CALIBRATION)
    plan = draft.plan()
    gc.disable()
    try:
        written = weakref.ref(draft.written(plan, ["y"]).graph)
        assert written() is not None, "or nothing is tested"
        draft.written(plan, ["y"])
        assert (written() is None) == large
    finally:
        gc.enable()


def test_what_runs_keep_goes_back_and_is_taken_anew():
    """An arena holds the largest run's activations for as long as its session is open: validation has four such."""
    # The first one makes a small block, in which the output lies later on: where outputs are, nothing goes back.
    steps = [("ReduceMax", "x"), ("Add", "x", "t0"), ("Sin", "t1"), ("Cos", "t2"), ("ReduceMax", "t3")]
    nodes = [oh.make_node(op, inputs, [f"t{place}"]) for place, (op, *inputs) in enumerate(steps)]
    image = oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, "rows", "columns"])
    graph = oh.make_graph(nodes, "maps", [image], [oh.make_tensor_value_info("t4", onnx.TensorProto.FLOAT, None)])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8).SerializeToString()
    session, feeds = Session(model), {"x": np.ones((1, 3, 2048, 2048), np.float32)}
    before = resident()
    expected = session.run(feeds)["t4"].copy()
    kept = resident() - before
    assert kept > 60 << 20, "or nothing is tested"
    session.shrink(feeds)
    assert resident() - before < kept / 4
    assert session.run(feeds)["t4"] == expected
    # ONNX Runtime refuses it where there is nothing to give back.
    Session(model, arena=False).shrink(feeds)
