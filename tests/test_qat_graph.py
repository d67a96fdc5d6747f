"""Captured graphs: batch norm folded and not, fake quantization, where it goes, and the ONNX file that comes of it."""

import copy

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from graphs import network, run
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from qat_graphs import exported, images, prepared
from small_module import small, with_statistics
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

from octavo.errors import QuantizationError, SourceError
from octavo.qat import convert
from octavo.qat.batch_norm import fold, folded_weight, fuse, normalise_batches
from octavo.qat.bias_correction import correct_biases
from octavo.qat.capture import capture, moved
from octavo.qat.culprits import keep_culprits_float
from octavo.qat.fake_quantize import ActivationFakeQuantize, WeightFakeQuantize
from octavo.qat.integers import IntegerKernels
from octavo.qat.losses import relative_error
from octavo.qat.ptq import take_roundings
from octavo.qat.quantizer import LAYERS, OrtQuantizer
from octavo.qat.start import activations, as_float, observe, start_ranges
from octavo.quantization.int8.solution import RoundedLayer
from octavo.quantization.qdq_decisions import qdq_decisions
from octavo.runtime.kernels import optimized_nodes
from octavo.runtime.session import Session


def own_network(**settings) -> nn.Module:
    torch.manual_seed(1)
    return with_statistics(small(**settings)).eval()


def test_a_captured_graph_computes_what_the_module_does_for_any_batch_and_nothing_in_place():
    module = own_network()
    captured = capture(module, images())
    for count in (1, 2, 5):
        assert torch.equal(captured(images(count)), module(images(count)))
    assert not [
        node for node in captured.graph.nodes if str(node.target).split(".")[1:2] and str(node.target).split(".")[1].endswith("_")
    ]


def test_a_module_that_branches_on_values_is_refused_with_the_way_out():
    class Branching(nn.Module):
        def forward(self, image):
            return image * 2 if image.sum() > 0 else image

    with pytest.raises(SourceError, match="cannot capture the network") as error:
        capture(Branching(), images())
    assert "qat.enabled" in error.value.mend


class ConvNorm(nn.Sequential):
    def __init__(self, *, groups=1, bias=False, eps=1e-3, momentum=0.1, affine=True, dead=False):
        super().__init__(
            nn.Conv2d(4, 8, 3, padding=1, groups=groups, bias=bias), nn.BatchNorm2d(8, eps=eps, momentum=momentum, affine=affine)
        )
        norm = self[1]
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.1, 3)
        if affine:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            if dead:
                norm.weight.data[2] = 0


