"""The cost table: signatures that know work and not names, measuring on real kernels, files that survive or say what is wrong."""

import dataclasses
import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import onnxruntime
import pytest
from graphs import inferred

from octavo.errors import QuantizationError
from octavo.quantization.int8.pricing import measuring
from octavo.quantization.int8.pricing.costs import Borders, Cost, CostTable, is_static, signature
from octavo.quantization.int8.pricing.measuring import measure
from octavo.quantization.int8.pricing.reading import BordersSeen
from octavo.quantization.int8.pricing.specimens import variants_of
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.int8.structure.placement import place
from octavo.quantization.int8.structure.units import units_of
from octavo.runtime.profiling import kernel_times


def network(prefix: str = "", seed: int = 0, size: int = 16, batch: object = "N", slope: float = 0.25) -> ir.Model:
    """Conv + Relu, Conv + SiLU, PRelu, MaxPool, Add behind a Conv, Concat, Resize, a mean and a Gemm."""
    generator = np.random.default_rng(seed)
    nodes, constants = [], []

    def constant(name: str, array: np.ndarray) -> str:
        constants.append(onh.from_array(array, prefix + name))
        return prefix + name

    def add(op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(oh.make_node(op_type, inputs, [prefix + output], name=f"{prefix}{output}.node", **attributes))
        return prefix + output

    def conv(source: str, output: str, channels: int, **attributes: object) -> str:
        weights = constant(f"{output}.w", generator.standard_normal((16, channels, 3, 3)).astype(np.float32))
        bias = constant(f"{output}.b", generator.standard_normal(16).astype(np.float32))
        return add("Conv", [source, weights, bias], output, pads=[1, 1, 1, 1], **attributes)

    x = add("Relu", [conv("image", "c1", 3, strides=[1, 1])], "r1")
    x = conv(x, "c2", 16)
    silu = add("Mul", [x, add("Sigmoid", [x], "s2")], "m2")
    x = add("PRelu", [conv(silu, "c3", 16), constant("slope", np.full((16, 1, 1), slope, np.float32))], "p3")
    x = add("Add", [silu, conv(x, "c4", 16)], "a4")
    x = add("Concat", [add("MaxPool", [x], "m5", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), x], "k5", axis=1)
    scales = constant("scales", np.array([1, 1, 2, 2], np.float32))
    x = conv(add("Resize", [x, "", scales], "z6", mode="nearest", nearest_mode="floor"), "c6", 32, group=1)
    x = add("Flatten", [add("GlobalAveragePool", [x], "g7")], "f7")
    x = add("Gemm", [x, constant("gw", generator.standard_normal((16, 5)).astype(np.float32))], "out")
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [batch, 3, size, size])],
        [oh.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [batch, 5])],
        constants,
    )
    proto = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=10)
    return inferred(proto)


def candidates_of(model: ir.Model) -> list:
    return [unit for unit, reason in place(units_of(model), {}).items() if not reason]


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return network()


@pytest.fixture(scope="module")
def table(model) -> CostTable:
    return measure(model, candidates_of(model), threads=1)


def test_heavy_work_is_run_less_often_and_by_itself(model, table, monkeypatch):
    ran = []

    def watched(variants, *, threads, rounds, warmup):
        branches = {name.partition(".")[0] for name in variants[0].feeds}
        ran.append((len([name for name in branches if name.startswith("u")]), rounds, warmup))
        return kernel_times(variants, threads=threads, rounds=rounds, warmup=warmup)

    monkeypatch.setattr(measuring, "kernel_times", watched)
    # The Convs of 16 to 16 channels are above it, at 16x16 pixels and, behind Resize, at 32x32; not the first one of 3.
    convs = [16 * 16 * 9 * side * side for side in (16, 32)]
    monkeypatch.setattr(measuring, "_HEAVY", convs[0] - 1)
    monkeypatch.setattr(measuring, "_WORK", 5 * convs[0])
    again = measure(model, candidates_of(model), threads=1)
    assert again.units.keys() == table.units.keys()
    assert all(cost.float_ms > 0 for key, cost in again.units.items() if key.startswith("linear: Conv"))
    (light, *often), *heavy = ran
    assert often == [measuring.ROUNDS, measuring.WARMUP]
    assert light + len(heavy) == len(table.units)
    assert {one[0] for one in heavy} == {1}
    assert sorted({one[1:] for one in heavy}) == [(3, 1), (5, 1)]


