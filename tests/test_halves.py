"""Which groups of layers are float16 in the file, found by halves."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network

from octavo.quantization.int8 import halves
from octavo.quantization.int8.halves import _quiet, with_float32

NAMES = [[f"{place}.a", f"{place}.b"] for place in range(32)]


def run(noise: dict[str, float], left: float) -> tuple[set[str], int]:
    asked = []

    def own(part: Collection[str]) -> float:
        asked.append(part)
        return sum(noise.get(name, 0.0) for name in part)

    found = _quiet(NAMES, own, left)
    assert sum(noise.get(name, 0.0) for name in found) <= left
    return found, len(asked)


def test_one_loud_group_is_found_in_ten_runs_and_all_others_are_taken():
    found, runs = run({"13.a": 5.0}, 1.0)
    assert found == {name for group in NAMES for name in group} - {"13.a", "13.b"}
    assert runs == 10


def test_of_noise_that_all_make_alike_as_much_as_fits_is_taken():
    found, runs = run({name: 1.0 for group in NAMES for name in group}, 40.0)
    assert 32 <= len(found) <= 40
    assert runs <= halves._MEASURED


def test_no_more_is_measured_than_the_bound_and_what_is_not_stays_float32():
    found, runs = run({f"{place}.a": 9.0 for place in range(0, 32, 2)}, 1.0)
    assert runs <= halves._MEASURED
    assert len(found) < 32


def test_noise_below_zero_is_no_room_for_more():
    assert run({"0.a": -5.0, "31.a": 1.5}, 1.0)[0] == {name for group in NAMES for name in group} - {"31.a", "31.b"}


@pytest.mark.parametrize("left", [0.0, 64.0])
def test_nothing_or_everything_fits(left):
    found, runs = run({name: 1.0 for group in NAMES for name in group}, left)
    assert len(found) == left
    assert runs <= halves._MEASURED


WIDTHS = {"large": 64, "small": 16, "middle": 32}


@dataclass(frozen=True)
class Planned:
    float32: frozenset[str] = frozenset()


def three_layers() -> ir.Model:
    generator = np.random.default_rng(0)
    weights = {f"{name}.w": he(generator, width, 3, 3, 3) for name, width in WIDTHS.items()}
    nodes = [oh.make_node("Conv", ["x", f"{name}.w"], [name], name) for name in WIDTHS]
    return network(nodes, weights, list(WIDTHS))


class Told:
    """Stands in for a judge: the noise of a graph by which of its layers keep float32."""

    heads = list(WIDTHS)

    def __init__(self, noise: Callable[[set[str]], float]) -> None:
        self.noise, self.asked = noise, []

    def judge_by_image(self, graph: ir.Model) -> list[float]:
        float32 = {name for name in WIDTHS if f"{name}.w" in graph.graph.initializers}
        self.asked.append(float32)
        return [self.noise(float32)]

    def total(self, by_image: list[float]) -> float:
        return by_image[0]

    def only(self, places: Collection[int]) -> "Told":
        return self


def kept(noise: Callable[[set[str]], float]) -> tuple[set[str], float, list[set[str]]]:
    """What stays float32 where noise of 1 is wanted, its noise, and what was asked."""
    judge, model = Told(noise), three_layers()
    draft = SimpleNamespace(written=lambda plan, heads: model, kept=frozenset())
    plan, found = with_float32(draft, Planned(), judge, 1.0)
    return set(plan.float32), found, judge.asked


def test_next_to_the_bound_the_layer_with_the_fewest_weights_that_will_do_is_float32():
    assert kept(lambda float32: 0.9) == (set(), 0.9, [set()])
    assert kept(lambda float32: 0.98 if float32 else 1.02) == ({"small"}, 0.98, [set(), {"small"}])
    assert kept(lambda float32: 0.99 if float32 == {"middle"} else 1.02)[:2] == ({"middle"}, 0.99)
    # Where no one does, as without chance: all of them, or what makes the noise.
    assert kept(lambda float32: 0.9 if len(float32) == 3 else 1.02)[:2] == (set(WIDTHS), 0.9)


def test_what_is_far_beyond_the_bound_is_no_chance():
    found, noise, asked = kept(lambda float32: 0.5 if "large" in float32 else 3.0)
    assert (found, noise) == ({"large"}, 0.5)
    assert asked[:2] == [set(), set(WIDTHS)]
