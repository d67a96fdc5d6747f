"""Distances to FP32's answers, and how outputs are read before they are compared."""

import onnx
import onnx_ir as ir
import pytest
import torch
from conftest import project_params
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import SourceError
from octavo.params.grammar import Params
from octavo.qat.losses import LABELLED, distillation
from octavo.qat.reading import reading

SHAPES = {"classification": (4, 10), "segmentation": (2, 5, 6, 7), "embedding": (4, 16), "detection": (2, 30, 6)}


def pair(task, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(SHAPES[task], generator=generator) for _ in range(2)]


@pytest.mark.parametrize("task", SHAPES)
def test_a_distance_is_zero_of_equal_answers_and_grows_with_the_error(task):
    truth, other = pair(task)
    found = [float(distillation(task, {"output": truth + share * other}, {"output": truth})) for share in (0, 0.01, 0.1, 1)]
    assert found[0] == pytest.approx(0, abs=1e-6)
    assert found == sorted(found)
    assert found[-1] > 0.01


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@given(shift=st.floats(-5, 5), seed=st.integers(0, 100))
def test_what_softmax_does_not_see_does_not_count(task, shift, seed):
    truth, other = pair(task, seed)
    moved = [float(distillation(task, {"output": other + each}, {"output": truth})) for each in (0, shift)]
    assert moved[0] == pytest.approx(moved[1], rel=1e-3)


def test_a_sure_answer_of_a_classifier_teaches_its_other_logits():
    truth = torch.tensor([[30.0, 1.0, -2.0, 0.0]])
    student = truth.clone()
    student[0, 2] = 3
    student.requires_grad_()
    distillation("classification", {"output": student}, {"output": truth}).backward()
    assert student.grad[0, 2] > 1e-3


@pytest.mark.parametrize(("task", "shape"), [("classification", (4, 1)), ("segmentation", (2, 1, 5, 5))])
def test_scores_of_one_class_are_compared_by_their_sigmoid(task, shape):
    truth = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert float(distillation(task, {"output": truth}, {"output": truth})) == pytest.approx(0, abs=1e-6)
    assert float(distillation(task, {"output": -truth}, {"output": truth})) > 0.1


def test_outputs_that_carry_no_gradient_are_left_out():
    truth = {"scores": torch.ones(2, 3), "labels": torch.ones(2, dtype=torch.int64)}
    assert float(distillation("detection", truth | {"scores": torch.zeros(2, 3)}, truth)) > 0


def graph_of(nodes, *outputs):
    text = ", ".join(outputs or ("float[1, 3, 8, 8] y",))
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g (float[1, 3, 8, 8] x) => ({text}) {{ {nodes} }}')
    return ir.from_proto(model)


def read(model, task, **qat):
    return reading(Params.model_validate(project_params(task=task, qat=qat)).models["small"], model)


class TestReading:
    """Losses take logits with the classes along axis 1."""

    @pytest.mark.parametrize(
        ("nodes", "last", "answer"),
        [
            ("y = Sigmoid(x)", False, torch.sigmoid),
            ("y = Softmax <axis = 1> (x)", False, lambda x: x.softmax(1)),
            ("s = Softmax <axis = 1> (x) y = Transpose(s)", True, lambda x: x.softmax(1).permute(0, 2, 3, 1)),
            ("y = Transpose(x)", True, lambda x: x.permute(0, 2, 3, 1)),
            ("y = Relu(x)", False, lambda x: x),
        ],
    )
    def test_class_maps_are_the_logits_that_they_were(self, nodes, last, answer):
        logits, other = (5 * torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
        found = read(graph_of(nodes), {"name": "segmentation", "layout": "nhwc" if last else "nchw"})
        mine, theirs = (found({"y": answer(each)}) for each in (other, logits))
        assert mine["y"].shape == (2, 3, 4, 4)
        expected = distillation("segmentation", {"y": other}, {"y": logits})
        assert float(distillation("segmentation", mine, theirs)) == pytest.approx(float(expected), rel=1e-3)

    def test_a_classifier_s_scores_are_its_logits_whatever_dimensions_of_1_are_around(self):
        logits, other = (5 * torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
        found = read(graph_of("y = Softmax <axis = 1> (x)"), "classification")
        mine, theirs = (found({"y": each.softmax(1)[:, :, None, None]}) for each in (other, logits))
        expected = distillation("classification", {"y": other}, {"y": logits})
        assert float(distillation("classification", mine, theirs)) == pytest.approx(float(expected), rel=1e-3)
        assert LABELLED["classification"](mine["y"], torch.tensor([0, 2])).isfinite()

    def test_a_pixel_that_is_of_the_object_more_often_than_not_is_learnt_as_such(self):
        """Shares taken for logits: 60 % were best answered with .405, which the threshold of .5 calls background."""
        found = read(graph_of("y = Sigmoid(x)"), "segmentation")
        logit = torch.zeros(1, requires_grad=True)
        masks = torch.tensor([1, 1, 1, 0, 0]).reshape(5, 1, 1)
        optimizer = torch.optim.SGD([logit], 2.0)
        for _ in range(100):
            optimizer.zero_grad()
            maps = logit.sigmoid().expand(5, 1, 1, 1)
            LABELLED["segmentation"](found({"y": maps})["y"], masks).backward()
            optimizer.step()
        assert float(logit.sigmoid().detach()) == pytest.approx(0.6, abs=0.01)

    def test_sure_shares_are_finite(self):
        for nodes in ("y = Sigmoid(x)", "y = Softmax <axis = 1> (x)"):
            value = torch.tensor([0.0, 1.0, 0.5]).reshape(1, 3, 1, 1).requires_grad_()
            logits = read(graph_of(nodes), "segmentation")({"y": value})["y"]
            logits.sum().backward()
            assert logits.isfinite().all()
            assert value.grad.isfinite().all()

    @pytest.mark.parametrize("task", ["embedding", "detection"])
    def test_of_other_tasks_values_are_as_they_are(self, task):
        value = torch.rand(2, 3, 8, 8)
        block = {"name": task, "decoder": "yolov5"} if task == "detection" else task
        assert read(graph_of("y = Sigmoid(x)"), block)({"y": value})["y"] is value

    @pytest.mark.parametrize(
        "nodes",
        [
            "y = ArgMax <axis = 1> (x)",
            "a = ArgMax <axis = 1> (x) y = Cast <to = 1> (a)",
            "g = Greater(x, x) y = Cast <to = 1> (g)",
        ],
    )
    def test_choices_cannot_be_trained(self, nodes):
        with pytest.raises(SourceError, match=r"'y' holds choices.*no other output") as error:
            read(graph_of(nodes, "int64[1, 1, 8, 8] y" if nodes.startswith("y") else "float[1, 1, 8, 8] y"), "segmentation")
        assert "`qat:`" in error.value.mend

    def test_labels_cannot_teach_choices_and_the_scores_beside_them_can_be_trained(self):
        model = graph_of("s = Softmax <axis = 1> (x) y = ArgMax <axis = 1> (s)", "float[1, 3, 8, 8] s", "int64[1, 1, 8, 8] y")
        task = {"name": "segmentation", "output": "y"}
        with pytest.raises(SourceError, match="'y' holds choices.*labels are to teach it") as error:
            read(model, task)
        assert "`qat.distillation: 1`" in error.value.mend
        assert set(read(model, task, distillation=1)({"s": torch.rand(1, 3), "y": torch.ones(1, dtype=torch.int64)})) == {"s"}
        assert read(model, {"name": "segmentation", "output": "s"}).heads == {"": "s"}
