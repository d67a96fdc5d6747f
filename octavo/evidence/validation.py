"""One pass over the validation images with all variants, and the flat record that goes into metrics/<model>/accuracy.json.

Keys are dotted, values are numbers or words; `docs/metrics.md` describes each. The order of images does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.evidence.bootstrap import paired_ratio
from octavo.evidence.fidelity import Fidelity
from octavo.evidence.gates import judge, judge_interval
from octavo.params.grammar import Validate
from octavo.runtime.session import Session
from octavo.tasks import SCORES

__all__ = ["Validation"]

REFERENCE = "fp32"


@dataclass
class Validation:
    """All variants of one model on the same images.

    Args:
        task: the model's `task`.
        sessions: variant to session; `fp32` is the reference and must be there.
        input_name: the graph input that takes the image.
        compared: outputs that fidelity is about; all where empty. With a custom operator at the end it is what that operator reads:
            one box more moves all boxes behind it.
        scored: outputs that the task's score gets; all where empty.
    """

    task: Any
    sessions: Mapping[str, Session]
    input_name: str
    compared: Sequence[str] = ()
    scored: Sequence[str] = ()
    fidelity: dict[str, Fidelity] = field(init=False)
    scores: dict[str, Any] = field(init=False)
    images: list[tuple[str, str, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fidelity = {variant: Fidelity() for variant in self.sessions if variant != REFERENCE}
        scorer = SCORES.get(self.task.name)
        self.scores = {variant: scorer(self.task) for variant in self.sessions} if scorer else {}

    def run(self, images: Iterable[tuple[Any, np.ndarray]]) -> None:
        """Run every variant on every image.

        Args:
            images: (item with name, sha256 and label; tensor with batch dimension 1).

        Raises:
            ModelRunError: a variant's output is NaN or infinite, or it does not run.
        """
        for item, tensor in images:
            feeds = {self.input_name: tensor}
            truth = self.sessions[REFERENCE].run_finite(feeds, item.name)
            for variant, session in self.sessions.items():
                outputs = truth if variant == REFERENCE else session.run_finite(feeds, item.name)
                if variant != REFERENCE:
                    self.fidelity[variant].update(_only(truth, self.compared), outputs)
                if self.scores:
                    self.scores[variant].update(_only(outputs, self.scored), _only(truth, self.scored), item.label)
            self.images.append((item.name, item.sha256, item.label))

    def record(self, settings: Validate) -> dict[str, Any]:
        """The flat record: per variant the task's metrics, kept ratio with its interval, fidelity and gates."""
        labelled = sum(label is not None for _, _, label in self.images)
        found: dict[str, Any] = {"images": len(self.images), "labelled": labelled}
        for variant in self.sessions:
            values: dict[str, Any] = {}
            if self.scores:
                values |= self.scores[variant].metrics(self.scores[REFERENCE])
            if variant == REFERENCE:
                # FP32 agrees with itself; only its accuracy says something.
                values = {key: value for key, value in values.items() if key not in ("agreement", "kl")}
            else:
                values |= self.fidelity[variant].metrics()
                values |= self._kept(variant, values, settings)
            found |= {f"{variant}.{key}": _rounded(value) for key, value in values.items()}
        return found

    def _kept(self, variant: str, values: Mapping[str, Any], settings: Validate) -> dict[str, Any]:
        found: dict[str, Any] = {}
        interval = None
        if self.scores:
            mine, truth = self.scores[variant], self.scores[REFERENCE]
            interval = paired_ratio(mine.per_image(), truth.per_image(), resamples=settings.bootstrap, seed=settings.seed)
            if interval is not None:
                found = {"retained": interval.estimate, "retained_low": interval.low, "retained_high": interval.high}
        if variant in settings.gates.variants:
            found["gate.retained"] = judge_interval(interval, settings.gates.retained)
            found["gate.similarity"] = judge(values["cosine_mean"], settings.gates.similarity)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One row an image: file, content hash, label and each variant's Top-1, for a reviewer to look at single cases."""
        rows = []
        for place, (name, digest, label) in enumerate(self.images):
            row: dict[str, Any] = {"image": name, "sha256": digest, "label": "" if label is None else label}
            row |= {f"{variant}.prediction": score.predictions[place] for variant, score in self.scores.items()}
            row |= {f"{variant}.cosine": round(fidelity.cosines[place], 6) for variant, fidelity in self.fidelity.items()}
            rows.append(row)
        return rows


def _only(outputs: Mapping[str, np.ndarray], names: Sequence[str]) -> Mapping[str, np.ndarray]:
    return {name: outputs[name] for name in names} if names else outputs


def _rounded(value: Any) -> Any:
    """Six decimals: enough for any metric, few enough that a diff shows no noise of the last bit."""
    return round(value, 6) if isinstance(value, float) else value
