"""Which guess of preprocessing stands: what is usual, unless another is clearly better on a few images."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from octavo.errors import OctavoError
from octavo.images.dataset import Item
from octavo.images.preprocess import preprocess
from octavo.images.splits import pick
from octavo.intake.own_numbers import own_numbers
from octavo.intake.preprocessing import Guessed, tried_instead
from octavo.intake.sets import DataGuess
from octavo.intake.task import TaskGuess
from octavo.intake.trial import Run, Trial, Tried, tried

__all__ = ["chosen"]

# Images that candidates are tried on: few where a network is large.
_TRIED = {"classification": 48, "embedding": 24}
_TRIED_LARGE = 8
# Seconds that this may take on all of them, and images on fewer of which it tells nothing.
_SECONDS, _FEWEST = 120.0, 4
# Less is shown as 0.00.
_SHOWN = 0.005


def chosen(first: Guessed, task: TaskGuess, data: DataGuess, run: Run) -> tuple[Guessed, str]:
    """The guess that stands once others were tried, and what was measured, in words.

    Args:
        first: what is usual.
        task, data: what is known of them.
        run: the network, from a preprocessed image.
    """
    count = _TRIED.get(task.keys["name"], _TRIED_LARGE)
    items = pick([item for item in data.items if item.labelled] or data.items, count, 0)
    block = task.block()
    candidates = [first, *tried_instead(first)]
    # Without labels numbers that were made for these images would be judged by nothing but how steady answers on them are.
    usual, own = len(candidates), own_numbers(first, data.photos) if data.labelled else []
    candidates += own
    seconds = _seconds(run, first, items)
    # One more turns the colours; without labels each photo is run mirrored, too.
    runs = (len(candidates) + 1) * (1 if data.labelled else 2)
    if runs * seconds * _FEWEST > _SECONDS:
        return (
            first,
            f"nothing: a run takes {seconds:.1f} s here, and {runs * _FEWEST} of them are the fewest that would tell anything",
        )
    items = items[: int(_SECONDS / max(runs * seconds, 1e-9))]

    def attempt(some: list[Guessed]) -> Trial | None:
        return tried(run, block, items, [one.block() for one in some])

    trial = attempt(candidates)
    if trial is None or not any(trial.results):
        return first, "" if trial is None else "nothing: the network does not run on these images so"
    results = list(trial.results)
    # What these networks take this one cannot, where it does not run on that.
    open_ = trial.labelled or not first.firm or results[0] is None
    best = _best(results[:usual]) if open_ else 0
    if own and trial.labelled:
        best = _best([results[best], *results[usual:]], [best, *range(usual, len(results))])
    if candidates[best].keys.get("colour", "rgb") != "gray":
        candidates.append(_turned(candidates[best]))
        results += attempt(candidates[-1:]).results
        best = _best([results[best], results[-1]], [best, len(results) - 1]) if open_ else best
    told = [
        f"{one.label} {one.keys.get('colour', 'rgb').upper()} {'does not run' if result is None else f'{result.mean:.2f}'}"
        for one, result in zip(candidates, results, strict=True)
    ]
    if all(result is None or result.mean < _SHOWN for result in results):
        verdict = _nothing(block.name, labelled=trial.labelled)
    elif best:
        verdict = (
            f"{candidates[best].label} {candidates[best].keys.get('colour', 'rgb').upper()} is clearly better than what is usual"
        )
    elif results[0] is not None and all(result is None or result.mean <= results[0].mean for result in results):
        verdict = "what is usual is best"
    elif not open_:
        verdict = "without labels that is no reason to leave what these networks take"
    else:
        verdict = "nothing is clearly better than what is usual"
    words = f"with {len(told)} candidates on {trial.images} images ({trial.measure}): {'; '.join(told)}: {verdict}"
    return candidates[best], words


def _nothing(task: str, *, labelled: bool) -> str:
    """What follows where no candidate comes to anything."""
    if task == "detection":
        return "nothing matches under any of them: the decoder, the boxes' units or the classes are in doubt"
    return "nothing matches under any of them: the labels or the order of classes is in doubt" if labelled else "that tells nothing"


def _seconds(run: Run, guess: Guessed, items: Sequence[Item]) -> float:
    """What one run takes; 0 where no image can be read, or the network does not run: the trial has words for both."""
    for item in items:
        try:
            tensor = preprocess(item.read(), guess.block())
            began = time.perf_counter()
            run(tensor)
            return time.perf_counter() - began
        except OctavoError:
            continue
    return 0.0


def _best(results: Sequence[Tried | None], places: Sequence[int] | None = None) -> int:
    """The place of the first, or of the best where that is clearly better; `places` are theirs where these are some of several.

    A first one that does not run understands nothing of any image.
    """
    present = [place for place, result in enumerate(results) if result is not None]
    place = max(present, key=lambda one: results[one].mean, default=0)
    usual = results[0] or (Tried(np.zeros_like(results[place].scores)) if present else None)
    found = place if place and results[place].clearly_beats(usual) else 0
    return found if places is None else places[found]


def _turned(guess: Guessed) -> Guessed:
    """The same with red and blue exchanged, in the image and in the numbers."""
    numbers = {key: guess.keys[key] for key in ("scale", "mean", "std") if key in guess.keys}
    turned = {key: value[::-1] if isinstance(value, list) else value for key, value in numbers.items()}
    return guess.with_normalisation(guess.label, turned, "rgb" if guess.keys.get("colour") == "bgr" else "bgr")