@pytest.mark.parametrize(("share", "threads"), [(0.05, 2), (0.5, 1)])
def test_beside_other_jobs_the_table_is_of_one_thread(model, monkeypatch, share, threads):
    ran = []

    def watched(variants, *, threads, rounds, warmup):
        ran.append(threads)
        return kernel_times(variants, threads=threads, rounds=rounds, warmup=warmup)

    monkeypatch.setattr(measuring, "kernel_times", watched)
    monkeypatch.setattr(measuring, "Waiting", lambda: SimpleNamespace(share=share))
    made = measure(model, candidates_of(model), threads=2)
    assert made.host["threads"] == ran[-1] == threads
    assert ran == list(range(2, threads - 1, -1))
    assert {signature(unit) for unit in candidates_of(model)} == set(made.units)
    assert made.borders.quantize_ns >= 0


class _Told:
    """What chunks of three units were measured to take, told again at a pace of each chunk's place and turn."""

    def __init__(self, model, monkeypatch):
        self.model, self.kept, self.turns, self.real = model, {}, Counter(), measuring._timed
        monkeypatch.setattr(measuring, "_timed", self)
        monkeypatch.setattr(measuring, "Waiting", lambda: SimpleNamespace(share=0.0))
        monkeypatch.setattr(measuring, "_CHUNK_UNITS", 3)

    def __call__(self, chunk, *settings, probed):
        key = tuple(name for name, _ in chunk)
        if key not in self.kept:
            first = self.real(chunk, *settings, probed=probed)
            self.kept[key] = len(self.kept), dataclasses.replace(first, pace=Cost(0.1, 0.04))
        place, timed = self.kept[key]
        self.turns[place] += 1
        in_float, in_int8 = self.factors(place, self.turns[place])
        return timed.at(Cost(0.1 * in_float, 0.04 * in_int8))

    def table(self, factors):
        """What is measured where chunks take (float, INT8) times as long as `factors` says of their place and turn."""
        self.factors = factors
        self.turns.clear()
        return measure(self.model, units_of(self.model))


STEADY = (1.0, 1.0)


def test_a_chunk_that_a_slow_machine_timed_is_timed_again(model, monkeypatch):
    told = _Told(model, monkeypatch)
    steady = told.table(lambda place, turn: STEADY)
    assert len(told.turns) > 3
    assert set(told.turns.values()) == {1}
    # The probes of borders are in the first.
    for slow in (0, 1, len(told.turns) - 1):
        assert told.table(lambda place, turn, slow=slow: (1.6, 1.4) if (place, turn) == (slow, 1) else STEADY) == steady
        assert {place for place, turns in told.turns.items() if turns > 1} == {slow}


def test_all_chunks_but_one_may_be_slow(model, monkeypatch):
    told = _Told(model, monkeypatch)
    steady = told.table(lambda place, turn: STEADY)
    assert told.table(lambda place, turn: (1.6, 1.4) if place != 2 and turn == 1 else STEADY) == steady


def test_what_stays_slow_is_brought_to_the_others_pace(model, monkeypatch):
    told = _Told(model, monkeypatch)
    steady = told.table(lambda place, turn: STEADY)
    table = told.table(lambda place, turn: (3.2, 2.8) if place == 1 else STEADY)
    assert told.turns[1] == 3
    for key, cost in steady.units.items():
        assert table.units[key].float_ms == pytest.approx(cost.float_ms, abs=1e-3), key
        assert table.units[key].int8_ms == pytest.approx(cost.int8_ms, abs=1e-3), key
    for name, price in dataclasses.asdict(steady.borders).items():
        assert getattr(table.borders, name) == pytest.approx(price, rel=0.01, abs=1e-3), name


def test_paces_that_are_nearly_one_stay_as_they_are(model, monkeypatch):
    told = _Told(model, monkeypatch)
    told.table(lambda place, turn: (1 + 0.1 * (place % 2), 1.0))
    assert set(told.turns.values()) == {1}


def test_borders_are_brought_to_the_pace_of_the_graph_that_they_are_of():
    in_float, in_int8 = BordersSeen(), BordersSeen()
    in_float.seen["ReorderInput"] = [(1000, 10.0)]
    in_int8.seen["QuantizeLinear"] = [(1000, 4.0)]
    timed = measuring._Timed({}, (in_float, in_int8), Cost(0.1, 0.04), heavy=False).at(Cost(0.2, 0.02))
    assert [dict(seen.seen) for seen in timed.borders] == [{"ReorderInput": [(1000, 20.0)]}, {"QuantizeLinear": [(1000, 2.0)]}]


