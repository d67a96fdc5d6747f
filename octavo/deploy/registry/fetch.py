"""Fetch a released model into a folder: whole and as it was released, or not at all.

What `dvc artifacts get` does, and what it does not: it leaves half a folder where a download fails, and compares no hash, so that
a damaged object becomes a damaged model. Here everything is downloaded beside the folder, held against DVC's MD5 of each file and
the manifests' SHA-256, and renamed.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.deploy.artifact import artifacts
from octavo.deploy.package import RUNTIME
from octavo.deploy.registry.names import Version, registered, versions
from octavo.deploy.registry.stored import only_known_hosts, storage_error
from octavo.errors import OctavoError, RegistryError
from octavo.files import replace_dir
from octavo.layout import MANIFEST, MODEL, VARIANTS
from octavo.manifest import read_manifest

__all__ = ["Fetched", "fetch"]


@dataclass(frozen=True)
class Fetched:
    """What lies in the folder now.

    Attributes:
        version: `v1.0.0`.
        commit: that it was released at.
        variants: of the model.
    """

    version: str
    commit: str
    variants: tuple[str, ...]


def fetch(
    url: str,
    name: str,
    folder: str | Path,
    *,
    version: str | None = None,
    remote: str | None = None,
    remote_config: Mapping[str, str] | None = None,
    config: str | Path | None = None,
    force: bool = False,
) -> Fetched:
    """Fetch one version.

    Args:
        url: of the git repository, or its path.
        name: an entry of `artifacts:` in its dvc.yaml: `road` (the package), `road-int8` (one variant).
        folder: must not be there yet.
        version: None takes the highest.
        remote: one of the repository's DVC remotes; None takes its default.
        remote_config: settings of that remote (`endpointurl`, `access_key_id`, ...), over the repository's.
        config: a file like .dvc/config, over the repository's.
        force: replace the model that lies in `folder`.

    Raises:
        RegistryError: no such repository, artifact or version; the remote refuses, or lacks a file; a file is not the one that was
            released.
        SourceError: a model is not the one that its manifest describes.
        OutputError: `folder` cannot be written.
    """
    folder = Path(folder)
    _check_place(folder, force)
    with _cloned(url):
        from dvc.config import Config

        settings = {
            "config": Config.load_file(str(config)) if config else None,
            "remote": remote,
            "remote_config": dict(remote_config) if remote_config else None,
        }
        found, path = _find(url, name, version)
        with replace_dir(folder) as temporary:
            # DVC downloads into a folder that is there, and to one that is not.
            temporary.rmdir()
            with _explained(url, temporary):
                _download(url, found.commit, path, temporary, settings)
            variants = artifacts(temporary)
            for one in variants.values():
                read_manifest(one.folder)
    return Fetched(found.name, found.commit, tuple(variants))


def _check_place(folder: Path, force: bool) -> None:
    if not folder.exists():
        return
    if not force:
        raise RegistryError(f"{folder} exists", "name another folder, or replace the model there with --force")
    ours = {MANIFEST, RUNTIME, *VARIANTS}
    inside = [path.name for path in folder.iterdir()] if folder.is_dir() else [folder.name]
    other = [name for name in inside if name not in ours and not name.startswith(MODEL)]
    if other:
        raise RegistryError(f"{folder} holds more than a model: {other[0]}", "name a folder of its own")


def _find(url: str, name: str, version: str | None) -> tuple[Version, str]:
    """The version, and the artifact's path in the repository."""
    from dvc.api import artifacts_show
    from dvc.exceptions import ArtifactNotFoundError
    from dvc.repo import Repo

    with Repo.open(url, subrepos=True, uninitialized=True) as repo:
        known = versions(repo.scm, name)
        if not known:
            others = registered(repo.scm)
            near = difflib.get_close_matches(name, others, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise RegistryError(
                f"{url} has no version of {name!r}",
                f"{hint}released are: {', '.join(others)}" if others else "nothing was released there, or its tags were not pushed",
            )
    active = [one for one in known if one.active]
    chosen = next((one for one in (known if version else active) if version in (None, one.name)), None)
    if chosen is None or not chosen.active:
        told = "was withdrawn" if chosen else "was not released"
        raise RegistryError(
            f"{name} {version or ''} {told} at {url}".replace("  ", " "),
            f"versions: {', '.join(one.name for one in active) or 'none'}",
        )
    try:
        shown = artifacts_show(name, version=chosen.name, repo=url)
    except ArtifactNotFoundError as error:
        raise RegistryError(
            f"{name} {chosen.name} has a tag at {url}, but dvc.yaml at that commit has no such entry in `artifacts:`",
            "ask for a version that `octavo release` made",
        ) from error
    return chosen, shown["path"]


def _download(url: str, commit: str, path: str, to: Path, settings: Mapping[str, Any]) -> None:
    """All files of a tracked folder, each held against the MD5 that DVC has of it."""
    from dvc.fs import download
    from dvc.repo import Repo

    with Repo.open(url, rev=commit, subrepos=True, uninitialized=True, **settings) as repo:
        files = repo.dvcfs
        place = files.from_os_path(path)
        download(files, place, str(to.absolute()))
        for name in files.find(place):
            expected = files.info(name).get("md5")
            if expected is not None and _md5(to / files.relpath(name, place)) != expected:
                raise RegistryError(
                    f"{name} is damaged in the remote: its MD5 is not the {expected} that it was pushed with",
                    "its owner deletes that object from the remote and pushes it again (`dvc push`)",
                )


def _md5(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def _cloned(url: str) -> Iterator[None]:
    """Errors of git and DVC become one message; what DVC cloned is removed."""
    from dvc.repo.open_repo import clean_repos

    only_known_hosts()
    try:
        with _explained(url):
            yield
    finally:
        clean_repos()


@contextmanager
def _explained(url: str, writing: Path | None = None) -> Iterator[None]:
    try:
        yield
    except (OctavoError, AttributeError, TypeError, NameError, AssertionError):
        # The latter are bugs, and show their traceback.
        raise
    except Exception as error:
        if writing is not None and isinstance(error, OSError) and _concerns(error, writing):
            # `replace_dir` has words for it.
            raise
        raise _told(url, error) from error


def _concerns(error: OSError, folder: Path) -> bool:
    """Whether an error is about writing the folder: what storages lack or refuse is an OSError, too."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return True
    return (
        isinstance(error.filename, str) and Path(error.filename).is_absolute() and folder.absolute() in Path(error.filename).parents
    )


def _told(url: str, error: Exception) -> RegistryError:
    from dvc.exceptions import DvcException
    from dvc.scm import SCMError

    if isinstance(error, SCMError):
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        return RegistryError(f"{url} cannot be read as a git repository: {reason}", "check the URL, and your access to it")
    if isinstance(error, FileNotFoundError):
        return RegistryError(
            f"the remote of {url} lacks a file: {error.filename or error}",
            "its owner pushes it: `dvc push`; or name another --remote",
        )
    if isinstance(error, DvcException):
        return RegistryError(f"{url}: {error}", "docs/registry.md has how a remote is named and set")
    return storage_error(f"the remote of {url}", error)
