"""What `fidelity: auto` asks for follows from what stands around the last weights."""

from functools import partial

import graphs
import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network

from octavo.graph.prepared import prepared
from octavo.quantization.int8.fidelity import fidelity_of
from octavo.quantization.int8.judge import heads_of
from octavo.quantization.int8.units import units_of

CLASSES, VECTORS, MASKS, BOXES, HIGH = 24.0, 25.0, 22.5, 20.0, 26.5
he = partial(graphs.he, np.random.default_rng(11))


@pytest.mark.parametrize(
    ("shapes", "effort", "expected"),
    [
        ([[1, 10]], "default", VECTORS),
        ([["n", 128, 1, 1]], "high", HIGH),
        ([[1, 11, 45, 60]], "default", MASKS),
        ([[1, 2, 90, 160], [1, 2, 90, 160]], "high", MASKS),
        ([[1, 255, 80, 80], [1, 255, 40, 40]], "default", BOXES),
        ([["n", 12, "h", "w"], ["n", 12, "h/2", "w/2"]], "default", BOXES),
        ([[1, 10], [1, 4, 20, 20]], "default", MASKS),
        ([None], "default", MASKS),
    ],
)
def test_detectors_are_held_to_more_than_masks_and_vectors_to_most(shapes, effort, expected):
    heads = [ir.Value(name=str(place), shape=None if shape is None else ir.Shape(shape)) for place, shape in enumerate(shapes)]
    assert fidelity_of(heads, effort) == expected


def of(front: list[tuple], behind: list[tuple], features: int = 8) -> ir.Model:
    """A Conv with Relu, what is given as (op, attributes) one behind the other, a Gemm, and what is given behind that."""
    tensors = {"stem": he(8, 3, 3, 3), "fc": he(8, 8), "wide": he(8, 8, 16, 16), "head": he(features, 4)}
    tensors |= {"point": he(8, 8, 1, 1), "half": np.float32(0.5), "axes": np.array([2, 3])}
    nodes = [oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]), oh.make_node("Relu", ["a"], ["t0"], "relu")]
    for op, *others, settings in [*front, ("Gemm", "head", {}), *behind]:
        place = len(nodes)
        nodes.append(oh.make_node(op, [nodes[-1].output[0], *others], [f"t{place}"], f"n{place}", **settings))
    return network(nodes, tensors, [nodes[-1].output[0]])


POOL, FLAT, SOFTMAX = ("GlobalAveragePool", {}), ("Flatten", {}), ("Softmax", {"axis": 1})


@pytest.mark.parametrize(
    ("front", "behind", "expected"),
    [
        ([POOL, FLAT], [], CLASSES),
        ([POOL, FLAT], [SOFTMAX], CLASSES),
        ([("AveragePool", {"kernel_shape": [16, 16]}), FLAT], [SOFTMAX], CLASSES),
        ([("ReduceMean", "axes", {"keepdims": 0})], [], CLASSES),
        ([POOL, ("Conv", "point", {}), ("HardSwish", {}), FLAT], [SOFTMAX], CLASSES),
        ([POOL, FLAT, ("Gemm", "fc", {}), ("Relu", {})], [("Identity", {}), SOFTMAX], CLASSES),
        # Pooled in part, weighed place by place, or computed with afterwards: no plain choice of the largest.
        ([("AveragePool", {"kernel_shape": [8, 8], "strides": [8, 8]}), FLAT], [], VECTORS),
        ([("Conv", "wide", {}), FLAT], [], VECTORS),
        ([POOL, FLAT], [("LpNormalization", {"axis": 1})], VECTORS),
        ([POOL, FLAT], [("Mul", "half", {}), SOFTMAX], VECTORS),
    ],
)
def test_scores_of_classes_are_told_from_embeddings_by_the_graph(front, behind, expected):
    features = 32 if front[0][1:] == ({"kernel_shape": [8, 8], "strides": [8, 8]},) else 8
    heads = heads_of(units_of(prepared(of(front, behind, features))))
    assert fidelity_of(heads, "default") == expected
    assert fidelity_of(heads, "high") == HIGH