@settings(max_examples=15, deadline=None)
@given(
    groups=st.sampled_from((1, 2, 4)),
    bias=st.booleans(),
    eps=st.sampled_from((1e-5, 1e-3)),
    momentum=st.sampled_from((0.1, 0.3)),
    affine=st.booleans(),
    dead=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_batch_norm_fused_or_folded_computes_the_same_and_learns_the_same_statistics(seed, **kind):
    torch.manual_seed(seed)
    module = ConvNorm(**kind).eval()
    example = torch.randn(3, 4, 9, 9)
    reference = copy.deepcopy(module)
    captured = capture(module, example)
    assert fuse(captured) == 1
    torch.testing.assert_close(captured(example), reference(example), rtol=1e-4, atol=1e-4)

    normalise_batches(captured, True)
    torch.testing.assert_close(captured(example), reference.train()(example), rtol=1e-3, atol=1e-3)
    normalise_batches(captured, False)
    torch.testing.assert_close(module[1].running_mean, reference[1].running_mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(module[1].running_var, reference[1].running_var, rtol=1e-3, atol=1e-3)

    before = captured(example)
    fold(captured)
    torch.testing.assert_close(captured(example), before, rtol=1e-4, atol=1e-4)
    assert not any("batch_norm" in str(node.target) for node in captured.graph.nodes)


def test_both_forms_of_a_fused_layer_train_the_same_parameters():
    """With running statistics equal to the batch's, gradients of both forms exist for weight, gamma and beta."""
    module = ConvNorm(bias=True)
    captured = capture(module, torch.randn(2, 4, 8, 8))
    fuse(captured)
    for on in (False, True):
        normalise_batches(captured, on)
        captured.zero_grad()
        captured(torch.randn(4, 4, 8, 8)).square().sum().backward()
        named = dict(module.named_parameters())
        assert all(named[name].grad is not None for name in ("0.weight", "1.weight", "1.bias"))
        assert named["0.weight"].grad.abs().sum() > 0


def fake(low, high, *, symmetric=False) -> ActivationFakeQuantize:
    scheme = torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine
    module = ActivationFakeQuantize(torch.uint8, 0, 255, scheme)
    module.enable_observer(False)
    module.start(low, high)
    return module


@settings(max_examples=40, deadline=None)
@given(low=st.floats(-50, 0, width=32), high=st.floats(0, 50, width=32), symmetric=st.booleans(), seed=st.integers(0, 1000))
def test_fake_quantization_gives_what_q_and_dq_of_onnx_runtime_give(low, high, symmetric, seed):
    module = fake(low, high, symmetric=symmetric)
    values = torch.randn(64, generator=torch.Generator().manual_seed(seed)) * max(high - low, 1)
    scale, zero = module.calculate_qparams()
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, [], scale.tolist()),
        helper.make_tensor("z", TensorProto.UINT8, [], zero.tolist()),
    ]
    io = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", io[:1], io[1:], constants), opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 8
    got = ort.InferenceSession(model.SerializeToString()).run(None, {"x": values.numpy()})[0]
    # A tie may round to the other neighbour: one step.
    np.testing.assert_allclose(module(values).numpy(), got, atol=float(scale) * 1.001)
    assert (np.abs(module(values).numpy() - got) > float(scale) / 2).mean() < 0.1
    assert module(torch.zeros(1)).item() == 0, "zero has a code of its own"
    # Biases count in steps of the scale of what a layer reads: that of a tensor of zeros must not be next to nothing.
    assert 255 * float(scale) <= max(high - low, 2 * max(-low, high)) + 1e-5 if high > low else float(scale) == 1


def test_a_range_that_was_given_follows_the_extremes_at_its_share_of_them():
    module = ActivationFakeQuantize(torch.uint8, 0, 255, torch.per_tensor_affine)
    module.start(-1.0, 2.0)  # calibration clipped the tail: half of what comes by
    module(torch.tensor([-2.0, 4.0]))
    assert (module.low.item(), module.high.item()) == pytest.approx((-1.0, 2.0))
    for _ in range(2000):
        module(torch.tensor([-4.0, 8.0]))
    assert (module.low.item(), module.high.item()) == pytest.approx((-2.0, 4.0), rel=1e-3)
    module.enable_observer(False)
    module(torch.tensor([-100.0, 100.0]))
    assert module.high.item() == pytest.approx(4.0, rel=1e-3), "frozen"


def test_a_learned_scale_has_a_gradient_and_moves():
    module = fake(0.0, 1.0)
    module.gain.requires_grad_(True)
    values = torch.rand(1000) * 4  # most of it is clipped: a larger scale is better
    before = module.calculate_qparams()[0].item()
    optimizer = torch.optim.Adam([module.gain], lr=0.05)
    for _ in range(50):
        optimizer.zero_grad()
        (module(values) - values).square().mean().backward()
        assert torch.isfinite(module.gain.grad)
        optimizer.step()
    assert module.calculate_qparams()[0].item() > 2 * before


