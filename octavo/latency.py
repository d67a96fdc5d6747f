"""Size, load time, latency, throughput and peak memory of a model's variants on this machine: the record in latency.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

from octavo.images.batches import batch_of
from octavo.images.dataset import Images, Item
from octavo.images.input_sizes import further_sizes, named
from octavo.layout import REFERENCE
from octavo.params.grammar import ModelSpec
from octavo.runtime.benchmark import figures, footprint, latencies, on_device
from octavo.runtime.entries import session_words
from octavo.runtime.host import fingerprint
from octavo.runtime.providers import ON_GPU, chosen_providers
from octavo.runtime.session import Session
from octavo.variants import Variants

__all__ = ["measured"]

# Images on which a GPU's outputs are held against the CPU's.
COMPARED = 16

Track = Callable[[Sequence[Any], str], Iterable[Any]]


def measured(
    variants: Variants, spec: ModelSpec, runs: Mapping[str, Path], track: Track = lambda items, _: items
) -> dict[str, Any]:
    """The record of all settings of `benchmark`, variants interleaved in this process.

    Args:
        variants: of which sizes are.
        spec: the model's block.
        runs: variant to the file that runs: with bodies in place of operators that ONNX Runtime lacks.
        track: shows progress: (items, title) to the same items.

    Returns:
        Keys as docs/metrics.md describes them; what the host is, first.

    Raises:
        DataError, ParamsError: there are no images, or the graph does not take the sizes or batches asked for.
        ModelRunError: a variant does not run, or a provider is not there.
    """
    settings, feeds = spec.benchmark, variants.feeds
    items = variants.images(spec, Session(runs[REFERENCE]))
    record = {f"host.{key}": ", ".join(value) if isinstance(value, list) else value for key, value in fingerprint().items()}
    record["host.session"] = session_words(variants.entries.values())
    providers = chosen_providers(settings.providers)
    record |= _timed(variants, spec, runs, items, track, providers=providers)
    for provider in (provider for provider in providers if provider in ON_GPU):
        samples = (feeds(tensor) for _, tensor in islice(Images(items, spec.input, "skip"), COMPARED))
        for variant, kept in on_device(runs, samples, provider=provider).items():
            record |= {f"{variant}.{provider}.{key}": value for key, value in kept.items()}
    fed, sizes = feeds(next(iter(Images(items, spec.input, "skip")))[1]), variants.sizes
    for variant, path in track(list(runs.items()), f"loading {variants.model}'s variants"):
        size = {"size_mb": round(sizes[variant] / 1e6, 3), "size_ratio": round(sizes[variant] / sizes[REFERENCE], 4)}
        entries = variants.entries[variant]
        size |= footprint(path, fed, provider=providers[0], threads=max(settings.threads), entries=entries)
        record |= {f"{variant}.{key}": value for key, value in size.items()}
    return record | {f"{variant}.target": target for variant, target in variants.elsewhere.items()}


def _timed(
    variants: Variants, spec: ModelSpec, runs: Mapping[str, Path], items: list[Item], track: Track, *, providers: Sequence[str]
) -> dict[str, Any]:
    """Latency at each provider, number of threads, batch and size; a GPU is measured once, with the most threads."""
    settings, record = spec.benchmark, {}
    plan = product(providers, settings.threads, settings.batch, [spec.input.size, *further_sizes(spec)])
    for provider, threads, batch, size in plan:
        if provider in ON_GPU and threads != max(settings.threads):
            continue
        fed = variants.feeds(batch_of((tensor for _, tensor in Images(items, spec.input.at(size), "skip")), batch))
        title = f"timing {variants.model}: {provider}, {threads} threads, batch {batch}, {named(size)}"
        rounds = iter(track(range(settings.rounds), title))
        timed = latencies(
            runs,
            fed,
            provider=provider,
            threads=threads,
            rounds=settings.rounds,
            warmup=settings.warmup,
            progress=lambda rounds=rounds: next(rounds, None),
            entries=variants.entries,
        )
        record |= figures(timed, f"{provider}.t{threads}.b{batch}" + ("" if size == spec.input.size else f".{named(size)}"), batch)
    return record
