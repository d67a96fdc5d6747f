"""Distances to FP32's answers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.qat.losses import distillation

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
