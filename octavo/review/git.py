"""The few questions that are put to git, in the working directory."""

from __future__ import annotations

import subprocess

from octavo.errors import ParamsError

__all__ = ["git", "git_bytes"]


def git_bytes(*arguments: str) -> bytes | None:
    """What git writes; None where it fails.

    Raises:
        ParamsError: git is not installed.
    """
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ParamsError("git is not installed", "install git; a review compares its commits") from error
    return done.stdout if done.returncode == 0 else None


def git(*arguments: str) -> str | None:
    """The same as text, without the last line's end."""
    written = git_bytes(*arguments)
    return written.decode(errors="replace").rstrip("\n") if written is not None else None
