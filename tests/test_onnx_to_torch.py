"""module_of_graph: each operator as ONNX Runtime computes it, traced by torch.export with an open batch; networks that learn."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
import torch
from conftest import small_network
from graphs import he, run
from grid_detector import grid_detector
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from octavo.errors import SourceError
from octavo.graph.clean import clean
from octavo.sources.checks import compare_with_graph
from octavo.sources.onnx_module import OnnxModule, refuse_fixed_batch
from octavo.sources.onnx_to_torch import module_of_graph
from octavo.sources.torch_export import export, named_outputs, reference

GENERATOR = np.random.default_rng(5)
TYPES = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(np.int64): onnx.TensorProto.INT64}
IMAGE = (3, 8, 10)


def floats(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def graph(
    nodes: list[onnx.NodeProto],
    tensors: dict[str, np.ndarray] | None = None,
    *,
    shape: tuple = IMAGE,
    batch: str | int = "batch",
    outputs: tuple[str, ...] = ("y",),
    opset: int = 20,
) -> ir.Model:
    """A graph with inferred shapes from the image `x`, [batch, *shape] float32."""
    proto = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, *shape])],
        [oh.make_empty_tensor_value_info(name) for name in outputs],
        [onh.from_array(np.asarray(value), name) for name, value in (tensors or {}).items()],
    )
    model = oh.make_model(proto, opset_imports=[oh.make_opsetid("", opset)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    for value in inferred.graph.output:
        if not value.type.WhichOneof("value"):  # of an operator that the package infers nothing for
            value.CopyFrom(oh.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, None))
    return ir.from_proto(inferred)


def one(op_type: str, *operands: str | np.ndarray | None, results: int = 1, **options: object) -> ir.Model:
    """One operator on `x` and constants; `options` are `graph`'s, or attributes."""
    tensors = {f"c{place}": value for place, value in enumerate(operands) if isinstance(value, np.ndarray | np.generic)}
    names = [value if isinstance(value, str) else "" if value is None else f"c{place}" for place, value in enumerate(operands)]
    outputs = ("y", "y1", "y2", "y3")[:results]
    around = {key: options.pop(key) for key in ("shape", "batch", "opset") if key in options}
    return graph([oh.make_node(op_type, names, outputs, "the_node", **options)], tensors, outputs=outputs, **around)


def fed(model: ir.Model, images: np.ndarray) -> dict[str, np.ndarray]:
    return run(model, {"x": images})


def differ(wanted: dict[str, np.ndarray], got: dict[str, torch.Tensor], tolerance: float = 2e-5) -> None:
    assert list(wanted) == list(got)
    for name, value in wanted.items():
        mine = got[name].detach().numpy()
        assert (mine.shape, mine.dtype) == (value.shape, value.dtype), name
        scale = np.abs(value[np.isfinite(value)]).max(initial=0)
        np.testing.assert_allclose(mine, value, rtol=tolerance, atol=tolerance * scale)


def exported(module: nn.Module, images: np.ndarray) -> nn.Module:
    batch = torch.export.Dim("batch")
    return torch.export.export(module, (torch.from_numpy(images),), dynamic_shapes=({0: batch},)).module()


def alike(model: ir.Model, *, positive: bool = False, trace: bool = True) -> OnnxModule:
    """As ONNX Runtime, and traced at batch 2 the same at batch 3."""
    shape = list(model.graph.inputs[0].shape)[1:]
    images = floats(3, *shape)
    images = np.abs(images) + np.float32(0.1) if positive else images
    module = module_of_graph(model, "x")
    with torch.no_grad():
        differ(fed(model, images), module(torch.from_numpy(images)))
        if trace:
            differ(fed(model, images), exported(module, images[:2])(torch.from_numpy(images)))
    return module


# One operator after the other


ACTIVATIONS = {
    "Abs": {},
    "Atan": {},
    "Ceil": {},
    "Celu": {"alpha": 0.7},
    "Cos": {},
    "Elu": {"alpha": 0.7},
    "Erf": {},
    "Exp": {},
    "Floor": {},
    "Gelu": {"approximate": "tanh"},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "HardSwish": {},
    "Identity": {},
    "LeakyRelu": {"alpha": 0.2},
    "LogSoftmax": {"axis": 1},
    "Mish": {},
    "Neg": {},
    "Reciprocal": {},
    "Relu": {},
    "Round": {},
    "Selu": {},
    "Shrink": {"lambd": 0.3, "bias": 0.1},
    "Sigmoid": {},
    "Sign": {},
    "Sin": {},
    "Softmax": {"axis": 1},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 0.4},
    "LRN": {"size": 3, "alpha": 0.2},
    "LpNormalization": {"axis": 1, "p": 2},
    "GlobalAveragePool": {},
    "GlobalMaxPool": {},
    "Flatten": {"axis": 2},
    "Transpose": {"perm": [0, 2, 3, 1]},
    "Dropout": {},
}


@pytest.mark.parametrize("op_type", ACTIVATIONS)
def test_operators_of_one_operand(op_type):
    alike(one(op_type, "x", **ACTIVATIONS[op_type]))


@pytest.mark.parametrize("op_type", ["Log", "Sqrt", "Reciprocal"])
def test_operators_of_positive_operands(op_type):
    alike(one(op_type, "x"), positive=True)


@pytest.mark.parametrize("op_type", ["Elu", "Gelu", "HardSigmoid", "LeakyRelu", "Softmax", "Celu", "Flatten", "Selu"])
def test_attributes_have_onnx_defaults(op_type):
    alike(one(op_type, "x"))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean"])