def test_every_chunk_has_a_pace(model, monkeypatch):
    paces = []

    def watched(*chunk, **settings):
        paces.append(timed(*chunk, **settings))
        return paces[-1]

    timed = measuring._timed
    monkeypatch.setattr(measuring, "_timed", watched)
    monkeypatch.setattr(measuring, "_CHUNK_UNITS", 3)
    measure(model, units_of(model))
    assert len(paces) > 3
    # 15 million multiplications: a core takes no less than ten microseconds for them, and no more than some milliseconds.
    assert all(0.01 < ms < 50 for one in paces for ms in (one.pace.float_ms, one.pace.int8_ms))
    # Its own borders are in no chunk's.
    channels, side = measuring._PACE
    points = [size for one in paces for seen in one.borders for found in seen.seen.values() for size, _ in found]
    assert points
    assert channels * side**2 not in points


def test_signatures_know_work_and_neither_names_nor_values():
    one, other = ([signature(unit) for unit in units_of(made)] for made in (network(), network("other/", seed=5)))
    assert one == other
    assert one == [signature(unit) for unit in units_of(network(batch=1))]
    assert one != [signature(unit) for unit in units_of(network(size=32))]


def test_a_signature_reads_as_what_it_is(model):
    found = [signature(unit) for unit in units_of(model)]
    assert found[0] == "linear: Conv(pads=1,1,1,1)[x0:1x3x16x16~input c:16x3x3x3 c:16] Relu[-] -> 1x16x16x16"
    assert found[2] == "silu: Sigmoid[x0:1x16x16x16] Mul[x0:1x16x16x16 -] -> 1x16x16x16"
    add = next(text for text in found if text.startswith("Add"))
    assert add == "Add: Add[x0:1x16x16x16 x1:1x16x16x16~Conv] -> 1x16x16x16"


def test_steep_slopes_are_other_work():
    gentle, steep = (
        next(signature(unit) for unit in units_of(network(slope=slope)) if unit.kind == "prelu") for slope in (0.25, 1.5)
    )
    assert gentle + ">1" != steep
    assert steep.replace(">1", "") == gentle


def test_every_candidate_is_measured(model, table):
    units = candidates_of(model)
    assert {signature(unit) for unit in units} == set(table.units)
    for unit in units:
        cost = table.cost(unit)
        assert cost.int8_ms > 0
        assert (cost.float_ms > 0) == (unit.kind != "Add"), "ONNX Runtime runs an Add inside the Conv before it"
    assert table.host["threads"] == 1
    assert table.host["session"].startswith("default")
    assert table.host["onnxruntime"]


def test_a_pad_of_height_and_width_is_measured():
    """ONNX Runtime takes a Pad into the pool behind it, as which a unit's neighbours stand here, and loads no such graph."""
    nodes = [
        oh.make_node("Conv", ["image", "w"], ["c"], "conv"),
        oh.make_node("Pad", ["c", "pads"], ["p"], "pad"),
        oh.make_node("Add", ["p", "image"], ["y"], "add"),
        oh.make_node("Conv", ["y", "w"], ["z"], "last"),
    ]
    tensors = {"w": np.ones((3, 3, 3, 3), np.float32), "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1])}
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 3, 16, 16])],
        [oh.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 3, 14, 14])],
        [onh.from_array(value, name) for name, value in tensors.items()],
    )
    model = inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=10))
    units = units_of(model)
    assert "Pad" in [unit.kind for unit in units]
    table = measure(model, units)
    assert all(signature(unit) in table.units for unit in units if is_static(unit))


def test_borders_have_a_price_that_grows(model, table):
    units = candidates_of(model)
    small, large = units[-1].inputs[0], units[0].outputs[0]
    for to_int8 in (True, False):
        assert 0 < table.border_ms(small, to_int8=to_int8) < table.border_ms(large, to_int8=to_int8)


