"""The image pass: FP32 over the calibration images, statistics of every tensor that quantization may ask for.

Images run one at a time, because ONNX Runtime may round differently with another batch. It may with another thread count, too:
that follows from the graph alone and not from the machine. Where two images' tensors fit, two are worked on at once with a thread
each, and added to the statistics one after the other, in any order, which is exact; where they do not, one has two threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import cv2
import numpy as np
import onnx_ir as ir

from octavo.calibration.observed import Observed, may_be_infinite, observed
from octavo.calibration.probes import Probes
from octavo.calibration.statistics import Statistics
from octavo.calibration.tally import Tally
from octavo.calibration.tensor import TensorStatistics
from octavo.errors import CalibrationError
from octavo.graph.readable import sized
from octavo.runtime.host import cores
from octavo.runtime.memory import return_freed_blocks
from octavo.runtime.tensors import Group, group_names, open_groups

__all__ = ["GROUP_BYTES", "collect"]

# Bound on the tensors of one image that are held at once, where one tensor is not larger than this. It decides which tensors share
# a session, and with that the last bits of the values (`octavo.runtime.tensors`): a constant, not a setting.
GROUP_BYTES = 96 << 20
# NumPy's own arrays start at multiples of so many bytes, slices of a batch anywhere.
_ALIGNED = 16
# Freed blocks above this many bytes go back to the system: with large images, and with small ones.
_LARGE, _SMALL = 1 << 18, 6 << 20

Feeds = dict[str, np.ndarray]
Samples = Callable[[], Iterable[tuple[str, Feeds]]]


def collect(
    model: ir.Model,
    samples: Samples,
    *,
    tensors: list[str] | None = None,
    group_bytes: int = GROUP_BYTES,
    lanes: int | None = None,
) -> Statistics:
    """Run FP32 on every sample and keep statistics, never tensors.

    Args:
        model: the FP32 graph, with shapes and dtypes inferred; it is not changed.
        samples: called once for each group of tensors, gives (what the sample is, feeds). Feeds of a graph with a dynamic batch
            may hold several images; how they are batched and ordered does not show in the result.
        tensors: which tensors; those that can be quantized where None (`octavo.calibration.observed`).
        group_bytes: bound on the tensors of one image that are fetched at once.
        lanes: images worked on at once; None: two where the processor has two cores and what is alive of both images' tensors
            stays below `group_bytes`. The result is the same.

    Returns:
        Statistics without origin.

    Raises:
        CalibrationError: the graph has no float tensor, there is no sample, or a value is NaN, or infinite where it may not be.
        ModelRunError: the graph does not run on a sample.
    """
    return_freed_blocks(_LARGE)
    chosen = observed(model) if tensors is None else Observed(tensors, infinite=may_be_infinite(model, tensors))
    batched = _batched_inputs(model)
    probes = Probes(chosen.axes, _batch_symbols(model, batched), chosen.infinite)
    images, statistics = _Singles(samples, batched), Statistics()
    if _is_open(model, chosen.tensors, probes):
        # One size of images after the other, each with a graph of that size. What an image adds follows from it alone: no partition
        # shows, whatever sizes meet in one.
        while (shapes := images.next_shapes()) is not None:
            opened = _opened(sized(model, shapes), chosen.tensors, probes, group_bytes)
            statistics.absorb(_added(opened, chosen, probes, partial(images.of, shapes), group_bytes=group_bytes, lanes=lanes))
    else:
        opened = _opened(model, chosen.tensors, probes, group_bytes)
        # The weights are in a file by the time the first session opens: held here as well, they would count twice.
        del model
        statistics = _added(opened, chosen, probes, images.all, group_bytes=group_bytes, lanes=lanes)
    if not images.seen:
        raise CalibrationError("there was no image to calibrate on", "check `data.calibration` in params.yaml")
    statistics.link(chosen.aliases)
    return statistics


def _is_open(model: ir.Model, names: Sequence[str], probes: Probes) -> bool:
    """Whether inputs' sizes are open, and tensors' that follow from them."""
    if all(isinstance(size, int) for value in model.graph.inputs for size in value.shape or ("?",)):
        return False
    values = {value.name: value for node in model.graph for value in node.outputs}
    return any(name in values and not probes.knows(values[name]) for name in names)


def _opened(model: ir.Model, names: Sequence[str], probes: Probes, group_bytes: int) -> Iterator[Group]:
    groups = group_names(model, names, group_bytes, size=probes.size)
    return open_groups(
        model,
        groups,
        threads=lambda held: 1 if 2 * held <= group_bytes else 2,
        tap=probes,
        held=probes.held,
        # What small tensors leave is taken again at once: a tenth less memory at the peak (EfficientNet-Lite0), fewer page faults.
        arena=lambda held: 2 * held <= group_bytes,
    )


def _added(
    opened: Iterable[Group],
    chosen: Observed,
    probes: Probes,
    singles: Callable[[], Iterator[tuple[str, Feeds]]],
    *,
    group_bytes: int,
    lanes: int | None,
) -> Statistics:
    """All groups over all these images."""
    statistics = Statistics()
    for group in opened:
        fits = 2 * group.bytes <= group_bytes and cores() > 1
        # Where an image's tensors are large its inference takes long enough to hide the page faults.
        return_freed_blocks(_SMALL if fits else _LARGE)
        fetched = (name for name in group.names if name not in probes.tally.names)
        statistics.tensors |= {name: TensorStatistics(axis=chosen.axes.get(name)) for name in fetched}
        at_once = lanes or (2 if fits else 1)
        _pass(group, probes.tally, statistics, _Images(singles()), lanes=at_once, infinite=chosen.infinite)
        # A group of inputs alone lays no probes.
        probes.tally = Tally([])
    return statistics


class _Singles:
    """Samples cut into single images, all of them or those of one size.

    Attributes:
        seen: whether there was one.
    """

    def __init__(self, samples: Samples, batched: frozenset[str]) -> None:
        self.seen = False
        self._samples, self._batched = samples, batched
        self._shapes: list[dict[str, tuple[int, ...]]] = []
        self._done = 0

    def all(self) -> Iterator[tuple[str, Feeds]]:
        """(what the image is, feeds) of each."""
        for single in _single_images(self._samples(), self._batched):
            self.seen = True
            yield single

    def of(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Feeds]]:
        """The same of those whose inputs have these shapes."""
        for where, feeds in self.all():
            own = {name: np.shape(value) for name, value in feeds.items()}
            if own not in self._shapes:
                self._shapes.append(own)
            if own == shapes:
                yield where, feeds

    def next_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """The shapes of the inputs of images that `of` was not asked for yet, by name; None where there are none left."""
        first = next(self.all(), None) if not self._shapes else None
        if first is not None:
            self._shapes.append({name: np.shape(value) for name, value in first[1].items()})
        if self._done == len(self._shapes):
            return None
        self._done += 1
        return self._shapes[self._done - 1]


class _Images:
    """Images for several lanes to take from; the failure that counts is that of the first image."""

    def __init__(self, images: Iterator[tuple[str, Feeds]]) -> None:
        self.taken = 0
        self._images = images
        self._lock = threading.Lock()
        self._failures: dict[int, BaseException] = {}

    def take(self) -> tuple[int, str, Feeds] | None:
        """(place, what the image is, feeds), or None where there is none left or something failed."""
        with self._lock:
            if self._failures:
                return None
            place = self.taken
            try:
                where, feeds = next(self._images)
            except StopIteration:
                return None
            except BaseException as error:
                self._failures[place] = error
                return None
            self.taken += 1
            return place, where, feeds

    def fail(self, place: int, error: BaseException) -> None:
        """Stop all lanes once they are through with the image they have."""
        with self._lock:
            self._failures[place] = error

    def check(self) -> None:
        """Raise what went wrong at the earliest image: every image before it was taken, so no timing decides which that is."""
        if self._failures:
            raise self._failures[min(self._failures)]


def _pass(group: Group, tally: Tally, statistics: Statistics, images: _Images, *, lanes: int, infinite: Collection[str]) -> None:
    """Add one group of tensors over all images; those of `infinite` may be that."""
    adding = threading.Lock()
    fetched = [name for name in group.names if name not in tally.names]

    def lane() -> None:
        while (taken := images.take()) is not None:
            place, where, feeds = taken
            # What is refused is the tensor where NaN begins: what is computed of a bad input is bad, too.
            inputs = [name for name in fetched if name in feeds]
            try:
                read = group.read(feeds, where)
                # One lane at a time: two would only wait for the interpreter's lock, thousands of times an image.
                with adding:
                    add(inputs, read, where)
                    tally.add(read, where)
                    add([name for name in fetched if name not in feeds], read, where)
            except BaseException as error:
                images.fail(place, error)

    def add(names: Iterable[str], read: dict[str, np.ndarray], where: str) -> None:
        for name in names:
            statistics.tensors[name].update(name, read.pop(name), where, may_be_infinite=name in infinite)

    with _single_threaded_opencv(), ThreadPoolExecutor(max(1, lanes - 1)) as pool:
        others = [pool.submit(lane) for _ in range(lanes - 1)]
        lane()
        for other in others:
            other.result()
    images.check()
    statistics.tensors |= tally.statistics()


@contextmanager
def _single_threaded_opencv() -> Iterator[None]:
    """OpenCV's own threads wait by spinning, on the cores that the lanes work on."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def _batched_inputs(model: ir.Model) -> frozenset[str]:
    """Names of the graph's inputs whose first dimension is dynamic and the same for all: the batch."""
    inputs = [
        value for value in model.graph.inputs if not value.is_initializer() and value.shape is not None and len(value.shape) > 0
    ]
    images = [value for value in inputs if len(value.shape) == 4 and not isinstance(value.shape[0], int)]
    if not images:
        return frozenset()
    batch = images[0].shape[0]
    return frozenset(value.name or "" for value in inputs if value is images[0] or value.shape[0] == batch)


def _batch_symbols(model: ir.Model, batched: frozenset[str]) -> frozenset[str]:
    """The symbols of the batch dimension, which is 1 for a single image."""
    firsts = [value.shape[0] for value in model.graph.inputs if value.name in batched]
    return frozenset(first.value for first in firsts if not isinstance(first, int) and first.value is not None)


def _single_images(samples: Iterable[tuple[str, Feeds]], batched: frozenset[str]) -> Iterator[tuple[str, Feeds]]:
    """Feeds with one image each."""
    for where, feeds in samples:
        count = max((len(value) for name, value in feeds.items() if name in batched), default=1)
        if count == 1:
            yield where, {name: _aligned(value) for name, value in feeds.items()}
            continue
        for place in range(count):
            single = {name: value[place : place + 1] if name in batched else value for name, value in feeds.items()}
            yield f"{where} [{place}]", {name: _aligned(value) for name, value in single.items()}


def _aligned(value: np.ndarray) -> np.ndarray:
    """The same values where memory's vectors begin: where a mean over an input's last axes does not, its last bits are others."""
    return value if value.ctypes.data % _ALIGNED == 0 else value.copy()
