"""Make models/<model>/package: each deployable variant with its labels, decoder, figures and verdicts, and how to run it.

Reads what the other stages made; `octavo.deploy.load` and `make release` take it from there (docs/deploy.md).
"""

from octavo import cli
from octavo.deploy.artifact import PACKAGE
from octavo.deploy.package import package
from octavo.errors import DataError
from octavo.files import read_json, replace_dir
from octavo.layout import metrics_dir, present_variants, variant_dir
from octavo.params import load_model
from octavo.progress import say


def main() -> None:
    """Parse, join, write."""
    chosen = cli.parser(__doc__).parse_args()
    load_model(chosen.params, chosen.model)
    try:
        accuracy, latency = (read_json(metrics_dir(chosen.model) / f"{kind}.json") for kind in ("accuracy", "latency"))
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: no such file", "run `dvc repro` first") from error
    folder = variant_dir(chosen.model, PACKAGE)
    with replace_dir(folder) as temporary:
        variants = {variant: path.parent for variant, path in present_variants(chosen.model).items()}
        manifests = package(temporary, variants, accuracy, latency)
    for variant, manifest in manifests.items():
        failed = [gate for gate, verdict in manifest["gates"].items() if verdict == "fail"]
        if failed:
            say(f"{folder / variant}: not to be released, failed: {', '.join(failed)}")
    say(f"{folder}: {', '.join(manifests)}")


if __name__ == "__main__":
    cli.run(main)
