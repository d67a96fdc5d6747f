"""Make the demo data in data/<set>/: weights and photos out of installed packages, rendered scenes (listed in data/sources.yaml).

With --set NAME one set is made, with --model NAME every set below data/ that the model's params name. A model whose data are all
its own needs nothing prepared.
"""

from pathlib import Path

from octavo import cli
from octavo.errors import ParamsError
from octavo.images.packaged import make_set
from octavo.images.rendered import render_set
from octavo.params import load_model, load_sets
from octavo.params.grammar import Rendered
from octavo.progress import say, working

DATA = Path("data")
# Kind of scene to where its annotations lie.
ANNOTATED = {"shapes": "boxes in instances.json", "road": "masks beside images"}


def main() -> None:
    """Parse, copy or render, report."""
    arguments = cli.parser(__doc__, model_required=False)
    arguments.add_argument("--set", metavar="NAME", help="one set of data/sources.yaml")
    arguments.add_argument("--sources", type=Path, default=DATA / "sources.yaml", metavar="FILE", help="the list of demo data")
    chosen = arguments.parse_args()
    if (chosen.set is None) == (chosen.model is None):
        arguments.error("give either --model NAME or --set NAME")

    sets = load_sets(chosen.sources).sets
    if chosen.set is not None and chosen.set not in sets:
        raise ParamsError(f"{chosen.sources} has no set {chosen.set!r}", f"it has: {', '.join(sorted(sets))}")
    if chosen.model is not None:
        model = load_model(chosen.params, chosen.model)
        sets_of_images = (model.data.calibration, model.data.validation, model.data.train)
        used = [model.source.file, *(images.path for images in sets_of_images if images is not None)]
        names = [name for name in sets if any((DATA / name) in (Path(path), *Path(path).parents) for path in used)]
    else:
        names = [chosen.set]
    for name in names:
        folder, made_of = DATA / name, sets[name]
        if isinstance(made_of, Rendered):
            with working(f"rendering {folder}"):
                count = render_set(folder, made_of)
            say(f"{folder}: {count} scenes rendered, {ANNOTATED[made_of.kind]}")
        else:
            say(f"{folder}: {make_set(folder, made_of)} files from packages (sources and licences in SOURCES.md)")
    if not names:
        say(f"{chosen.model} uses no demo data: nothing to prepare")


if __name__ == "__main__":
    cli.run(main)
