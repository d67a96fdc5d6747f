"""A quantized file is run before it is accepted; its page; and gates on size and speed."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from conftest import small_network

from octavo.errors import QuantizationError
from octavo.evidence import cost
from octavo.evidence.bootstrap import Interval
from octavo.evidence.cost import cost_gates, speed_ratio
from octavo.evidence.gates import judge_interval
from octavo.evidence.remarks import shortfalls
from octavo.evidence.report import markdown as metrics_page
from octavo.graph.custom_ops import CustomOps
from octavo.graph.selection import selects
from octavo.params.grammar import Gates
from octavo.quantization import acceptance
from octavo.quantization.acceptance import accept
from octavo.quantization.decisions import Decision, as_records, reasons, summary
from octavo.quantization.report import alike, markdown
from octavo.runtime import timing
from octavo.runtime.session import Session
from octavo.variants import Variants

GENERATOR = np.random.default_rng(2)
SAMPLES = [(f"{place}.png", {"image": GENERATOR.standard_normal((1, 3, 32, 32)).astype(np.float32)}) for place in range(3)]
FP32 = small_network().SerializeToString()


def graph(nodes: list[onnx.NodeProto], output: onnx.ValueInfoProto, **tensors: np.ndarray) -> bytes:
    image = oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["batch", 3, 32, 32])
    stored = [onh.from_array(np.asarray(value), name) for name, value in tensors.items()]
    proto = oh.make_model(
        oh.make_graph(nodes, "g", [image], [output], stored), opset_imports=[oh.make_opsetid("", 18)], ir_version=8
    )
    return proto.SerializeToString()


def logits(shape: list, kind: int = onnx.TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return oh.make_tensor_value_info("logits", kind, shape)


def sums(shape: list[int], kind: int = onnx.TensorProto.FLOAT) -> bytes:
    """A file that writes something else than FP32 does under its name."""
    nodes = [
        oh.make_node("ReduceMean", ["image"], ["mean"], "mean", keepdims=0),
        oh.make_node("Expand", ["mean", "shape"], ["wide"], "wide"),
        oh.make_node("Cast", ["wide"], ["logits"], "cast", to=kind),
    ]
    return graph(nodes, logits(shape, kind), shape=np.array(shape, np.int64))


class TestAccept:
    def test_the_same_file_is_as_close_as_can_be(self):
        record = accept(FP32, FP32, SAMPLES, name="same", classes=1).record()
        assert record["images"] == 3
        assert record["sqnr_db"]["logits"] > 100
        assert record["off_on_max"]["logits"] < 1e-4
        assert record["agreement"] == 1.0
        assert record["warnings"] == []
        json.dumps(record, allow_nan=False)
        assert "agreement" not in accept(FP32, FP32, SAMPLES, name="same").record()

    @pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
    def test_an_output_that_is_not_finite(self, value, word):
        broken = small_network(weights={"head.bias": np.array([value, 0, 0, 0], np.float32)}).SerializeToString()
        with pytest.raises(
            QuantizationError, match=rf"int8/model.onnx: output 'logits' holds {word} on 0.png, FP32's does not\n.*int8.keep_float"
        ):
            accept(FP32, broken, SAMPLES, name="int8/model.onnx")

    @pytest.mark.parametrize(
        ("other", "says"),
        [
            (sums([1, 5]), r"output 'logits' is float32 \[1, 5\] on 0.png, FP32's is float32 \[1, 4\]"),
            (sums([2, 4]), r"float32 \[2, 4\] on 0.png"),
            (sums([4]), r"float32 \[4\] on"),
            (sums([1, 4], onnx.TensorProto.FLOAT16), r"output 'logits' is float16"),
        ],
        ids=["classes", "batch", "rank", "dtype"],
    )
    def test_another_shape_or_dtype(self, other, says):
        with pytest.raises(QuantizationError, match=says):
            accept(FP32, other, SAMPLES, name="file")

    def test_a_missing_output_and_no_image(self):
        renamed = onnx.load_from_string(FP32)
        renamed.graph.node[-1].output[0] = renamed.graph.output[0].name = "scores"
        with pytest.raises(QuantizationError, match="has no output 'logits'"):
            accept(FP32, renamed.SerializeToString(), SAMPLES, name="file")
        with pytest.raises(QuantizationError, match="no image to run it on"):
            accept(FP32, FP32, [], name="file")

    @pytest.mark.parametrize(
        ("values", "lost", "says"),
        [(2, 5.0, None), (2, 8.0, "warning"), (2, 15.0, "error"), (500, 0.8, None), (500, 2.0, "warning"), (500, 7.0, "error")],
    )
    def test_chance_excuses_what_few_values_lose(self, monkeypatch, values, lost, says):
        """Of two classes on four images 21 draws in 100 lost a decibel and more (MobileNetV2), of 60 images nothing."""
        noise = np.random.default_rng(0).choice([-0.1, 0.1], (4, 1, values)).astype(np.float32)

        class Told:
            def __init__(self, path: str, *, optimization: str = "all", **_):
                more = {"off": 1.0, "all": 10 ** (lost / 20)}[optimization]
                self.outputs, self.off = ["y"], more if path == "int8" else 0.0
                self.input_shapes, self.output_shapes = {"x": [1]}, {"y": [1, values]}

            def run(self, feeds: dict) -> dict:
                return {"y": np.ones((1, values), np.float32) + np.float32(self.off) * noise[feeds["x"]]}

        monkeypatch.setattr(acceptance, "Session", Told)
        samples = [(str(place), {"x": place}) for place in range(4)]
        if says == "error":
            with pytest.raises(QuantizationError, match="optimized graph is not the one in the file"):
                accept("fp32", "int8", samples, name="file")
        else:
            assert len(accept("fp32", "int8", samples, name="file").warnings) == (says == "warning")

    @pytest.mark.parametrize(("rows", "warned"), [(3, False), (40, True)])
    def test_few_rows_in_others_places_say_nothing_of_optimizations(self, monkeypatch, rows, warned):
        """D-FINE's boxes had 18.6 dB optimized and 20.1 as written, on FP32's queries 65 both: the last bit chooses."""
        boxes = np.random.default_rng(0).uniform(0, 1, (4, 1, 60, 4)).astype(np.float32)

        class Told:
            def __init__(self, path: str, *, optimization: str = "all", **_):
                self.outputs, self.input_shapes, self.output_shapes = ["y"], {"x": [1]}, {"y": [1, 60, 4]}
                self.off, self.rows = path == "int8", rows if optimization == "all" else 2

            def run(self, feeds: dict) -> dict:
                found = boxes[feeds["x"]].copy()
                if self.off:
                    found += np.float32(0.02)
                    found[:, : self.rows] += 0.3
                return {"y": found}

        monkeypatch.setattr(acceptance, "Session", Told)
        samples = [(str(place), {"x": place}) for place in range(4)]
        assert bool(accept("fp32", "int8", samples, name="file", selecting=True).warnings) == warned
        # Of a graph that chooses none they say as much as others.
        assert warned or accept("fp32", "int8", samples, name="file").warnings

    @pytest.mark.parametrize(("optimized", "written"), [(5, 7), (7, 5), (6, 0), (0, 6), (9, 9)])
    def test_optimizations_may_change_how_many_boxes_are_found(self, monkeypatch, optimized, written):
        """A RetinaNet that found other numbers of boxes optimized and as written ended in numpy's own error."""
        boxes = np.random.default_rng(0).uniform(0, 1, (9, 4)).astype(np.float32)

        class Told:
            def __init__(self, path: str, *, optimization: str = "all", **_):
                self.outputs, self.input_shapes, self.output_shapes = ["y"], {"x": [1]}, {"y": ["found", 4]}
                self.rows = 9 if path == "fp32" else optimized if optimization == "all" else written

            def run(self, feeds: dict) -> dict:
                return {"y": boxes[: self.rows] + np.float32(0.02) * (self.rows < 9)}

        monkeypatch.setattr(acceptance, "Session", Told)
        found = accept("fp32", "int8", [(str(place), {"x": place}) for place in range(4)], name="file", selecting=True)
        assert bool(found.sqnr_db) == bool(optimized)
        assert not [warning for warning in found.warnings if "optimized" in warning]

    def test_a_number_of_boxes_may_differ(self):
        def above(threshold: float) -> bytes:
            nodes = [
                oh.make_node("Greater", ["image", "threshold"], ["big"], "big"),
                oh.make_node("NonZero", ["big"], ["where"], "where"),
                oh.make_node("Cast", ["where"], ["logits"], "cast", to=onnx.TensorProto.FLOAT),
            ]
            return graph(nodes, logits([4, "found"]), threshold=np.float32(threshold))

        found = accept(above(0.5), above(0.6), SAMPLES, name="file")
        assert found.sqnr_db == {}, "no distance is defined"

    @pytest.mark.parametrize(
        ("first", "second", "says"),
        [(9.0, 9.0, "FP32 itself finds nothing on 3 images"), (0.5, 9.0, "FP32 finds something on 3 images, this file on none")],
    )
    def test_no_box_is_no_measurement(self, first, second, says):
        """Two empty sets of boxes were 200 dB from each other, their largest difference 0; 50 boxes and none as well."""

        def above(threshold: float) -> bytes:
            nodes = [
                oh.make_node("Greater", ["image", "threshold"], ["big"], "big"),
                oh.make_node("Reshape", ["image", "all"], ["flat"], "flat"),
                oh.make_node("Reshape", ["big", "all"], ["some"], "some"),
                oh.make_node("Compress", ["flat", "some"], ["logits"], "choose", axis=0),
            ]
            return graph(nodes, logits(["found"]), threshold=np.float32(threshold), all=np.array([-1], np.int64))

        found = accept(above(first), above(second), SAMPLES, name="file", selecting=True)
        assert (found.sqnr_db, found.written_db, found.off_on_db, found.off_on_max) == ({}, {}, {}, {})
        assert [warning for warning in found.warnings if says in warning], found.warnings

    def test_rows_of_zeros_are_no_measurement(self):
        """Suppression that puts out as many rows whatever it finds (ultralytics' `nms=True`, EfficientNMS_TRT)."""
        nodes = [oh.make_node("Mul", ["image", "zero"], ["nothing"], "z"), oh.make_node("Abs", ["nothing"], ["logits"], "abs")]
        empty = graph(nodes, logits([1, 3, 32, 32]), zero=np.float32(0))
        found = accept(empty, empty, SAMPLES, name="file", selecting=True)
        assert (found.sqnr_db, found.off_on_max) == ({}, {})
        assert any("FP32 itself finds nothing on 3 images" in warning for warning in found.warnings), found.warnings

    def test_selecting_graphs_are_told(self):
        import onnx_ir as ir

        assert not selects(ir.from_proto(onnx.load_from_string(FP32)))
        nodes = [oh.make_node("TopK", ["image", "k"], ["best", "place"], "top"), oh.make_node("Cast", ["place"], ["logits"], to=1)]
        assert selects(ir.from_proto(onnx.load_from_string(graph(nodes, logits([1, 3, 32, 2]), k=np.array([2], np.int64)))))


