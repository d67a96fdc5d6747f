"""What `fidelity: auto` asks for follows from the shapes of what the last weights put out."""

import onnx_ir as ir
import pytest

from octavo.quantization.int8.noise.fidelity import are_masks, fidelity_of, least_of

VECTORS, MASKS, BOXES, HIGH = 24.5, 22.5, 20.0, 26.5


@pytest.mark.parametrize(
    ("shapes", "effort", "expected"),
    [
        ([[1, 10]], "default", VECTORS),
        ([["n", 128, 1, 1]], "high", HIGH),
        ([[1, 11, 45, 60]], "default", MASKS),
        ([[1, 2, 90, 160], [1, 2, 90, 160]], "high", MASKS),
        ([[1, 255, 80, 80], [1, 255, 40, 40]], "default", BOXES),
        ([["n", 12, "h", "w"], ["n", 12, "h/2", "w/2"]], "default", BOXES),
        ([[1, 10], [1, 4, 20, 20]], "default", MASKS),
        ([None], "default", MASKS),
    ],
)
def test_detectors_are_held_to_more_than_masks_and_vectors_to_most(shapes, effort, expected):
    heads = [ir.Value(name=str(place), shape=None if shape is None else ir.Shape(shape)) for place, shape in enumerate(shapes)]
    assert fidelity_of(heads, effort) == expected
    assert are_masks(heads) == (expected == MASKS)


def test_with_channels_last_positions_are_the_axes_between():
    """Levels of a detector that end in products of matrices, and queries; one map of tokens is a mask's."""

    def held_to(*shapes: list[int]) -> float:
        nodes = [ir.node("MatMul", [ir.Value(name="x"), ir.Value(name="w")]) for _ in shapes]
        for node, shape in zip(nodes, shapes, strict=True):
            node.outputs[0].shape = ir.Shape(shape)
        return fidelity_of([node.outputs[0] for node in nodes], "default")

    assert held_to([1, 6400, 84], [1, 1600, 84], [1, 400, 84]) == BOXES
    assert held_to([1, 80, 80, 84], [1, 40, 80, 84]) == BOXES
    assert held_to([1, 100, 92], [1, 100, 4]) == BOXES, "logits and boxes of the same queries"
    assert held_to([1, 2700, 11]) == MASKS
    assert held_to([1, 45, 60, 11], [1, 45, 60, 11]) == MASKS
    assert held_to([1, 1, 10]) == VECTORS


def test_only_boxes_may_do_with_less():
    assert [least_of(bound) for bound in (VECTORS, MASKS, HIGH, 24.0)] == [VECTORS, MASKS, HIGH, 24.0]
    assert least_of(BOXES) == 18.0
