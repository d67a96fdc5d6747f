"""Push what the pipeline made to the project's DVC remote, and pull it: outputs and the run-cache.

Both work in the project's folder. What DVC says of a remote that cannot be used becomes one message that has the way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from octavo.deploy.registry.run_cache import pull_runs, push_runs, quiet
from octavo.deploy.registry.stored import only_known_hosts, storage_error
from octavo.errors import OctavoError, RegistryError
from octavo.params import load_model

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo
    from dvc.stage import Stage

__all__ = ["Moved", "pull", "push"]

SHOWN = 8
SET = "dvc remote add -d store /mnt/share/octavo"


@dataclass(frozen=True)
class Moved:
    """What was transferred.

    Attributes:
        remote: its name.
        files: that were not there; of a pull without those of the run-cache.
        runs: entries of the run-cache that were not there, or not whole.
        left: outputs of dvc.lock that are nowhere, and that no model is made from: sets of a demo whose models went.
    """

    remote: str
    files: int
    runs: int
    left: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Of what is nowhere; "" where nothing is."""
        return f"; nowhere, and no model is made from them: {_shown([*self.left])}" if self.left else ""


def push(remote: str | None = None, *, run_cache: bool = True) -> Moved:
    """Push all outputs that dvc.lock names, and the run-cache's runs of this code.

    Args:
        remote: a remote of .dvc/config; None takes the default.
        run_cache: runs, too.

    Raises:
        RegistryError: no remote is configured, it cannot be used, or an output of dvc.lock is in neither cache that is a
            model's, or that one is made from.
    """
    with _project(remote) as (repo, name):
        _reach(repo, name)
        absent, left = _apart(repo, _absent(repo, name))
        files = repo.push(remote=remote)
        more, runs = push_runs(repo, remote) if run_cache else (0, 0)
        if absent:
            raise RegistryError(
                f"{len(absent)} output(s) of dvc.lock are neither in DVC's cache nor in the remote {name!r}: {_shown(absent)}",
                "`dvc repro` makes them, or `dvc commit` where they lie here as dvc.lock has them; all others were pushed",
            )
    return Moved(name, files + more, runs, tuple(left))


def pull(
    model: str | None = None,
    remote: str | None = None,
    *,
    params: str | Path = "params.yaml",
    run_cache: bool = True,
    with_deps: bool = False,
    allow_missing: bool = False,
    force: bool = False,
) -> Moved:
    """Pull all outputs that dvc.lock names, or a model's alone, and runs of this code.

    Args:
        model: models/<model> and metrics/<model>, and runs of its stages; None takes everything, data sets included.
        remote: a remote of .dvc/config; None takes the default.
        params: to look the model up.
        run_cache: runs, too.
        with_deps: of a model also what it is made from: data sets, weights.
        allow_missing: take what is there where the remote lacks something.
        force: replace files in the workspace that differ and are not in the cache.

    Raises:
        ParamsError: no such model.
        RegistryError: no remote is configured, it cannot be used, or lacks a file; the workspace is as it was then.
    """
    if model is not None:
        load_model(params, model)
    with _project(remote) as (repo, name):
        outs = _outputs(repo, model, with_deps=with_deps)
        if not outs:
            raise RegistryError(f"dvc.lock has no output of {model or 'any stage'}: it was never made", "`dvc repro`, then push")
        if not _reach(repo, name):
            raise RegistryError(
                f"nothing lies in DVC's remote {name!r}: {repo.config['remote'][name]['url']}",
                "check the URL in .dvc/config; who made the models runs `make push`",
            )
        paths = [_path(out) for out in outs]
        files = _fetched(repo, paths, remote)
        away = [_path(out) for out in outs if out.changed_cache()]
        absent, left = _apart(repo, away)
        if absent and not allow_missing:
            raise RegistryError(
                f"the remote {name!r} lacks {len(absent)} output(s), or files of them: {_shown(absent)}",
                "who made them runs `make push`; --allow-missing takes what is there; nothing in this folder was changed",
            )
        _check_out(repo, sorted({*paths} - {*away}), force=force)
        runs = pull_runs(repo, remote, lambda paths: model is None or all(_of(path, model) for path in paths)) if run_cache else 0
    return Moved(name, files, runs, tuple(left))


@contextmanager
def _project(remote: str | None) -> Iterator[tuple[Repo, str]]:
    """The project in this folder and the name of its remote; what DVC and storages raise in it is explained."""
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo, lock_repo

    only_known_hosts()
    try:
        opened = Repo()
    except NotDvcRepoError as error:
        raise RegistryError(f"{Path.cwd()} is in no DVC project", "run it in a clone of the project") from error
    with opened as repo:
        name = _name(repo, remote)
        try:
            # One lock for all that is done: DVC reads dvc.yaml and dvc.lock anew after each that it takes.
            with lock_repo(repo):
                yield repo, name
        except (OctavoError, AttributeError, TypeError, NameError, AssertionError):
            # The latter are bugs, and show their traceback.
            raise
        except Exception as error:
            raise _told(name, error) from error


