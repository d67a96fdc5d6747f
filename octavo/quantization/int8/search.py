"""Which of the placements worth having is taken: what each is predicted to leave is known, what it leaves is measured, one by one.

A measurement takes a second or two, so few are made. The first placement that measures well enough is looked for where its
prediction, and how far the nearest one measured was off, say that it is. Predictions are a little off, so the ones before it are
measured, too, where they come near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

__all__ = ["Candidate", "Found", "Search"]

# How many placements before the first that measures well enough are tried as well, and how many times the noise wanted they may be
# predicted to make: .7 dB.
_BEFORE, _NEAR = 4, 10**0.07
# How many times the time of the least fidelity that will do may be spent on more of it, by prices. These leave out what is the same
# in every placement, and hold float to be dearer than it is: what they call 7 to 8 % more were .6 to 3 % of YOLOv5n's time and 1 to
# 5 % of NanoDet-m's.
_DEAR = 1.1
# How far apart in price placements lie that there is something to tell between them.
_ALIKE = 1.01
# Where a percent of time buys a dB and more, up to so many times the price is paid for as much as makes so many times less noise
# than wanted: 5 dB. On processors whose float kernels are fast, most of the way to float may cost next to nothing (YOLOX-nano with
# AMX: 5 dB for 2.4 % by prices).
_NEARLY, _CLOSE_ENOUGH, _PERCENT = 1.03, 10**0.5, 0.01
# Placements that are measured for it at most.
_TRIED = 2


@dataclass(frozen=True)
class Candidate:
    """A placement.

    Attributes:
        price: its time in ms.
        predicted: the noise-to-signal ratio that it is predicted to leave.
    """

    price: float
    predicted: float


@dataclass(frozen=True)
class Found:
    """What was taken.

    Attributes:
        place: of the placement among the candidates; None for the one that the search started from.
        noise: noise-to-signal ratio, as measured.
        price: its time in ms.
        dear: where that is more noise than was wanted: how many times the time of what just does what was wanted takes.
    """

    place: int | None
    noise: float
    price: float
    dear: float | None = None


class Search:
    """Looks among placements.

    Args:
        start: the placement to start from, and the noise that it leaves, as measured.
        candidates: from the fastest on, none priced lower than the one before and each predicted to leave less noise than it.
        measure: the noise that the candidate of a place leaves; None where it leaves nothing in INT8. Asked once a place.
        end: the time of what makes no noise.
    """

    def __init__(
        self, start: tuple[Candidate, float], candidates: Sequence[Candidate], measure: Callable[[int], float | None], end: float
    ) -> None:
        first, noise = start
        self.start = Found(None, noise, first.price)
        self.candidates, self.end = candidates, end
        self._measure = measure
        self._seen: dict[int, float | None] = {}
        # What was predicted and measured.
        self._known = [(first.predicted, noise)] if first.predicted > 0 else []

    def fastest(self, wanted: float, *, roughly: bool = False, among: int | None = None) -> Found:
        """The fastest placement that measures well enough, or else the one that measures best.

        Args:
            wanted: noise-to-signal ratio to come down to.
            roughly: whether one that is priced a little higher than the fastest will do.
            among: how many candidates to look among, the fastest first.
        """
        best = self.start
        places = range(len(self.candidates) if among is None else among)

        def good(place: int) -> bool:
            nonlocal best
            found = self._found(place)
            if found is None:
                # Nothing would be left in INT8: that much is no answer, and nothing beyond it is.
                return True
            if found.noise <= wanted or (wanted < best.noise and found.noise < best.noise):
                best = found
            return found.noise <= wanted

        low, high = 0, len(places)
        while low < high:
            if roughly and self.candidates[high - 1].price <= _ALIKE * self.candidates[low].price:
                break
            guess = next((place for place in places[low:high] if self._expected(place) <= wanted), high - 1)
            low, high = (low, guess) if good(guess) else (guess + 1, high)
        if best.noise <= wanted and not roughly:
            # From the closest on, so that the fastest comes last.
            for place in reversed(places[max(0, low - _BEFORE) : low]):
                if self._expected(place) <= wanted * _NEAR and self.candidates[place].price * _ALIKE <= best.price:
                    good(place)
        return best

    def settled(self, wanted: float, most: float) -> Found:
        """As `fastest`, but where what is wanted is dear, as much of it as a tenth of time buys.

        Args:
            wanted: noise-to-signal ratio.
            most: the most of it that will do; no more than `wanted` where nothing is too dear.
        """
        if most <= wanted:
            return self.fastest(wanted)
        loose = self.start if self.start.noise <= most else self.fastest(most, roughly=True)
        return self._within_a_tenth(loose, wanted) if loose.noise <= most else self.fastest(wanted)

    def closer(self, found: Found, wanted: float) -> Found:
        """What was found, or a placement that is nearly as fast and by much closer to FP32.

        Args:
            found: as `fastest` or `settled` give it; where it leaves more noise than wanted, it is returned.
            wanted: noise-to-signal ratio.
        """
        if found.noise > wanted:
            return found

        def worth(place: int) -> float:
            """How many dB are bought beyond one for each percent of time."""
            noise = max(self._expected(place), wanted / _CLOSE_ENOUGH)
            return 10 * np.log10(found.noise / noise) - (self.candidates[place].price / found.price - 1) / _PERCENT

        nearly = [place for place, one in enumerate(self.candidates) if found.price <= one.price <= _NEARLY * found.price]
        for _ in range(_TRIED):
            best = max(nearly, key=worth, default=None)
            if best is None or worth(best) <= 0 or (bought := self._found(best)) is None:
                break
            # Now that it is measured.
            if worth(best) > 0:
                return bought
        return found

    def _within_a_tenth(self, loose: Found, wanted: float) -> Found:
        limit = _DEAR * loose.price
        within = [place for place, candidate in enumerate(self.candidates) if candidate.price <= limit]

        def affordable() -> Found | None:
            found = self.fastest(wanted, among=len(within))
            return found if found.noise <= wanted else None

        # What does within that what is wanted, by what was measured so far, need not be looked for with pains.
        if within and self._expected(within[-1]) <= wanted / _NEAR and (found := affordable()) is not None:
            return found
        best = self._best_near(limit, within, loose, wanted)
        if best.noise <= wanted:
            return affordable() or best
        enough = [candidate.price for place, candidate in enumerate(self.candidates) if self._expected(place) <= wanted]
        return replace(best, dear=min(enough, default=self.end) / loose.price)

    def _best_near(self, limit: float, within: Sequence[int], loose: Found, wanted: float) -> Found:
        """Of a few placements of different prices near a limit the one that measures best.

        Neighbours differ by a layer or two; those before the last are predicted to make more noise, and some of them make less.
        Where none comes near, it is those that cost more than `loose`: all others are predicted to make more noise than it does.
        """
        late = [place for place in within if self.candidates[place].price >= limit / _DEAR**0.5]
        late = late or [place for place in within if self.candidates[place].price > loose.price]
        tried = [late[turn * (len(late) - 1) // _BEFORE] for turn in range(_BEFORE + 1)] if len(late) > _BEFORE else late
        best = loose
        for place in reversed(tried):
            found = self._found(place)
            best = found if found is not None and found.noise < best.noise else best
            if best.noise <= wanted:
                break
        return best

    def _found(self, place: int) -> Found | None:
        if place not in self._seen:
            self._seen[place] = noise = self._measure(place)
            if noise is not None and self.candidates[place].predicted > 0:
                self._known.append((self.candidates[place].predicted, noise))
        measured = self._seen[place]
        return None if measured is None else Found(place, measured, self.candidates[place].price)

    def _expected(self, place: int) -> float:
        """Noise of a candidate: as measured, or else off as many times as that of the one measured whose prediction is nearest."""
        measured, predicted = self._seen.get(place), self.candidates[place].predicted
        if measured is not None:
            return measured
        if not self._known or predicted <= 0:
            return predicted
        near, measured = min(self._known, key=lambda known: abs(np.log(known[0] / predicted)))
        return predicted * measured / near
