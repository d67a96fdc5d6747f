"""params.yaml: what is right is read into typed objects, what is wrong is named by file, path, expectation and nearest key."""

import types
import typing
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, project_params
from pydantic import BaseModel, BeforeValidator

from octavo.errors import ParamsError
from octavo.params import load, load_model, load_sets
from octavo.params.data import PackagedSets
from octavo.params.grammar import Params


def complaint(tmp_path: Path, params: object) -> str:
    path = tmp_path / "params.yaml"
    path.write_text(params if isinstance(params, str) else yaml.safe_dump(params), encoding="utf-8")
    with pytest.raises(ParamsError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert caught.value.mend
    return str(caught.value)


def set_of(keys):
    """`data`, whose set of calibration has these keys, too."""
    data = project_params()["models"]["small"]["data"]
    return {"data": data | {"calibration": data["calibration"] | keys}}


def test_the_repository_s_own_files_are_valid():
    models = load(ROOT / "params.yaml").models
    assert {"efficientnet_lite0", "mobilenet_v2"} <= set(models)
    assert set(load_sets(ROOT / "data/sources.yaml").sets) >= {"weights", "photos", "imagenet20"}


def test_blocks_are_frozen(tmp_path):
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(project_params()))
    spec = load_model(tmp_path / "p.yaml", "small")
    with pytest.raises(ValueError, match="frozen"):
        spec.int8.method = "mse"
    assert spec.task.name == "classification"
    assert spec.validation.bootstrap == 200


@pytest.mark.parametrize("task", ["classification", "detection", "segmentation", "embedding"])
def test_all_four_tasks_have_a_short_and_a_long_form(tmp_path, task):
    for form in (task, {"name": task}):
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(project_params(task=form)))
        assert load_model(tmp_path / "p.yaml", "small").task.name == task


