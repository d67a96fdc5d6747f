"""Variances that are written as a difference of two means."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, sqnr, statistics_of

from octavo.graph.passes.spelled.variance import VariancePass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static

IMAGE = {"x": np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32)}
FORMS = {
    "plain": [("Sub", ["more", "less"])],
    "relu": [("Sub", ["more", "less"]), ("Relu", ["sub"])],
    "max": [("Sub", ["more", "less"]), ("Max", ["zero", "sub"])],
}


def variance(
    form: str, *, of: str = "x", axes: object = (2, 3), others: object = None, opset: int = 18, power: bool = False
) -> list:
    """Nodes that make `variance`, and constants."""
    square = ("Pow", ["two"]) if power else ("Mul", None)
    constants = {"axes": np.array(axes), "others": np.array(axes if others is None else others)}
    constants |= {"zero": np.float32(0), "two": np.float32(2)}

    def mean(read: str, made: str, over: str) -> onnx.NodeProto:
        given = [over] if opset >= 18 else []
        return oh.make_node("ReduceMean", [read, *given], [made], made, **({} if given else {"axes": constants[over].tolist()}))

    nodes = [
        mean(of, "mean", "axes"),
        oh.make_node(square[0], [of, *(square[1] or [of])], ["square"], "square"),
        mean("square", "more", "others"),
        oh.make_node(square[0], ["mean", *(square[1] or ["mean"])], ["less"], "less"),
    ]
    for op_type, read in FORMS[form]:
        nodes.append(oh.make_node(op_type, read, [op_type.lower()], op_type.lower()))
    nodes[-1].output[0] = "variance"
    return [nodes, {name: value for name, value in constants.items() if any(name in node.input for node in nodes)}]


def only(nodes: list, constants: dict[str, np.ndarray], opset: int = 18) -> ir.Model:
    nodes.append(oh.make_node("Sqrt", ["variance"], ["y"], "root"))
    return network(nodes, constants, ["y"], opset=opset)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("opset", "power", "axes"), [(18, False, (2, 3)), (17, True, (1,)), (17, False, (-1,))])
def test_it_is_the_mean_of_squared_deviations(form, opset, power, axes):
    model = only(*variance(form, axes=axes, opset=opset, power=power), opset)
    wanted = run(model, IMAGE)["y"]
    assert VariancePass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["ReduceMean", "Sub", "Mul", "ReduceMean", "Sqrt"]
    np.testing.assert_allclose(run(model, IMAGE)["y"], wanted, atol=1e-5)


def test_means_over_other_axes_or_of_other_tensors_stay():
    assert not VariancePass()(only(*variance("plain", axes=[2, 3], others=[1, 2]))).modified
    nodes, constants = variance("plain")
    nodes[1].input[0] = nodes[1].input[1] = "z"
    nodes.insert(0, oh.make_node("Relu", ["x"], ["z"], "z"))
    assert not VariancePass()(only(nodes, constants)).modified
    nodes, constants = variance("plain")
    nodes[1].input[1] = "z"
    nodes.insert(0, oh.make_node("Relu", ["x"], ["z"], "z"))
    assert not VariancePass()(only(nodes, constants)).modified


def normed(nodes: list, constants: dict[str, np.ndarray], of: str, shape: tuple[int, ...]) -> list:
    random = np.random.default_rng(4)
    nodes += [
        oh.make_node("Add", ["variance", "epsilon"], ["some"], "some"),
        oh.make_node("Sqrt", ["some"], ["root"], "root"),
        oh.make_node("Sub", [of, "mean"], ["d"], "d"),
        oh.make_node("Div", ["d", "root"], ["normed"], "normed"),
        oh.make_node("Mul", ["normed", "gain"], ["scaled"], "scaled"),
        oh.make_node("Add", ["scaled", "shift"], ["shifted"], "shifted"),
    ]
    gain, shift = ((base + 0.2 * random.standard_normal(shape)).astype(np.float32) for base in (1, 0))
    return [nodes, constants | {"epsilon": np.float32(1e-5), "gain": gain, "shift": shift}]


def test_over_the_last_axes_it_is_a_layer_norm():
    nodes, constants = normed(*variance("relu", axes=[-1]), "x", (16,))
    nodes[-1].output[0] = "y"
    model = network(nodes, constants, ["y"])
    wanted = run(model, IMAGE)["y"]
    ready = prepared(model)
    assert [node.op_type for node in ready.graph] == ["LayerNormalization"]
    np.testing.assert_allclose(run(ready, IMAGE)["y"], wanted, atol=1e-4)


def test_an_instance_norm_is_not_computed_of_means_of_eight_bits():
    nodes, constants = normed(*variance("max", of="a"), "a", (1, 16, 1, 1))
    random = np.random.default_rng(5)
    nodes.insert(0, oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]))
    nodes += [
        oh.make_node("Relu", ["shifted"], ["r"], "relu"),
        oh.make_node("Conv", ["r", "head"], ["y"], "head", pads=[1, 1, 1, 1]),
    ]
    model = network(nodes, constants | {"stem": he(random, 16, 3, 3, 3), "head": he(random, 8, 16, 3, 3)}, ["y"])
    sizes, colours = random.uniform(0.2, 2, (12, 1, 1, 1, 1)), 6 * random.standard_normal((12, 1, 3, 1, 1))
    feeds = [{"x": photo.astype(np.float32)} for photo in sizes * random.standard_normal((12, 1, 3, 16, 16)) + colours]
    images = Images(feeds[:8], feeds[8:])
    result = quantize_static(model, statistics_of(model, feeds[:8]), Int8(placement="all", repair=False), images)
    assert sqnr(model, result.model, feeds[8:])["y"] > 20
