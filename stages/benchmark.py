"""Measure size, load time, latency, throughput and peak memory of every variant, interleaved in one process, on this machine.

Writes metrics/<model>/latency.json (described in docs/metrics.md). Reads `input`, `data.validation` and `benchmark` of params.yaml.
"""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from octavo import cli
from octavo.files import write_json
from octavo.graph.custom_ops import CustomOps
from octavo.images.batches import batch_of
from octavo.images.dataset import Images
from octavo.images.input_sizes import named, refuse_fixed_size
from octavo.images.purpose import open_images
from octavo.layout import metrics_dir, present_variants, variant_dir
from octavo.manifest import model_bytes, read_manifest
from octavo.params import load_model
from octavo.params.grammar import ModelSpec
from octavo.progress import say, track
from octavo.runtime.benchmark import latencies, load_ms, peak_memory_mib
from octavo.runtime.host import fingerprint
from octavo.runtime.session import Session, session_config, session_warning


def main() -> None:
    """Parse, measure, write."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    folder = variant_dir(chosen.model, "fp32")
    manifest = read_manifest(folder)
    custom, paths = CustomOps.read(folder, manifest), present_variants(chosen.model)
    with custom.files(paths) as runs:
        record = custom.metrics() | _measure(chosen.model, spec, manifest["image_input"], paths, runs)
    write_json(metrics_dir(chosen.model) / "latency.json", record)
    if session_warning():
        say(f"note: {session_warning()}")
    for operator, ran in custom.metrics().items():
        say(f"{operator}: {ran}")
    say(f"{metrics_dir(chosen.model) / 'latency.json'}: {len(paths)} variants, host {record['host.id']}")


def _measure(model: str, spec: ModelSpec, name: str, paths: dict[str, Path], runs: dict[str, Path]) -> dict[str, Any]:
    """The record of all settings; sizes are those of `paths`, what is run are `runs`."""
    settings = spec.benchmark
    items = open_images(spec.data, "validation", f"models.{model}.data")
    refuse_fixed_size(settings.sizes, Session(runs["fp32"]).input_shapes[name], spec.input)
    sizes = dict.fromkeys([spec.input.size, *settings.sizes])
    record = {f"host.{key}": ", ".join(value) if isinstance(value, list) else value for key, value in fingerprint().items()}
    record["host.session"] = ", ".join(f"{key}={value}" for key, value in session_config().items()) or "defaults"

    plan = list(product(settings.providers, settings.threads, settings.batch, sizes))
    for provider, threads, batch, size in plan:
        images = Images(items, spec.input.at(size), "skip")
        feeds = {name: batch_of((tensor for _, tensor in images), batch)}
        rounds = iter(track(range(settings.rounds), f"timing {model}: {provider}, {threads} threads, batch {batch}, {named(size)}"))
        timed = latencies(
            runs,
            feeds,
            provider=provider,
            threads=threads,
            rounds=settings.rounds,
            warmup=settings.warmup,
            progress=lambda rounds=rounds: next(rounds, None),
        )
        key = f"{provider}.t{threads}.b{batch}" + ("" if size == spec.input.size else f".{named(size)}")
        for variant, latency in timed.items():
            low, high = latency.interval()
            record |= {
                f"{variant}.{key}.median_ms": round(latency.median, 3),
                f"{variant}.{key}.median_low_ms": round(low, 3),
                f"{variant}.{key}.median_high_ms": round(high, 3),
                f"{variant}.{key}.p95_ms": round(latency.p95, 3),
                f"{variant}.{key}.images_per_s": round(batch * 1e3 / latency.median, 2),
                f"{variant}.{key}.speedup": round(float(np.median(timed["fp32"].samples / latency.samples)), 3),
            }
    largest = max(settings.threads)
    feeds = {name: next(iter(Images(items, spec.input, "skip")))[1]}
    bytes_fp32 = model_bytes(paths["fp32"].parent)
    for variant, path in track(list(runs.items()), f"loading {model}'s variants"):
        size = model_bytes(paths[variant].parent)
        record |= {
            f"{variant}.size_mb": round(size / 1e6, 3),
            f"{variant}.size_ratio": round(size / bytes_fp32, 4),
            f"{variant}.load_ms": round(load_ms(path, provider=settings.providers[0], threads=largest), 1),
            f"{variant}.peak_memory_mib": round(peak_memory_mib(path, feeds, provider=settings.providers[0], threads=largest), 1),
        }
    return record


if __name__ == "__main__":
    cli.run(main)
