"""Judge ONNX files against the FP32 file of a network: metric, fidelity, size, latency ratio, one line a file.

    python benchmarks/evaluate.py --data FOLDER --network yolov5n MODEL.onnx [MODEL2.onnx ...] [--limit N] [--views]

Without a MODEL, FP32 alone. Speed is FP32's latency over the file's, the median over interleaved rounds (2 threads).
`--views` looks at a detector's photos in eight views each (`views.py`), which tells files apart whose AP 64 photos do not.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from arguments import parser
from measure import FP32, NOTE, judge
from networks import NETWORKS, network
from octavo import cli
from octavo.errors import DataError
from octavo.files import write_json
from octavo.runtime.host import fingerprint
from views import chosen_views


def main() -> None:
    """Parse, judge, print."""
    arguments = parser(__doc__)
    arguments.add_argument("--network", required=True, help=f"one of: {', '.join(NETWORKS)}")
    arguments.add_argument("--json", type=Path, help="also write the figures here")
    arguments.add_argument("files", nargs="*", type=Path, metavar="MODEL.onnx")
    given = arguments.parse_args()
    for path in given.files:
        if not path.is_file():
            raise DataError(f"{path}: no such file", "correct the path")
    names = [path.name for path in given.files]
    variants = {str(path) if names.count(path.name) > 1 else path.name: path for path in given.files}
    chosen = network(given.network, given.data, given.models)
    results = judge(
        chosen,
        variants,
        limit=given.limit,
        rounds=given.rounds,
        openvino=given.openvino_python,
        views=chosen_views(given.views),
    )

    flat = dict(results)
    if given.openvino_python:
        flat |= {f"{name} (OpenVINO)": values["openvino"] for name, values in results.items()}
    # The reference has every column, the kept share after the metric itself.
    keys = [key for key in results[FP32] if key not in ("kept", "openvino")]
    keys.insert(1, "kept")
    table = Table("file", *keys, title=given.network)
    for name, values in flat.items():
        table.add_row(name, *(f"{values[key]:.4g}" if key in values else "-" for key in keys))
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)
    console.print(table)
    print(NOTE)
    if given.json:
        write_json(given.json, {"host": fingerprint(), "network": given.network, "results": results})


if __name__ == "__main__":
    cli.run(main)
