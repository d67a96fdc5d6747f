"""octavo.runtime.waiting: the share of its time in which a thread has no core."""

import time
from pathlib import Path

import pytest

from octavo.runtime import waiting
from octavo.runtime.waiting import Waiting


@pytest.fixture
def said(tmp_path, monkeypatch) -> Path:
    file = tmp_path / "schedstat"
    monkeypatch.setattr(waiting, "_SCHEDSTAT", file)
    return file


def test_the_share_is_of_what_came_since(said):
    said.write_text("1000 9000 7\n")
    since = Waiting()
    assert since.share == 0
    said.write_text("1600 9200 9\n")
    assert since.share == pytest.approx(0.25)


@pytest.mark.parametrize("text", [None, "", "no numbers", "5"])
def test_where_the_system_does_not_say_nothing_waits(said, text):
    if text is not None:
        said.write_text(text)
    since = Waiting()
    said.write_text("5 500 1")
    assert since.share == 0


def test_here_it_is_a_share():
    since, until = Waiting(), time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    assert 0 <= since.share < 1
