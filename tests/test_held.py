"""An export is compared on as many images as its outputs let it hold."""

from collections.abc import Iterator

import numpy as np
import pytest

from octavo.sources import held
from octavo.sources.held import as_many


@pytest.mark.parametrize(("rows", "images"), [(1, 16), (10, 10), (60, 2), (1000, 2)])
def test_large_outputs_are_held_of_fewer_images_and_of_two_at_least(rows, images, monkeypatch):
    monkeypatch.setattr(held, "_HELD", 100 * 4)
    ran = []

    def outputs() -> Iterator[dict[str, np.ndarray]]:
        for image in range(16):
            ran.append(image)
            yield {"masks": np.full(rows, image, np.float32)}

    found = as_many(outputs())
    assert [int(each["masks"][0]) for each in found] == ran == list(range(images))