MANIFEST = {
    "name": "m",
    "variant": "int8",
    "bytes": 900,
    "sha256": "a" * 64,
    "host": {"id": "abc", "cpu": "a cpu", "cores": 2, "vnni": True},
    "session": {},
    "versions": {"onnx": "1", "octavo": "0"},
    "made": {
        "from_sha256": "b" * 64,
        "from_bytes": 1000,
        "size_ratio": 0.9,
        "settings": {"method": "auto", "correction": "bias", "per_channel": True},
        "calibration": {"images": "c" * 64, "samples": 6, "held_out": 2},
        "corrected_biases": 3,
        "measured": {
            "chosen": "mse",
            "equalized_tensors": 7,
            "tried_db": {"mse": 20.1, "percentile": 19.0},
            "all_int8_db": 20.1,
            "db": 24.5,
            "fidelity_db": 24.0,
            "held_out_images": 2,
        },
        "nodes": [
            {"node": "a|b", "op_type": "Conv", "precision": "int8", "reason": "integer kernel"},
            {"node": "c", "op_type": "Conv", "precision": "float", "reason": "repair: 5% of the noise"},
            {"node": "d", "op_type": "Clip", "precision": "float", "reason": "repair: 7% of the noise"},
            {"node": "e|f", "op_type": "Add", "precision": "float", "reason": "its input comes from c (linear), which is float"},
        ],
        "executed": {
            "kernels": {"int8": {"QLinearConv": 1}, "float": {"Conv": 2}},
            "int8_layers": 1,
            "int8_layers_integer": 1,
            "int8_share": 0.25,
            "unexpected": [{"node": "e|f", "op_type": "Add", "decided": "float", "runs": "int8", "kernel": "QLinearAdd"}],
            "unresolved": ["g"],
        },
        "accepted": {
            "images": 4,
            "sqnr_db": {"y": 25.0},
            "written_db": {"y": 25.1},
            "off_on_db": {"y": 40.0},
            "off_on_max": {"y": 0.5},
            "written_level": "extended",
            "agreement": 0.99,
            "warnings": [],
        },
        "warnings": ["the file is odd"],
    },
}