@pytest.mark.parametrize(
    "other", [np.float32(1.5), floats(1), floats(3, 1, 1), floats(1, 3, 8, 10), floats(8, 1)], ids=lambda v: str(v.shape)
)
@pytest.mark.parametrize("first", [True, False])
def test_a_constant_beside_the_image(op_type, other, first):
    alike(one(op_type, *(("x", other) if first else (other, "x"))), trace=first)


@pytest.mark.parametrize("op_type", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons_choose(op_type):
    nodes = [
        oh.make_node("Round", ["x"], ["whole"]),
        oh.make_node(op_type, ["whole", "zero"], ["found"]),
        oh.make_node("Not", ["found"], ["other"]),
        oh.make_node("Less", ["x", "zero"], ["below"]),
        oh.make_node("And", ["other", "below"], ["both"]),
        oh.make_node("Or", ["found", "both"], ["any"]),
        oh.make_node("Xor", ["any", "below"], ["odd"]),
        oh.make_node("Where", ["odd", "x", "zero"], ["y"]),
    ]
    alike(graph(nodes, {"zero": np.float32(0)}))


def test_integers_divide_towards_zero():
    nodes = [
        oh.make_node("Mul", ["x", "ten"], ["wide"]),
        oh.make_node("Cast", ["wide"], ["whole"], to=onnx.TensorProto.INT64),
        oh.make_node("Div", ["whole", "three"], ["y"]),
        oh.make_node("Mod", ["whole", "three"], ["y1"]),
        oh.make_node("Mod", ["wide", "half"], ["y2"], fmod=1),
    ]
    tensors = {"ten": np.float32(10), "half": np.float32(2.5), "three": ints(3)}
    alike(graph(nodes, tensors, outputs=("y", "y1", "y2")))


@pytest.mark.parametrize("exponent", [np.float32(2), np.float32(3), ints(2), floats(3, 1, 1) ** 2])
def test_powers(exponent):
    alike(one("Pow", "x", np.asarray(exponent)), positive=True)


BOUNDS = {
    "relu6": (0, 6, nn.ReLU6),
    "relu": (0, None, nn.ReLU),
    "hardtanh": (-0.5, 0.7, nn.Hardtanh),
    "below": (None, 0.3, None),
    "none": (None, None, nn.Identity),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_clip_is_the_activation_that_it_is(name):
    low, high, kind = BOUNDS[name]
    operands = [None if bound is None else np.float32(bound) for bound in (low, high)]
    module = alike(one("Clip", "x", *operands))
    assert kind is None or type(module.the_node) is kind


def test_clip_by_what_is_computed():
    alike(
        graph([oh.make_node("ReduceMean", ["x"], ["mean"], keepdims=0), oh.make_node("Clip", ["x", "", "mean"], ["y"])]),
        trace=False,
    )


REDUCTIONS = "L1 L2 LogSumExp Max Mean Min Prod Sum SumSquare".split()


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize(("axes", "keep"), [([1], 1), ([-1, 2], 0), ([2, 3], 1)])
def test_reductions(kind, axes, keep):
    alike(one(f"Reduce{kind}", "x", ints(*axes), keepdims=keep))


def test_reductions_of_an_older_opset_name_axes_in_an_attribute():
    alike(one("ReduceMax", "x", axes=[1, 2], keepdims=0, opset=17))
    alike(one("ReduceL2", "x", axes=[3], opset=17))


def test_a_mean_over_the_image_is_pooling():
    module = module_of_graph(one("ReduceMean", "x", ints(-1, -2), keepdims=0), "x")
    program = torch.export.export(module, (torch.rand(2, *IMAGE),))
    assert "adaptive_avg_pool2d" in str(program.graph)


def test_choices():
    alike(one("ArgMax", "x", axis=1, keepdims=0))
    alike(one("ArgMin", "x", axis=-1))
    alike(one("TopK", "x", ints(4), axis=-1, results=2))
    alike(one("TopK", "x", ints(2), axis=1, largest=0, results=2))


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumulated_sums(exclusive, reverse):
    alike(one("CumSum", "x", np.array(2, np.int64), exclusive=exclusive, reverse=reverse))


def test_einsum():
    alike(one("Einsum", "x", floats(3, 4), equation="bchw,cd->bdhw"))


# Layers


spatial_sizes = st.tuples(st.integers(7, 11), st.integers(7, 11))  # no window is wider


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    spatial=st.integers(1, 2),
    kernel=st.integers(1, 3),
    auto=st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]),
    groups=st.sampled_from([1, 2, 4]),
)
def test_convolutions(data, spatial, kernel, auto, groups):
    sizes = st.lists(st.integers(1, 2), min_size=spatial, max_size=spatial)
    attributes = {"strides": data.draw(sizes), "group": groups, "auto_pad": auto}
    if auto == "NOTSET":
        attributes |= {"dilations": data.draw(sizes)}
        attributes["pads"] = data.draw(st.lists(st.integers(0, 2), min_size=2 * spatial, max_size=2 * spatial))
    shape = (4, *data.draw(st.lists(st.integers(6, 9), min_size=spatial, max_size=spatial)))
    operands = [he(GENERATOR, 8, 4 // groups, *[kernel] * spatial)] + ([floats(8)] if data.draw(st.booleans()) else [])
    alike(one("Conv", "x", *operands, shape=shape, **attributes), trace=False)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), kernel=st.integers(1, 4), groups=st.sampled_from([1, 2]), bias=st.booleans(), wanted=st.booleans())
