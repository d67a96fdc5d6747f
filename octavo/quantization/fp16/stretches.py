"""Which nodes' rounding is seen at the outputs: stretches of the graph, each in float16 alone.

How much a tensor itself lost does not tell: noise that one node adds may be averaged away behind it, and what hardly shows where it
arises may be magnified (of YOLOX-nano 108 nodes whose own tensors had lost most went back for .6 dB; five of the first ones are
enough for 6.8). So the whole graph runs with one stretch of nodes in float16, and the outputs are held against FP32's. The loudest
stretch is halved, and again the loudest, until few nodes stand for most of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Stretch", "loudest", "stretches"]

# Runs with one stretch in float16 that are spent on finding where noise arises.
_RUNS = 32
# The share of the noise wanted below which nothing is told apart any further, or given back for.
_QUIET = 0.05
# What is predicted to be left must stay this far below what is wanted: sums of noise are a little off.
_MARGIN = 0.8


@dataclass(frozen=True)
class Stretch:
    """Nodes that follow each other, in the graph's order.

    Attributes:
        nodes: their names.
        noise: by tensor name, its noise-to-signal ratio where these nodes alone are float16.
    """

    nodes: tuple[str, ...]
    noise: Mapping[str, float]

    @property
    def most(self) -> float:
        """Noise at the tensor that has most of it."""
        return max(self.noise.values(), default=0.0)


def stretches(nodes: Sequence[str], noise_of: Callable[[Sequence[str]], Mapping[str, float]], wanted: float) -> list[Stretch]:
    """Part a graph where its noise arises.

    Args:
        nodes: names of the nodes in float16, in the graph's order.
        noise_of: runs the graph with these nodes alone in float16: tensor name to noise-to-signal ratio.
        wanted: noise-to-signal ratio to come down to.

    Returns:
        Stretches that hold every node once, short ones where much noise arises.
    """
    if not nodes:
        return []
    found = [Stretch(tuple(nodes), noise_of(nodes))]
    for _ in range(_RUNS // 2):
        splittable = [stretch for stretch in found if len(stretch.nodes) > 1]
        loud = max(splittable, key=lambda stretch: stretch.most, default=None)
        if loud is None or loud.most < _QUIET * wanted:
            break
        found.remove(loud)
        half = len(loud.nodes) // 2
        found += [Stretch(part, noise_of(part)) for part in (loud.nodes[:half], loud.nodes[half:])]
    return found


def loudest(found: Sequence[Stretch], noise: Mapping[str, float], wanted: float) -> list[Stretch]:
    """The stretches to give back: as few as are predicted to leave no more noise than wanted, and one at least.

    Args:
        found: stretches that are still in float16.
        noise: by tensor name, its noise-to-signal ratio as measured with all of them in float16.
        wanted: noise-to-signal ratio to come down to.

    Returns:
        The loudest first; empty where none makes noise worth mentioning.
    """
    # Borders between stretches are rounded in both, so that parts sum up to more than the whole.
    sums = {name: sum(stretch.noise.get(name, 0.0) for stretch in found) for name in noise}
    left = dict(noise)
    rest, given = list(found), []
    while rest and (not given or any(value > _MARGIN * wanted for value in left.values())):
        worst = max(left, key=lambda name: left[name])
        loud = max(rest, key=lambda stretch: stretch.noise.get(worst, 0.0))
        if loud.noise.get(worst, 0.0) < _QUIET * wanted:
            break
        rest.remove(loud)
        given.append(loud)
        for name in left:
            left[name] -= noise[name] * loud.noise.get(name, 0.0) / sums[name] if sums[name] else 0.0
    return given
