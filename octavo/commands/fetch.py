"""Fetch a released model into a folder: whole and as it was released, or not at all."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo.deploy.registry.fetch import fetch
from octavo.errors import ParamsError
from octavo.progress import working

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("url", metavar="URL", help="the git repository that released it, or its path")
    parser.add_argument("name", metavar="NAME[@VERSION]", help="road, road-int8, road-int8@v1.0.0; without version the highest")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FOLDER", help="must not be there yet")
    parser.add_argument("--remote", metavar="NAME", help="which of the repository's DVC remotes (default: its default)")
    parser.add_argument(
        "--remote-config",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings of that remote (endpointurl, ...)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a file like .dvc/config, for remotes and credentials")
    parser.add_argument("--force", action="store_true", help="replace the model in FOLDER")


def run(chosen: argparse.Namespace) -> None:
    """Fetch, and say what lies there."""
    name, _, version = chosen.name.partition("@")
    settings = dict(_setting(text) for text in chosen.remote_config)
    if chosen.config and not chosen.config.is_file():
        raise ParamsError(f"--config {chosen.config}: no such file", "name a file like .dvc/config")
    with working(f"fetching {chosen.name}"):
        fetched = fetch(
            chosen.url,
            name,
            chosen.out,
            version=version or None,
            remote=chosen.remote,
            remote_config=settings,
            config=chosen.config,
            force=chosen.force,
        )
    print(
        f"{chosen.out}: {name} {fetched.version} ({', '.join(fetched.variants)}), commit {fetched.commit[:7]}, all hashes verified"
    )


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ParamsError(f"--remote-config {text!r} is no KEY=VALUE", "endpointurl=https://s3.example.org, say")
    return key, value
