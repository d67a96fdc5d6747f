"""The converted network in integer arithmetic gives ONNX Runtime's codes, every one of them."""

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from qat_graphs import exported, images, prepared
from small_module import with_statistics
from torch import nn
from torch.nn import functional as F  # noqa: N812

from octavo.qat.capture import channels_last
from octavo.qat.integers import IntegerKernels
from octavo.qat.quantizer import OrtQuantizer
from octavo.qat.start import activations
from octavo.runtime.kernels import optimized_nodes
from octavo.runtime.session import Session

NO_VNNI = {"session.x64quantprecision": "1"}


def conv(before, after, kernel=3, relu=nn.ReLU, **settings):
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False, **settings), nn.BatchNorm2d(after), relu()
    )


class Blocks(nn.Module):
    """Everything that has an integer kernel which rounds: layers, sums, products, means."""

    def __init__(self):
        super().__init__()
        self.stem = conv(3, 12, stride=2)
        self.depthwise = conv(12, 12, groups=12, relu=nn.ReLU6)
        self.point = nn.Sequential(nn.Conv2d(12, 12, 1, bias=False), nn.BatchNorm2d(12))
        self.gate = nn.Conv2d(12, 12, 1)
        self.wide = conv(24, 40)
        self.hidden = nn.Linear(40, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, image):
        found = self.stem(image)
        found = found + self.point(self.depthwise(found))
        found = found * self.gate(found).sigmoid()
        found = torch.cat([F.avg_pool2d(found, 3, 1, 1), F.max_pool2d(found, 3, 1, 1)], 1)
        found = F.interpolate(self.wide(found), scale_factor=2, mode="nearest")
        return self.head(F.relu(self.hidden(F.adaptive_avg_pool2d(found, 1).flatten(1))))


class Means(nn.Module):
    """A mean over both axes, which drops them; a sum of one tensor with itself; a bounded activation; PReLU; maps come out."""

    def __init__(self):
        super().__init__()
        self.bend = nn.PReLU(8)
        nn.init.uniform_(self.bend.weight, -0.5, 0.9)
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, image):
        found = F.hardtanh(self.first(image), 0.0, 2.0)
        found = self.last(self.bend(found + found - self.first(image)))
        return found, self.head(found.mean((2, 3)))


def both(network, tmp_path, quantizer=None, names=("output",), count=3):
    graph = channels_last(prepared(network.eval(), quantizer))  # as stage qat has it
    quantized, _, path = exported(graph, tmp_path, names=names)
    kernels, session = IntegerKernels(quantized), Session(path)
    for seed in range(count):
        image = images(1, seed=seed + 10)
        with torch.no_grad():
            found = kernels.run(image)
        found = found if isinstance(found, tuple | list) else [found]
        yield [value.numpy() for value in found], list(session.run({"image": image.numpy()}).values())


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), per_channel=st.booleans(), symmetric=st.booleans())
def test_every_code_is_onnx_runtime_s(tmp_path_factory, seed, per_channel, symmetric):
    torch.manual_seed(seed)
    quantizer = OrtQuantizer(per_channel=per_channel, symmetric=symmetric)
    for mine, theirs in both(with_statistics(Blocks()), tmp_path_factory.mktemp("net"), quantizer):
        np.testing.assert_array_equal(mine[0], theirs[0])


def test_several_outputs_means_that_drop_axes_and_sums_of_one_tensor(tmp_path):
    torch.manual_seed(0)
    for mine, theirs in both(Means(), tmp_path, names=("maps", "output")):
        for value, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(value, other)
    kernels = [node.op_type for node in optimized_nodes(tmp_path / "model.onnx")]
    assert "QLinearGlobalAveragePool" in kernels
    assert "Gather" not in kernels


@pytest.mark.slow
def test_all_rounding_kernels_are_fused_and_the_float_graph_is_another_matter(tmp_path):
    """The float graph of a network of fifty layers differs from its own file; in integers there is nothing to differ."""
    torch.manual_seed(0)
    network = nn.Sequential(conv(3, 16), *[conv(16, 16) for _ in range(50)], nn.Conv2d(16, 4, 1))
    graph = prepared(with_statistics(network).eval())
    quantized, _, path = exported(graph, tmp_path)
    kernels, image = IntegerKernels(quantized), images(4, seed=5)
    assert len(kernels.fused) == sum(node.op_type == "QLinearConv" for node in optimized_nodes(path)) == 52
    truth = Session(path).run({"image": image.numpy()})["output"]
    with torch.no_grad():
        np.testing.assert_array_equal(kernels.run(image).numpy(), truth)
        assert (quantized(image).numpy() != truth).any()


