"""The run-cache in a remote, with the files that it names.

DVC keeps an entry for each run of a stage: hashes of its command, deps and params, and of its outputs. Where an entry's outputs are
in the cache, `dvc repro` takes them and runs nothing. `dvc push --run-cache` (3.67) uploads entries alone: not the outputs of other
runs than dvc.lock's, and never those with `cache: false` (metrics, plots), without which no run can be given back elsewhere.
Here entries travel with all their outputs, and after them, so that none is there whose outputs are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from octavo.errors import RegistryError

if TYPE_CHECKING:
    from dvc.repo import Repo

__all__ = ["pull_runs", "push_runs", "quiet"]

# (key, value): what is hashed of a run before it, and after it.
Entry = tuple[str, str]
Wanted = Callable[[list[str]], bool]
RUNS = "runs"


def push_runs(repo: Repo, remote: str | None) -> tuple[int, int]:
    """Upload runs of this code that are whole in the cache.

    Returns:
        How many files, and how many entries, that the remote had not.

    Raises:
        RegistryError: some files could not be uploaded; no entry was then.
    """
    here, there = repo.cache.legacy, repo.cloud.get_remote_odb(remote, "push --run-cache", hash_name="md5-dos2unix")
    fitting = _of_this_code(repo)
    runs = [entry for entry in sorted(_entries(here)) if fitting(entry, lambda _: True) and _whole(repo, entry)]
    files = 0
    # Also of entries that are there: who pushed them by DVC did not push their files.
    for objects in repo.stage_cache.get_used_objs(runs, remote=remote).values():
        result = repo.cloud.push(objects, remote=remote)
        if result.failed:
            raise RegistryError(
                f"{len(result.failed)} file(s) of the run-cache were not uploaded", "push again: it goes on from here"
            )
        files += len(result.transferred)
    new = sorted({*runs} - _entries(there))
    for entry in new:
        _copy(here, there, entry)
    return files, len(new)


def pull_runs(repo: Repo, remote: str | None, wanted: Wanted) -> int:
    """Download runs of this code with their outputs, into the cache.

    Args:
        wanted: whether runs of a stage with these outputs (paths) are.

    Returns:
        How many were not here, or not whole.
    """
    here, there = repo.cache.legacy, repo.cloud.get_remote_odb(remote, "pull --run-cache", hash_name="md5-dos2unix")
    for entry in sorted(_entries(there) - _entries(here)):
        _copy(there, here, entry)
    fitting = _of_this_code(repo)
    new = [entry for entry in sorted(_entries(there)) if fitting(entry, wanted) and not _whole(repo, entry)]
    with quiet():
        for entry in new:
            # `force`: an entry that DVC alone pushed may name what nobody has; that run is not given back, and no more.
            for objects in repo.stage_cache.get_used_objs([entry], remote=remote, force=True).values():
                repo.cloud.pull(objects, remote=remote)
    return sum(_whole(repo, entry) for entry in new)


def _entries(odb: Any) -> set[Entry]:
    runs = odb.fs.join(odb.path, RUNS)
    if not odb.fs.exists(runs):
        return set()
    found = (PurePosixPath(odb.fs.as_posix(odb.fs.relpath(path, runs))).parts for path in odb.fs.find(runs))
    # Half-written entries have a name of their own.
    return {(parts[1], parts[2]) for parts in found if len(parts) == 3 and parts[2].isalnum()}


def _place(odb: Any, entry: Entry) -> str:
    key, value = entry
    return odb.fs.join(odb.path, RUNS, key[:2], key, value)


def _copy(from_odb: Any, to_odb: Any, entry: Entry) -> None:
    from dvc.fs import generic

    to_odb.fs.makedirs(to_odb.fs.parent(_place(to_odb, entry)), exist_ok=True)
    generic.copy(from_odb.fs, _place(from_odb, entry), to_odb.fs, _place(to_odb, entry))


def _whole(repo: Repo, entry: Entry) -> bool:
    """Whether all that a run made is in the cache."""
    run = repo.stage_cache._load_cache(*entry)
    return bool(run) and repo.stage_cache._create_stage(run).outs_cached()


def _of_this_code(repo: Repo) -> Callable[[Entry, Wanted], bool]:
    """Whether a run read the code, and all else that no stage makes, as dvc.lock has it.

    Others cannot be given back to this commit.
    """
    stages = list(repo.index.stages)
    made = {out.def_path for stage in stages for out in stage.outs}
    sources: Mapping[str, str] = {
        dep.def_path: dep.hash_info.value
        for stage in stages
        for dep in stage.deps
        if dep.def_path not in made and dep.hash_info and isinstance(dep.hash_info.value, str)
    }

    def fits(entry: Entry, wanted: Wanted) -> bool:
        run = repo.stage_cache._load_cache(*entry)
        if not run or not wanted([out["path"] for out in run["outs"]]):
            return False
        return all(sources.get(dep["path"], dep.get("md5")) == dep.get("md5") for dep in run.get("deps", []))

    return fits


@contextmanager
def quiet() -> Iterator[None]:
    """Without DVC's warnings of files that the remote lacks."""
    logger = logging.getLogger("dvc")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