class TestPage:
    def test_arithmetic_on_sizes_is_one_row(self):
        """A mean over places that Keras lays out anew, in each of its blocks: by the names of tensors 7 rows of one Concat each."""
        said = {alike(f"model/Cast_{place}:0 is INT64, not float32") for place in range(7)}
        assert said == {"its input is not a float32 activation"}

    def test_it_says_what_the_manifest_says(self):
        page = markdown(MANIFEST)
        assert "- **Warning**: the file is odd" in page
        assert "| size | 0.001 MB, 90.0% of FP32's 0.001 MB |" in page
        assert "| mse | 20.1 |" in page
        assert "| tensors with channels equalized | 7 |" in page
        assert "| multiplications in INT8 | 25.0% |" in page
        assert "| SQNR at the heads, as written | 24.5 dB, 24.0 dB wanted |" in page
        assert "| repair: given back to float, so that `int8.fidelity` holds | 2 | 1 Clip, 1 Conv | `c`, `d` |" in page
        assert "| its input comes from a float node | 1 | 1 Add | `e\\|f` |" in page
        assert "| e\\|f | Add | float | int8 | QLinearAdd |" in page
        assert "No kernel was found by name for: `g`." in page
        assert "| `y` | 25.0 | 25.1 | 40.0 | 0.5 |" in page
        assert "at level `extended` in place of off" in page
        assert "99.00% of positions" in page
        assert "b" * 64 in page
        assert "c" * 64 in page

    def test_what_runs_here_is_not_taken_for_what_another_runtime_runs(self):
        said = "Not of `target: tensorrt`"
        settings = MANIFEST["made"]["settings"] | {"target": "tensorrt"}
        page = markdown(MANIFEST | {"made": MANIFEST["made"] | {"settings": settings}})
        assert said in page
        assert (
            "1, for `target: tensorrt`, which was not run; ONNX Runtime's CPU, whose fusions are others, has integer kernels for 1"
            in page
        )
        assert said not in markdown(MANIFEST)
        assert "1, of which 1 run as integer kernels" in markdown(MANIFEST)

    def test_tables_are_whole_and_no_time_stands_in_it(self):
        page = markdown(json.loads(json.dumps(MANIFEST)))
        assert page == markdown(MANIFEST)
        for block in page.split("\n\n"):
            if block.startswith("| "):
                assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
        assert str(time.gmtime().tm_year) not in page

    def test_int8_weights_of_what_computes_in_float_are_not_called_int8(self):
        why = "weights int8 in the file, computed in float32"
        stored = Decision("h", "Conv", "int8", why, "float")
        nodes = [*MANIFEST["made"]["nodes"], *as_records([stored])]
        page = markdown(MANIFEST | {"made": MANIFEST["made"] | {"nodes": nodes}})
        assert "| int8 | 1 | 1 Conv |" in page
        assert "| int8 weights | 1 | 1 Conv |" in page
        assert f"| {why} | 1 | 1 Conv | `h` |" in page
        assert summary([stored, Decision("i", "Gemm", "int8", "")]) == "int8: 1 Gemm; int8 weights: 1 Conv"

    def test_ways_that_one_image_spoils_do_not_contradict_what_was_chosen(self):
        """A text detector's photo without text: 19 dB among the ways, 2 in full, without a word between."""
        tried = max(MANIFEST["made"]["measured"]["tried_db"].values())
        for whole, said in ((tried - 1, False), (tried - 17, True)):
            measured = MANIFEST["made"]["measured"] | {"all_int8_db": whole}
            page = markdown(MANIFEST | {"made": MANIFEST["made"] | {"measured": measured}})
            assert (f"in full, what was chosen has {whole} dB" in page) == said

    def test_outputs_that_are_pasted_at_whole_pixels_are_told(self):
        """Mask R-CNN's masks: 4 dB, and only a pixel further."""
        accepted = MANIFEST["made"]["accepted"] | {"pasted": ["masks"]}
        page = markdown(MANIFEST | {"made": MANIFEST["made"] | {"accepted": accepted}})
        assert "`masks`: pasted at whole pixels; a rounding moves all that is pasted by one." in page
        assert "pasted" not in markdown(MANIFEST)

    def test_what_a_network_runs_faster_than_prices_say_is_named(self):
        measured = MANIFEST["made"]["measured"] | {"faster_in_int8": ["stem", "pool"]}
        page = markdown(MANIFEST | {"made": MANIFEST["made"] | {"measured": measured}})
        assert "| float by prices, faster in INT8 here | stem, pool |" in page
        assert "float by prices" not in markdown(MANIFEST)

    def test_without_measurements_the_tables_are_left_out(self):
        page = markdown(
            MANIFEST | {"made": MANIFEST["made"] | {"measured": {}, "warnings": [], "nodes": MANIFEST["made"]["nodes"][:1]}}
        )
        assert "Ways tried" not in page
        assert "Warning" not in page
        assert "Not in INT8" not in page