STRIDED = {"size": [32, 32], "resize": {"rule": "letterbox", "stride": 16}}
EXPORTED = {"kind": "torch", "entry": "a:b", "file": "w"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"int8": {"metod": "mse"}}, ["models.small.int8.metod", "unknown key", "did you mean 'method'"]),
        ({"int8": {"method": "mean"}}, ["models.small.int8.method", "'mean'", "'entropy', 'mse' or 'peaks'"]),
        ({"int8": {"method": "percentil"}}, ["did you mean 'percentile'"]),
        ({"int8": {"ranges": {"a": [3, 1]}}}, ["models.small.int8.ranges.a", "[3, 1] is no range: the lower end comes first"]),
        ({"int8": {"ranges": {"a": {"metod": "mse"}}}}, ["models.small.int8.ranges.a.metod", "did you mean 'method'"]),
        ({"int8": {"ranges": {"a": {"bounds": [0, 1], "method": "mse"}}}}, ["int8.ranges.a", "give one of them"]),
        (
            {"int8": {"percentile": 99.9}},
            ["models.small.int8", "`percentile: 99.9` counts with `method: percentile` alone", "`method: auto`"],
        ),
        ({"int8": {"ranges": {"a": {"percentile": 99.9}}}}, ["models.small.int8", "the percentile of 'a' counts beside"]),
        ({"int8": {"ranges": {"a": {"percentile": 99.9, "method": "mse"}}}}, ["the percentile of 'a' counts beside"]),
        ({"int8": {"target": "tensorrtt"}}, ["models.small.int8.target", "did you mean 'tensorrt'"]),
        (
            {"int8": {"target": "openvino", "format": "qoperator"}},
            ["models.small.int8", "target openvino takes `format: qdq` only"],
        ),
        ({"int8": {"target": "arm", "format": "qoperator"}}, ["models.small.int8", "target arm takes `format: qdq` only"]),
        ({"int8": {"target": "arm", "placement": "table:costs.json"}}, ["models.small.int8", "target arm is placed by estimates"]),
        ({"int8": {"target": "tensorrt", "bits16": ["a"]}}, ["models.small.int8", "no 16-bit activations: use `keep_float`"]),
        ({"int8": {"weights": "mean"}}, ["models.small.int8.weights", "'minmax' or 'mse'"]),
        ({"calibrate": {"samples": "many"}}, ["models.small.calibrate.samples", "valid integer", "'many'"]),
        ({"benchmark": {"threads": []}}, ["models.small.benchmark.threads: list should have at least 1 item"]),
        ({"benchmark": {"batch": []}}, ["models.small.benchmark.batch: list should have at least 1 item"]),
        ({"input": {"size": 224}}, ["models.small.input.size: input should be a valid list, found 224"]),
        ({"fp16": None}, ["models.small.fp16: input should be a valid map"]),
        ({"calibrate": {"samples": 0}}, ["models.small.calibrate.samples", "greater than or equal to 1"]),
        ({"validate": {"gates": {"retained": 1.5}}}, ["models.small.validate.gates.retained", "less than or equal to 1"]),
        ({"task": "classificatoin"}, ["models.small.task", "did you mean 'classification'"]),
        ({"source": {"kind": "onxx", "file": "a"}}, ["models.small.source", "expected one of 'torch', 'onnx'"]),
        (
            {"source": {"kind": "torch", "entry": "a:b", "file": "w", "opsett": 18}},
            ["models.small.source.opsett", "did you mean 'opset'"],
        ),
        ({"source": {"kind": "onnx"}}, ["models.small.source.file", "required and missing"]),
        ({"source": {"kind": "onnx", "file": "a", "opset": 11}}, ["models.small.source.opset", "greater than or equal to 17"]),
        (
            {"task": {"name": "detection", "decoder": "yolo8"}},
            ["models.small.task", "decoder", "no detector family 'yolo8'", "did you mean 'yolov8'"],
        ),
        (
            {"task": {"name": "detection", "classes": ["N/A", "cat", "N/A", "cat"]}},
            ["models.small.task", "classes", "'cat' names 2 classes"],
        ),
        ({"input": {"size": [32]}}, ["models.small.input.size"]),
        ({"input": {"size": [32, 32], "resize": {"rule": "shorter"}}}, ["models.small.input.resize", "needs `to`"]),
        (
            {"input": {"size": [32, 32], "resize": {"rule": "shorter", "to": 16}, "crop": "center"}},
            ["16 pixels, too few to crop 32x32"],
        ),
        ({"input": {"size": [32, 32], "mean": [1, 2]}}, ["`mean` has 2 values"]),
        ({"input": {"size": [32, 32], "std": [0]}}, ["models.small.input.std.0", "greater than 0"]),
        ({"input": {"size": [32, 32], "scale": float("nan")}}, ["models.small.input.scale"]),
        ({"input": {"size": [32, 32], "dtype": "uint8"}}, ["`scale: 1`"]),
        (
            {"data": project_params()["models"]["small"]["data"] | {"datasets": {"night": {"holdot": True}}}},
            ["models.small.data.datasets.night.holdot", "did you mean 'holdout'"],
        ),
        ({"benchmark": {"threads": [0]}}, ["models.small.benchmark.threads.0"]),
        (
            {"input": STRIDED, "benchmark": {"resolutions": [32, [24, 32]]}},
            ["benchmark.resolutions: the sides of [24, 32] must be multiples of `input.resize.stride` 16"],
        ),
        (
            {"source": EXPORTED, "benchmark": {"resolutions": [32, 64]}},
            ["benchmark.resolutions: [64, 64] is not `input.size` [32, 32]", "`source.dynamic_size: true`", "an entry of its own"],
        ),
        (
            {"source": EXPORTED | {"dynamic_batch": False}, "benchmark": {"batch": [1, 8]}},
            ["benchmark.batch: the exported graph takes one image at a time, not 8", "`source.dynamic_batch: true`"],
        ),
        ({"int8": {"fidelity": True}}, ["models.small.int8.fidelity: expected a number, or 'auto', found True"]),
        ({"calibrate": {"samples": True}}, ["models.small.calibrate.samples: expected a number, found True"]),
        ({"benchmark": {"threads": [True]}}, ["models.small.benchmark.threads.0: expected a number, found True"]),
        ({"validate": {"pictures": False}}, ["models.small.validate.pictures: expected a number, found False"]),
        ({"calibrate": {"seed": True}}, ["models.small.calibrate.seed: expected a number, found True"]),
        ({"input": {"size": [32, 32], "mean": [True]}}, ["models.small.input.mean.0: expected a number, found True"]),
        (set_of({"class_map": {"no": True}}), ["class_map.no: a class named yes, no, on or off is a switch to YAML", "found True"]),
        (set_of({"class_map": {True: 0}}), ["class_map.1: a class named yes, no, on or off is a switch to YAML"]),
        (
            set_of({"class_map": {"a": [1]}}),
            ["class_map.a: input should be a valid string, or input should be a valid integer, found [1]"],
        ),
        (set_of({"palette": {"a": [1, 2, 300]}}), ["palette.a.2: input should be less than or equal to 255, found 300"]),
        ({"int8": {"placement": "Measured"}}, ["'Measured' is not possible; expected 'measured', 'all' or 'table:FILE'"]),
        ({"int8": {"placement": "table:"}}, ["'table:' is not possible; expected 'measured', 'all' or 'table:FILE'"]),
        ({"int8": {"ranges": {"a": [1]}}}, ["models.small.int8.ranges.a: [1] is no range: it has two ends, [low, high]"]),
        ({"int8": {"ranges": {"a": [0, 1e300]}}}, ["models.small.int8.ranges.a", "[0, 1e+300] reaches beyond what float32 holds"]),
        ({"int8": {"ranges": {"a": "mse"}}}, ["models.small.int8.ranges.a: input should be a valid map, found 'mse'"]),
    ],
)
def test_a_mistake_is_named_with_its_path_and_what_was_expected(tmp_path, changes, expected):
    message = complaint(tmp_path, project_params(**changes))
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"int8": {"fidelity": 70}}, "models.small.int8.fidelity: input should be less than or equal to 60, or 'auto', found 70"),
        (
            {"qat": {"accumulate": "atuo"}},
            "models.small.qat.accumulate: input should be a valid integer, unable to parse string as an integer, or 'auto', "
            "found 'atuo'; did you mean 'auto'?",
        ),
        (
            {"task": {"name": "classification", "classes": "imagenet"}},
            "models.small.task.classes: input should be a valid list, or 'imagenet1k', found 'imagenet'; "
            "did you mean 'imagenet1k'?",
        ),
        (
            {"task": {"name": "classification", "classes": ["cat", 3]}},
            "models.small.task.classes.1: input should be a valid string, found 3",
        ),
        (
            {"benchmark": {"resolutions": [[32, "wide"]]}},
            "models.small.benchmark.resolutions.0.1: input should be a valid integer, unable to parse string as an integer, "
            "found 'wide'",
        ),
        (
            {"benchmark": {"providers": ["opencl"]}},
            "models.small.benchmark.providers.0: 'opencl' is not possible; expected 'auto', 'cpu' or 'cuda'",
        ),
    ],
)
def test_a_value_that_may_be_of_several_kinds_has_one_line_and_the_path_of_the_file(tmp_path, changes, line):
    lines = complaint(tmp_path, project_params(**changes)).splitlines()
    assert [one.strip() for one in lines[1:-1]] == [line]


