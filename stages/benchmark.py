"""Measure size, load time, latency, throughput and peak memory of every variant, interleaved in one process, on this machine.

Writes metrics/<model>/latency.json (described in docs/metrics.md), and the same with the models' hashes to
metrics/hosts/<host>/<model>.json, where each host keeps its own. Reads `input`, `data.validation` and `benchmark` of params.yaml.
"""

from octavo import cli
from octavo.files import write_json
from octavo.latency import measured
from octavo.layout import HOSTS, host_record, metrics_dir
from octavo.params import load_model
from octavo.progress import say, track
from octavo.runtime.entries import session_warning
from octavo.runtime.providers import AUTO, provider_warning
from octavo.variants import Variants


def main() -> None:
    """Parse, measure, write."""
    chosen = cli.parser(__doc__).parse_args()
    spec = load_model(chosen.params, chosen.model)
    variants = Variants.read(chosen.model)
    with variants.custom.files(variants.paths) as runs:
        record = variants.custom.metrics() | measured(variants, spec, runs, track)
    host, latest = record["host.id"], metrics_dir(chosen.model) / "latency.json"
    others = sorted(path.parent.name for path in HOSTS.glob(f"*/{chosen.model}.json") if path.parent.name != host)
    hashes = {f"{variant}.sha256": digest for variant, digest in variants.hashes.items()}
    write_json(host_record(host, chosen.model), record | hashes)
    write_json(latest, record)
    warnings = [session_warning(variants.entries.values()), provider_warning() if AUTO in spec.benchmark.providers else None]
    for note in filter(None, [*variants.notes, *warnings]):
        say(f"note: {note}")
    for operator, ran in variants.custom.metrics().items():
        say(f"{operator}: {ran}")
    kept = f"; in {HOSTS} stay those of {', '.join(others)}" if others else ""
    say(f"{latest}: {len(variants.paths)} variants, host {host}{kept}")


if __name__ == "__main__":
    cli.run(main)
