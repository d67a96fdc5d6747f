"""What DVC says of a model's package before a release: made of what is committed, cached, and whole in the remote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import RegistryError

if TYPE_CHECKING:
    from dvc.repo import Repo

__all__ = ["declared", "only_known_hosts", "pushed", "reproduced", "stage_of", "storage_error"]

SHOWN = 8


def stage_of(model: str) -> str:
    """The stage that makes a model's package."""
    return f"package@{model}"


def reproduced(repo: Repo, model: str) -> None:
    """Make sure that the package is what the commit's code, params and data make.

    Inputs of earlier stages that are not on this machine are taken as they were, as `dvc repro --allow-missing` does: a release
    needs no images.

    Raises:
        RegistryError: it was never made, is not here or not in DVC's cache, or something that it is made from has changed.
    """
    stage = stage_of(model)
    status = repo.status(targets=[stage], with_deps=True)
    package = [one for kind in _of(status.get(stage, []), "changed outs") for one in kind.values()]
    if "deleted" in package:
        raise RegistryError(
            f"the package of {model} is not in models/{model}",
            f"`dvc pull {stage}` fetches what the commit names, `dvc repro {stage}` makes it",
        )
    changes = []
    for name, entries in status.items():
        for entry in entries:
            # A word, or {"changed deps" | "changed outs": {path: state}}.
            parts = [(what, state) for kind in entry.values() for what, state in kind.items()] if isinstance(entry, dict) else []
            changes += [f"{name}: {what} is {state}" for what, state in parts if state not in ("deleted", "not in cache")]
            # Stage `machine` says that always; what it writes is a dependency of others.
            changes += [f"{name}: {entry}"] if isinstance(entry, str) and entry != "always changed" else []
    if changes:
        more = f"\n  ... and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        raise RegistryError(
            f"the package of {model} is not what the committed code, params and data make:"
            + "".join(f"\n  {change}" for change in changes[:SHOWN])
            + more,
            f"`dvc repro {stage}`, commit dvc.lock and metrics/, `dvc push {stage}`, then release",
        )
    if "not in cache" in package:
        raise RegistryError(f"the package of {model} is not in DVC's cache", f"`dvc commit {stage}`, then `dvc push {stage}`")


def pushed(repo: Repo, model: str, remote: str | None) -> list[str]:
    """Make sure that every object of the package lies in the remote, with the size that it has here.

    `dvc status --cloud` is not asked: it takes a folder whose list is there for whole.

    Args:
        remote: a remote of .dvc/config; None takes the default.

    Returns:
        What a reader should know.

    Raises:
        RegistryError: an object is not there, or cut off; the remote cannot be asked.
    """
    if not repo.config["remote"]:
        return ["no DVC remote is configured: nobody can fetch this version but from this machine (docs/registry.md sets one up)"]
    (stage,) = repo.stage.collect(stage_of(model))
    (out,) = stage.outs
    name = remote or out.remote or repo.config["core"].get("remote")
    only_known_hosts()
    try:
        store = repo.cloud.get_remote_odb(name, "release")
    except ImportError as error:
        raise storage_error(f"DVC's remote {name!r}", error) from error
    named = {out.hash_info.value: str(out)} | {hash_info.value: f"{out}/{'/'.join(key)}" for key, _, hash_info in out.get_obj()}
    missing, cut = [], []
    for oid, path in named.items():
        try:
            there = store.fs.info(store.oid_to_path(oid))["size"]
        except FileNotFoundError:
            missing.append(path)
            continue
        except Exception as error:
            raise storage_error(f"DVC's remote {name!r}", error) from error
        if there != Path(out.cache.oid_to_path(oid)).stat().st_size:
            cut.append((path, store.oid_to_path(oid)))
    push = f"dvc push {f'-r {remote} ' if remote else ''}{stage_of(model)}"
    if missing:
        shown = ", ".join(missing[:SHOWN]) + (" ..." if len(missing) > SHOWN else "")
        raise RegistryError(f"{len(missing)} file(s) are not in DVC's remote {name!r}: {shown}", f"`{push}`, then release")
    if cut:
        path, place = cut[0]
        raise RegistryError(
            f"{path} has another size in DVC's remote {name!r}: {place} is not the file that was pushed",
            f"delete that object (DVC does not write over it), then `{push}`",
        )
    if name not in repo.config.load_one("repo")["remote"]:
        return [f"DVC's remote {name!r} is not in .dvc/config: who fetches has to name it (`--config FILE`)"]
    return []


def storage_error(place: str, error: Exception) -> RegistryError:
    """What a storage said, as one message: each kind has errors of its own, with nothing in common (botocore, paramiko, OSError).

    Args:
        place: what was asked, in words.
        error: the storage's.
    """
    if isinstance(error, ImportError):
        return RegistryError(
            f"{place} needs a package that is not installed: {error}", "pip install it; octavo[s3] has that for S3"
        )
    reason: BaseException = error
    while reason.__cause__ is not None:
        reason = reason.__cause__
    told = f"{type(error).__name__}: {reason}"
    if type(reason).__name__ == "HostKeyNotVerifiable":
        return RegistryError(
            f"{place} may not be the host that it was: {told}",
            "`ssh-keyscan -p PORT HOST` shows its key; compare it with what its owner says, and add it to ~/.ssh/known_hosts",
        )
    if isinstance(error, PermissionError) or "credentials" in told.lower():
        return RegistryError(
            f"{place} refuses: {told}",
            "give credentials: for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in the environment; for SSH "
            "`dvc remote modify --local NAME keyfile FILE` (docs/remotes.md has other ways)",
        )
    return RegistryError(f"{place} does not answer: {told}", "docs/remotes.md has what a remote needs")


def only_known_hosts() -> None:
    """Have DVC's SSH remotes, in this process, look at the host's key (`octavo.deploy.registry.ssh`)."""
    from dvc.fs import known_implementations

    known_implementations["ssh"]["class"] = "octavo.deploy.registry.ssh.KnownHostsFileSystem"


def declared(repo: Repo, wanted: Mapping[str, str]) -> list[str]:
    """Make sure that dvc.yaml's `artifacts:` has an entry for each of these.

    Args:
        wanted: artifact to its path.

    Returns:
        The names of all entries.

    Raises:
        RegistryError: an entry is missing, or is of another path; with the lines to write.
    """
    found = {name: entry.path for name, entry in repo.artifacts.read().get("dvc.yaml", {}).items()}
    other = {name: path for name, path in wanted.items() if found.get(name) != path}
    if other:
        lines = "".join(f"\n    {name}: {{path: {path}, type: model}}" for name, path in other.items())
        raise RegistryError(
            f"dvc.yaml has no such entry in `artifacts:`: {', '.join(other)}", f"write, and commit:\n  artifacts:{lines}"
        )
    return list(found)


def _of(entries: list[Any], kind: str) -> list[dict[str, str]]:
    return [entry[kind] for entry in entries if isinstance(entry, dict) and kind in entry]