@pytest.mark.parametrize(
    ("one", "other", "artifact"),
    [("road-day", "road_day", "road-day"), ("road", "road_qat", "road-qat"), ("road", "road-int8", "road-int8")],
)
def test_models_whose_artifacts_would_have_one_name_are_refused(tmp_path, one, other, artifact):
    (spec,) = project_params()["models"].values()
    message = complaint(tmp_path, {"models": {one: spec, other: spec}})
    assert f"models {one!r} and {other!r}: both would have the artifact {artifact!r}" in message
    assert "in the model registry" in message
    names = ("road", "road-night", "road_int", "int8")
    (tmp_path / "p.yaml").write_text(yaml.safe_dump({"models": dict.fromkeys(names, spec)}))
    assert load_model(tmp_path / "p.yaml", "road-night")


def test_a_missing_block_says_that_empty_braces_will_do(tmp_path):
    params = project_params()
    del params["models"]["small"]["fp16"]
    assert "models.small.fp16: this key is required and missing (`{}` takes the defaults)" in complaint(tmp_path, params)


def test_all_mistakes_are_listed_at_once(tmp_path):
    message = complaint(tmp_path, project_params(int8={"metod": 1}, calibrate={"samples": -1}))
    assert "int8.metod" in message
    assert "calibrate.samples" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "found nothing"),
        ("- a\n- b\n", "found a list"),
        ("models: {a: [}\n", "not readable YAML"),
        ("models: {}\n", "models"),
        ("models:\n  a: {task: x}\n  a: {task: y}\n", "stands twice"),
        ("models:\n  a: {task: {3: x, '*': y}}\n", "the key 3 beside them, which DVC cannot sort; write '3'"),
        ("models: {no: {}, yolo: {}}\n", "the key no beside them, which DVC cannot sort; write 'no'"),
        ("models: {'../up': {}}\n", "models.../up"),
        ("modles: {}\n", "did you mean 'models'"),
        ("!!python/object/apply:os.system ['true']\n", "not readable YAML"),
    ],
)
def test_files_that_are_no_params(tmp_path, text, expected):
    assert expected in complaint(tmp_path, text)


