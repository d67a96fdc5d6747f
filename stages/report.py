"""Join accuracy.json and latency.json: with --model, write that model's report.md and plots; without, print all tables.

Reads metrics only; runs no model. The plots are tradeoff.csv and resolutions.csv.
"""

from rich.console import Console
from rich.table import Table

from octavo import cli
from octavo.errors import DataError
from octavo.evidence import remarks, report, series
from octavo.files import read_json, replace_inside, write_csv, write_text
from octavo.layout import metrics_dir
from octavo.params import load, load_model
from octavo.progress import say


def main() -> None:
    """Parse, then write one report or print all."""
    chosen = cli.parser(__doc__, model_required=False).parse_args()
    if chosen.model is not None:
        load_model(chosen.params, chosen.model)
        _write(chosen.model)
        return
    console = Console(width=None if Console().is_terminal else 180)
    for name in load(chosen.params).models:
        accuracy, latency = _records(name)
        caption = remarks.caption(accuracy, latency)
        console.print(_table(report.headings(accuracy), *report.rows(accuracy, latency), title=name, caption=caption))
        for parts in [*report.part_tables(accuracy), *filter(None, [report.provider_table(latency)])]:
            console.print(_table(*parts, title=f"{name}: {parts[0][1]}"))
        for note in [*remarks.stood_in(accuracy), *remarks.missing(accuracy), *remarks.shortfalls(latency)]:
            console.print(f"note: {note}")
    console.print("models:  models/<model>/<variant>/model.onnx, each with its manifest.json")
    console.print("metrics: metrics/<model>/ (dvc metrics show, dvc metrics diff --md, dvc plots show)")


def _table(columns: tuple[str, ...], *rows: tuple[str, ...], title: str, caption: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for heading in columns:
        table.add_column(heading, justify="left" if heading in ("variant", "gates", "head", "held out", "provider") else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _write(name: str) -> None:
    accuracy, latency = _records(name)
    with replace_inside(metrics_dir(name)) as temporary:
        write_text(temporary / "report.md", report.markdown(name, accuracy, latency))
        write_csv(temporary / "tradeoff.csv", series.tradeoff(accuracy, latency))
        write_csv(temporary / "resolutions.csv", series.resolutions(accuracy, latency))
    for note in remarks.shortfalls(latency):
        say(f"note: {name}: {note}")


def _records(name: str) -> tuple[dict, dict]:
    try:
        return read_json(metrics_dir(name) / "accuracy.json"), read_json(metrics_dir(name) / "latency.json")
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: no such file", "run `dvc repro` first") from error


if __name__ == "__main__":
    cli.run(main)
