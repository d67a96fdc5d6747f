"""Load what the pipeline made, on the machine where it serves: the best variant that runs here, with validation's preprocessing.

Needs neither torch nor dvc. What is tried, what is left aside and why goes to the log `octavo.deploy`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from octavo.deploy.artifact import Artifact, artifacts
from octavo.deploy.choice import FALLBACK, chain, fastest, measured
from octavo.deploy.pictures import Picture, listed, pixels_of
from octavo.deploy.selfcheck import check_feeds, selfcheck
from octavo.errors import DataError, ModelRunError, OctavoError, SourceError
from octavo.images.feeds import Feeds
from octavo.images.preprocess import preprocess
from octavo.images.warp import Points
from octavo.manifest import read_manifest, session_entries, unfit_providers
from octavo.params.block import MAX_PIXELS
from octavo.runtime.host import cores
from octavo.runtime.providers import provider_warning, usable_providers
from octavo.runtime.session import Session
from octavo.runtime.timing import interleaved
from octavo.tasks.embedding.flip import answering
from octavo.tasks.predict import Prediction, Predictor, predictor

__all__ = ["Model", "load"]

_LOG = logging.getLogger("octavo.deploy")
# Rounds of the quick self-test where nothing was measured on a machine like this one.
ROUNDS, WARMUP = 7, 2
_WAY_OUT = "load it with another provider (`cpu` is exact), or quantize for this machine: `int8.target: openvino-no-vnni`"


@dataclass(frozen=True, eq=False)
class Model:
    """A variant that runs on this machine.

    Attributes:
        artifact: its folder and manifest.
        session: ONNX Runtime's.
        provider: short name of the execution provider.
        reason: why this variant.
        fallbacks: variants that were to be taken before it, or left aside, each with the reason.
        max_pixels: images of more are refused before they are decoded.
    """

    artifact: Artifact
    session: Session
    provider: str
    reason: str = ""
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    max_pixels: int = MAX_PIXELS

    @cached_property
    def _predict(self) -> Predictor:
        return predictor(self.artifact.task, self.artifact.spec, self.artifact.manifest.get("decoder"))

    @cached_property
    def _answering(self) -> Any:
        """The session as the task reads it: of a flipped embedding it runs twice."""
        image_input = self.artifact.manifest["image_input"]
        return answering({"": self.session}, self.artifact.task, self.artifact.spec, image_input)[""]

    @cached_property
    def _feeds(self) -> Feeds:
        return Feeds.read(self.artifact.manifest)

    @property
    def name(self) -> str:
        """The model's name in params.yaml."""
        return self.artifact.manifest["name"]

    @property
    def variant(self) -> str:
        """One of `octavo.layout.VARIANTS`."""
        return self.artifact.variant

    @property
    def labels(self) -> Any:
        """Class names in the order of the class index; by head where there are several heads; None where nothing gives them."""
        return self.artifact.manifest.get("labels")

    def predict(self, images: Iterable[Picture], points: Iterable[Points | None] | None = None) -> list[Prediction]:
        """What the model says of some images, each run alone as in validation.

        Args:
            images: files, bytes of files, Pillow images, or arrays (uint8, rows x columns x 3, RGB).
            points: for `resize: {rule: similarity}` without fixed points: of each image its landmarks, (x, y) in pixels, one for
                each point of the template.

        Returns:
            One an image: `octavo.tasks.ranking.Ranking`, `octavo.tasks.detection.boxes.Boxes` on the photo (with low scores among
            them, as average precision needs them: `boxes.taken(boxes.scores >= 0.25)`), `octavo.tasks.predict.ClassMaps` of the
            photo's size, or a float32 vector.

        Raises:
            DataError: an image cannot be read, or there are fewer or more `points` than images, or none where they are needed.
            ModelRunError: the run fails, or an output is not finite.
        """
        pictures = listed(images)
        landmarks = [None] * len(pictures) if points is None else list(points)
        if len(landmarks) != len(pictures):
            raise DataError(f"{len(pictures)} images, points of {len(landmarks)}", "give the points of each image, in their order")
        pairs = enumerate(zip(pictures, landmarks, strict=True))
        return [self._one(image, marks, f"image {place}") for place, (image, marks) in pairs]

    def outputs(self, image: Picture, points: Points | None = None) -> dict[str, np.ndarray]:
        """The graph's outputs on one image, by name; of an embedding with `flip` the mean of its own and its mirror's."""
        return self._run(pixels_of(image, "the image", self.max_pixels), points, "the image")

    def _one(self, image: Picture, points: Points | None, called: str) -> Prediction:
        pixels = pixels_of(image, called, self.max_pixels)
        return self._predict(self._run(pixels, points, called), pixels.shape[:2])

    def _run(self, pixels: np.ndarray, points: Points | None, called: str) -> dict[str, np.ndarray]:
        return self._answering.run_finite(self._feeds(preprocess(pixels, self.artifact.spec, points)), called)