@pytest.mark.parametrize("keep", ["conv2d", "linear"])
def test_what_stays_float_runs_as_it_stands(tmp_path, keep):
    torch.manual_seed(0)
    for mine, theirs in both(with_statistics(Blocks()), tmp_path, OrtQuantizer(keep_float=[keep])):
        np.testing.assert_allclose(mine[0], theirs[0], atol=np.abs(theirs[0]).max() / 50)


def test_weights_whose_sums_float32_cannot_hold_are_summed_in_float64(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(conv(3, 600), nn.Conv2d(600, 4, 3))
    with torch.no_grad():
        network[1].weight.copy_(network[1].weight.abs())
    for mine, theirs in both(with_statistics(network), tmp_path, count=1):
        np.testing.assert_array_equal(mine[0], theirs[0])


@pytest.mark.parametrize("steep", [False, True])
def test_prelu_runs_in_integers_where_no_slope_is_above_one(tmp_path, steep):
    torch.manual_seed(0)
    bend = nn.PReLU(8)
    nn.init.uniform_(bend.weight, -0.5, 0.9)
    bend.weight.data[0] = 0
    bend.weight.data[1] = 1.5 if steep else 1
    network = nn.Sequential(nn.Conv2d(3, 8, 3), bend, nn.Conv2d(8, 8, 3), nn.PReLU(), nn.Conv2d(8, 4, 1))
    for mine, theirs in both(network, tmp_path):
        np.testing.assert_allclose(mine[0], theirs[0], atol=1e-6 if not steep else np.abs(theirs[0]).max() / 50)
    kernels = [node.op_type for node in optimized_nodes(tmp_path / "model.onnx")]
    assert kernels.count("Max") == (1 if steep else 2)
    assert kernels.count("QLinearConv") == (4 if steep else 5)
    assert "PRelu" not in kernels
    assert ("Conv" in kernels) == steep


def test_layers_whose_weights_or_inputs_are_nothing_keep_their_biases(tmp_path):
    """CGNet's gates: the hidden ReLU is always zero, and a bias in steps of nothing would not fit int32."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    with torch.no_grad():
        network[0].weight[0] = 0
        network[0].weight[1] *= 1e-12
        network[2].bias -= 100
    for mine, theirs in both(network, tmp_path):
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_allclose(theirs[0].mean((0, 2, 3)), network[4].bias.detach().numpy(), atol=0.01)
    for node in onnx.load(tmp_path / "model.onnx").graph.node:
        assert node.op_type != "Conv" or node.input[2].endswith(".bias.restored")


@pytest.mark.parametrize("relu", [nn.ReLU6, lambda: nn.Hardtanh(0.0, 2.0)])
def test_a_learned_range_stays_inside_of_what_an_activation_lets_through(tmp_path, relu):
    """Beyond it the Clip would stay, and the layer run in float."""
    torch.manual_seed(0)
    graph = prepared(nn.Sequential(nn.Conv2d(3, 8, 3), relu(), nn.Conv2d(8, 4, 1)).eval())
    for fake in activations(graph).values():
        fake.low.fill_(0.0)
        fake.high.fill_(6.0)
        fake.gain.data.fill_(0.1)
    exported(graph, tmp_path)
    kernels = [node.op_type for node in optimized_nodes(tmp_path / "model.onnx")]
    assert kernels.count("QLinearConv") == 2
    assert not {"Conv", "FusedConv", "Clip"} & set(kernels)


def test_the_file_loads_and_answers_alike_where_a_cpu_without_vnni_wants_other_kernels(tmp_path):
    """There ONNX Runtime rewrites weights and zero points as uint8, once each: layers of one width must not share a zero point."""
    torch.manual_seed(0)
    network = nn.Sequential(conv(3, 16), *[conv(16, 16) for _ in range(4)], nn.Conv2d(16, 4, 1))
    quantized, model, path = exported(prepared(with_statistics(network).eval()), tmp_path)
    weights = [node for node in model.graph if node.op_type == "DequantizeLinear" and node.inputs[0].const_value is not None]
    zero_points = [node.inputs[2] for node in weights if len(node.inputs) > 2]
    assert len(set(zero_points)) == len(zero_points) > 5
    image = images(1, seed=5)
    with torch.inference_mode():
        exact = IntegerKernels(quantized).run(image).numpy()
    # What this CPU takes, and what one without VNNI does; default kernels saturate there, so they are held to neither.
    for entries in (None, NO_VNNI):
        np.testing.assert_array_equal(Session(path, entries=entries).run({"image": image.numpy()})["output"], exact)