class Clock:
    """A clock that calls move on, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        return self.now

    def taking(self, times_ms: list[float]):
        place = iter(range(10**6))

        def call() -> None:
            self.now += int(times_ms[next(place) % len(times_ms)] * 1e6)

        return call


class TestCost:
    @pytest.fixture
    def clock(self, monkeypatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(timing, "time", clock)
        return clock

    def test_the_ratio_and_its_interval(self, clock):
        assert speed_ratio(clock.taking([20]), clock.taking([10])) == Interval(2.0, 2.0, 2.0)
        begun = clock.now
        noisy = speed_ratio(clock.taking([10, 11, 12, 10, 9.5]), clock.taking([10.5]), seconds=2.0)
        assert noisy.low < 1 < noisy.high
        assert 1.5 < (clock.now - begun) / 1e9 < 3, "about two seconds"
        begun = clock.now
        speed_ratio(clock.taking([1000]), clock.taking([500]))
        assert (clock.now - begun) / 1500e6 == cost.ROUNDS[0] + cost.WARMUP + 3, "slow graphs get the fewest rounds"

    def test_slower_for_sure_fails_and_slower_perhaps_is_inconclusive(self, clock):
        slower = speed_ratio(clock.taking([10, 10.2, 9.9]), clock.taking([12]))
        assert judge_interval(slower, 1.0) == "fail"
        unsure = speed_ratio(clock.taking([8, 12]), clock.taking([10.2]))
        assert judge_interval(unsure, 1.0) in ("pass", "inconclusive")
        assert unsure.low < 1 < unsure.high

    def test_gates_speak_where_they_are_asked(self, monkeypatch):
        sessions = {name: Session(FP32) for name in ("fp32", "fp16", "int8", "int8_dynamic")}
        sizes = {"fp32": 100, "fp16": 60, "int8": 120, "int8_dynamic": 130}
        feeds = SAMPLES[0][1]
        monkeypatch.setattr(cost, "speed_ratio", lambda reference, other: pytest.fail("nobody asked"))
        assert cost_gates(Gates(), sizes, sessions, feeds, {}) == (
            {},
            ["int8 is larger than FP32: 120 bytes against 100", "int8_dynamic is larger than FP32: 130 bytes against 100"],
        )
        monkeypatch.setattr(cost, "speed_ratio", lambda reference, other: (reference(), other(), Interval(0.8, 0.7, 0.9))[2])
        asked, manifests = Gates(allow_larger=False, allow_slower=False), {"int8": {"target": "cpu-no-vnni"}, "int8_dynamic": None}
        record, notes = cost_gates(asked, sizes, sessions, feeds, manifests)
        assert record == {"fp16.gate.size": "pass", "int8.gate.size": "fail", "int8.gate.speed": "fail"}
        assert "int8 runs at 0.80x [0.70, 0.90] of FP32's speed on this machine" in notes

    @pytest.mark.parametrize("target", ["openvino", "openvino-no-vnni", "tensorrt", "arm"])
    def test_the_speed_of_files_for_another_runtime_is_not_judged_here(self, monkeypatch, target):
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        sessions = {name: Session(FP32) for name in ("fp32", "int8")}
        monkeypatch.setattr(cost, "speed_ratio", lambda reference, other: pytest.fail("another runtime's file was timed"))
        manifests = {"int8": {"target": target}}
        record, notes = cost_gates(Gates(allow_slower=False), {"fp32": 100, "int8": 30}, sessions, SAMPLES[0][1], manifests)
        assert record == {}
        assert notes == [f"int8 is for {target}, and its speed is not judged (`allow_slower: false`): that runtime alone tells"]

    def test_files_for_arm_are_judged_where_they_run(self, monkeypatch):
        monkeypatch.setattr("platform.machine", lambda: "arm64")
        monkeypatch.setattr(cost, "speed_ratio", lambda reference, other: Interval(1.2, 1.1, 1.3))
        sessions = {name: Session(FP32) for name in ("fp32", "int8")}
        record, _ = cost_gates(
            Gates(allow_slower=False), {"fp32": 100, "int8": 30}, sessions, SAMPLES[0][1], {"int8": {"target": "arm"}}
        )
        assert record == {"int8.gate.speed": "pass"}

    def test_the_report_names_what_falls_short(self):
        record = {
            "host.id": "abc",
            "host.cpu": "cpu",
            "host.cores": 2,
            "host.vnni": True,
            "host.session": "defaults",
            "fp32.size_mb": 1.0,
            "fp32.cpu.t1.b1.median_ms": 10.0,
            "fp32.cpu.t1.b1.median_high_ms": 10.2,
            "int8.size_mb": 1.2,
            "int8.size_ratio": 1.2,
            "int8.cpu.t1.b1.median_ms": 12.0,
            "int8.cpu.t1.b1.speedup": 0.83,
            "int8.cpu.t1.b1.median_low_ms": 11.0,
            "int8_dynamic.size_ratio": 0.5,
            "int8_dynamic.cpu.t1.b1.speedup": 0.99,
            "int8_dynamic.cpu.t1.b1.median_low_ms": 10.0,
            # Shown as 1.00x.
            "fp32.cpu.t2.b1.median_high_ms": 10.2,
            "int8.cpu.t2.b1.speedup": 0.997,
            "int8.cpu.t2.b1.median_low_ms": 10.0,
            "fp16.cpu.t1.b1.speedup": 0.8,
            "fp16.cpu.t1.b1.median_low_ms": 12.0,
        }
        wanted = [
            "int8 is larger than FP32: 120% of its bytes",
            "int8 is slower than FP32 at cpu.t1.b1: 0.83x",
            "int8_dynamic is slower than FP32 at cpu.t1.b1: 0.99x, which is within noise",
        ]
        assert shortfalls(record) == wanted
        assert metrics_page("m", {"images": 1, "labelled": 1}, record).endswith("\n".join(f"- {line}" for line in wanted) + "\n")

    @pytest.mark.parametrize(("machine", "elsewhere"), [("x86_64", {"int8": "arm"}), ("aarch64", {})])
    def test_figures_of_files_for_another_runtime_say_so(self, monkeypatch, machine, elsewhere):
        monkeypatch.setattr("platform.machine", lambda: machine)
        manifests = {"fp32": {"target": None}, "fp16": None, "int8": {"target": "arm"}, "int8_dynamic": {"target": "arm"}}
        assert Variants("m", {}, CustomOps(), None, {}, manifests).elsewhere == elsewhere
        record = {"int8.cpu.t1.b1.speedup": 0.5, "int8.cpu.t1.b1.median_low_ms": 9, "fp32.cpu.t1.b1.median_high_ms": 5}
        assert shortfalls(record) == ["int8 is slower than FP32 at cpu.t1.b1: 0.50x"]
        assert shortfalls(record | {"int8.target": "arm"}) == [
            "int8 is slower than FP32 at cpu.t1.b1: 0.50x; it is for arm, whose speed this does not tell"
        ]


def test_nodes_of_one_reason_are_one_line_however_many_they_are():
    few = [Decision("a", "Conv", "float", "near"), Decision("b", "Relu", "float", "far")]
    assert reasons(few) == ["a (Conv): near", "b (Relu): far"]
    many = [Decision(f"topk{place}", "TopK", "float", "near") for place in range(90)]
    assert reasons([*few, *many]) == ["a (Conv), topk0 (TopK), topk1 (TopK) and 88 more: near", "b (Relu): far"]