def test_transposed_convolutions(data, kernel, groups, bias, wanted):
    strides, dilations = (data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=2)) for _ in range(2))
    attributes = {"strides": strides, "dilations": dilations, "group": groups}
    attributes["output_padding"] = [data.draw(st.integers(0, stride - 1)) for stride in strides]
    reach = [(kernel - 1) * dilation for dilation in dilations]
    if wanted:
        full = [stride * (size - 1) + far + 1 for stride, size, far in zip(strides, (5, 6), reach, strict=True)]
        attributes["output_shape"] = [
            data.draw(st.integers(max(length - far, 1), length)) for length, far in zip(full, reach, strict=True)
        ]
    else:
        attributes["pads"] = [data.draw(st.integers(0, min(2, far))) for far in reach * 2]
    operands = [floats(4, 3, kernel, kernel)] + ([floats(3 * groups)] if bias else [])
    alike(one("ConvTranspose", "x", *operands, shape=(4, 5, 6), **attributes), trace=False)


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    kind=st.sampled_from(["MaxPool", "AveragePool"]),
    kernel=st.integers(2, 4),
    auto=st.sampled_from(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER"]),
    flags=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_pools(data, kind, kernel, auto, flags):
    attributes = {"kernel_shape": [kernel, kernel], "strides": data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))}
    if auto == "NOTSET":
        attributes |= {"pads": data.draw(st.lists(st.integers(0, kernel - 1), min_size=4, max_size=4)), "ceil_mode": flags[0]}
    else:
        attributes |= {"auto_pad": auto, "strides": [min(stride, kernel) for stride in attributes["strides"]]}
    if kind == "AveragePool":
        attributes["count_include_pad"] = flags[1]
    elif auto == "NOTSET":
        attributes["dilations"] = data.draw(st.lists(st.integers(1, 2), min_size=2, max_size=2))
    alike(one(kind, "x", shape=(2, *data.draw(spatial_sizes)), **attributes), trace=False)