def _name(repo: Repo, remote: str | None) -> str:
    known = sorted(repo.config["remote"])
    chosen = remote or repo.config["core"].get("remote")
    if chosen in known:
        return chosen
    if remote:
        mend = f"there are: {', '.join(known)}" if known else f"`{SET}` adds one"
        raise RegistryError(f"no DVC remote is named {remote!r}", mend)
    if known:
        raise RegistryError("no DVC remote is the default", f"`dvc remote default {known[0]}`, or --remote {known[0]}")
    raise RegistryError(
        "no DVC remote is configured", f"`{SET}` (a folder; also s3://bucket/path or ssh://user@host/path): docs/remotes.md"
    )


def _reach(repo: Repo, name: str) -> bool:
    """Ask the remote for its folder, so that one that does not answer is said at once: DVC only logs that for some."""
    store = repo.cloud.get_remote(name)
    return store.fs.exists(store.path)


def _fetched(repo: Repo, paths: list[str], remote: str | None) -> int:
    """Download into the cache what is there; of what is not DVC raises for files, and only warns for folders."""
    from dvc.exceptions import DownloadError

    with quiet():
        try:
            return repo.fetch(paths, remote=remote)
        except DownloadError:
            return 0


def _check_out(repo: Repo, paths: list[str], *, force: bool) -> None:
    from dvc.exceptions import CheckoutError, ConfirmRemoveError

    try:
        repo.checkout(paths, force=force)
    except (CheckoutError, ConfirmRemoveError) as error:
        raise RegistryError(f"not all was put in its place: {error}", "move away what you want to keep, or --force") from error


def _outputs(repo: Repo, model: str | None = None, *, with_deps: bool = False) -> list[Output]:
    """What dvc.lock has of a model, or of all, and DVC's cache keeps; with_deps: also of the stages that these come from."""
    stages = list(repo.index.stages)
    if model is not None:
        stages = [stage for stage in stages if any(_of(_path(out), model) for out in stage.outs)]
    if with_deps:
        stages = _behind(repo, stages)
    return [out for stage in stages for out in stage.outs if out.use_cache and out.hash_info]


def _behind(repo: Repo, stages: list[Stage]) -> list[Stage]:
    """Some stages, and those that they come from."""
    from networkx import descendants

    # One graph for all: `repo.stage.collect` builds it anew for each stage, in seconds.
    graph = repo.index.graph
    return list(dict.fromkeys(one for stage in stages for one in (stage, *descendants(graph, stage))))


def _path(out: Output) -> str:
    """From the project's folder; what DVC calls an output begins at the file that names it, `data/mine.dvc` for one."""
    return Path(out.fs_path).relative_to(out.repo.root_dir).as_posix()


def _of(path: str, model: str) -> bool:
    return PurePosixPath(path).parts[:2] in (("models", model), ("metrics", model))


def _absent(repo: Repo, name: str) -> list[str]:
    """Outputs of dvc.lock that are neither here nor in the remote, about which DVC only warns."""
    away = [out for out in _outputs(repo) if out.changed_cache()]
    return [_path(out) for out in away if not _in_remote(repo, name, out)]


def _apart(repo: Repo, paths: list[str]) -> tuple[list[str], list[str]]:
    """Of some outputs those that lie under models/ or metrics/ or that something there is made from, and the others."""
    if not paths:
        return [], []
    made = [stage for stage in repo.index.stages if any(_path(out).startswith(("models/", "metrics/")) for out in stage.outs)]
    needed = {_path(out) for stage in _behind(repo, made) for out in stage.outs}
    return [path for path in paths if path in needed], [path for path in paths if path not in needed]


def _in_remote(repo: Repo, name: str, out: Output) -> bool:
    store = repo.cloud.get_remote_odb(name, "push")
    return store.exists(out.hash_info.value)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _told(name: str, error: Exception) -> OctavoError:
    from dvc.exceptions import DvcException, UploadError
    from dvc_objects.fs.errors import RemoteMissingDepsError

    place = f"DVC's remote {name!r}"
    if isinstance(error, UploadError):
        return RegistryError(f"{error.amount} file(s) could not be written to {place}", "the lines above say why, then push again")
    if isinstance(error, DvcException) and not isinstance(error, RemoteMissingDepsError):
        return RegistryError(f"{place}: {error}", "docs/remotes.md has how a remote is set up")
    return storage_error(place, error)
