"""Push what the pipeline made to the project's DVC remote, and pull it: outputs and the run-cache.

Both work in the project's folder. What DVC says of a remote that cannot be used becomes one message that has the way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from octavo.deploy.registry.run_cache import pull_runs, push_runs
from octavo.deploy.registry.stored import storage_error
from octavo.errors import OctavoError, RegistryError
from octavo.params import load_model

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo

__all__ = ["Moved", "pull", "push"]

SHOWN = 8
SET = "dvc remote add -d store /mnt/share/octavo"


@dataclass(frozen=True)
class Moved:
    """What was transferred.

    Attributes:
        remote: its name.
        files: of dvc.lock's outputs.
        runs: of the run-cache, with their outputs.
    """

    remote: str
    files: int
    runs: int


def push(remote: str | None = None, *, run_cache: bool = True) -> Moved:
    """Push all outputs that dvc.lock names, and the run-cache's runs of this code.

    Args:
        remote: a remote of .dvc/config; None takes the default.
        run_cache: runs, too.

    Raises:
        RegistryError: no remote is configured, it cannot be used, or an output of dvc.lock is in neither cache.
    """
    with _project(remote) as (repo, name):
        _reach(repo, name)
        absent = _absent(repo, name)
        files = repo.push(remote=remote)
        runs = push_runs(repo, remote) if run_cache else 0
        if absent:
            raise RegistryError(
                f"{len(absent)} output(s) of dvc.lock are neither in DVC's cache nor in the remote {name!r}: {_shown(absent)}",
                "`dvc repro` makes them, or `dvc commit` where they lie here as dvc.lock has them; all others were pushed",
            )
    return Moved(name, files, runs)


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
    from dvc.exceptions import CheckoutError, DownloadError

    if model is not None:
        load_model(params, model)
    with _project(remote) as (repo, name):
        outs = _outputs(repo, model)
        if not outs:
            raise RegistryError(f"dvc.lock has no output of {model or 'any stage'}: it was never made", "`dvc repro`, then push")
        if not _reach(repo, name):
            raise RegistryError(
                f"nothing lies in DVC's remote {name!r}: {repo.config['remote'][name]['url']}",
                "check the URL in .dvc/config; who made the models runs `make push`",
            )
        targets = [out.def_path for out in outs] if model else None
        try:
            files = repo.fetch(targets, remote=remote, with_deps=with_deps)
        except DownloadError as error:
            if not allow_missing:
                raise _lacks(name, outs) from error
            files = 0
        try:
            repo.checkout(targets, with_deps=with_deps, allow_missing=True, force=force)
        except CheckoutError as error:
            raise _lacks(name, outs) from error
        runs = pull_runs(repo, remote, lambda paths: model is None or all(_of(path, model) for path in paths)) if run_cache else 0
    return Moved(name, files, runs)


@contextmanager
def _project(remote: str | None) -> Iterator[tuple[Repo, str]]:
    """The project in this folder and the name of its remote; what DVC and storages raise in it is explained."""
    from dvc.exceptions import NotDvcRepoError
    from dvc.fs import known_implementations
    from dvc.repo import Repo

    known_implementations["ssh"]["class"] = "octavo.deploy.registry.ssh.KnownHostsFileSystem"
    try:
        opened = Repo()
    except NotDvcRepoError as error:
        raise RegistryError(f"{Path.cwd()} is in no DVC project", "run it in a clone of the project") from error
    with opened as repo:
        name = _name(repo, remote)
        try:
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


def _outputs(repo: Repo, model: str | None) -> list[Output]:
    """What dvc.lock has of a model, or of all, and DVC's cache keeps."""
    return [
        out
        for stage in repo.index.stages
        for out in stage.outs
        if out.use_cache and out.hash_info and (model is None or _of(out.def_path, model))
    ]


def _of(path: str, model: str) -> bool:
    return PurePosixPath(path).parts[:2] in (("models", model), ("metrics", model))


def _absent(repo: Repo, name: str) -> list[str]:
    """Outputs of dvc.lock that are neither here nor in the remote, about which DVC only warns."""
    away = [out for out in _outputs(repo, None) if out.changed_cache()]
    return [out.def_path for out in away if not _in_remote(repo, name, out)]


def _in_remote(repo: Repo, name: str, out: Output) -> bool:
    store = repo.cloud.get_remote_odb(name, "push")
    return store.exists(out.hash_info.value)


def _lacks(name: str, outs: list[Output]) -> RegistryError:
    absent = [out.def_path for out in outs if out.changed_cache()]
    return RegistryError(
        f"the remote {name!r} lacks files of: {_shown(absent)}" if absent else f"not all was downloaded from the remote {name!r}",
        "who made them runs `make push`; --allow-missing takes what is there",
    )


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