def test_convolutions_and_pools_are_torchs_own():
    """Padding that torch has stays inside; padding that it has not stands before."""
    even = alike(one("Conv", "x", floats(4, 3, 3, 3), pads=[1, 1, 1, 1]))
    assert type(even.the_node) is nn.Conv2d
    assert even.the_node.padding == (1, 1)
    odd = alike(one("Conv", "x", floats(4, 3, 3, 3), pads=[0, 0, 1, 1]))
    assert [type(part) for part in odd.the_node] == [nn.ZeroPad2d, nn.Conv2d]
    assert type(alike(one("MaxPool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1])).the_node) is nn.MaxPool2d
    assert type(alike(one("ConvTranspose", "x", floats(3, 2, 2, 2), strides=[2, 2])).the_node) is nn.ConvTranspose2d
    alike(one("MaxPool", "x", kernel_shape=[2, 2], auto_pad="SAME_UPPER", strides=[1, 1]))
    alike(one("AveragePool", "x", kernel_shape=[2, 2], pads=[0, 0, 1, 1]))
    assert type(alike(one("Conv", "x", floats(4, 3, 3), shape=(3, 9))).the_node) is nn.Conv1d
    assert type(alike(one("Conv", "x", floats(4, 3, 3, 1, 2), shape=(3, 5, 4, 6))).the_node) is nn.Conv3d


GEMMS = {
    "classifier": ((floats(5, 6), floats(5)), {"transB": 1}, nn.Linear),
    "no bias": ((floats(6, 5),), {}, nn.Linear),
    "scaled": ((floats(6, 5), floats(1, 5)), {"alpha": 0.5, "beta": 2.0}, nn.Linear),
    "one bias": ((floats(5, 6), floats(1)), {"transB": 1}, nn.Linear),
}


@pytest.mark.parametrize("name", GEMMS)
def test_gemm_of_constants_is_linear(name):
    operands, attributes, kind = GEMMS[name]
    assert type(alike(one("Gemm", "x", *operands, shape=(6,), **attributes)).the_node) is kind


def test_gemm_of_what_is_computed():
    nodes = [
        oh.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        oh.make_node("Gemm", ["x", "turned", "c"], ["y"], "free", alpha=0.5, beta=0.25),
        oh.make_node("Gemm", ["turned", "w"], ["y1"], "turned_a", transA=1, transB=1),
        oh.make_node("Gemm", ["w", "x"], ["y2"], "left", transB=1),
    ]
    model = graph(nodes, {"c": floats(1, 1), "w": floats(5, 6)}, shape=(6,), outputs=("y", "y1", "y2"))
    alike(model, trace=False)


def test_matrix_products_take_their_bias():
    nodes = [
        oh.make_node("MatMul", ["x", "w"], ["product"], "product"),
        oh.make_node("Add", ["b", "product"], ["sum"], "bias"),
        oh.make_node("MatMul", ["sum", "v"], ["kept"], "kept"),
        oh.make_node("Add", ["kept", "b"], ["y"], "apart"),
        oh.make_node("MatMul", ["left", "y"], ["y1"], "from_left"),
    ]
    tensors = {"w": floats(10, 6), "b": floats(6), "v": floats(6, 6), "left": floats(3, 3, 8)}
    module = alike(graph(nodes, tensors, outputs=("y", "kept", "y1")))
    assert type(module.product) is nn.Linear
    assert module.product.bias is not None
    assert module.kept.bias is None, "the graph gives the product itself too"
    assert dict(module.named_parameters())["constants.left"].shape == (3, 3, 8)


NORMALIZATIONS = {
    "BatchNormalization": ((floats(3), floats(3), floats(3), floats(3) ** 2 + np.float32(0.1)), {"epsilon": 1e-3}, nn.BatchNorm2d),
    "InstanceNormalization": ((floats(3), floats(3)), {"epsilon": 1e-3}, nn.InstanceNorm2d),
    "LayerNormalization": ((floats(8, 10), floats(8, 10)), {"axis": 2}, nn.LayerNorm),
}


@pytest.mark.parametrize("op_type", NORMALIZATIONS)
def test_normalizations(op_type):
    operands, attributes, kind = NORMALIZATIONS[op_type]
    assert type(alike(one(op_type, "x", *operands, **attributes)).the_node) is kind


def test_normalizations_of_other_shapes():
    alike(one("LayerNormalization", "x", floats(10)))
    alike(one("LayerNormalization", "x", floats(1), floats(8, 10), axis=-2))
    alike(one("GroupNormalization", "x", floats(6), floats(6), shape=(6, 4, 5), num_groups=2, opset=21))
    alike(one("GroupNormalization", "x", floats(2), floats(2), shape=(6, 4, 5), num_groups=2, opset=20))
    module = alike(one("BatchNormalization", "x", *NORMALIZATIONS["BatchNormalization"][0], shape=(3,)))
    assert type(module.the_node) is nn.BatchNorm1d


@pytest.mark.parametrize(
    ("slope", "kind"), [(floats(3, 1, 1), nn.PReLU), (floats(1), nn.PReLU), (floats(8, 1), None), (floats(1, 3, 8, 10), None)]
)
def test_prelu(slope, kind):
    module = alike(one("PRelu", "x", slope))
    assert kind is None or type(module.the_node) is kind
    assert [parameter.numel() for parameter in module.parameters()] == [slope.size]


# What moves values


MOVES = {
    "reshape": one("Reshape", "x", ints(0, -1, 5)),
    "reshape with zeros of its own": one("Reshape", "x", ints(-1, 3, 80), allowzero=1),
    "squeeze": one("Squeeze", "x", ints(1), shape=(1, 4)),
    "unsqueeze": one("Unsqueeze", "x", ints(0, -1), shape=(4,)),
    "expand": one("Expand", "x", ints(2, 1, 1, 4, 1), shape=(1, 1, 5)),
    "tile": one("Tile", "x", ints(1, 2, 1, 3)),
    "concat": one("Concat", "x", "x", axis=-1),
    "split": one("Split", "x", ints(3, 4, 3), axis=3, results=3),
    "split evenly": one("Split", "x", axis=3, num_outputs=4, results=4),
    "gather": one("Gather", "x", ints(2, 0, -1), axis=2),
    "gather a matrix": one("Gather", "x", np.array([[0, 1], [2, -3]]), axis=1),
    "gather one": one("Gather", "x", np.array(-2), axis=3),
    "depth to space": one("DepthToSpace", "x", shape=(8, 3, 4), blocksize=2),
    "depth to space, columns first": one("DepthToSpace", "x", shape=(8, 3, 4), blocksize=2, mode="CRD"),
    "space to depth": one("SpaceToDepth", "x", shape=(2, 6, 4), blocksize=2),
    "triangle": one("Trilu", "x", np.array(1), upper=0),
    "cast": one("Cast", "x", to=onnx.TensorProto.INT32),
    "cast to bool": one("Cast", "x", to=onnx.TensorProto.BOOL),
    "is nan": one("IsNaN", "x"),
    "is inf": one("IsInf", "x"),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    alike(MOVES[name])


def test_a_squeeze_without_axes_leaves_the_batch():
    alike(graph([oh.make_node("Squeeze", ["x"], ["y"])], shape=(1, 4, 1), batch=3))


def test_gathers_and_scatters_by_what_is_computed():
    nodes = [
        oh.make_node("TopK", ["x", "k"], ["best", "places"], axis=1),
        oh.make_node("GatherElements", ["x", "places"], ["y"], axis=1),
        oh.make_node("Unsqueeze", ["places", "last"], ["pairs"]),
        oh.make_node("GatherND", ["x", "pairs"], ["y1"], batch_dims=1),
        oh.make_node("ScatterElements", ["x", "places", "y"], ["y2"], axis=1),
        oh.make_node("Shape", ["x"], ["shape"]),
        oh.make_node("OneHot", ["places", "depth", "values"], ["y3"], axis=-1),
        oh.make_node("Transpose", ["x"], ["rows"], perm=[1, 0]),
        oh.make_node("Gather", ["rows", "some"], ["few"]),
        oh.make_node("ScatterND", ["rows", "where", "few"], ["y4"]),
    ]
    tensors = {
        "k": ints(4),
        "last": ints(-1),
        "depth": ints(9),
        "values": np.array([0.5, 2], np.float32),
        "some": ints(1, 2),
        "where": np.array([[0], [-1]]),
    }
    alike(graph(nodes, tensors, shape=(9,), outputs=("y", "y1", "y2", "y3", "y4")))


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    mode=st.sampled_from(["constant", "reflect", "edge", "wrap"]),
    axes=st.sampled_from([None, [2, 3], [-1], [1, -2]]),
)
def test_pads(data, mode, axes):
    count = 3 if axes is None else len(axes)
    ends = [data.draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count)) for _ in range(2)]
    if axes is None:
        ends = [[0, *end] for end in ends]
    if axes is None or 1 in axes:
        place = 1 if axes is None else 0
        for end in ends:
            end[place] = max(min(end[place], 1), 0)  # of two channels
    operands = [ints(*ends[0], *ends[1]), np.float32(0.5) if mode == "constant" else None] + ([] if axes is None else [ints(*axes)])
    alike(one("Pad", "x", *operands, shape=(2, 5, 6), mode=mode), trace=False)


LARGEST = np.iinfo(np.int64).max
# ONNX recommends the largest number forwards and the smallest backwards for an end that is not known.
cuts = st.tuples(st.integers(-12, 12), st.integers(-12, 12) | st.just(LARGEST), st.sampled_from([1, 2, 3])) | st.tuples(
    st.integers(-12, 12), st.integers(-12, 12) | st.just(-LARGEST), st.sampled_from([-1, -3])
)


@settings(max_examples=80, deadline=None)
@given(first=cuts, second=cuts)
def test_slices(first, second):
    starts, ends, steps = (ints(*pair) for pair in zip(first, second, strict=True))
    alike(one("Slice", "x", starts, ends, ints(2, -1), steps), trace=False)


RESIZES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["nearest", "linear"]),
        "coordinate_transformation_mode": st.sampled_from(
            ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
        ),
        "nearest_mode": st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    }
)