def test_anchors_and_merge_keys_save_repeating_a_model(tmp_path):
    block = yaml.safe_dump(project_params()["models"]["small"]).replace("\n", "\n    ")
    (tmp_path / "p.yaml").write_text(
        f"models:\n  small: &small\n    {block}\n  other:\n    <<: *small\n    calibrate: {{samples: 12}}\n"
    )
    models = load(tmp_path / "p.yaml").models
    assert models["other"].calibrate.samples == 12
    assert models["other"].input == models["small"].input


def test_a_missing_file_and_an_unknown_model(tmp_path):
    with pytest.raises(ParamsError, match=r"nowhere\.yaml: no such file"):
        load(tmp_path / "nowhere.yaml")
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(project_params()))
    with pytest.raises(ParamsError, match=r"no model 'smal'\n  to mend: did you mean 'small'\? it has: small"):
        load_model(tmp_path / "p.yaml", "smal")


def test_a_stage_is_not_stopped_by_mistakes_in_the_block_of_another_model(tmp_path):
    good = project_params()["models"]["small"]
    stray = good | {"source": good["source"] | {"file": "/elsewhere/w.onnx"}}
    models = {"small": good, "wrong": good | {"int8": {"metod": "mse"}}, "stray": stray}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump({"models": models}))
    assert load_model(tmp_path / "p.yaml", "small").task.name == "classification"
    # What is wrong in its own, or in none of them, is said, and all of it where all is asked for.
    for name, said in (("wrong", r"models\.wrong\.int8\.metod"), ("stray", r"models\.stray\.source\.file: /elsewhere")):
        with pytest.raises(ParamsError, match=said):
            load_model(tmp_path / "p.yaml", name)
    with pytest.raises(ParamsError, match=r"models\.wrong\.int8\.metod"):
        load(tmp_path / "p.yaml")
    (tmp_path / "p.yaml").write_text(yaml.safe_dump({"models": models, "modles": {}}))
    with pytest.raises(ParamsError, match="modles: unknown key"):
        load_model(tmp_path / "p.yaml", "small")


def test_packaged_sets_stay_inside_their_folder(tmp_path):
    (tmp_path / "s.yaml").write_text("sets: {a: [{package: p, file: f, licence: l, to: ../../x}]}")
    with pytest.raises(ParamsError, match=r"sets\.a\.0\.to: `to` '\.\./\.\./x' must stay inside"):
        load_sets(tmp_path / "s.yaml")


def test_no_number_of_any_block_takes_a_switch():
    """YAML's `true`, `yes` and `on` are 1 to Python; a field that is added shall not take them either."""
    blocks = _blocks(Params, PackagedSets)
    assert {block.__name__ for block in blocks} > {
        "Calibrate",
        "Resize",
        "Head",
        "OnnxSource",
        "ImageSet",
        "TensorRange",
        "Rendered",
    }
    assert not [f"{block.__name__}.{name}" for block in blocks for name, field in block.model_fields.items() if _is_bare(field)]


def _blocks(*roots):
    found, waiting = [], [*roots]
    while waiting:
        block = waiting.pop()
        if block not in found:
            found.append(block)
            waiting += [kind for field in block.model_fields.values() for kind, _ in _kinds(field.annotation) if _is_block(kind)]
    return found


def _is_block(kind):
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _kinds(annotation, notes=()):
    """Every type that an annotation is made of, with what is noted at it."""
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *own = typing.get_args(annotation)
        yield from _kinds(inner, (*notes, *own))
    elif typing.get_origin(annotation) is typing.Literal:
        return
    elif arguments := typing.get_args(annotation):
        union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        for argument in arguments:
            yield from _kinds(argument, notes if union else ())
    else:
        yield annotation, notes


def _is_bare(field):
    numbers = [notes for kind, notes in _kinds(field.annotation, field.metadata) if kind in (int, float)]
    return any(not any(isinstance(note, BeforeValidator) for note in notes) for notes in numbers)
