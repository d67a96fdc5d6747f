"""Dynamic INT8: MatMul and Gemm by ONNX Runtime's dynamic kernels, convolutions with int8 weights only."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, sqnr, statistics_of

from octavo.params.grammar import Int8
from octavo.quantization.int8.dynamic import quantize_dynamic

GENERATOR = np.random.default_rng(14)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32) + np.float32(1)} for _ in range(4)]


def normal(*shape: int) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> ir.Model:
    tensors = {
        "w": normal(8, 3, 3, 3),
        "m": normal(8, 8),
        "g": normal(8, 8),
        "b": normal(8),
        "shape": np.array([1, 8, -1], np.int64),
    }
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "conv", strides=[2, 2]),
        oh.make_node("Reshape", ["c", "shape"], ["r"], "flat"),
        oh.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 1]),
        oh.make_node("MatMul", ["t", "m"], ["q"], "query"),
        oh.make_node("MatMul", ["q", "r"], ["s"], "scores"),
        oh.make_node("ReduceMean", ["q", "one"], ["p"], "mean", keepdims=0),
        oh.make_node("Gemm", ["p", "g", "b"], ["y"], "plain", transB=1),
        oh.make_node("Gemm", ["y", "g", "b"], ["z"], "scaled", alpha=0.5),
    ]
    return network(nodes, tensors | {"one": np.array([1], np.int64)}, ["z", "s"])


def test_each_kind_of_node_gets_its_form_and_reason(model):
    before = ir.to_proto(model).SerializeToString()
    result = quantize_dynamic(model, Int8())
    assert ir.to_proto(model).SerializeToString() == before
    onnx.checker.check_model(ir.to_proto(result.model))
    reasons = {decision.node: (decision.precision, decision.reason) for decision in result.decisions}
    carrier = ("float", "dynamic INT8 quantizes weights only")
    attended = ("float", "its weights are not constant")
    odd = ("float", "its weights are not a float32 matrix, or its attributes have no integer kernel")
    weighted = ("int8", "int8 weights, activation ranges at run time")
    assert reasons == {
        "conv": ("int8", "weights int8 in the file, computed in float32"),
        **{"flat": carrier, "turn": carrier, "mean": carrier, "scores": attended, "scaled": odd},
        **{"query": weighted, "plain": weighted},
    }
    ops = [node.op_type for node in result.model.graph]
    assert (ops.count("MatMulInteger"), ops.count("Conv"), ops.count("Gemm"), ops.count("MatMul")) == (2, 1, 1, 1)
    found = sqnr(model, result.model, IMAGES)
    assert min(found.values()) > 25
    assert max(found.values()) < 100, "it is quantized"


def test_keep_float_and_the_correction(model):
    statistics = statistics_of(model, IMAGES)
    kept = quantize_dynamic(model, Int8(keep_float=("Gemm", "query")), statistics)
    reasons = {decision.node: decision.reason for decision in kept.decisions}
    assert (reasons["plain"], reasons["query"]) == ("keep_float: Gemm", "keep_float: query")
    assert "MatMulInteger" not in [node.op_type for node in kept.model.graph]
    assert kept.corrected == 1
    plain = quantize_dynamic(model, Int8(keep_float=("Gemm", "query"), correction="none"), statistics)
    assert plain.corrected == 0

    def shift(other: ir.Model) -> float:
        return float(np.abs(np.mean([run(model, image)["z"] - run(other, image)["z"] for image in IMAGES], axis=0)).max())

    assert shift(kept.model) < 0.5 * shift(plain.model)
    again = quantize_dynamic(model, Int8(keep_float=("Gemm", "query")), statistics)
    assert ir.to_proto(again.model).SerializeToString() == ir.to_proto(kept.model).SerializeToString()
