"""What is compared with what: the head, the merge base, and a sentence for whatever stands between them."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ParamsError
from octavo.review.git import git
from octavo.review.markdown import code

__all__ = ["History", "history"]


@dataclass(frozen=True)
class History:
    """What git says.

    Attributes:
        commit: of the head, 40 hex digits; None of a repository without one.
        base: the merge base, 40 hex digits; None where there is nothing to compare with, of which `notes` tells the reason.
        unchanged: no file of this folder differs from the merge base.
        compared: one line: what was compared with what.
        notes: sentences for the reader.
    """

    commit: str | None
    base: str | None
    unchanged: bool
    compared: str
    notes: tuple[str, ...]


def history(base: str, head: str | None) -> History:
    """Find the merge base.

    Args:
        base: what the pull request is to be merged into: `origin/main`.
        head: a revision; None is the working tree.

    Raises:
        ParamsError: `head` is no commit; git is not installed.
    """
    if git("rev-parse", "--is-inside-work-tree") != "true":
        said = git("rev-parse", "--is-bare-repository") == "true"
        reason = "This is a bare repository" if said else "This folder is in no git repository, or git refuses to read it"
        return History(None, None, False, "", (f"{reason} (`git status` says more): there is nothing to compare with.",))
    commit = _commit(head or "HEAD")
    if commit is None:
        if head is not None:
            raise ParamsError(f"--head {head}: no such commit here", "`git fetch`, or name another")
        return History(None, None, False, "", ("The git repository has no commit yet: there is nothing to compare with.",))
    notes = _tree_notes() if head is None else []
    changed = bool(notes)
    notes += _detached(commit) if head is None else []
    found, reason = _merge_base(base, commit)
    what = f"the working tree on {code(commit[:9])}" if changed else code(commit[:9])
    if found is None:
        return History(commit, None, False, f"{what}, compared with nothing", (*notes, reason))
    unchanged = git("diff", "--quiet", found, *([commit] if head is not None else []), "--", ".") is not None
    unchanged = unchanged and not (head is None and _untracked())
    compared = f"{what} against {code(found[:9])}, the merge base with {code(base)}"
    if unchanged and not _parents(commit) and found == commit:
        notes.append("This is the first commit: nothing lies before it.")
    elif unchanged:
        notes.append(f"Nothing changed in this folder since {code(found[:9])}, the merge base with {code(base)}.")
    return History(commit, found, unchanged, compared, tuple(notes))


def _merge_base(base: str, commit: str) -> tuple[str | None, str]:
    shallow = git("rev-parse", "--is-shallow-repository") == "true"
    there = _commit(base)
    if there is None:
        if not shallow and not _parents(commit):
            return None, f"This is the first commit, and there is no {code(base)}: there is nothing to compare with."
        remote, slash, branch = base.partition("/")
        fetch = f"git fetch {remote} {branch}" if slash and remote in (git("remote") or "").split() else "git fetch"
        deep = f"{fetch} --unshallow" if shallow else fetch
        return None, f"The base {code(base)} is not in this clone: {code(deep)} brings it. Nothing is compared."
    found = git("merge-base", there, commit)
    if found is None and shallow:
        return None, (
            f"The history that this clone has is cut off before the merge base with {code(base)}: "
            f"{code('git fetch --unshallow')} brings the rest. Nothing is compared."
        )
    if found is None:
        return None, f"{code(base)} and {code(commit[:9])} have no commit in common: there is nothing to compare with."
    return found.splitlines()[0], ""


def _tree_notes() -> list[str]:
    changed = (git("status", "--porcelain", "--", ".") or "").splitlines()
    if not changed:
        return []
    count = "1 file that is" if len(changed) == 1 else f"{len(changed)} files that are"
    return [f"The working tree has {count} in no commit: the figures are the working tree's."]


def _detached(commit: str) -> list[str]:
    attached = git("symbolic-ref", "--quiet", "HEAD") is not None
    # CI checks out a commit, not a branch: worth a word only where the commit may get lost.
    if attached or git("for-each-ref", "--contains", commit, "--count=1", "refs/heads", "refs/remotes"):
        return []
    return [f"HEAD is detached at {code(commit[:9])}, which is on no branch here."]


def _untracked() -> bool:
    return bool(git("ls-files", "--others", "--exclude-standard", "--", "."))


def _parents(commit: str) -> list[str]:
    return (git("rev-list", "--parents", "-n", "1", commit) or "").split()[1:]


def _commit(revision: str) -> str | None:
    # `--end-of-options`: a revision that begins with a dash is none.
    return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
