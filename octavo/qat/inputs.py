"""What a training run is made of: its images, PTQ's ranges, and a key by which a run and a checkpoint are told from others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.calibration.choice import chosen_ranges
from octavo.calibration.statistics import Statistics
from octavo.errors import DataError, SourceError
from octavo.files import sha256_bytes, sha256_file
from octavo.graph.io import load
from octavo.images.dataset import Classes, Images, Item, image_list, refuse_overlap
from octavo.images.feeds import Feeds
from octavo.images.masks import Mask
from octavo.images.purpose import chosen_images, open_images
from octavo.images.splits import pick
from octavo.images.training import Batches, MaskOf
from octavo.layout import MODEL, calibration_dir, variant_dir
from octavo.params.grammar import ModelSpec, Segmentation
from octavo.qat.prepare import Start
from octavo.qat.reading import Reading, reading
from octavo.qat.run import Sets
from octavo.quantization.int8 import Images as PtqImages
from octavo.quantization.int8.solution import all_int8
from octavo.runtime.environment import GROUPS, versions_of
from octavo.runtime.session import Session
from octavo.runtime.tensors import read_tensors
from octavo.tasks.registry import model_classes

__all__ = ["Begun", "begun"]

# Fewer training images than this are no training set: one in four is held out.
_LEAST = 4
# Calibration images that PTQ's roundings are fitted to, as in stage `quantize_int8`.
_CALIBRATION = 32


@dataclass(frozen=True)
class Begun:
    """All that a run starts from.

    Attributes:
        sets: images.
        start: PTQ's ranges.
        reading: how the outputs are read.
        key: name to hash or value: equal keys, equal results on one machine.
        spec, image_input: of the model.
    """

    sets: Sets
    start: Start
    reading: Reading
    key: dict[str, str]
    spec: ModelSpec
    image_input: str

    def two(self) -> np.ndarray:
        """Two training images in one batch."""
        return next(iter(Batches(self.sets.train[:2], self.spec.input, 2, flip=False).straight(2)))[1].images

    def samples(self, count: int) -> list[tuple[str, dict[str, np.ndarray]]]:
        """(image, feeds) of held-out images, for checks of the file."""
        images = Images(list(self.sets.held_out), self.spec.input, self.spec.data.on_bad_image)
        return [(item.name, {self.image_input: tensor}) for (item, tensor), _ in zip(images, range(count), strict=False)]


def begun(name: str, spec: ModelSpec, manifest: Mapping[str, Any]) -> Begun:
    """Open the images and read what calibration found.

    Args:
        name: the model's name.
        spec: its block, with `data.train`.
        manifest: FP32's.

    Raises:
        DataError: the training set is too small, cannot be used, or shares an image with calibration or validation.
        SourceError: the graph takes more than the image, or its outputs cannot be trained on.
        CalibrationError: the statistics are missing, damaged, or another model's.
    """
    if Feeds.read(manifest).others:
        raise SourceError(
            f"models.{name}: training feeds images alone, the graph takes {len(manifest['inputs'])} inputs",
            "export it with the image as its only input, or remove `qat:`",
        )
    folder = variant_dir(name, "fp32")
    model = load(folder / MODEL)
    read = reading(spec, model)
    statistics = Statistics.load(calibration_dir(name))
    statistics.require({"model": manifest["sha256"]}, str(calibration_dir(name)))
    where, image_input = f"models.{name}.data", manifest["image_input"]
    session = Session(folder / MODEL)
    classes = model_classes(spec.task, spec.input, lambda image: session.run({image_input: image}))
    items = open_images(spec.data, "train", where, classes)
    if len(items) < _LEAST:
        raise DataError(f"{where}.train: {len(items)} images are too few to train on", f"at least {_LEAST}, better hundreds")
    mine = [(item.name, item.sha256) for item in items]
    used = [*statistics.files("files"), *statistics.files("held_out")]
    refuse_overlap(used, mine, "calibration", "training")
    judged = open_images(spec.data, "validation", where, classes)
    refuse_overlap([(item.name, item.sha256) for item in judged], mine, "validation", "training")
    held = {item.sha256 for item in pick(items, min(spec.qat.held_out, len(items) // 4), spec.qat.seed)}
    calibration = chosen_images(spec, used, where).items
    forms = {"symmetric": spec.qat.symmetric, "per_channel": spec.qat.per_channel}
    recipe = spec.int8.of_task(spec.task.name).model_copy(update=forms)
    counted, held_out = (
        [{image_input: tensor} for _, tensor in chosen_images(spec, files, where)]
        for files in (statistics.files("files")[:_CALIBRATION], statistics.files("held_out"))
    )

    together = spec.task.name == "embedding"

    def start(*, equalize: bool) -> Start:
        solution = all_int8(model, statistics, recipe, PtqImages(counted, held_out, together=together), equalize=equalize)
        # Calibration saw FP32's own graph, tensors too that PTQ's has not; PTQ's choice counts where there is one.
        graph = solution.model
        known = {value.name for value in graph.graph.inputs} | {value.name for node in graph.graph for value in node.outputs}
        ranges = {name: value for name, value in (chosen_ranges(statistics, recipe) | solution.ranges).items() if name in known}

        def tensors(image: np.ndarray) -> Iterable[tuple[str, np.ndarray]]:
            for _, found in read_tensors(graph, list(ranges), lambda: [("the first training image", {image_input: image})]):
                yield from found.items()

        return Start(tensors, ranges, solution.layers, solution.grown, lambda: start(equalize=False))

    begin = start(equalize=True)
    sets = Sets(
        [item for item in items if item.sha256 not in held],
        [item for item in items if item.sha256 in held],
        calibration,
        _heads(spec, classes),
    )
    return Begun(sets, begin, read, _key(spec, manifest, items, begin.ranges), spec, image_input)


def _heads(spec: ModelSpec, classes: Classes) -> dict[str, MaskOf]:
    if not isinstance(spec.task, Segmentation):
        return {}
    known = {"": classes, **classes.heads}
    return {name: MaskOf(known[name].count, head.void) for name, head in spec.task.each.items()}


def _masks(item: Item) -> list[Mask]:
    return ([item.mask] if item.mask is not None else []) + [mask for _, mask in sorted(item.masks.items())]


def _key(
    spec: ModelSpec, manifest: Mapping[str, Any], items: Sequence[Item], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, str]:
    code = sorted(Path(__file__).parent.glob("*.py"))
    return {
        "model": manifest["sha256"],
        "task": sha256_bytes(spec.task.model_dump_json().encode()),
        "input": sha256_bytes(spec.input.model_dump_json().encode()),
        "training images": image_list(items),
        "masks": sha256_bytes("".join(sha256_file(mask.path) for item in items for mask in _masks(item)).encode()),
        "data.train": sha256_bytes(spec.data.train.model_dump_json().encode()),
        "calibrated ranges": sha256_bytes(repr(sorted(ranges.items())).encode()),
        "packages": sha256_bytes(repr(versions_of(GROUPS["training"])).encode()),
        "octavo/qat": sha256_bytes("".join(sha256_file(path) for path in code).encode()),
        **{f"qat.{name}": str(value) for name, value in spec.qat.model_dump(mode="json").items()},
    }