def test_every_layer_becomes_an_integer_kernel_and_the_file_answers_as_the_network(tmp_path):
    module = own_network()
    quantizer = OrtQuantizer()
    quantized, model, path = exported(prepared(module, quantizer), tmp_path)
    assert len(quantizer.quantized) == 5
    kernels = [node.op_type for node in optimized_nodes(path)]
    assert kernels.count("QLinearConv") == 4
    assert kernels.count("QGemm") == 1
    assert {"QLinearAdd", "QLinearConcat"} <= set(kernels)
    assert not {"Conv", "FusedConv", "Gemm", "Add"} & set(kernels)
    decided = qdq_decisions(model)
    assert {each.precision for each in decided if each.op_type in ("Conv", "Gemm", "Add", "Concat", "MaxPool")} == {"int8"}

    batch = images(16, seed=9)
    # As Octavo opens it: on a CPU without VNNI default kernels saturate.
    got = Session(path).run({"image": batch.numpy()})["output"]
    with torch.inference_mode():
        np.testing.assert_array_equal(got, IntegerKernels(quantized).run(batch).numpy())
        near = quantized(batch).numpy()
    assert np.abs(got - near).max() <= 0.02 * np.abs(near).max(), "in float a few codes differ, no more"


def test_weights_are_int8_and_biases_int32_in_the_accumulators_steps(tmp_path):
    _, _, path = exported(prepared(own_network()), tmp_path)
    graph = onnx.load(path).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    convs = [node for node in graph.node if node.op_type in ("Conv", "Gemm")]
    assert len(convs) == 5
    for node in convs:
        weight, bias = makers[node.input[1]], makers[node.input[2]]
        assert constants[weight.input[0]].data_type == TensorProto.INT8
        assert constants[bias.input[0]].data_type == TensorProto.INT32
        read = constants[makers[node.input[0]].input[1]]
        steps = onnx.numpy_helper.to_array(read) * onnx.numpy_helper.to_array(constants[weight.input[1]])
        np.testing.assert_allclose(onnx.numpy_helper.to_array(constants[bias.input[1]]), steps.ravel(), rtol=1e-6)
        assert np.ndim(onnx.numpy_helper.to_array(constants[weight.input[1]])) == 1, "a scale for each output channel"


def test_symmetric_per_tensor_is_what_every_runtime_reads(tmp_path):
    _, _, path = exported(prepared(own_network(), OrtQuantizer(per_channel=False, symmetric=True)), tmp_path)
    graph = onnx.load(path).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    zeros = {int(constants[node.input[2]]) for node in graph.node if node.op_type == "QuantizeLinear"}
    assert zeros == {128}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in constants and constants[node.input[0]].dtype == np.int8:
            assert constants[node.input[1]].size == 1
    assert [node.op_type for node in optimized_nodes(path)].count("QLinearConv") == 4


@pytest.mark.parametrize("level", ["off", "basic", "extended", "all"])
def test_a_layer_that_is_called_twice_loads_with_exact_kernels(level, monkeypatch, tmp_path):
    # As torch's exporter writes it: one DequantizeLinear of the weights for both calls.
    generator = np.random.default_rng(5)
    tensors = {
        "scale": np.float32(0.02),
        "zero": np.uint8(128),
        "codes": generator.integers(-127, 128, (16, 16, 3, 3)).astype(np.int8),
        "steps": generator.uniform(0.001, 0.002, 16).astype(np.float32),
        "zeros": np.zeros(16, np.int8),
        "bias": generator.standard_normal(16).astype(np.float32),
    }
    node, rounding = helper.make_node, ["scale", "zero"]
    nodes = [node("DequantizeLinear", ["codes", "steps", "zeros"], ["w"], "w", axis=0)]
    for source, target in (("x", "a"), ("a", "b")):
        nodes += [
            node("QuantizeLinear", [source, *rounding], [f"{target}.q"], f"{target}.q"),
            node("DequantizeLinear", [f"{target}.q", *rounding], [f"{target}.r"], f"{target}.r"),
            node("Conv", [f"{target}.r", "w", "bias"], [target], f"{target}.conv", pads=[1, 1, 1, 1]),
        ]
    nodes += [node("QuantizeLinear", ["b", *rounding], ["q"], "q"), node("DequantizeLinear", ["q", *rounding], ["y"], "y")]
    graph = network(nodes, tensors, ["y"], inputs={"x": [1, 16, 8, 8]})
    feeds = {"x": generator.standard_normal((1, 16, 8, 8)).astype(np.float32)}
    wanted = run(graph, feeds, optimization="off")["y"]
    monkeypatch.setattr(convert, "export", lambda *_, **__: (graph, []))
    model, _ = convert.as_onnx(None, None, ["y"], image_input="x", opset=18, dynamic={}, scratch=tmp_path)
    stored = [tensor for tensor in ir.to_proto(model).graph.initializer if tensor.data_type == TensorProto.INT8 and tensor.dims[1:]]
    assert len(stored) == 1, "the file has the weights once"
    assert {each.node: each.precision for each in qdq_decisions(model)} == {"a.conv": "int8", "b.conv": "int8"}
    got = run(model, feeds, optimization=level, entries={"session.x64quantprecision": "1"})["y"]
    assert np.abs(got - wanted).max() <= 1.01 * tensors["scale"]


