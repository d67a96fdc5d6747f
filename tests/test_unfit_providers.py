"""A file for OpenVINO from a machine with VNNI, on one without: OpenVINO would put out wrong numbers, and everybody is told."""

import logging

import pytest
from packages import write_package

from octavo.deploy.loader import load
from octavo.errors import ModelRunError
from octavo.files import read_json, write_json
from octavo.layout import variant_dir
from octavo.manifest import recommended_providers, unfit_providers
from octavo.variants import Variants


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Gives the package of a model named `small` with INT8 for a target, on a machine with or without VNNI that has OpenVINO."""
    monkeypatch.chdir(tmp_path)
    folder = variant_dir("small", "fp32").parent
    write_package(folder)

    def write(target: str, *, vnni: bool):
        path = folder / "int8/manifest.json"
        write_json(path, read_json(path) | {"target": target, "providers": recommended_providers("int8", target)})
        monkeypatch.setattr("octavo.manifest.has_vnni", lambda: vnni)
        monkeypatch.setattr("octavo.deploy.loader.usable_providers", lambda: ["cpu", "openvino"])
        return folder

    return write


def test_it_is_not_run_in_openvino(made, caplog):
    folder = made("openvino", vnni=False)
    with caplog.at_level(logging.WARNING, logger="octavo.deploy"):
        model = load(folder, variant="int8")
    assert model.provider == "cpu"
    assert "is not run on openvino: the file is `target: openvino`, made where the CPU has VNNI" in caplog.text
    assert load(folder, measure=False).provider == "cpu"


def test_asked_for_openvino_it_is_refused(made):
    with pytest.raises(ModelRunError, match="sums off at 16 bits") as raised:
        load(made("openvino", vnni=False), variant="int8", provider="openvino")
    assert "openvino-no-vnni" in raised.value.mend


def test_who_measures_it_is_told(made):
    made("openvino", vnni=False)
    (note,) = Variants.read("small").notes
    assert note.startswith("int8 is measured in ONNX Runtime, and on a CPU like this one openvino would not answer so")
    assert "dvc repro -f quantize_int8@small" in note


@pytest.mark.parametrize(("target", "vnni"), [("openvino", True), ("openvino-no-vnni", False), ("cpu", False), ("tensorrt", False)])
def test_others_are_right_where_they_are(made, target, vnni):
    made(target, vnni=vnni)
    variants = Variants.read("small")
    assert variants.notes == []
    assert unfit_providers(variants.manifests["int8"]) == {}


def test_codes_that_are_found_at_run_time_are_no_file_for_openvino(monkeypatch):
    monkeypatch.setattr("octavo.manifest.has_vnni", lambda: False)
    assert unfit_providers({"target": "openvino", "providers": recommended_providers("int8_dynamic", "openvino")}) == {}
    assert unfit_providers(None) == {}
