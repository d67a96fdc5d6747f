"""Training starts where PTQ's best network is: with channels equalized, all of them or none."""

import copy
from dataclasses import replace

import graphs
import pytest
import torch
from qat_graphs import images
from small_module import small, with_statistics
from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

from octavo.graph.clean import clean
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.qat.batch_norm import fuse
from octavo.qat.capture import capture
from octavo.qat.equalization import take_equalization
from octavo.qat.ptq import take_roundings
from octavo.qat.quantizer import OrtQuantizer
from octavo.qat.start import observe
from octavo.quantization.int8 import Images
from octavo.quantization.int8.solution import all_int8
from octavo.sources.torch_export import export


@pytest.fixture(scope="module")
def module():
    """Of uneven channels, in eval mode."""
    torch.manual_seed(2)
    made = with_statistics(small()).eval()
    with torch.no_grad():
        made.stem[1].weight *= torch.logspace(-2, 0, 8)
        made.stem[1].bias *= torch.logspace(-2, 0, 8)
    return made


@pytest.fixture(scope="module")
def found(module, tmp_path_factory):
    """What PTQ finds for the module's file."""
    folder = tmp_path_factory.mktemp("scratch")
    graph, _ = export(module, images(2, 16), ["output"], exporter="dynamo", opset=18, dynamic={0: "batch"}, scratch=folder)
    clean(graph, 18)
    model = prepared(graph)
    feeds = [{model.graph.inputs[0].name: images(1, 16, seed).numpy()} for seed in range(12)]
    return all_int8(model, graphs.statistics_of(model, feeds[:8]), Int8(fidelity=60), Images(feeds[:8], feeds[8:]))


@pytest.fixture
def captured(module):
    made = capture(copy.deepcopy(module), images(2, 16))
    fuse(made)
    return made


def test_channels_that_ptq_equalized_are_equalized_in_the_trained_graph_and_its_roundings_fit(found, captured):
    assert found.grown
    before = captured(images(4, 16))
    weights = copy.deepcopy(captured.state_dict())
    assert take_equalization(captured, found.grown, images(2, 16))
    torch.testing.assert_close(captured(images(4, 16)), before, rtol=1e-3, atol=1e-3)
    assert any(not torch.equal(value, weights[name]) for name, value in captured.state_dict().items())
    graph = prepare_qat_pt2e(captured, OrtQuantizer())
    observe(graph, [images(8, 16)])
    assert len(take_roundings(graph, found.layers)) == len(found.layers)


def test_of_equalized_layers_all_are_taken_or_none(found, captured):
    weights = copy.deepcopy(captured.state_dict())
    strange = replace(found.grown[0], weight=found.grown[0].weight + 1)
    # One that is not there; and growth that is taken back nowhere.
    for grown in ([strange, *found.grown[1:]], [replace(layer, read=None) for layer in found.grown]):
        assert not take_equalization(captured, grown, images(2, 16))
        assert all(torch.equal(value, weights[name]) for name, value in captured.state_dict().items())
