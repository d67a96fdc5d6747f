"""One pass over the validation images with all variants, and the flat record that goes into metrics/<model>/accuracy.json.

Keys are dotted, values are numbers or words; `docs/metrics.md` describes each. The order of images does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from octavo.errors import DataError
from octavo.evidence.bootstrap import Resamples, paired
from octavo.evidence.fidelity import Fidelity
from octavo.evidence.gates import judge, judge_drop, judge_interval, judge_share
from octavo.images.dataset import Item
from octavo.images.feeds import Feeds
from octavo.layout import REFERENCE
from octavo.params.grammar import Gates, Input, Validate
from octavo.runtime.rows import matched_rows
from octavo.runtime.session import Session
from octavo.tasks.detection.plugin import Plugin
from octavo.tasks.registry import SCORES
from octavo.tasks.score import Score

__all__ = ["Validation"]


@dataclass
class Validation:
    """All variants of one model on the same images.

    Args:
        task: the model's `task`.
        spec: its `input`.
        sessions: variant to session; `fp32` is the reference and must be there.
        feeds: from an image's tensor to what the graph is fed.
        compared: outputs that fidelity is about; all where empty. With a custom operator at the end it is what that operator reads:
            one box more moves all boxes behind it.
        scored: outputs that the task's score gets; all where empty. None where they do not come out, as the graph is cut before
            an operator that does not run here: then there is no score.
        selecting: whether the graph chooses rows (`octavo.graph.selection`): fidelity pairs them by what they hold,
            not by their place.
        holdout: datasets whose images are kept apart: they count for no figure but their own.
        plugin: how `scored` are read where the graph is cut before its suppression; None for outputs of its own.

    Attributes:
        images: those so far that are not held out.
        apart: a validation of its own for each held-out dataset.
    """

    task: Any
    spec: Input
    sessions: Mapping[str, Session]
    feeds: Feeds
    compared: Sequence[str] = ()
    scored: Sequence[str] | None = ()
    selecting: bool = False
    holdout: Sequence[str] = ()
    plugin: Plugin | None = None
    fidelity: dict[str, Fidelity] = field(init=False)
    scores: dict[str, Score] = field(init=False)
    images: list[Item] = field(default_factory=list)
    apart: dict[str, Validation] = field(init=False)

    def __post_init__(self) -> None:
        self.apart = {dataset: replace(self, holdout=(), images=[]) for dataset in self.holdout}
        self.fidelity = {variant: Fidelity() for variant in self.sessions if variant != REFERENCE}
        scorer = SCORES.get(self.task.name) if self.scored is not None else None
        how = (self.task, self.spec, *([self.plugin] if self.plugin else []))
        self.scores = {variant: scorer(*how) for variant in self.sessions} if scorer else {}

    def run(self, images: Iterable[tuple[Item, np.ndarray]]) -> None:
        """Run every variant on every image.

        Args:
            images: (item, as `octavo.images.dataset.Images` gives it; tensor with batch dimension 1).

        Raises:
            DataError: there are images of held-out datasets only.
            ModelRunError: a variant's output is NaN or infinite, or it does not run.
        """
        for item, tensor in images:
            self.apart.get(item.dataset or "", self)._add(item, tensor)
        if not self.images and any(part.images for part in self.apart.values()):
            raise DataError(
                f"no readable image is left beside what is held out ({', '.join(self.apart)})",
                "check the set's files and its split",
            )

    def _add(self, item: Item, tensor: np.ndarray) -> None:
        feeds = self.feeds(tensor)
        truth = self.sessions[REFERENCE].run_finite(feeds, item.name)
        # One variant's outputs at a time: those of segmentation are large.
        for variant, session in self.sessions.items():
            outputs = truth if variant == REFERENCE else session.run_finite(feeds, item.name)
            if variant != REFERENCE:
                pair = _only(truth, self.compared), _only(outputs, self.compared)
                self.fidelity[variant].update(*(matched_rows(*pair, lost=True) if self.selecting and not self.compared else pair))
            if self.scores:
                self.scores[variant].update(_only(outputs, self.scored), _only(truth, self.scored), item)
        self.images.append(item)

    @property
    def parts(self) -> list[Validation]:
        """What counts for the model's figures, then each held-out dataset that has images."""
        return [self, *(part for part in self.apart.values() if part.images)]

    def outputs(self, item: Item, tensor: np.ndarray, variants: Sequence[str]) -> dict[str, Mapping[str, np.ndarray]]:
        """What the score gets of some variants on one image."""
        feeds = self.feeds(tensor)
        return {variant: _only(self.sessions[variant].run_finite(feeds, item.name), self.scored or ()) for variant in variants}

    def record(self, settings: Validate) -> dict[str, Any]:
        """The flat record: per variant the task's metrics, kept ratio with its interval, fidelity and gates.

        Figures of a held-out dataset have its name behind theirs; no gate is about them.

        Raises:
            DataError: a dataset's name makes a key that is there already.
        """
        found: dict[str, Any] = {"images": len(self.images), "labelled": sum(item.labelled for item in self.images)}
        truth = self.scores.get(REFERENCE)
        if truth is not None:
            found |= {"metric": truth.metric} | truth.about()
        kept = self._kept(settings)
        figures = self._values(kept)
        warnings = list(_warnings(truth, figures[REFERENCE], found)) if truth is not None else list(self._unscored(found))
        if warnings:
            found["warning"] = "; ".join(warnings)
        for variant, values in figures.items():
            if variant != REFERENCE and variant in settings.gates.variants:
                values |= self._gates(variant, figures, kept, settings.gates.of_task(self.task.name))
            found |= {f"{variant}.{key}": _rounded(value) for key, value in values.items()}
        for dataset, part in self.apart.items():
            apart: dict[str, Any] = {"images": len(part.images), "labelled": sum(item.labelled for item in part.images)}
            for variant, values in part._values(part._kept(settings)).items() if part.images else ():
                apart |= {f"{variant}.{key}": _rounded(value) for key, value in values.items()}
            named = {f"{key}.{dataset}": value for key, value in apart.items()}
            if named.keys() & found.keys():
                raise DataError(
                    f"the dataset {dataset!r} is named as a class or an output: {min(named.keys() & found.keys())} is both",
                    "rename the dataset's folder",
                )
            found |= named
        return found | ({"holdout": ", ".join(self.apart)} if self.apart else {})

    def _unscored(self, found: Mapping[str, Any]) -> Iterator[str]:
        """Where labels were read for nothing, and gates say `no-labels`."""
        if self.scored is None and found["labelled"] and self.task.name in SCORES:
            yield (
                f"{found['labelled']} labelled images, and no {SCORES[self.task.name].metric}: what it is read from lies behind "
                "the operator that the graph is cut before; give that a body (`source.custom_ops`)"
            )

    def _values(self, kept: Resamples | None) -> dict[str, dict[str, Any]]:
        """By variant: its figures, and how much of FP32's metric is kept or lost."""
        found = self.figures()
        if kept is None:
            return found
        drop = self.scores[REFERENCE].drop
        for key, intervals in (("retained", kept.ratios(self.least)), *([(drop, kept.drops())] if drop else [])):
            for variant, interval in intervals.items():
                if interval is not None:
                    found[variant] |= {key: interval.estimate, f"{key}_low": interval.low, f"{key}_high": interval.high}
        return found

    @property
    def least(self) -> float:
        """FP32's metric below which nothing is there to be kept: its outputs are likely misread."""
        return _least(self.scores[REFERENCE]) if self.scores else 0.0

    def figures(self) -> dict[str, dict[str, Any]]:
        """By variant: the task's metrics, and fidelity; of FP32, which agrees with itself, only what says something."""
        truth, found = self.scores.get(REFERENCE), {}
        for variant in self.sessions:
            found[variant] = dict(self.scores[variant].metrics(truth)) if truth is not None else {}
            if variant != REFERENCE:
                found[variant] |= self.fidelity[variant].metrics()
            elif truth is not None:
                found[variant] = {key: value for key, value in found[variant].items() if key.split(".")[0] not in truth.to_fp32}
        return found

    def _kept(self, settings: Validate) -> Resamples | None:
        if not self.scores:
            return None
        truth = self.scores[REFERENCE]
        metrics = {variant: score.resampled for variant, score in self.scores.items() if variant != REFERENCE}
        return paired(metrics, truth.resampled, truth.units, resamples=settings.bootstrap, seed=settings.seed)

    def _gates(
        self, variant: str, figures: Mapping[str, Mapping[str, Any]], kept: Resamples | None, gates: Gates
    ) -> dict[str, str]:
        truth, values = self.scores.get(REFERENCE), figures[variant]
        labelled = truth.labelled if truth is not None else 0
        ratio = kept.ratios(self.least)[variant] if kept is not None else None
        found = {"gate.retained": judge_interval(ratio, gates.retained, labelled)}
        # Class maps of whole numbers have no cosine: `agreement` is about them.
        if "cosine_mean" in values:
            found["gate.similarity"] = judge(values["cosine_mean"], gates.similarity)
        if gates.similarity_min is not None and "cosine_min" in values:
            found["gate.similarity_min"] = judge(values["cosine_min"], gates.similarity_min)
        if truth is not None and truth.drop is not None and gates.auc_drop is not None:
            found[f"gate.{truth.drop}"] = judge_drop(kept.drops()[variant] if kept is not None else None, gates.auc_drop, labelled)
        if truth is not None and truth.needs is not None and figures[REFERENCE][truth.needs.key] < truth.needs.least:
            # Things of both models, in pairs.
            count = (figures[REFERENCE][truth.needs.key] + values[truth.needs.key]) // 2
            found["gate.agreement"] = judge_share(values.get(truth.agrees), count, gates.agreement)
        elif truth is not None and truth.agrees in values:
            found["gate.agreement"] = judge(values[truth.agrees], gates.agreement)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One row an image: file, content hash, label and what each variant says, for a reviewer to look at single cases."""
        rows = []
        cosines = {variant: found for variant, fidelity in self.fidelity.items() if (found := fidelity.cosines)}
        for place, item in enumerate(self.images):
            row: dict[str, Any] = {"image": item.name, "sha256": item.sha256}
            row["label"] = len(item.objects) if item.objects is not None else "" if item.label is None else item.label
            for variant, score in self.scores.items():
                row |= {f"{variant}.{key}": value for key, value in score.row(place).items()}
            row |= {f"{variant}.cosine": round(each[place], 6) for variant, each in cosines.items()}
            rows.append(row)
        return [*rows, *(row for part in self.apart.values() for row in part.rows())]


def _warnings(truth: Score, figures: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """What makes FP32's metric, or without labels what is compared with FP32, worth little; `found` counts images and labels."""
    images, labelled = found["images"], found["labelled"]
    if labelled and not truth.labelled:
        yield f"{labelled} labelled images, and nothing in them that {truth.metric} counts: there is none"
    elif not labelled and images < truth.least:
        yield f"{images} images without labels; fidelity to FP32, all that they tell, needs {truth.least} to say much"
    elif labelled and truth.labelled < truth.least:
        yield f"{truth.labelled} labelled images; {truth.metric} needs {truth.least} to say much"
    if truth.doubted is not None and figures.get(truth.metric, 1.0) < truth.doubted[0]:
        yield f"FP32's {truth.metric} is {figures[truth.metric]:.4f}: {truth.doubted[1]}"
    if truth.needs is not None and truth.needs.key in figures:
        count = figures[truth.needs.key]
        if not count:
            yield f"FP32 has no {truth.needs.of}: {truth.needs.about} say nothing of what FP32 finds"
        elif count < truth.needs.least:
            yield f"FP32's {truth.needs.of} are {count}; {truth.needs.about} need {truth.needs.least} to say much"
    if truth.labelled and (figures.get(truth.metric) == 0 or figures.get(truth.metric, 1.0) < _least(truth)):
        yield f"`gate.retained` fails for every variant: of so little of FP32's own {truth.metric} nothing can be kept"


def _least(truth: Score) -> float:
    return truth.doubted[0] if truth.doubted else 0.0


def _only(outputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray]:
    return {name: outputs[name] for name in names} if names else outputs


def _rounded(value: Any) -> Any:
    """Six decimals: enough for any metric, few enough that a diff shows no noise of the last bit."""
    return round(value, 6) if isinstance(value, float) else value
