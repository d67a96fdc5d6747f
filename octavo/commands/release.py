"""Give a model's package, and each variant in it, a version: git tags, once its gates hold and its files are in the remote."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo import cli
from octavo.deploy.registry.committed import git_remote, public_url
from octavo.deploy.registry.release import Release, plan, tag
from octavo.errors import ParamsError

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    # Empty where `make release` was called without: the message says how it is called.
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="a key of `models:` in params.yaml")
    parser.add_argument("version", nargs="?", default="", metavar="VERSION", help="v1.0.0")
    parser.add_argument("--remote", metavar="NAME", help="the DVC remote that must hold the package (default: the project's)")
    parser.add_argument("--dry-run", action="store_true", help="check everything, make no tag")
    parser.add_argument("--params", type=Path, default=cli.PARAMS, metavar="FILE", help="the parameters (default: params.yaml)")


def run(chosen: argparse.Namespace) -> None:
    """Check, tag, say what is next."""
    if not chosen.model or not chosen.version:
        missing = "VERSION" if chosen.model else "MODEL"
        raise ParamsError(f"{missing} is missing", "octavo release road v1.0.0, or make release MODEL=road VERSION=v1.0.0")
    release = plan(chosen.model, chosen.version, params=chosen.params, remote=chosen.remote)
    if not chosen.dry_run:
        tag(release)
    print(f"{'would be tagged' if chosen.dry_run else 'tagged'} at {release.commit[:7]}: {', '.join(release.tags)}")
    for message in list(release.artifacts.values())[:1]:
        print("\n".join(f"  {line}" for line in message.splitlines()[2:]))
    for note in release.notes:
        print(f"note: {note}")
    if not chosen.dry_run:
        _next(release, chosen.remote)


def _next(release: Release, remote: str | None) -> None:
    url = public_url() or "URL"
    name = next((name for name in release.artifacts if name.endswith("-int8")), next(iter(release.artifacts)))
    option = f" --remote {remote}" if remote else ""
    print(f"publish:  git push {git_remote() or 'REMOTE'} {' '.join(release.tags)}")
    print(f"fetch:    octavo fetch {url} {name}@{release.version} -o FOLDER{option}")
    print(f"   or:    dvc artifacts get {url} {name} --rev {release.version} -o FOLDER{option}")
