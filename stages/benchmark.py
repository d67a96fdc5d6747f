"""Measure size, load time, latency, throughput and peak memory of every variant, interleaved in one process, on this machine.

Writes metrics/<model>/latency.json (described in docs/metrics.md), and the same with the models' hashes to
metrics/hosts/<host>/<model>.json, where each host keeps its own. Reads `input`, `data.validation` and `benchmark` of params.yaml.
"""

from itertools import islice, product
from pathlib import Path
from typing import Any

from octavo import cli
from octavo.files import write_json
from octavo.graph.custom_ops import CustomOps
from octavo.images.batches import batch_of
from octavo.images.dataset import Images
from octavo.images.feeds import Feeds
from octavo.images.input_sizes import further_sizes, named, refuse_untaken
from octavo.images.purpose import open_images
from octavo.layout import HOSTS, host_record, metrics_dir, present_variants, variant_dir
from octavo.manifest import model_bytes, read_manifest, session_entries
from octavo.params import load_model
from octavo.params.grammar import ModelSpec
from octavo.progress import say, track
from octavo.runtime.benchmark import figures, footprint, latencies, on_device
from octavo.runtime.host import fingerprint
from octavo.runtime.providers import AUTO, ON_GPU, chosen_providers, provider_warning
from octavo.runtime.session import Session, session_warning, session_words

# Images on which a GPU's outputs are held against the CPU's.
COMPARED = 16

Files, Entries = dict[str, Path], dict[str, dict[str, str]]


def main() -> None:
    """Parse, measure, write."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    manifest = read_manifest(variant_dir(chosen.model, "fp32"))
    custom, paths = CustomOps.read(variant_dir(chosen.model, "fp32"), manifest), present_variants(chosen.model)
    manifests = {variant: read_manifest(path.parent) for variant, path in paths.items()}
    entries = {variant: session_entries(own) for variant, own in manifests.items()}
    warnings = [session_warning(entries.values()), provider_warning() if AUTO in spec.benchmark.providers else None]
    with custom.files(paths) as runs:
        record = custom.metrics() | _measure(chosen.model, spec, Feeds.read(manifest), paths, runs, entries=entries)
    host, latest = record["host.id"], metrics_dir(chosen.model) / "latency.json"
    others = sorted(path.parent.name for path in HOSTS.glob(f"*/{chosen.model}.json") if path.parent.name != host)
    hashes = {f"{variant}.sha256": own["sha256"] for variant, own in manifests.items()}
    write_json(host_record(host, chosen.model), record | hashes)
    write_json(latest, record)
    lines = [f"note: {warning}" for warning in warnings if warning]
    for line in [*lines, *(f"{operator}: {ran}" for operator, ran in custom.metrics().items())]:
        say(line)
    say(f"{latest}: {len(paths)} variants, host {host}" + (f"; in {HOSTS} stay those of {', '.join(others)}" if others else ""))


def _measure(model: str, spec: ModelSpec, feeds: Feeds, paths: Files, runs: Files, *, entries: Entries) -> dict[str, Any]:
    """The record of all settings; sizes are those of `paths`, what is run are `runs`, with each its session entries."""
    settings, providers = spec.benchmark, chosen_providers(spec.benchmark.providers)
    items = open_images(spec.data, "validation", f"models.{model}.data")
    network = Session(runs["fp32"])
    refuse_untaken(spec, network.input_shapes[feeds.image], items, lambda image: network.run(feeds(image)))
    sizes = [spec.input.size, *further_sizes(spec)]
    record = {f"host.{key}": ", ".join(value) if isinstance(value, list) else value for key, value in fingerprint().items()}
    record["host.session"] = session_words(entries.values())

    largest = max(settings.threads)
    plan = product(providers, settings.threads, settings.batch, sizes)
    for provider, threads, batch, size in [each for each in plan if each[0] not in ON_GPU or each[1] == largest]:
        images = Images(items, spec.input.at(size), "skip")
        fed = feeds(batch_of((tensor for _, tensor in images), batch))
        rounds = iter(track(range(settings.rounds), f"timing {model}: {provider}, {threads} threads, batch {batch}, {named(size)}"))
        timed = latencies(
            runs,
            fed,
            provider=provider,
            threads=threads,
            rounds=settings.rounds,
            warmup=settings.warmup,
            progress=lambda rounds=rounds: next(rounds, None),
            entries=entries,
        )
        record |= figures(timed, f"{provider}.t{threads}.b{batch}" + ("" if size == spec.input.size else f".{named(size)}"), batch)
    for provider in (provider for provider in providers if provider in ON_GPU):
        samples = (feeds(tensor) for _, tensor in islice(Images(items, spec.input, "skip"), COMPARED))
        for variant, kept in on_device(runs, samples, provider=provider).items():
            record |= {f"{variant}.{provider}.{key}": value for key, value in kept.items()}
    fed = feeds(next(iter(Images(items, spec.input, "skip")))[1])
    bytes_fp32 = model_bytes(paths["fp32"].parent)
    for variant, path in track(list(runs.items()), f"loading {model}'s variants"):
        size = model_bytes(paths[variant].parent)
        record |= {f"{variant}.size_mb": round(size / 1e6, 3), f"{variant}.size_ratio": round(size / bytes_fp32, 4)}
        loaded = footprint(path, fed, provider=providers[0], threads=largest, entries=entries[variant])
        record |= {f"{variant}.{key}": value for key, value in loaded.items()}
    return record


if __name__ == "__main__":
    cli.run(main)
