"""Outputs appear whole or not at all: errors, a full disk and a kill leave what was there."""

import errno
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo import files
from octavo.errors import OutputError
from octavo.files import (
    read_json,
    replace_dir,
    replace_dirs,
    replace_file,
    replace_inside,
    sha256_bytes,
    sha256_file,
    write_json,
    write_text,
)


def test_a_file_and_a_folder_are_replaced(tmp_path):
    write_text(tmp_path / "deep/a.txt", "one")
    write_text(tmp_path / "deep/a.txt", "two")
    assert (tmp_path / "deep/a.txt").read_text() == "two"
    for text in ("old", "new"):
        with replace_dir(tmp_path / "d") as folder:
            (folder / text).write_text(text)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "deep"]


def test_an_error_while_writing_keeps_the_previous_output(tmp_path):
    write_text(tmp_path / "a", "old")
    with replace_dir(tmp_path / "d") as folder:
        (folder / "x").write_text("old")
    with pytest.raises(RuntimeError), replace_file(tmp_path / "a") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    with pytest.raises(RuntimeError), replace_dir(tmp_path / "d") as folder:
        (folder / "x").write_text("half")
        raise RuntimeError
    assert (tmp_path / "a").read_text() == (tmp_path / "d/x").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "d"]


def test_what_belongs_together_in_a_folder_takes_its_places_at_once(tmp_path):
    folder = tmp_path / "metrics"
    for name in ("kept.json", "record.json"):
        write_text(folder / name, "old")
    _make(folder / "pictures")
    (folder / "pictures" / "gone.jpg").write_text("old")
    with pytest.raises(OutputError, match="No space left"), replace_inside(folder) as temporary:
        write_text(temporary / "new.csv", "half")
        raise OSError(errno.ENOSPC, "No space left on device", str(temporary / "record.json"))
    assert sorted(path.name for path in folder.iterdir()) == ["kept.json", "pictures", "record.json"]
    with pytest.raises(OutputError, match=f"{folder / 'a/b'} could not be written"), replace_inside(folder) as temporary:
        write_text(temporary / "a", "file")
        write_text(temporary / "a/b", "in no folder")
    with replace_inside(folder) as temporary:
        write_text(temporary / "record.json", "new")
        with replace_dir(temporary / "pictures") as pictures:
            (pictures / "here.jpg").write_text("new")
        assert (folder / "record.json").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["kept.json", "pictures", "record.json"]
    assert ((folder / "kept.json").read_text(), (folder / "record.json").read_text()) == ("old", "new")
    assert [path.name for path in (folder / "pictures").iterdir()] == ["here.jpg"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics"]


def test_a_full_disk_is_one_clear_error(tmp_path):
    write_text(tmp_path / "a", "old")
    with (
        pytest.raises(OutputError, match=r"a could not be written: No space left.*\n.*free disk space"),
        replace_file(tmp_path / "a"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "a"))
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_write_that_really_fails(tmp_path):
    # A file-size limit fails a write in the kernel, as a full disk does, and needs no file system of its own.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        _fill(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


def _fill(mount: Path) -> None:
    write_text(mount / "a", "old")
    with pytest.raises(OutputError, match="could not be written"):
        write_text(mount / "a", "x" * 200_000)
    assert (mount / "a").read_text() == "old"
    assert [path.name for path in mount.iterdir()] == ["a"]


@pytest.mark.parametrize("moment", ["file", "dir"])
def test_a_kill_keeps_the_previous_output_and_the_next_run_sweeps(tmp_path, moment):
    write_text(tmp_path / "out", "old") if moment == "file" else _make(tmp_path / "out")
    script = (
        "import sys, time; from octavo.files import replace_dir, replace_file\n"
        f"with replace_{moment}(sys.argv[1]) as t:\n"
        "    (t / 'x' if t.is_dir() else t).write_text('half'); print('ready', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "out")], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    read = (tmp_path / "out").read_text() if moment == "file" else (tmp_path / "out/x").read_text()
    assert read == "old"
    assert len(list(tmp_path.iterdir())) == 2, "the killed run leaves its half behind"
    write_text(tmp_path / "out", "new") if moment == "file" else _make(tmp_path / "out", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_of_two_runs_at_once_neither_sweeps_away_what_the_other_is_writing(tmp_path):
    script = (
        "import sys; from octavo.files import replace_dir\n"
        "with replace_dir(sys.argv[1]) as t:\n"
        "    (t / 'x').write_text('first'); print('ready', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    _make(tmp_path / "out", "second")
    assert (tmp_path / "out/x").read_text() == "second"
    child.communicate()
    assert child.returncode == 0
    assert (tmp_path / "out/x").read_text() == "first", "it ended last"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def _make(folder: Path, text: str = "old") -> None:
    with replace_dir(folder) as temporary:
        (temporary / "x").write_text(text)


def test_a_kill_between_the_two_renames_is_mended(tmp_path):
    _make(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / ".out.previous")
    with pytest.raises(RuntimeError), replace_dir(tmp_path / "out"):
        raise RuntimeError
    assert (tmp_path / "out/x").read_text() == "old"


def test_someone_else_s_error_is_not_ours(tmp_path):
    with pytest.raises(FileNotFoundError), replace_file(tmp_path / "a"):
        Path("/nowhere/at/all").read_text()


def test_json_is_sorted_finite_and_stable(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": [0.5, "ä"]})
    write_json(tmp_path / "b.json", {"a": [0.5, "ä"], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert read_json(tmp_path / "a.json") == {"a": [0.5, "ä"], "b": 1}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json")["b"] == 1
    assert sha256_file(tmp_path / "a.json") == sha256_bytes((tmp_path / "a.json").read_bytes())


def test_permissions_follow_the_umask(tmp_path):
    _make(tmp_path / "out")
    assert oct((tmp_path / "out").stat().st_mode & 0o777) == oct(0o777 & ~files._umask())
    assert time.time() - (tmp_path / "out").stat().st_mtime < 60


def test_folders_of_one_stage_are_replaced_together_or_not_at_all(tmp_path):
    """A stage that ended between its two files left the first new, and said that outputs are as they were."""
    paths = [tmp_path / "int8", tmp_path / "int8_dynamic"]

    def write(what: str, *, until: int = 2) -> None:
        with replace_dirs(iter(paths)) as folders:
            for place, folder in enumerate(folders):
                if place == until:
                    raise SystemExit(143)
                (folder / "a").write_text(what)

    write("old")
    with pytest.raises(SystemExit):
        write("new", until=1)
    assert [(path / "a").read_text() for path in paths] == ["old", "old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int8", "int8_dynamic"]
    write("new")
    assert [(path / "a").read_text() for path in paths] == ["new", "new"]
