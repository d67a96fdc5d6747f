"""PlainTransposedPass: Slices behind a ConvTranspose are its pads, channels that do not mix are groups, and the others stay."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run

from octavo.graph.passes.forms.plain_transposed import PlainTransposedPass
from octavo.graph.prepared import prepared

GENERATOR = np.random.default_rng(5)
MOST = np.iinfo(np.int64).max
MIXED = GENERATOR.standard_normal((4, 4, 4, 4)).astype(np.float32)
APART = MIXED * np.eye(4, dtype=np.float32)[:, :, None, None]


def made_larger(weights: np.ndarray, cut: tuple | None = None, *, open_sizes: bool = False, **attributes: object) -> ir.Model:
    tensors = {"w": weights, "b": GENERATOR.standard_normal(weights.shape[1]).astype(np.float32)}
    nodes = [
        oh.make_node("Relu", ["x"], ["r"], "act"),
        oh.make_node("ConvTranspose", ["r", "w", "b"], ["t"], "up", **{"strides": [2, 2], **attributes}),
        oh.make_node("Relu", ["t" if cut is None else "s"], ["y"], "last"),
    ]
    if cut is not None:
        names = [f"cut{place}" for place in range(len(cut))]
        tensors |= {name: np.array(given, np.int64) for name, given in zip(names, cut, strict=True)}
        nodes.insert(2, oh.make_node("Slice", ["t", *names], ["s"], "cut"))
    return network(nodes, tensors, ["y"], inputs={"x": ["n", 4, "h", "w"] if open_sizes else [1, 4, 5, 7]})


def held(model: ir.Model) -> ir.Node:
    """The one ConvTranspose that a rewrite leaves, with the same values."""
    feeds = {"x": GENERATOR.standard_normal((1, 4, 5, 7)).astype(np.float32)}
    wanted = run(model, feeds)["y"]
    assert PlainTransposedPass()(model).modified
    assert [node.op_type for node in model.graph] == ["Relu", "ConvTranspose", "Relu"]
    np.testing.assert_allclose(run(model, feeds)["y"], wanted, atol=1e-5)
    used = {value.name for node in model.graph for value in node.inputs if value.is_initializer()}
    assert set(model.graph.initializers) == used
    assert not PlainTransposedPass()(model).modified
    return next(node for node in model.graph if node.op_type == "ConvTranspose")


@pytest.mark.parametrize(
    ("cut", "pads"),
    [
        (([1, 1], [11, 15], [2, 3]), (1, 1, 1, 1)),
        (([1, 0], [-2, MOST], [2, 3]), (1, 0, 2, 0)),
        (([2], [14], [-1], [1]), (0, 2, 0, 2)),
    ],
)
def test_what_is_cut_off_is_padding(cut, pads):
    node = held(made_larger(MIXED, cut))
    assert node.attributes.get_ints("pads") == pads
    assert node.name == "up"


def test_cut_at_open_sizes():
    assert held(made_larger(MIXED, ([1, 1], [-1, -1], [2, 3]), open_sizes=True)).attributes.get_ints("pads") == (1, 1, 1, 1)
    assert not PlainTransposedPass()(made_larger(MIXED, ([1, 1], [9, 9], [2, 3]), open_sizes=True)).modified


def test_channels_that_do_not_mix_are_groups():
    node = held(made_larger(APART, pads=[1, 1, 1, 1]))
    assert node.attributes.get_int("group") == 4
    assert list(node.inputs[1].shape) == [4, 1, 4, 4]
    both = held(made_larger(APART, ([1, 1], [-1, -1], [2, 3])))
    assert both.attributes.get_int("group") == 4
    assert both.attributes.get_ints("pads") == (1, 1, 1, 1)


@pytest.mark.parametrize(
    "made",
    [
        lambda: made_larger(MIXED),
        lambda: made_larger(MIXED, ([0], [3], [1])),
        lambda: made_larger(MIXED, ([-9], [11], [2])),
        lambda: made_larger(MIXED, ([0], [8], [2])),
        lambda: made_larger(MIXED, ([0], [11], [2], [2])),
        lambda: made_larger(MIXED, ([1, 1], [11, 15], [2, 3]), auto_pad="VALID"),
        lambda: made_larger(APART[:1, :1].repeat(4, 0), output_padding=[1, 1]),
        lambda: made_larger(APART[:, :1], group=4),
    ],
)
def test_others_are_left_alone(made):
    model = made()
    before = [node.op_type for node in model.graph]
    assert not PlainTransposedPass()(model).modified
    assert [node.op_type for node in model.graph] == before


def test_others_that_read_it_keep_it():
    model = made_larger(MIXED, ([1, 1], [-1, -1], [2, 3]))
    model.graph.outputs.append(next(node for node in model.graph if node.name == "up").outputs[0])
    assert not PlainTransposedPass()(model).modified


def test_networks_are_quantized_so():
    ready = prepared(made_larger(APART, ([1, 1], [-1, -1], [2, 3])))
    assert [node.op_type for node in ready.graph] == ["Relu", "ConvTranspose", "Relu"]