def test_integer_units_run_as_integers_and_float_ones_as_floats(model):
    units = {f"u{place}": unit for place, unit in enumerate(candidates_of(model))}
    graphs = kernel_times(variants_of(units, dict(model.opset_imports)), threads=1, rounds=1, warmup=0)
    plain, integer = ({kernel.op_type for kernel in kernels} for kernels in graphs)
    assert {"QLinearConv", "QLinearAdd", "QLinearConcat", "QLinearSigmoid", "QLinearMul", "QLinearGlobalAveragePool"} <= integer
    assert not integer & {"Conv", "Add", "Sigmoid", "Mul", "PRelu", "DequantizeLinear"}
    assert {"Conv", "QuickGelu", "LeakyRelu"} <= plain, "one slope for all channels is written as LeakyRelu"
    assert not any(name.startswith("QLinear") for name in plain)


def test_what_is_known_is_not_measured_again(model, table):
    assert measure(model, candidates_of(model), threads=1, table=table) is table
    extended = measure(network(size=32), candidates_of(network(size=32)), threads=1, table=table)
    assert set(table.units) < set(extended.units)
    assert all(extended.units[key] == cost for key, cost in table.units.items())
    assert extended.borders == table.borders


def test_times_of_two_machines_do_not_mix(model, table):
    with pytest.raises(QuantizationError, match="another machine made it"):
        measure(network(size=32), candidates_of(network(size=32)), threads=2, table=table)


def test_units_without_static_shape_are_left_out():
    model = network(size="side")
    units = candidates_of(model)
    dynamic = [unit for unit in units if not is_static(unit)]
    assert dynamic
    assert not any(is_static(unit) for unit in units if unit.kind in ("linear", "silu") and unit.main.op_type != "Gemm")
    found = measure(model, dynamic, threads=1)
    assert not found.units
    assert found.borders.quantize_ns > 0
    with pytest.raises(QuantizationError, match="no static shape"):
        found.border_ms(dynamic[0].outputs[0], to_int8=True)


def test_a_table_comes_back_as_it_was_saved(table, tmp_path):
    path = tmp_path / "costs.json"
    table.save(path)
    loaded = CostTable.load(path)
    assert loaded == table
    turned = dataclasses.replace(table, units=dict(reversed(table.units.items())))
    turned.save(tmp_path / "again.json")
    assert path.read_bytes() == (tmp_path / "again.json").read_bytes()


def test_a_missing_entry_names_the_unit_and_the_table(model, tmp_path):
    path = tmp_path / "costs.json"
    CostTable({}, {"something else": Cost(1.0, 2.0)}, Borders()).save(path)
    unit = candidates_of(model)[0]
    with pytest.raises(QuantizationError, match=r"c1\.node") as caught:
        CostTable.load(path).cost(unit)
    assert f"placement: table:{path}" in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "[]",
        lambda _: "{}",
        lambda text: text.replace("octavo-costs-3", "octavo-costs-0"),
        lambda text: text.replace('"float_ms": 1.0', '"float_ms": "fast"'),
        lambda text: text.replace('"float_ms": 1.0', '"float_ms": -1.0'),
        lambda text: text.replace('"float_ms": 1.0,', ""),
        lambda text: json.dumps({**json.loads(text), "units": 3}),
        lambda text: json.dumps({**json.loads(text), "borders": None}),
    ],
)
def test_a_damaged_table_is_an_error_that_names_it(tmp_path, damage):
    path = tmp_path / "costs.json"
    CostTable({}, {"some work": Cost(1.0, 2.0)}, Borders()).save(path)
    text = damage(path.read_text())
    assert text != path.read_text()
    path.write_text(text)
    with pytest.raises(QuantizationError, match=r"costs\.json"):
        CostTable.load(path)


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(QuantizationError, match=r"none\.json: no such file\n.*DVC deletes"):
        CostTable.load(tmp_path / "none.json")


def test_whose_times_a_placement_went_by_is_told(table):
    here = Int8Result(network(), [], costs=dataclasses.replace(table, source="copy.json"))
    assert here.warnings(repair=True) == []
    version = onnxruntime.__version__
    assert table.machine.startswith("host ")
    assert table.machine.endswith(f"), ONNX Runtime {version}, 1 thread")
    other = dataclasses.replace(table, host={**table.host, "onnxruntime": "1.0.0"}, source="copy.json")
    (warning,) = dataclasses.replace(here, costs=other).warnings(repair=True)
    assert warning.startswith(f"placed by times of ONNX Runtime 1.0.0 (`placement: table:copy.json`), and this is {version}: ")
