"""What git says of the project before a release: everything committed, on a commit that will not get lost."""

from __future__ import annotations

import re
import subprocess

from octavo.errors import RegistryError

__all__ = ["clean_commit", "git_remote", "public_url", "shown_url"]

SHOWN = 8


def clean_commit() -> str:
    """The commit that is checked out, 40 hex digits, after making sure that the files in this folder are those of the commit.

    Raises:
        RegistryError: no git repository or no commit; a changed or untracked file; a detached HEAD on a commit of no branch.
    """
    if _git("rev-parse", "--is-inside-work-tree") is None:
        raise RegistryError("this folder is in no git repository", "versions are git tags: `git init`, commit, then release")
    commit = _git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if commit is None:
        raise RegistryError("the git repository has no commit yet", "commit params.yaml, dvc.yaml, dvc.lock and metrics/ first")
    # Untracked files count: a module that builds the network would be missing in what the tag names.
    changed = _git("status", "--porcelain", "--untracked-files=all")
    if changed:
        lines = changed.splitlines()
        more = f"\n  ... and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        raise RegistryError(
            f"the git tree is not clean, {len(lines)} file(s) differ from the commit that the tag would name:"
            + "".join(f"\n  {_word(line)} {line[3:]}" for line in lines[:SHOWN])
            + more,
            "commit them (or `git stash`); what belongs to nobody goes into .gitignore",
        )
    detached = _git("symbolic-ref", "--quiet", "HEAD") is None
    if detached and not _git("for-each-ref", "--contains", commit, "--count=1", "refs/heads", "refs/remotes"):
        raise RegistryError(
            f"HEAD is detached, and commit {commit[:7]} is on no branch", "`git switch -c NAME` keeps it; then release again"
        )
    return commit


def git_remote() -> str | None:
    """Where tags are pushed: `origin`, else the first git remote; None where there is none."""
    remotes = (_git("remote") or "").split()
    return "origin" if "origin" in remotes else next(iter(remotes), None)


def public_url() -> str | None:
    """The git remote's URL as it may be shown: without user and password."""
    remote = git_remote()
    url = _git("remote", "get-url", remote) if remote else None
    return shown_url(url) if url else None


def shown_url(url: str) -> str:
    """A URL without password, token or, where the web needs none, user; paths as they are."""
    if "://" not in url:
        return url
    url = re.sub(r"^(https?://)[^/]*@", r"\1", url.split("?", maxsplit=1)[0])
    return re.sub(r"^([a-z+]+://[^/:@]*):[^/]*@", r"\1@", url)


def _word(line: str) -> str:
    """`git status --porcelain` begins with two letters."""
    return "untracked" if line.startswith("??") else "deleted" if "D" in line[:2] else "changed"


def _git(*arguments: str) -> str | None:
    """What git writes; None where it fails."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RegistryError("git is not installed", "install git; versions are its tags") from error
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
