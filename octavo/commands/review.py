"""Print one Markdown comment on a pull request: gates, figures, parameters, latency, plots, the worst picture.

Compares the working tree, or --head, with its merge base with --base. Works offline: reads git objects, metrics and DVC's cache,
checks nothing out and runs no model. What cannot be told is a sentence of the comment, and the exit code stays 0: `octavo gate`
is what fails.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo.errors import ParamsError
from octavo.files import write_text
from octavo.review.assets import Assets
from octavo.review.comment import comment

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("--base", required=True, metavar="REVISION", help="what it is to be merged into: origin/main")
    parser.add_argument("--head", metavar="REVISION", help="a commit (default: the working tree)")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the comment there instead of printing it")
    parser.add_argument("--assets", type=Path, metavar="FOLDER", help="copy the worst picture and draw plots there")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--assets-url", metavar="URL", help="of that folder, for its readers (default: relative to the comment)")
    where.add_argument("--assets-archive", metavar="URL", help="of a page that offers the folder as one archive: it is linked")


def run(chosen: argparse.Namespace) -> None:
    """Make it, print it or write it."""
    if (chosen.assets_url or chosen.assets_archive) and not chosen.assets:
        raise ParamsError("an address of pictures without pictures", "name their folder, too: --assets FOLDER")
    beside = chosen.out.parent if chosen.out else Path()
    assets = Assets(chosen.assets, beside, chosen.assets_url, chosen.assets_archive) if chosen.assets else None
    text = comment(chosen.base, chosen.head, assets)
    if chosen.out:
        write_text(chosen.out, text)
        print(f"{chosen.out}: {len(text):,} characters")
    else:
        print(text, end="")
