"""GroupsToInstancesPass: the same values by kernels that ONNX Runtime has."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import as_bytes, he, run, sqnr, statistics_of

from octavo.graph.passes.forms.groups_to_instances import GroupsToInstancesPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(31)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(6)]
TENSORS = {
    "stem": he(GENERATOR, 8, 3, 3, 3),
    "scale": GENERATOR.uniform(0.5, 2, 8).astype(np.float32),
    "bias": GENERATOR.standard_normal(8).astype(np.float32),
    "last": he(GENERATOR, 5, 8, 1, 1),
}


def of(sizes, *, groups=4, scale="scale", opset=21, **settings):
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("GroupNormalization", ["a", scale, "bias"], ["n"], "norm", num_groups=groups, **settings),
        oh.make_node("Relu", ["n"], ["r"], "r"),
        oh.make_node("Conv", ["r", "last"], ["y"], "y"),
    ]
    kind = onnx.TensorProto.FLOAT
    given = [] if scale == "scale" else [oh.make_tensor_value_info(scale, kind, [8])]
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", kind, sizes), *given],
        [oh.make_tensor_value_info("y", kind, [sizes[0], 5, *sizes[2:]])],
        [onnx.numpy_helper.from_array(array, name) for name, array in TENSORS.items() if name != "scale" or not given],
        # ONNX infers no shape behind this operator: exporters write it into the file.
        value_info=[oh.make_tensor_value_info(name, kind, [sizes[0], 8, *sizes[2:]]) for name in ("a", "n", "r")],
    )
    return ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=10))


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("sizes", [[1, 3, 12, 12], ["n", 3, "h", "w"], ["n", 3, 12, "w"]])
def test_groups_are_normalized_by_a_kernel(groups, sizes):
    model = of(sizes, groups=groups, epsilon=0.01)
    before = run(model, IMAGES[0])["y"]
    assert GroupsToInstancesPass()(model).modified
    kinds = [node.op_type for node in model.graph]
    assert "GroupNormalization" not in kinds
    assert kinds.count("Shape") == (sizes[2:] != [12, 12])
    assert next(node for node in model.graph if node.name == "norm").outputs[0].name == "n"
    np.testing.assert_allclose(run(model, IMAGES[0])["y"], before, atol=1e-4)


@pytest.mark.parametrize("settings", [{"scale": "given"}, {"opset": 20, "groups": 8}])
def test_scales_that_are_given_or_of_groups_are_left_alone(settings):
    assert not GroupsToInstancesPass()(of([1, 3, 12, 12], **settings)).modified


def test_int8_runs_no_function_body():
    model = of([1, 3, 12, 12])
    result = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all"), Images(IMAGES[:4], IMAGES[4:]))
    kinds = {node.op_type for node in optimized_nodes(as_bytes(result.model))}
    assert "InstanceNormalization" in kinds
    assert not kinds & {"Cast", "ReduceMean", "Shape", "Sqrt"}
    decision = next(decision for decision in result.decisions if decision.node == "norm")
    assert (decision.op_type, decision.precision) == ("GroupNormalization", "float")
    assert sqnr(model, result.model, IMAGES[4:])["y"] > 25
