"""Say what the pipeline runs on: .octavo/host.json, and the versions of packages in images.json, runtime.json and training.json;
and in reading/<model>.json how images are read: keys of `data:` that may be missing in params.yaml, which DVC cannot watch there.

DVC runs this stage every time, before all others, and whatever depends on a file that has changed by it: latencies are measured on
a host that has none yet, models are made again by other versions of the packages that make them. What is wrong in params.yaml is
said here, before DVC trips over it or a stage has run.
"""

from octavo import cli
from octavo.files import write_json
from octavo.layout import MACHINE
from octavo.params import load
from octavo.runtime.environment import GROUPS, versions_of
from octavo.runtime.host import fingerprint


def main() -> None:
    """Parse, check, look, write."""
    params = load(cli.parser(__doc__, model_required=False).parse_args().params)
    write_json(MACHINE / "host.json", fingerprint())
    for group, names in GROUPS.items():
        write_json(MACHINE / f"{group}.json", versions_of(names))
    for name, model in params.models.items():
        write_json(MACHINE / "reading" / f"{name}.json", model.data.reading)


if __name__ == "__main__":
    cli.run(main)