@settings(max_examples=100, deadline=None)
@given(
    attributes=RESIZES,
    sizes=st.none() | spatial_sizes | st.just((1, 7)),
    scales=st.tuples(*[st.sampled_from([0.5, 0.75, 1.0, 1.3, 2.0, 3.0])] * 2),
)
def test_resizes(attributes, sizes, scales):
    operands = [None, np.array(scales, np.float32)] if sizes is None else [None, None, ints(*sizes)]
    alike(one("Resize", "x", *operands, axes=[2, 3], **attributes), trace=False)


def test_resizes_that_torch_has():
    for attributes, scale, name in [
        ({"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, 2, "upsample_nearest2d"),
        ({"mode": "nearest"}, 3, "upsample_nearest2d"),
        ({"mode": "linear"}, 2, "upsample_bilinear2d"),
        ({"mode": "cubic"}, 2, "upsample_bicubic2d"),
        ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, 2, "upsample_bilinear2d"),
    ]:
        model = one("Resize", "x", None, np.array([1, 1, scale, scale], np.float32), **attributes)
        module = alike(model)
        assert name in str(torch.export.export(module, (torch.rand(2, *IMAGE),)).graph)
    alike(one("Resize", "x", None, np.array([1, 2, 1, 1], np.float32)))
    alike(one("Resize", "x", np.zeros(0, np.float32), np.array([1, 1, 1, 1], np.float32)))


# Sizes


def sized(*nodes: tuple, shape: tuple = IMAGE, outputs: tuple[str, ...] = ("y",), **constants: np.ndarray) -> ir.Model:
    """Nodes as (operator, operands, results, attributes); `_` is an operand that is not given."""
    made = [
        oh.make_node(op_type, ["" if name == "_" else name for name in names.split()], results.split(), **(rest[0] if rest else {}))
        for op_type, names, results, *rest in nodes
    ]
    return graph(made, {key: np.asarray(value) for key, value in constants.items()}, shape=shape, outputs=outputs)


SIZES = {
    "a flattened batch": sized(
        ("Shape", "x", "shape"),
        ("Gather", "shape zero", "batch"),
        ("Unsqueeze", "batch zeros", "first"),
        ("Concat", "first rest", "target", {"axis": 0}),
        ("Reshape", "x target", "y"),
        zero=np.array(0),
        zeros=ints(0),
        rest=ints(-1),
    ),
    "heads of attention": sized(
        ("Shape", "x", "batch", {"end": 1}),
        ("Shape", "x", "size", {"start": -2}),
        ("ReduceProd", "size", "pixels", {"keepdims": 1}),
        ("Concat", "batch three pixels", "target", {"axis": 0}),
        ("Reshape", "x target", "y"),
        three=ints(3),
    ),
    "an expand to what is not -1": sized(
        ("Shape", "x", "shape"),
        ("Slice", "shape one two", "first"),
        ("Concat", "minus first", "wanted", {"axis": 0}),
        ("Equal", "wanted minus", "free"),
        ("Where", "free ones wanted", "target"),
        ("Expand", "row target", "grid"),
        ("Add", "x grid", "y"),
        shape=(4,),
        minus=ints(-1),
        ones=ints(1),
        one=ints(1),
        two=ints(2),
        row=floats(1, 4),
    ),
    "a grid": sized(
        ("Shape", "x", "shape"),
        ("Gather", "shape three", "width"),
        ("Range", "zero width one", "columns"),
        ("Cast", "columns", "whole", {"to": onnx.TensorProto.FLOAT}),
        ("Add", "x whole", "y"),
        three=np.array(3),
        zero=np.array(0),
        one=np.array(1),
    ),
    "as many zeros as the batch has images": sized(
        ("Shape", "x", "shape"),
        ("ConstantOfShape", "shape", "zeros", {"value": onh.from_array(np.array([2.5], np.float32))}),
        ("Sub", "x zeros", "y"),
    ),
    "half the image": sized(
        ("Shape", "x", "shape"),
        ("Gather", "shape two", "height"),
        ("Div", "height three", "third"),
        ("Slice", "x zero third two", "y"),
        two=ints(2),
        three=ints(3),
        zero=ints(0),
    ),
    "another map's size": sized(
        ("AveragePool", "x", "small", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Shape", "x", "shape"),
        ("Shape", "small", "small_shape"),
        ("Slice", "small_shape zero two", "first"),
        ("Slice", "shape two four", "last"),
        ("Concat", "first last", "sizes", {"axis": 0}),
        ("Resize", "small _ _ sizes", "y", {"mode": "linear"}),
        zero=ints(0),
        two=ints(2),
        four=ints(4),
    ),
    "a scale of the size": sized(
        ("Shape", "x", "size", {"start": 2}),
        ("Cast", "size", "real", {"to": onnx.TensorProto.FLOAT}),
        ("Mul", "real scale", "larger"),
        ("Floor", "larger", "whole"),
        ("Cast", "whole", "sizes", {"to": onnx.TensorProto.INT64}),
        ("Neg", "sizes", "negative"),
        ("Max", "negative least", "starts"),
        ("Slice", "x starts sizes axes", "y"),
        scale=np.float32(0.7),
        least=ints(-8, -9),
        axes=ints(2, 3),
    ),
    "sizes among the values": sized(
        ("Shape", "x", "shape"),
        ("Size", "x", "count"),
        ("Squeeze", "shape", "same"),
        ("Split", "same one_three", "batch rest"),
        ("Mod", "rest four", "odd"),
        ("Less", "odd two", "low"),
        ("Where", "low rest two", "chosen"),
        ("Cast", "batch", "real", {"to": onnx.TensorProto.FLOAT}),
        ("Mul", "x real", "y"),
        ("Add", "chosen batch", "y1"),
        ("Identity", "count", "y2"),
        one_three=ints(1, 3),
        four=ints(4),
        two=ints(2),
        outputs=("y", "y1", "y2"),
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_stay_open(name):
    alike(SIZES[name])


def test_height_and_width_may_be_open_too():
    nodes = [
        ("Resize", "x _ twice", "large", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        ("Resize", "x _ twice", "same", {"nearest_mode": "round_prefer_ceil"}),
        ("Resize", "x _ twice", "smooth", {"mode": "linear"}),
        ("Shape", "x", "shape"),
        ("Resize", "large _ _ shape", "again", {"mode": "linear"}),
        ("Sub", "x again", "y"),
    ]
    model = sized(
        *nodes,
        shape=(3, "height", "width"),
        outputs=("y", "large", "same", "smooth"),
        twice=np.array([1, 1, 2, 2], np.float32),
    )
    dims = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    traced = torch.export.export(module_of_graph(model, "x"), (torch.rand(2, 3, 6, 8),), dynamic_shapes=(dims,)).module()
    images = floats(3, 3, 9, 5)
    differ(fed(model, images), traced(torch.from_numpy(images)))


def test_a_detector_of_many_outputs():
    model = cleaned(ir.from_proto(grid_detector(size=64)))
    module = module_of_graph(model, "image")
    images = floats(3, 3, 64, 64)
    wanted = run(model, {"image": images})
    assert len(wanted) == 6
    differ(wanted, module(torch.from_numpy(images)))
    differ(wanted, named_outputs(exported(module, images[:2])(torch.from_numpy(images))))


def test_a_reversed_shape_and_sizes_of_sizes():
    alike(
        sized(
            ("Shape", "x", "shape"),
            ("Slice", "shape minus smallest zero minus", "turned"),
            ("Gather", "turned places", "back"),
            ("Reshape", "back two", "pairs"),
            ("ReduceProd", "pairs one", "target", {"keepdims": 0}),
            ("Reshape", "x target", "y"),
            minus=ints(-1),
            smallest=ints(-LARGEST),
            zero=ints(0),
            places=ints(3, 2, 1, 0),
            two=ints(2, -1),
            one=ints(1),
        )
    )


# Whole networks


def step(module: nn.Module, images: torch.Tensor, rate: float) -> tuple[float, float]:
    """Distillation loss before and after one step of Adam, from weights that were shaken."""
    teacher = {name: value.detach() for name, value in module(images).items()}
    student = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.mul_(1 + 0.05 * torch.randn(parameter.shape, generator=generator))

    def loss() -> torch.Tensor:
        given = {name: value for name, value in student(images).items() if value.is_floating_point()}
        return sum((value - teacher[name]).square().mean() for name, value in given.items())

    before = [parameter.detach().clone() for parameter in student.parameters()]
    first = loss()
    first.backward()
    torch.optim.Adam(student.parameters(), lr=rate).step()
    for old, new in zip(before, student.parameters(), strict=True):
        assert not torch.equal(old, new) or new.grad.abs().max() < 1e-6
    return float(first.detach()), float(loss().detach())


def cleaned(model: ir.Model) -> ir.Model:
    clean(model, 18)
    return model


@pytest.mark.parametrize("batch", ["batch", 1])
def test_a_small_network_learns(batch):
    """A fixed batch of one is opened."""
    model = cleaned(ir.from_proto(small_network(batch=batch)))
    module = module_of_graph(model, "image")
    assert {type(part) for part in module.children()} >= {nn.Conv2d, nn.ReLU, nn.ReLU6, nn.Linear}
    assert dict(module.named_buffers()) == {}
    assert {name for name, _ in module.named_parameters()} >= {"stem.weight", "stem.bias", "depth.weight", "head.weight"}
    images = floats(4, 3, 32, 32)
    alone = [run(model, {"image": images[place : place + 1]})["logits"] for place in range(4)]
    differ({"logits": np.concatenate(alone)}, module(torch.from_numpy(images)))
    refuse_fixed_batch(module, torch.from_numpy(images[:2]))
    before, after = step(module, torch.from_numpy(images), 1e-3)
    assert after < before
    assert module.training is False


class Windows(nn.Module):
    """Patches as a sequence, attention and layer norms, then a map again: what a transformer's graph holds."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.place = nn.Parameter(torch.randn(1, 64, 16))
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        patches = self.patches(image)
        batch, channels, height, width = patches.shape
        encoded = self.encoder(patches.flatten(2).transpose(1, 2) + self.place)
        grid = encoded.transpose(1, 2).reshape(batch, channels, height, width)
        wide = nn.functional.interpolate(grid, scale_factor=2, mode="bilinear")
        return {"logits": self.head(encoded.mean(1)), "map": wide.softmax(1), "classes": wide.argmax(1)}


class Batched(nn.Module):
    """Batch normalizations that no convolution can take in, slopes a channel, and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.slopes = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.PReLU(8)
        self.back = nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        values = self.norm(self.slopes(self.first(image)))
        return self.back(values * values.mean((2, 3), keepdim=True).sigmoid())


def mobilenet() -> nn.Module:
    from torchvision import models

    network = models.mobilenet_v2(num_classes=10)
    # Statistics as training leaves them: with those of an untrained network nothing of the image reaches the end.
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        network.train()(torch.randn(8, 3, 64, 64))
    return network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "exporter"),
    [(mobilenet, "torchscript"), *((make, exporter) for make in (Windows, Batched) for exporter in ("dynamo", "torchscript"))],
)
def test_exported_networks_come_back(make, exporter, tmp_path):
    """From either exporter: as ONNX Runtime, as the source, traced again with any batch; one step of Adam lowers the loss."""
    torch.manual_seed(3)
    source = make().eval()
    side = 64 if make is mobilenet else 32
    example = torch.randn(3, 3, side, side)
    with torch.no_grad():
        wanted = named_outputs(source(example))
    model, _ = export(source, example, list(wanted), exporter=exporter, opset=18, dynamic={0: "batch"}, scratch=tmp_path)
    model = cleaned(model)
    module = module_of_graph(model, "input")
    refuse_fixed_batch(module, example[:2])
    traced = exported(module, example[:2].numpy())
    for count in (1, 2, 3):
        outputs = run(model, {"input": example[:count].numpy()})
        with torch.no_grad():
            differ(outputs, module(example[:count]), 1e-4)
            differ(outputs, traced(example[:count]), 1e-4)
    with torch.no_grad():
        differ({name: value.numpy() for name, value in wanted.items()}, named_outputs(module(example)), 1e-4)
    figures = compare_with_graph(reference(module), [example.numpy()], [run(model, {"input": example.numpy()})])
    assert figures["max_abs_diff"] < 1e-4 * figures["largest_output"]
    before, after = step(module, example, 1e-5)
    assert after < before
    # All matrices but the constant that is added; batch normalizations may be part of convolutions now.
    layers = sum(value.numel() for name, value in source.named_parameters() if value.dim() > 1 and name != "place")
    assert sum(parameter.numel() for parameter in module.parameters()) > layers


def test_a_module_unlike_its_graph_is_refused():
    model = one("Relu", "x")
    images = floats(1, *IMAGE)
    with pytest.raises(SourceError, match=r"the torch module made of the graph differs from the graph by .*\n.*kind: torch"):
        compare_with_graph(lambda tensor: {"y": np.maximum(tensor, 0.5)}, [images], [fed(model, images)])


def test_one_constant_is_one_parameter():
    """A head that reads several maps, as detectors have it."""
    nodes = [
        oh.make_node("Conv", ["x", "w", "b"], ["a"], "fine", pads=[1] * 4),
        oh.make_node("MaxPool", ["x"], ["small"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("Conv", ["small", "w", "b"], ["c"], "coarse", pads=[1] * 4),
    ]
    module = alike(graph(nodes, {"w": floats(4, 3, 3, 3), "b": floats(4)}, outputs=("a", "c")))
    assert module.fine.weight is module.coarse.weight
    assert len(list(module.parameters())) == 2


def test_names_that_a_module_cannot_have():
    names = ["training", "/block.0/Relu", "block_0_Relu", "7", "forward"]
    values = ["x", "a/b", "c.d", "constants", "steps", "y"]
    nodes = [oh.make_node("Relu", [values[place]], [values[place + 1]], name) for place, name in enumerate(names)]
    nodes.append(oh.make_node("Add", ["x", "a.b"], ["out/put:0"], "a sum"))
    module = alike(graph(nodes, {"a.b": floats(3, 1, 1)}, outputs=("out/put:0", "y")))
    assert [module.node_names[name] for name, _ in module.named_children() if name != "constants"] == [*names, "a sum"]


def test_an_input_or_a_constant_as_output():
    nodes = [oh.make_node("Relu", ["x"], ["y"], "relu"), oh.make_node("Identity", ["x"], ["same"], "i")]
    nodes.append(oh.make_node("Constant", [], ["fixed"], value=onh.from_array(floats(2))))
    alike(graph(nodes, outputs=("fixed", "same", "y")), trace=False)


def test_values_are_kept_no_longer_than_they_are_read():
    module = module_of_graph(ir.from_proto(small_network()), "image")
    values = {"image": torch.rand(1, 3, 32, 32)}
    held = [len(values) for _ in module.walk(values)]
    assert set(values) == {"image", "logits"}
    assert max(held) <= 4


# What cannot be


def test_all_that_has_no_counterpart_is_listed():
    branch = oh.make_graph([oh.make_node("Relu", ["x"], ["inner"])], "b", [], [oh.make_empty_tensor_value_info("inner")])
    nodes = [
        oh.make_node("NonZero", ["x"], ["places"], "first"),
        oh.make_node("NonZero", ["x"], ["more"], "second"),
        oh.make_node("Reshape", ["x", "more"], ["shaped"], "by_value"),
        oh.make_node("If", ["yes"], ["chosen"], "branch", then_branch=branch, else_branch=branch),
        oh.make_node("Fancy", ["chosen"], ["fancy"], "custom", domain="acme"),
        oh.make_node("Resize", ["x", "", "scales"], ["y"], "blur", mode="linear", antialias=1),
        oh.make_node("BatchNormalization", ["x"] + ["c"] * 4, ["z", "", ""], "norm", training_mode=1),
    ]
    proto = oh.make_model(
        oh.make_graph(
            nodes,
            "g",
            [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])],
            [oh.make_empty_tensor_value_info(name) for name in ("places", "shaped", "fancy", "y", "z")],
            [
                onh.from_array(floats(3), "c"),
                onh.from_array(np.ones(4, np.float32), "scales"),
                onh.from_array(np.array(True), "yes"),
            ],
        ),
        opset_imports=[oh.make_opsetid("", 18), oh.make_opsetid("acme", 1)],
    )
    with pytest.raises(SourceError) as refused:
        module_of_graph(ir.from_proto(proto), "x")
    for part in [
        "2 NonZero (first, second)",
        "1 Reshape (by_value): its 'more', a shape or the like, is computed from the image's values",
        "1 If (branch)",
        "1 acme::Fancy (custom): it is of the domain 'acme'",
        "1 Resize (blur): `antialias`",
        "1 BatchNormalization (norm): it stands in training mode",
        "kind: torch",
    ]:
        assert part in str(refused.value)


VARIANTS = {
    "the places of its maxima": lambda: one("MaxPool", "x", kernel_shape=[2, 2], results=2),
    "the last of equal values": lambda: one("ArgMax", "x", select_last_index=1),
    "an average over a dilated window": lambda: one("AveragePool", "x", kernel_shape=[2, 2], dilations=[2, 2]),
    "its weight is not a constant": lambda: graph(
        [oh.make_node("ReduceSum", ["x", "c"], ["s"]), oh.make_node("Conv", ["x", "s"], ["y"])], {"c": ints(0)}
    ),
    "cubic with `cubic_coeff_a`": lambda: one(
        "Resize", "x", None, np.array([1, 1, 2, 2], np.float32), mode="cubic", cubic_coeff_a=-0.5
    ),
    "a reduction over no axis": lambda: one("ReduceSum", "x", noop_with_empty_axes=1),
    "an even number of channels": lambda: one("LRN", "x", size=2),
    "`reduction` mul": lambda: one("ScatterND", "x", np.array([[0]]), floats(1, *IMAGE), reduction="mul"),
    "its mean or deviation is read": lambda: one("LayerNormalization", "x", floats(10), results=2),
}


@pytest.mark.parametrize("reason", VARIANTS)
def test_variants_without_a_counterpart(reason):
    with pytest.raises(SourceError) as refused:
        module_of_graph(VARIANTS[reason](), "x")
    assert reason in str(refused.value)


def test_other_inputs_and_old_opsets():
    model = graph([oh.make_node("Relu", ["x"], ["y"])])
    with pytest.raises(SourceError, match=r"which 'image' takes; its inputs: 'x'"):
        module_of_graph(model, "image")
    with pytest.raises(SourceError, match=r"opset 11, and can be trained from 13"):
        module_of_graph(graph([oh.make_node("Relu", ["x"], ["y"])], opset=11), "x")


def test_an_error_while_running_names_the_node():
    module = module_of_graph(one("Conv", "x", floats(4, 3, 3, 3)), "x")
    with pytest.raises(RuntimeError) as failed:
        module(torch.rand(1, 5, 8, 10))
    assert "at node 'the_node' (Conv)" in failed.value.__notes__[0]


def test_a_batch_fixed_inside_is_named():
    """A literal is repaired; what is not either mixes two images or fails with them."""
    opened = module_of_graph(one("Reshape", "x", ints(1, 3, 80), batch=1), "x")
    refuse_fixed_batch(opened, torch.rand(2, *IMAGE))
    sizes = one("Resize", "x", None, None, ints(1, IMAGE[0], 16, 20), batch=1, mode="linear")
    refuse_fixed_batch(module_of_graph(sizes, "x"), torch.rand(2, *IMAGE))
    nodes = [
        oh.make_node("Relu", ["x"], ["a"], "relu"),
        oh.make_node("Transpose", ["a"], ["b"], "turn", perm=[0, 2, 3, 1]),
        oh.make_node("Reshape", ["b", "c"], ["y"], "flat"),
    ]
    mixes = graph(nodes, {"c": ints(80, -1)}, batch=1)
    module = module_of_graph(mixes, "x")
    differ(fed(mixes, images := floats(1, *IMAGE)), module(torch.from_numpy(images)))
    with pytest.raises(SourceError, match=r"output 'y' .* mixed at node 'flat' \(Reshape\)\n.*one image a step"):
        refuse_fixed_batch(module, torch.rand(2, *IMAGE))
    literal = graph([nodes[0], oh.make_node("Reshape", ["a", "c"], ["y"], "flat")], {"c": ints(240)}, batch=1)
    with pytest.raises(SourceError, match=r"a batch of two fails at node 'flat' \(Reshape\).*\n.*dynamic_batch: true"):
        refuse_fixed_batch(module_of_graph(literal, "x"), torch.rand(2, *IMAGE))


def test_the_graph_is_left_as_it_is():
    model = ir.from_proto(small_network(batch=1))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    module = module_of_graph(model, "image")
    step(module, torch.rand(2, 3, 32, 32), 1e-2)
    with torch.no_grad():
        module.stem.weight.zero_()
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
