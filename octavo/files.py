"""Outputs appear whole or not at all, JSON is written one way, and content has one hash.

A result is written beside its place, flushed to disk and renamed. A full disk or a kill while writing leaves the previous
result as it was; what such a run left behind (`.<name>.partial*`) is swept away by the next one. A folder that another run is still
filling is locked, and left alone: of two runs at once the last to end is what stays.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from octavo.errors import OutputError

try:
    import fcntl
except ImportError:
    # Windows, where no folder can be opened either, so that `_locked` ends before it.
    fcntl = None

__all__ = [
    "read_json",
    "replace_dir",
    "replace_dirs",
    "replace_file",
    "replace_inside",
    "scratch_written_to",
    "sha256_bytes",
    "sha256_file",
    "sha256_path",
    "write_csv",
    "write_json",
    "write_text",
]


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits; the file is streamed."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_path(path: str | Path) -> str:
    """SHA-256 of a file's bytes, or of a folder: of its files' names below it (`/` between parts) and hashes, in their order.

    As 64 hex digits. A folder's own name and where it lies, empty folders, times and permissions do not count.
    """
    path = Path(path)
    if not path.is_dir():
        return sha256_file(path)
    inside = sorted((file.relative_to(path).as_posix(), file) for file in path.rglob("*") if file.is_file())
    return sha256_bytes("".join(f"{name}\0{sha256_file(file)}\n" for name, file in inside).encode())


def sha256_bytes(data: bytes) -> str:
    """SHA-256 of bytes, as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends without error it becomes `path` in one rename.

    Raises:
        OutputError: the file cannot be written (disk full, no permission); `path` is untouched.
    """
    path = Path(path)
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        temporary = path.parent / f".{path.name}.partial{os.getpid()}"
        try:
            yield temporary
            _flush(temporary)
            os.replace(temporary, path)
            _flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def replace_dir(path: str | Path) -> Iterator[Path]:
    """Yield a new empty folder beside `path`; when the block ends without error it takes the place of `path`.

    A folder cannot replace a non-empty one in a single rename, so the previous one is moved aside first; a kill between the
    two renames is mended at the next call, which moves it back.

    Raises:
        OutputError: something cannot be written; `path` is untouched.
    """
    path = Path(path)
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.parent / f".{path.name}.previous"
        if aside.exists() and not path.exists():
            os.rename(aside, path)
        shutil.rmtree(aside, ignore_errors=True)
        with _beside(path) as temporary:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            for written in temporary.rglob("*"):
                _flush(written)
            if path.exists():
                os.rename(path, aside)
            try:
                os.rename(temporary, path)
            except OSError:
                if aside.exists():
                    os.rename(aside, path)
                raise
            _flush(path.parent)
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def replace_dirs(paths: Iterable[str | Path]) -> Iterator[list[Path]]:
    """`replace_dir` of several folders, which take their places together once the block has ended without error: what ends it in
    between leaves all of them as they were, not the first ones new beside the others.
    """
    with ExitStack() as stack:
        temporary = [stack.enter_context(replace_dir(path)) for path in paths]
        yield temporary
        # Before the first rename: no slow disk lies between it and the last.
        for written in chain.from_iterable(folder.rglob("*") for folder in temporary):
            _flush(written)


@contextmanager
def replace_inside(folder: str | Path) -> Iterator[Path]:
    """Yield a new empty folder beside `folder`; when the block ends without error, what lies in it takes the places of what has the
    same names in `folder`, one rename after the other, all of it on disk before the first. Whatever else is in `folder` stays.

    Raises:
        OutputError: something cannot be written, and all is as it was; or a rename is refused, and those before it stay.
    """
    folder = Path(folder)
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _beside(folder) as temporary:
            yield temporary
            for written in temporary.rglob("*"):
                _flush(written)
            made = sorted(temporary.iterdir())
            gone = temporary / ".previous"
            gone.mkdir()
            for path in made:
                if path.is_dir() and (folder / path.name).exists():
                    os.rename(folder / path.name, gone / path.name)
                os.replace(path, folder / path.name)
            _flush(folder)


@contextmanager
def scratch_written_to(folder: Path) -> Iterator[None]:
    """A clear error where a folder that the system's temporary one holds cannot be written.

    Raises:
        OutputError: naming it.
    """
    try:
        yield
    except OSError as error:
        # Weights that cannot be read carry the name of their own file.
        if isinstance(error.filename, str) and folder not in Path(error.filename).parents:
            raise
        raise OutputError(
            f"the temporary folder {folder} could not be written: {error.strerror or error}",
            "free disk space there, or point TMPDIR at a disk that has room for the model",
        ) from error


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: str | Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Write rows under a header line, floats with four decimals, whole or not at all.

    Args:
        columns: the header; the first row's keys where None, so it is needed where there may be no row.
    """
    with replace_file(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(columns or rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON with sorted keys and two spaces, so that equal values are equal bytes; NaN is refused.

    Raises:
        ValueError: the value holds NaN or infinity, which JSON has no word for.
    """
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """The value in a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Reading errors inside the block carry their own file name; only what concerns this output is ours to explain.
        named = Path(error.filename).absolute() if isinstance(error.filename, str) else None
        if named is not None and path.parent.absolute() not in [named, *named.parents]:
            raise
        raise OutputError(
            f"{path} could not be written: {error.strerror or error}",
            "free disk space or check the folder's permissions, then run the stage again; the previous output is untouched",
        ) from error


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, locked as long as it is filled, and gone afterwards where it has not been renamed.

    Errors of what is written in it name the place that it would have.
    """
    _sweep(path)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.partial", dir=path.parent))
    lock = _locked(temporary)
    try:
        yield temporary
    except OutputError as error:
        raise OutputError(error.problem.replace(str(temporary), str(path)), error.mend) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _sweep(path: Path) -> None:
    for stale in path.parent.glob(f".{path.name}.partial*"):
        if not stale.is_dir():
            stale.unlink(missing_ok=True)
        elif (lock := _locked(stale)) is not None:
            shutil.rmtree(stale, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor that locks a folder until it is closed or the process ends; None where another has locked it, or it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        # Gone, or somebody else's.
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        # A file system that knows no locks: nobody has one.
        pass
    return descriptor


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