# Operators between codes, with the attributes and constants that they need.
BETWEEN = {
    "Sigmoid": ({}, []),
    "LeakyRelu": ({"alpha": 0.1}, []),
    "Softmax": ({}, []),
    "GlobalAveragePool": ({}, []),
    "MaxPool": ({"kernel_shape": [2, 2]}, []),
    "HardSwish": ({}, []),
    "HardSigmoid": ({}, []),
    "Tanh": ({}, []),
    "Elu": ({}, []),
    "Mish": ({}, []),
    "Relu": ({}, []),
    "Clip": ({}, [np.float32(0), np.float32(2)]),
    "Resize": ({"mode": "nearest"}, [np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)]),
    "Resize, linear": ({"mode": "linear"}, [np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)]),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_stands_between_codes_is_int8_where_it_has_a_kernel_for_them(name):
    """HardSwish was written down as int8, with no kernel beside it, and computed in float."""
    op_type, (attributes, constants) = name.split(",")[0], BETWEEN[name]
    tensors = {f"c{place}": value for place, value in enumerate(constants)}
    rounding = ["scale", "zero"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *rounding], ["xq"], "xq"),
        helper.make_node("DequantizeLinear", ["xq", *rounding], ["xd"], "xd"),
        helper.make_node(op_type, ["xd", *tensors], ["m"], "between", **attributes),
        helper.make_node("QuantizeLinear", ["m", *rounding], ["mq"], "mq"),
        helper.make_node("DequantizeLinear", ["mq", *rounding], ["y"], "yd"),
    ]
    model = network(nodes, {"scale": np.float32(0.02), "zero": np.uint8(128)} | tensors, ["y"], inputs={"x": [1, 8, 4, 4]})
    kinds = {node.kind for node in optimized_nodes(ir.to_proto(model).SerializeToString())}
    assert [each.precision for each in qdq_decisions(model)] == ["float" if "float" in kinds else "int8"]


@pytest.mark.parametrize("pattern", ["wide", "deep.*", "linear"])
def test_keep_float_is_really_float(tmp_path, pattern):
    quantizer = OrtQuantizer(keep_float=(pattern,))
    _, _, path = exported(prepared(own_network(), quantizer), tmp_path)
    kept = {"wide": ["wide"], "deep.*": ["deep.0", "deep.3"], "linear": ["head"]}[pattern]
    assert quantizer.kept == kept
    kernels = [node.op_type for node in optimized_nodes(path)]
    assert sum(kernels.count(op) for op in ("QLinearConv", "QGemm")) == 5 - len(kept)
    assert sum(kernels.count(op) for op in ("Conv", "FusedConv", "Gemm", "FusedGemm")) == len(kept)


def test_keep_float_that_names_nothing_names_what_is_near():
    with pytest.raises(QuantizationError, match="'wid'") as error:
        prepared(own_network(), OrtQuantizer(keep_float=("wid",)))
    assert "wide" in error.value.mend
    with pytest.raises(QuantizationError, match="no layer is left"):
        prepared(own_network(), OrtQuantizer(keep_float=("*",)))