def load(
    folder: str | Path,
    *,
    variant: str | None = None,
    provider: str | None = None,
    threads: int = 0,
    measure: bool | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Model:
    """Open the best variant for this machine.

    The best is the fastest of those that validation did not find wanting: by `benchmark`'s figures where they come from a machine
    like this one, else by timing each for a few runs. Its hash is verified, and it must put out the numbers that it put out where
    it was packaged. Where it does not open or fails that check the next one is taken: INT8, FP16, FP32.

    Args:
        folder: models/<model>, its `package`, or the folder of one variant.
        variant: open this one or fail; nothing is chosen.
        provider: execution provider (`cpu`, `cuda`, ...); None takes each variant's recommended ones that are there.
        threads: intra-op threads of a run; 0: one a core.
        measure: True: always time; False: never, the first of the chain is taken where no figures are; None: where needed.
        max_pixels: images of more are refused before they are decoded; a pixel takes 3 bytes.

    Raises:
        SourceError: there is no model in the folder, or not that variant.
        ModelRunError: no variant opens; the message has each one's reason.
    """
    found = artifacts(folder)
    if variant is not None and variant not in found:
        raise SourceError(f"{folder} has no variant {variant!r}", f"it has: {', '.join(found)}")
    if provider is None and provider_warning():
        _LOG.warning("%s: %s", folder, provider_warning())
    opener = _Opener(provider, threads or cores(), max_pixels)
    if variant is not None:
        return opener.open(found[variant], "asked for")
    left_aside = {name: f"validation failed {', '.join(one.failed)}" for name, one in found.items() if one.failed}
    for name, why in left_aside.items():
        _LOG.warning("%s: %s is left aside: %s", folder, name, why)
    usable = {name: one for name, one in found.items() if name not in left_aside} or found
    first, reason = _best(usable, opener, measure)
    # What failed where it was to be timed comes first: the best was chosen without it, and that must be said.
    for name in dict.fromkeys([*opener.failed, *chain(first, list(usable))]):
        try:
            model = opener.open(usable[name], reason if name == first else f"{first} does not run here", left_aside)
        except OctavoError as error:
            left_aside[name] = error.problem
            _LOG.warning("%s: %s does not run here: %s", folder, name, error.problem)
            continue
        _LOG.info("%s: %s on %s, %s", folder, name, model.provider, model.reason)
        return model
    told = "".join(f"\n  {name}: {why}" for name, why in left_aside.items())
    raise ModelRunError(f"{folder}: no variant runs on this machine:{told}", "pull the model again, or update onnxruntime")


@dataclass
class _Opener:
    """Opens variants, each once.

    Attributes:
        asked: an execution provider, or None.
        threads: of a run.
        max_pixels: of an image.
        opened: sessions by variant, checked; or the error.
    """

    asked: str | None
    threads: int
    max_pixels: int
    opened: dict[str, tuple[Session, str] | OctavoError] = field(default_factory=dict)

    def providers(self, artifact: Artifact) -> list[str]:
        """Those that are recommended, as far as they are there and right on this machine; the CPU at least."""
        if self.asked is not None:
            return [self.asked]
        there = set(usable_providers()) - unfit_providers(artifact.manifest).keys()
        return [name for name in artifact.manifest.get("providers", ["cpu"]) if name in there] or ["cpu"]

    @property
    def failed(self) -> list[str]:
        """Variants that did not open, so far."""
        return [variant for variant, made in self.opened.items() if isinstance(made, OctavoError)]

    def session(self, artifact: Artifact) -> tuple[Session, str]:
        """A session that has passed its check, and its provider."""
        if artifact.variant not in self.opened:
            try:
                self.opened[artifact.variant] = self._session(artifact)
            except OctavoError as error:
                self.opened[artifact.variant] = error
        made = self.opened[artifact.variant]
        if isinstance(made, OctavoError):
            raise made
        return made

    def open(self, artifact: Artifact, reason: str, fallbacks: Mapping[str, str] | None = None) -> Model:
        session, provider = self.session(artifact)
        return Model(artifact, session, provider, reason, dict(fallbacks or {}), self.max_pixels)

    def _session(self, artifact: Artifact) -> tuple[Session, str]:
        read_manifest(artifact.folder)
        plugins = artifact.manifest.get("custom_ops", {})
        if plugins:
            raise ModelRunError(
                f"{artifact.path} needs operators that ONNX Runtime lacks: {', '.join(plugins)}",
                "run it where its plugin is (TensorRT, say); validation ran the bodies that stand in for them",
            )
        unfit = unfit_providers(artifact.manifest)
        if self.asked in unfit:
            raise ModelRunError(f"{artifact.path}: {unfit[self.asked]}", _WAY_OUT)
        for provider in unfit.keys() & set(usable_providers()):
            _LOG.warning("%s is not run on %s: %s", artifact.path, provider, unfit[provider])
        for provider in (candidates := self.providers(artifact)):
            try:
                entries = session_entries(artifact.manifest)
                session = Session(artifact.path, provider=provider, threads=self.threads, entries=entries)
                if not selfcheck(session, artifact.manifest):
                    # Nothing of it can be compared; that it runs is known all the same before it is timed or taken.
                    session.run(check_feeds(artifact.manifest))
            except ModelRunError as error:
                if provider == candidates[-1]:
                    raise
                _LOG.warning("%s does not run on %s: %s", artifact.path, provider, error.problem)
            else:
                return session, provider
        raise AssertionError("there is a candidate at least")


def _best(usable: Mapping[str, Artifact], opener: _Opener, measure: bool | None) -> tuple[str, str]:
    """The variant to try first, and why."""
    if len(usable) == 1:
        return next(iter(usable)), "the only one"
    known = {} if measure else measured(usable, opener.providers, opener.threads)
    if known:
        first = fastest(known, usable)
        return first, f"{known[first]:.2f} ms by the figures of a machine like this one"
    if measure is False:
        return next(variant for variant in FALLBACK if variant in usable), "the smallest; nothing was measured"
    runs = {}
    for name, artifact in usable.items():
        try:
            session, _ = opener.session(artifact)
        except OctavoError:
            # `load` says so: `opener.failed` has it.
            continue
        feeds = check_feeds(artifact.manifest)
        runs[name] = lambda session=session, feeds=feeds: session.run(feeds)
    if not runs:
        return next(iter(usable)), "none runs"
    taken = {name: latency.median for name, latency in interleaved(runs, rounds=ROUNDS, warmup=WARMUP).items()}
    first = fastest(taken, usable)
    return first, f"{taken[first]:.2f} ms in a quick test on this machine"
