"""Training images: seeded batches, mirrored with their masks."""

import numpy as np
import pytest
from PIL import Image

from octavo.images.dataset import Item
from octavo.images.masks import VOID, Mask
from octavo.images.training import Batches, MaskOf
from octavo.params.grammar import Input

SPEC = Input.model_validate({"size": [32, 48], "resize": {"rule": "stretch", "antialias": False}})


@pytest.fixture
def items(tmp_path):
    """Photos of blobs that are white where the mask says 1."""
    made = []
    for number in range(6):
        coarse = np.random.default_rng(number).random((5, 7)) < 0.5
        truth = np.kron(coarse, np.ones((20, 20), bool)).astype(np.uint8)
        Image.fromarray(np.repeat(truth[..., None] * np.uint8(255), 3, 2)).save(tmp_path / f"{number}.png")
        Image.fromarray(truth).save(tmp_path / f"{number}_mask.png")
        mask = Mask(tmp_path / f"{number}_mask.png", {}, None, {})
        made.append(Item(tmp_path / f"{number}.png", f"{number}.png", str(number), mask=mask))
    return made


def test_masks_are_mirrored_with_their_photos(items):
    batches = Batches(items, SPEC, 3, heads={"": MaskOf(2)})
    for epoch in range(3):
        for batch in batches.epoch(epoch):
            assert batch.labels[""].shape == (3, 32, 48)
            assert set(np.unique(batch.labels[""])) <= {0, 1, VOID}
            assert ((batch.images[:, 0] > 0.5) == (batch.labels[""] == 1)).mean() > 0.9


def test_an_epoch_is_the_same_again_and_the_next_one_is_another(items):
    def pixels(number, **settings):
        return np.concatenate([batch.images for batch in Batches(items, SPEC, 3, **settings).epoch(number)])

    assert np.array_equal(pixels(0), pixels(0))
    assert not np.array_equal(pixels(0), pixels(1))
    assert not np.array_equal(pixels(0), pixels(0, seed=1))
    assert any(not np.array_equal(pixels(number), pixels(number, flip=False)) for number in range(3))


def test_parts_of_an_epoch_are_what_the_whole_has(items):
    whole = [batch.images for batch in Batches(items, SPEC, 2).epoch(3)]
    later = [batch.images for batch in Batches(items, SPEC, 2).epoch(3, first=1)]
    halves = [[batch.images for batch in Batches(items, SPEC, 2).epoch(3, part=part, parts=2)] for part in (0, 1)]
    assert all(np.array_equal(one, other) for one, other in zip(whole[1:], later, strict=True))
    for step, batch in enumerate(whole):
        assert np.array_equal(batch, np.concatenate([half[step] for half in halves]))