def test_what_only_leads_to_the_outputs_stays_float(tmp_path):
    class Decoding(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = own_network(maps=True)

        def forward(self, image):
            found = self.body(image).flatten(2)
            return torch.cat([found[:, :2] * 8 + 4, found[:, 2:].sigmoid()], 1)

    _, model, path = exported(prepared(Decoding().eval()), tmp_path)
    kinds = {each.op_type: each.precision for each in qdq_decisions(model) if each.op_type in ("Mul", "Sigmoid")}
    assert kinds == {"Mul": "float", "Sigmoid": "float"}
    assert [node.op_type for node in optimized_nodes(path)].count("QLinearConv") == 5


def test_the_mean_of_a_distribution_is_no_layer(tmp_path):
    """Box edges as YOLOv8 decodes them, beside scores in one map."""

    class Decoding(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = own_network(maps=True)
            self.head = nn.Conv2d(4, 4 * 8 + 3, 1)
            self.mean = nn.Conv2d(8, 1, 1, bias=False)

        def forward(self, image):
            edges, scores = self.head(self.body(image)).flatten(2).split((32, 3), 1)
            edges = edges.reshape(image.shape[0], 4, 8, -1).transpose(2, 1).softmax(1)
            return torch.cat([self.mean(edges).squeeze(1), scores.sigmoid()], 1)

    quantizer = OrtQuantizer()
    _, model, path = exported(prepared(Decoding().eval(), quantizer), tmp_path)
    assert "head" in quantizer.quantized
    assert "mean" not in quantizer.quantized
    kinds = {each.op_type: each.precision for each in qdq_decisions(model) if each.op_type in ("Softmax", "Sigmoid", "Concat")}
    assert set(kinds.values()) == {"float"}
    kernels = [node.op_type for node in optimized_nodes(path)]
    assert kernels.count("QLinearConv") == 6
    assert len([kernel for kernel in kernels if kernel in ("Conv", "FusedConv")]) == 1, "the mean"


def test_ranges_are_found_by_what_tensors_hold(tmp_path):
    """The ONNX graph of another exporter, with other names and batch norm folded."""
    module = own_network()
    torch.onnx.export(module, (images(1),), str(tmp_path / "fp32.onnx"), dynamo=False, input_names=["image"], opset_version=17)
    graph = onnx.load(tmp_path / "fp32.onnx")
    names = [name for node in graph.graph.node for name in node.output if node.op_type != "Constant"]
    graph.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name != graph.graph.output[0].name)
    session = ort.InferenceSession(graph.SerializeToString())
    image = images(1, seed=5)
    found = dict(zip([value.name for value in session.get_outputs()], session.run(None, {"image": image.numpy()}), strict=True))
    ranges = {name: (float(value.min()) - 1, float(value.max()) + 1) for name, value in found.items()} | {"image": (-9.0, 9.0)}
    captured = capture(module, images())
    fuse(captured)
    graph = prepare_qat_pt2e(captured, OrtQuantizer())
    count, total = start_ranges(graph, image, (found | {"image": image.numpy()}).items(), ranges)
    assert count == total == len(activations(graph))
    assert all(fake.known == 1 for fake in activations(graph).values())


def test_biases_take_back_the_mean_shift_of_rounded_weights():
    torch.manual_seed(0)
    module = ConvNorm().eval()
    batch = torch.rand(16, 4, 12, 12)
    captured = capture(module, batch[:2])
    fuse(captured)
    graph = prepare_qat_pt2e(captured, OrtQuantizer())
    observe(graph, [batch])

    def shift():
        with torch.no_grad(), as_float(graph):
            expected = reference(batch)
            for fake in graph.modules():
                if isinstance(fake, WeightFakeQuantize):
                    fake.rounding = True
            return (graph(batch) - expected).mean((0, 2, 3)).abs().max().item()

    reference = copy.deepcopy(module)
    before = shift()
    assert correct_biases(graph, [batch]) == 1
    assert shift() < before / 20


def test_roundings_of_ptq_are_what_fake_quantization_gives():
    """Codes that no rounding to nearest would choose, on scales that leave codes unused."""
    module = own_network()
    graph = prepared(module)
    folded = {node.name: folded_weight(graph, node) for node in graph.graph.nodes if node.target in LAYERS}
    generator = np.random.default_rng(0)
    layers = []
    for weight in folded.values():
        weight = weight.numpy()
        over = tuple(range(1, weight.ndim))
        scale = np.maximum(np.abs(weight).max(over), 1e-6).astype(np.float32) / 100
        codes = np.rint(weight / scale.reshape(-1, *[1] * len(over))) + generator.integers(-1, 2, weight.shape)
        rounded = (codes * scale.reshape(-1, *[1] * len(over))).astype(np.float32)
        layers.append(RoundedLayer(weight, rounded, scale, 0, generator.standard_normal(len(weight)) * 0.1))
    before = copy.deepcopy(graph)
    assert take_roundings(graph, layers[::-1]) == set(folded)
    image = images(4)
    for (name, _), layer in zip(folded.items(), layers, strict=True):
        node = next(node for node in graph.graph.nodes if node.name == name)
        fake = graph.get_submodule(node.args[1].target)
        got = fake(folded_weight(graph, node)).detach().numpy()
        np.testing.assert_allclose(got, layer.rounded, rtol=2e-5, atol=1e-7)
    # One bias moved by one: so does that channel, before anything is rounded.
    alone = copy.deepcopy(before)
    first = RoundedLayer(layers[0].weight, layers[0].weight, layers[0].scale, 0, np.eye(1, len(layers[0].weight))[0] * 0.5)
    take_roundings(alone, [first])
    with torch.no_grad(), as_float(alone), as_float(before):
        assert not torch.allclose(alone(image), before(image))
    assert (
        take_roundings(copy.deepcopy(before), [RoundedLayer(first.weight + 1, first.rounded, first.scale, 0, first.bias_shift)])
        == set()
    )


def test_a_tensor_that_one_scale_cannot_serve_stays_float_and_no_other():
    class Joined(nn.Module):
        """Features of some hundredths beside an image in 0..255; what reads them scales both alike."""

        def __init__(self):
            super().__init__()
            self.body = nn.Conv2d(3, 8, 3, 1, 1)
            self.norm = nn.BatchNorm2d(11)
            self.head = nn.Conv2d(11, 4, 1)
            nn.init.normal_(self.body.weight, 0, 1e-5)
            self.norm.running_var[:8] = 1e-5
            self.norm.running_var[8:] = 5e3

        def forward(self, image):
            return self.head(self.norm(torch.cat([self.body(image), image], 1)))

    torch.manual_seed(0)
    module = Joined().eval()
    batch = images(4) * 60
    captured = capture(module, batch)
    fuse(captured)
    graph = prepare_qat_pt2e(captured, OrtQuantizer())
    observe(graph, [batch])
    for fake in activations(graph).values():
        fake.enable_observer(False)
    count = len(activations(graph))

    def named(run):
        return lambda inputs: {"output": run(inputs)}

    assert keep_culprits_float(graph, named(module), named(graph), batch) == ["cat"]
    assert len(activations(graph)) == count - 1
    with torch.no_grad():
        noise = float(relative_error(named(graph)(batch), named(module)(batch)))
    assert -10 * np.log10(noise) > 15
    assert keep_culprits_float(graph, named(module), named(graph), batch) == []


def test_a_graph_that_makes_tensors_moves_with_them():
    class Grid(nn.Module):
        def forward(self, image):
            return image + torch.arange(image.shape[3], device=image.device)

    captured = capture(Grid(), images())
    made = [node for node in captured.graph.nodes if "device" in node.kwargs]
    assert made
    moved(captured, torch.device("meta"))
    assert captured(images().to("meta")).device.type == "meta"
    moved(captured, torch.device("cpu"))
    assert torch.equal(captured(images()), Grid()(images()))
