"""DVC's side: the project in this folder, what `dvc metrics diff` and `dvc params diff` say, and files that lie in its cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.review.markdown import code
from octavo.review.records import Side

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage

__all__ = ["WORKSPACE", "Changes", "Seen", "cached_file", "changes", "opened", "seen"]

# path -> key -> (at the base, at the head); None where it is not there.
Changes = Mapping[str, Mapping[str, tuple[Any, Any]]]
WORKSPACE = "workspace"


@contextmanager
def opened(notes: list[str]) -> Iterator[Repo | None]:
    """The DVC project in this folder; None, with a sentence in `notes`, where there is none."""
    try:
        from dvc.exceptions import DvcException, NotDvcRepoError
        from dvc.repo import Repo
    except ImportError:
        notes.append("DVC is not installed (`pip install octavo[pipeline]`): figures and parameters are not compared.")
        yield None
        return
    try:
        repo = Repo(".")
    except NotDvcRepoError:
        notes.append("DVC is not initialised here (`dvc init`): figures and parameters are not compared.")
        yield None
        return
    except (DvcException, OSError) as error:
        notes.append(f"DVC does not open this project ({code(error)}): figures and parameters are not compared.")
        yield None
        return
    with repo:
        yield repo


@dataclass
class Seen:
    """What DVC has of one side.

    Attributes:
        metrics, params: by file, as `dvc metrics show` and `dvc params show` have them.
        outdated: names of stages whose parameters have changed since they ran: dvc.lock has others than params.yaml.
    """

    metrics: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    outdated: list[str] = field(default_factory=list)


def seen(repo: Repo, side: Side, notes: list[str]) -> Seen:
    """Ask DVC for one side.

    All at once: it reads dvc.yaml and dvc.lock of a commit anew each time that it turns to it, which takes longer than all else.

    Args:
        notes: gets a sentence for each file that DVC could not read.
    """
    from dvc.exceptions import DvcException
    from scmrepo.exceptions import SCMError

    found = Seen()
    try:
        with _at(repo, side.commit):
            for kind, values in (("metrics", found.metrics), ("params", found.params)):
                (result,) = getattr(repo, kind).show().values()
                if "error" in result:
                    notes.append(f"{code(f'dvc {kind} show')} fails for {side.name}: {code(result['error'])}.")
                for path, one in result.get("data", {}).items():
                    if "error" not in one:
                        values[Path(path).as_posix()] = one["data"]
                    # A record that is not there is of a model that nobody has measured: sections say so, once.
                    elif not isinstance(one["error"], FileNotFoundError):
                        notes.append(
                            f"{code(path)} of {side.name} cannot be read by {code(f'dvc {kind} show')}: {code(one['error'])}."
                        )
            # Of a commit DVC has the way from this folder to the root of its objects before the name.
            names = [stage.addressing for stage in repo.index.stages if _outdated(repo, stage)]
            found.outdated = [name.rpartition("dvc.yaml:")[2] for name in names]
    except (DvcException, SCMError) as error:
        notes.append(f"DVC does not read {side.name}: {code(error)}.")
    return found


def changes(base: Mapping[str, Any], head: Mapping[str, Any]) -> Changes:
    """What `dvc metrics diff` or `dvc params diff` has, flat: the keys that differ, by file."""
    flat = {path: dict(_flat("", base.get(path, {}), head.get(path, {}))) for path in dict.fromkeys([*base, *head])}
    return {path: keys for path, keys in flat.items() if keys}


def cached_file(repo: Repo, folder: Path, commit: str | None) -> tuple[str, bytes | None] | None:
    """The first file of a folder that DVC keeps, by name.

    Args:
        folder: from the project's folder.
        commit: whose dvc.lock tells what is in it; None is the working tree's.

    Returns:
        Its name and content; the content None where the cache does not hold it, the name empty where it does not even hold the
        list. None where DVC knows of no such folder, or it is empty.
    """
    from dvc.exceptions import DvcException
    from scmrepo.exceptions import SCMError

    try:
        with _at(repo, commit):
            (out,) = repo.find_outs_by_path(repo.fs.abspath(folder.as_posix()), strict=True)
            if not out.hash_info:
                return None
            tree = out.get_obj()
            if tree is None:
                return "", None
            entries = sorted(("/".join(key), hash_info.value) for key, _, hash_info in tree)
            if not entries:
                return None
            name, oid = entries[0]
            path = Path(out.cache.oid_to_path(oid))
            return name, path.read_bytes() if path.is_file() else None
    except (DvcException, SCMError, OSError, ValueError):
        return None


def _outdated(repo: Repo, stage: Stage) -> bool:
    """Whether dvc.lock has other parameters of a stage than its files have; DVC's own `status` looks into the working tree only."""
    from dvc.dependency.param import ParamsDependency, read_param_file

    for dep in (dep for dep in stage.deps if isinstance(dep, ParamsDependency) and dep.params):
        try:
            now = read_param_file(repo.fs, dep.fs_path, list(dep.params), flatten=True)
        except OSError:
            continue
        if json.dumps(now, sort_keys=True, default=str) != json.dumps(dep.hash_info.value or {}, sort_keys=True, default=str):
            return True
    return False


@contextmanager
def _at(repo: Repo, commit: str | None) -> Iterator[None]:
    """DVC looking at a commit's objects instead of the working tree; nothing is checked out."""
    from dvc.repo.brancher import switch

    with switch(repo, commit) if commit is not None else nullcontext():
        yield


def _flat(key: str, old: Any, new: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        olds, news = (one if isinstance(one, Mapping) else {} for one in (old, new))
        for name in dict.fromkeys([*olds, *news]):
            yield from _flat(f"{key}.{name}" if key else str(name), olds.get(name), news.get(name))
        left = [None if isinstance(one, Mapping) else one for one in (old, new)]
        if any(one is not None for one in left):
            yield key, (left[0], left[1])
    elif json.dumps(old, default=str) != json.dumps(new, default=str):
        yield key, (old, new)
