"""runtime.json: its schema, its providers and its self-check."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from packages import ORDER, replace_model, write_package

from octavo.deploy.runtime_config import runtime_config, schema
from octavo.deploy.selfcheck import check_shape, check_tensor, deviation, reference, selfcheck
from octavo.errors import ModelRunError, SourceError
from octavo.files import read_json, sha256_file
from octavo.images.preprocess import preprocess
from octavo.manifest import recommended_providers
from octavo.params.grammar import Input
from octavo.runtime.session import Session

VALIDATOR = jsonschema.Draft202012Validator(schema())


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package that tests only read."""
    folder = tmp_path_factory.mktemp("package") / "small"
    write_package(folder)
    return folder


@pytest.fixture(scope="module")
def manifests(package: Path) -> dict[str, dict]:
    return {variant: read_json(package / variant / "manifest.json") for variant in ORDER}


def test_content_is_of_the_schema(package: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    VALIDATOR.validate(read_json(package / "runtime.json"))


def test_every_field_is_described() -> None:
    def undescribed(part: dict, path: str) -> list[str]:
        found = [] if "description" in part or part.get("type") in ("null", "string", "integer", "number") else [path]
        for key, value in part.get("properties", {}).items():
            found += [f"{path}.{key}"] if "description" not in value else undescribed(value, f"{path}.{key}")
        for key in ("items", "additionalProperties"):
            if isinstance(part.get(key), dict) and "properties" in part[key]:
                found += undescribed(part[key], f"{path}[]")
        return found

    assert undescribed(schema(), "") == []


def test_every_field_stands_in_the_docs() -> None:
    page = (Path(__file__).parents[1] / "docs/runtime.md").read_text(encoding="utf-8")

    def names(part: dict) -> set[str]:
        inner = [*part.get("properties", {}).values(), *part.get("anyOf", [])]
        inner += [part[key] for key in ("items", "additionalProperties") if isinstance(part.get(key), dict)]
        return set(part.get("properties", {})).union(*(names(one) for one in inner))

    assert sorted(name for name in names(schema()) if not re.search(rf"[`.]{name}[`.]", page)) == []


@pytest.mark.parametrize(
    "broken",
    [
        lambda config: config.pop("fallback"),
        lambda config: config["variants"]["int8"].update(sha256="0"),
        lambda config: config["variants"]["int8"]["session"].update(graph_optimization_level="most"),
        lambda config: config["variants"]["int8"].update(provider=[]),
        lambda config: config.update(format=2),
    ],
)
def test_the_schema_refuses(package: Path, broken: object) -> None:
    config = read_json(package / "runtime.json")
    broken(config)
    assert list(VALIDATOR.iter_errors(config))


def test_points_to_the_files(package: Path) -> None:
    config = read_json(package / "runtime.json")
    assert config["fallback"] == list(ORDER)
    for entry in config["variants"].values():
        path = package / entry["file"]
        assert entry["sha256"] == sha256_file(path)
        assert entry["bytes"] == path.stat().st_size


def test_session_entries_of_the_manifest_are_those_of_a_service(manifests: dict[str, dict]) -> None:
    changed = copy.deepcopy(manifests)
    changed["int8"]["session"] = {"session.x64quantprecision": "1"}
    variants = runtime_config("small", changed, ORDER)["variants"]
    assert variants["int8"]["session"]["config_entries"] == {"session.x64quantprecision": "1"}
    assert variants["fp32"]["session"]["config_entries"] == manifests["fp32"]["session"]


@pytest.mark.parametrize(
    ("target", "first", "architecture"),
    [
        ("cpu", "CPUExecutionProvider", "x86_64"),
        ("cpu-no-vnni", "CPUExecutionProvider", None),
        ("arm", "CPUExecutionProvider", "arm64"),
        ("openvino", "OpenVINOExecutionProvider", "x86_64"),
        ("openvino-no-vnni", "OpenVINOExecutionProvider", None),
        ("tensorrt", "TensorrtExecutionProvider", None),
    ],
)
def test_target_decides_providers_and_needs(manifests: dict[str, dict], target: str, first: str, architecture: str | None) -> None:
    changed = copy.deepcopy(manifests)
    changed["int8"] |= {"target": target, "providers": recommended_providers("int8", target)}
    config = runtime_config("small", changed, ORDER)
    VALIDATOR.validate(config)
    entry = config["variants"]["int8"]
    assert entry["providers"][0]["name"] == first
    assert entry["providers"][-1]["name"] == "CPUExecutionProvider"
    needs = entry["needs"]["cpu"] or {}
    assert needs.get("architecture") == architecture
    # Without VNNI, OpenVINO's sums saturate whatever the session asks for; ONNX Runtime's do not.
    saturating = target == "openvino"
    assert needs.get("without", []) == (["OpenVINOExecutionProvider"] if saturating else [])
    assert ("session.x64quantprecision" in needs.get("otherwise", {})) == (target in ("cpu", "openvino"))


@pytest.mark.parametrize("target", ["openvino", "tensorrt", "cpu"])
def test_what_finds_its_codes_at_run_time_runs_on_the_cpu(target: str) -> None:
    assert recommended_providers("int8_dynamic", target) == ["cpu"]


def test_float_variants_take_a_gpu_where_there_is_one(manifests: dict[str, dict]) -> None:
    providers = runtime_config("small", manifests, ("fp32",))["variants"]["fp32"]["providers"]
    assert [provider["name"] for provider in providers] == ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_refuses_variants_of_different_models(manifests: dict[str, dict]) -> None:
    with pytest.raises(SourceError, match="no manifest of variant 'fp16'"):
        runtime_config("small", manifests, ("fp16", "fp32"))
    with pytest.raises(SourceError, match="no variant"):
        runtime_config("small", manifests, ())
    changed = copy.deepcopy(manifests)
    changed["int8"]["preprocessing"]["scale"] = 1.0
    with pytest.raises(SourceError, match="`preprocessing`"):
        runtime_config("small", changed, ORDER)


@pytest.mark.parametrize(
    "settings",
    [
        {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
        {"mean": [127], "std": [128], "scale": 1, "layout": "nhwc", "colour": "bgr"},
        {"dtype": "uint8", "scale": 1},
        {"colour": "gray"},
    ],
)
def test_image_is_the_formula_normalised_as_photos_are(settings: dict) -> None:
    spec = Input.model_validate({"size": [20, 30], **settings})
    nhwc = spec.layout == "nhwc"
    shape = (1, 20, 30, spec.channels) if nhwc else (1, spec.channels, 20, 30)
    tensor = check_tensor(spec.model_dump(mode="json"), shape)
    assert tensor.shape == shape
    # Written out element by element, as a program in another language does it.
    pixels = np.zeros((20, 30, 3), np.uint8)
    for row in range(20):
        for column in range(30):
            for channel in range(spec.channels):
                pixels[row, column, channel] = (row * (column + 16) // 8 + 85 * channel) % 256
    if spec.colour == "gray":
        expected = (pixels[:, :, :1].astype(np.float32) / 255).transpose(2, 0, 1)[None]
    else:
        # `preprocess` takes RGB photos; the formula's channels are the tensor's.
        expected = preprocess(pixels[:, :, ::-1] if spec.colour == "bgr" else pixels, spec)
    np.testing.assert_array_equal(tensor, expected)
    assert tensor.dtype == expected.dtype


def test_shape_is_what_the_graph_fixes(manifests: dict[str, dict]) -> None:
    manifest = copy.deepcopy(manifests["fp32"])
    manifest["inputs"][0]["shape"] = ["batch", 3, "height", "width"]
    assert check_shape(manifest) == (1, 3, 32, 32)
    manifest["inputs"][0]["shape"] = [4, 3, 64, None]
    assert check_shape(manifest) == (4, 3, 64, 32)
    assert check_tensor(manifest["preprocessing"], (4, 3, 64, 32)).shape == (4, 3, 64, 32)


@pytest.mark.parametrize("variant", ORDER)
def test_session_that_gives_the_numbers_passes(package: Path, variant: str) -> None:
    manifest = read_json(package / variant / "manifest.json")
    found = selfcheck(Session(package / variant / "model.onnx"), manifest)
    assert list(found) == ["logits"]
    assert found["logits"] < 1e-4
    # Another way to compute the same file is allowed to round elsewhere.
    assert selfcheck(Session(package / variant / "model.onnx", optimization="off"), manifest)["logits"] < 0.5


@pytest.mark.parametrize("variant", ORDER)
def test_session_of_another_network_fails(package: Path, tmp_path: Path, variant: str) -> None:
    write_package(tmp_path / "other", seed=1)
    with pytest.raises(ModelRunError, match=f"self-check of {variant}: output 'logits' lies"):
        selfcheck(Session(tmp_path / "other" / variant / "model.onnx"), read_json(package / variant / "manifest.json"))


def test_one_weight_in_a_hundred_lost_is_seen(package: Path, tmp_path: Path) -> None:
    model = onnx.load(package / "fp32/model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name == "stem.weight":
            weight = onh.to_array(tensor).copy()
            weight.reshape(-1)[::100] = 0
            tensor.CopyFrom(onh.from_array(weight, tensor.name))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelRunError, match="lies"):
        selfcheck(Session(tmp_path / "model.onnx"), read_json(package / "fp32/manifest.json"))


def test_not_a_number_fails(package: Path) -> None:
    class Broken:
        def run(self, feeds: dict) -> dict:
            return {"logits": np.full((1, 4), np.nan, np.float32)}

    with pytest.raises(ModelRunError, match="lies nan"):
        selfcheck(Broken(), read_json(package / "fp32/manifest.json"))


def test_output_of_another_size_fails(package: Path) -> None:
    class Larger:
        def run(self, feeds: dict) -> dict:
            return {"logits": np.zeros((1, 5), np.float32)}

    with pytest.raises(ModelRunError, match="has 5 elements, the reference 4"):
        selfcheck(Larger(), read_json(package / "fp32/manifest.json"))


def test_variant_without_reference_is_not_checked(manifests: dict[str, dict]) -> None:
    without = {key: value for key, value in manifests["int8"].items() if key != "selfcheck"}
    config = runtime_config("small", manifests | {"int8": without}, ORDER)
    VALIDATOR.validate(config)
    assert selfcheck(object(), without) == {}


def test_outputs_that_choose_are_left_out(tmp_path: Path, manifests: dict[str, dict]) -> None:
    graph = oh.make_graph(
        [
            oh.make_node("Mul", ["image", "two"], ["doubled"]),
            oh.make_node("ArgMax", ["image"], ["best"], axis=1),
            oh.make_node("Cast", ["best"], ["count"], to=onnx.TensorProto.FLOAT),
        ],
        "g",
        [oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [
            oh.make_tensor_value_info("doubled", onnx.TensorProto.FLOAT, None),
            oh.make_tensor_value_info("best", onnx.TensorProto.INT64, None),
            oh.make_tensor_value_info("count", onnx.TensorProto.FLOAT, None),
        ],
        [onh.from_array(np.float32(2), "two")],
    )
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8), tmp_path / "model.onnx")
    found = reference(tmp_path, manifests["fp32"])
    assert [output["name"] for output in found["outputs"]] == ["doubled", "count"]
    assert list(found["left_out"]) == ["best"]
    json.dumps(found, allow_nan=False)


def test_custom_operators_are_left_out(package: Path, manifests: dict[str, dict]) -> None:
    manifest = manifests["fp32"] | {"custom_ops": {"Odd": {}}}
    assert reference(package / "fp32", manifest)["outputs"] == []


def test_error_of_each_channel_is_measured_by_its_own_spread(tmp_path: Path, manifests: dict[str, dict]) -> None:
    # Boxes in hundreds of pixels and scores in hundredths, in one tensor.
    scale = np.array([300, 1, 0.01], np.float32).reshape(1, 3, 1, 1)
    graph = oh.make_graph(
        [oh.make_node("Mul", ["image", "scale"], ["found"])],
        "g",
        [oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [oh.make_tensor_value_info("found", onnx.TensorProto.FLOAT, None)],
        [onh.from_array(scale, "scale")],
    )
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8), tmp_path / "model.onnx")
    output = reference(tmp_path, manifests["fp32"])["outputs"][0]
    values, scales = np.array(output["values"]), np.array(output["scales"])
    assert len(np.unique(scales)) == 3
    # The smallest channel alone off by its own spread is 1 / sqrt(3) over all.
    small = scales == scales.min()
    assert deviation(values + small * scales, values, scales) == pytest.approx(np.sqrt(small.mean()))
    # Samples do not stand in one column.
    assert len({place * output["stride"] % 32 for place in range(64)}) == 32


def test_stale_reference_is_seen_although_the_hash_is_right(package: Path, tmp_path: Path) -> None:
    config = write_package(tmp_path / "small")
    write_package(tmp_path / "other", seed=2)
    replace_model(tmp_path / "small", config, "int8", tmp_path / "other/int8/model.onnx")
    with pytest.raises(ModelRunError, match="self-check of int8"):
        selfcheck(Session(tmp_path / "small/int8/model.onnx"), read_json(tmp_path / "small/int8/manifest.json"))
