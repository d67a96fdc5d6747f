"""The files of one model as `validate` and `benchmark` open them."""

import onnx
import pytest
from conftest import small_network
from packages import ORDER, noise, write_package

from octavo.errors import SourceError
from octavo.files import sha256_file
from octavo.layout import VARIANTS, variant_dir
from octavo.variants import Variants


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A model named `small` with FP32 and INT8, in a project that is the current folder."""
    monkeypatch.chdir(tmp_path)
    write_package(variant_dir("small", "fp32").parent)
    return variant_dir("small", "int8") / "model.onnx"


def test_files_come_in_the_order_of_every_table_each_with_what_it_needs(small):
    variants = Variants.read("small")
    assert list(variants.paths) == [variant for variant in VARIANTS if variant in ORDER]
    assert variants.hashes["int8"] == sha256_file(small)
    assert variants.sizes["int8"] == small.stat().st_size
    assert variants.entries["fp32"] == {}
    assert variants.notes == []


def test_each_is_opened_for_what_is_compared(small):
    variants = Variants.read("small")
    sessions = variants.sessions([])
    assert list(sessions) == list(variants.paths)
    assert variants.scored(sessions["fp32"]) == sessions["fp32"].outputs
    for session in sessions.values():
        assert session.run(variants.feeds(noise(0)))


def test_a_file_that_no_manifest_describes_is_measured_and_said(small):
    onnx.save(small_network(seed=9), small)
    (note,) = Variants.read("small").notes
    assert str(small) in note
    assert "dvc repro" in note


def test_fp32_that_is_another_one_is_refused(small):
    onnx.save(small_network(seed=9), variant_dir("small", "fp32") / "model.onnx")
    with pytest.raises(SourceError, match="damaged"):
        Variants.read("small")
