"""On how many images FP32's boxes are looked for."""

import numpy as np
import pytest
from graphs import network
from onnx import helper as oh

from octavo.quantization.int8.noise.found import found_of

IMAGES = [{"x": np.full((1, 3, 16, 16), place, np.float32)} for place in range(16)]
MODEL = network([oh.make_node("Relu", ["x"], ["y"], "relu")], {}, ["y"])


class Boxes:
    """So many on each image."""

    def __init__(self, each):
        self.each, self.read_of = each, []

    def read(self, outputs, feeds):
        assert (outputs["y"] == feeds["x"]).all()
        self.read_of.append(float(feeds["x"].max()))
        return [0] * self.each


@pytest.mark.parametrize(
    ("each", "macs", "images"),
    [
        # 400 boxes, or all images.
        (100, 0, 4),
        (100, 5 * 10**9, 4),
        (8, 5 * 10**9, 16),
        # Of 153e9 multiplications an image 200 on two do, 64 on eight.
        (100, 153 * 10**9, 2),
        (8, 153 * 10**9, 8),
        # Never fewer than 50.
        (4, 10**12, 13),
    ],
)
def test_dear_runs_have_fewer_boxes_do_but_no_fewer_than_tell(each, macs, images):
    boxes = Boxes(each)
    found = found_of(MODEL, IMAGES, (), boxes, None, macs=macs)
    assert boxes.read_of == list(range(images))
    assert found is not None
    assert found.tells
    assert found_of(MODEL, IMAGES, (), Boxes(3), None, macs=macs) is None
