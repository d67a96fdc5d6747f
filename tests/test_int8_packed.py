"""Float constants in fewer bytes of an INT8 file: tables to the last bit, weights of float layers in float16."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import as_bytes, he, network, optimized, run, statistics_of
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.graph.precision import forms_of
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_dynamic, quantize_static
from octavo.quantization.int8.writing.packed import few_values, pack_constants, pack_tables, whole_steps
from octavo.runtime.kernels import optimized_nodes
from octavo.runtime.session import Session

SIDE = 24


def grid(side: int = SIDE) -> np.ndarray:
    """YOLOv5's cell corners for three anchors: [1, 3, side, side, 2]."""
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    cells = np.stack([columns, rows], -1).astype(np.float32) - np.float32(0.5)
    return np.ascontiguousarray(np.broadcast_to(cells, (1, 3, side, side, 2)))


def anchors(side: int = SIDE) -> np.ndarray:
    sizes = np.array([[10, 13], [16, 30], [33, 23.25]], np.float32).reshape(1, 3, 1, 1, 2)
    return np.ascontiguousarray(np.broadcast_to(sizes, (1, 3, side, side, 2)))


def decoder(**tables: np.ndarray) -> ir.Model:
    """Adds `grid` and multiplies by `anchors`, or by whatever else is given for them."""
    tensors = {"grid": grid(), "anchors": anchors()} | tables
    nodes = [oh.make_node("Add", ["x", "grid"], ["a"], "a"), oh.make_node("Mul", ["a", "anchors"], ["y"], "y")]
    shape = [1, 3, SIDE, SIDE, 2]
    return network(nodes, tensors, ["y"], inputs={"x": shape})


def layers(weights: np.ndarray, count: int = 1) -> ir.Model:
    """1x1 Convs of these weights, one behind the other."""
    names = ["x", *(f"c{place}" for place in range(count))]
    nodes = [oh.make_node("Conv", [before, f"{name}.w"], [name], name) for before, name in pairwise(names)]
    tensors = {f"{name}.w": weights for name in names[1:]}
    return network(nodes, tensors, names[-1:], inputs={"x": [1, weights.shape[1], 8, 8]})


def bytes_of(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values())


def feeds_of(model: ir.Model) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal([int(size) for size in model.graph.inputs[0].shape]).astype(np.float32)}


def same_bits(model: ir.Model, changed: ir.Model) -> bool:
    feeds = feeds_of(model)
    return all(
        value.tobytes() == run(changed, feeds, optimization=level)[name].tobytes()
        for level in ("off", "all")
        for name, value in run(model, feeds, optimization=level).items()
    )


class TestWholeSteps:
    @given(
        st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=50),
        st.integers(1, 2**9),
        st.integers(-(2**18), 2**18),
    )
    def test_multiples_of_a_step_are_codes_that_give_the_same_bits(self, codes, step, start):
        table = (np.array(codes, np.float64) * step / 256 + start / 256).astype(np.float32)
        # What float32 has no room for is no such table.
        assume((table.astype(np.float64) * 256 == np.array(codes) * step + start).all())
        found = whole_steps(table)
        if found is not None:
            assert (found[0].astype(np.float32) * found[1] + found[2]).tobytes() == table.tobytes()
        # Below 2^24 steps of the smallest kind nothing is rounded on the way.
        elif np.abs(table).max() * 256 < 2**24:
            pytest.fail(f"{table} are whole steps")

    @given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
    def test_whatever_is_coded_comes_back_to_the_last_bit(self, values):
        table = np.array(values, np.float32)
        found = whole_steps(table)
        assert found is None or (found[0].astype(np.float32) * found[1] + found[2]).tobytes() == table.tobytes()

    def test_few_steps_take_one_byte_and_many_take_two(self):
        assert whole_steps(grid())[0].dtype == np.uint8
        assert whole_steps(np.arange(300, dtype=np.float32))[0].dtype == np.uint16
        assert whole_steps(np.arange(70000, dtype=np.float32)) is None
        assert whole_steps(np.array([0, -0.0], np.float32)) is None

    def test_what_is_no_whole_step_is_left(self):
        assert whole_steps(np.array([0.1, 0.2], np.float32)) is None


class TestFewValues:
    @given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=6), st.integers(1, 400), st.integers(0, 9))
    def test_whatever_is_listed_comes_back_to_the_last_bit(self, values, count, seed):
        assume(values)
        table = np.random.default_rng(seed).choice(np.array([*values, 0.0, -0.0], np.float32), count)
        found = few_values(table)
        if found is None:
            assert count + 4 * len(np.unique(table.view(np.uint32))) >= table.nbytes
        else:
            assert found[0].nbytes + found[1].nbytes < table.nbytes
            assert found[1][found[0]].tobytes() == table.tobytes()

    @pytest.mark.parametrize(("different", "dtype"), [(256, np.uint8), (257, np.uint16)])
    def test_up_to_256_values_take_one_byte(self, different, dtype):
        values = np.random.default_rng(0).permutation(np.arange(different, dtype=np.float32))
        codes, listed = few_values(np.tile(values, 4).reshape(2, -1))
        assert (codes.dtype, codes.shape, len(listed)) == (dtype, (2, 2 * different), different)

    def test_as_many_values_as_places_are_no_list(self):
        assert few_values(np.random.default_rng(0).random(70000, np.float32)) is None
        assert few_values(np.arange(300, dtype=np.float32)) is None


class TestTables:
    def test_anchors_in_shares_of_the_image_are_a_list_and_places_in_it(self, tmp_path):
        shares = (np.arange(SIDE, dtype=np.float32) + np.float32(0.5)) / np.float32(SIDE)
        centres = np.stack(np.meshgrid(shares, shares, [0, 1, 2])[:2], -1).transpose(2, 0, 1, 3)[None].astype(np.float32)
        mixed = np.random.default_rng(0).permutation(centres.reshape(-1)).reshape(centres.shape)
        model, packed = decoder(grid=mixed), decoder(grid=mixed)
        pack_tables(packed)
        assert any(node.op_type == "Gather" for node in packed.graph)
        assert bytes_of(packed) < 0.3 * mixed.nbytes
        assert same_bits(model, packed)
        assert [node.op_type for node in optimized(packed, tmp_path).graph.node] == ["Add", "Mul"]

    def test_grids_and_anchors_take_a_twentieth_and_decode_to_the_same_bits(self):
        model, packed = decoder(), decoder()
        pack_tables(packed)
        assert bytes_of(packed) < bytes_of(model) / 20
        assert same_bits(model, packed)

    def test_what_restores_them_is_folded_while_loading(self, tmp_path):
        packed = decoder()
        pack_constants(packed)
        assert [node.op_type for node in optimized(packed, tmp_path).graph.node] == ["Add", "Mul"]

    def test_a_table_that_repeats_but_has_no_steps_is_expanded(self):
        uneven = np.broadcast_to(np.random.default_rng(0).random((1, 3, 1, 1, 2), np.float32), (1, 3, SIDE, SIDE, 2))
        model, packed = decoder(anchors=uneven), decoder(anchors=uneven)
        pack_tables(packed)
        assert any(node.op_type == "Expand" for node in packed.graph)
        assert same_bits(model, packed)

    def test_what_neither_repeats_nor_has_steps_and_what_is_small_stays(self):
        free = np.random.default_rng(0).random((1, 3, SIDE, SIDE, 2), np.float32)
        model = decoder(grid=free, anchors=np.full(2, 3, np.float32))
        pack_tables(model)
        assert {name: value.const_value.dtype for name, value in model.graph.initializers.items()} == dict.fromkeys(
            ["grid", "anchors"], ir.DataType.FLOAT
        )

    def test_a_table_that_the_graph_puts_out_stays(self):
        model = decoder()
        model.graph.outputs.append(model.graph.initializers["grid"])
        pack_tables(model)
        assert "grid" in model.graph.initializers

    def test_a_table_that_another_operator_reads_stays(self):
        model = decoder()
        reader = ir.node("Sigmoid", [model.graph.initializers["grid"]], name="reader")
        model.graph.append(reader)
        pack_tables(model)
        assert "grid" in model.graph.initializers
        assert "anchors" not in model.graph.initializers

    def test_a_table_that_a_branch_reads_stays(self):
        shape = [1, 3, SIDE, SIDE, 2]
        inner = oh.make_graph(
            [oh.make_node("Add", ["x", "grid"], ["inside"], "inside")],
            "branch",
            [],
            [oh.make_tensor_value_info("inside", onnx.TensorProto.FLOAT, shape)],
        )
        nodes = [oh.make_node("If", ["always"], ["y"], "if", then_branch=inner, else_branch=inner)]
        model = network(nodes, {"grid": grid(), "always": np.array(True)}, ["y"], inputs={"x": shape})
        pack_tables(model)
        assert "grid" in model.graph.initializers

    def test_dynamic_int8_has_its_tables_packed(self):
        weights = np.random.default_rng(0).standard_normal((2, 2)).astype(np.float32)
        nodes = [
            oh.make_node("MatMul", ["x", "w"], ["m"], "m"),
            oh.make_node("Add", ["m", "grid"], ["y"], "y"),
        ]
        shape = [1, 3, SIDE, SIDE, 2]
        model = network(nodes, {"w": weights, "grid": grid()}, ["y"], inputs={"x": shape})
        result = quantize_dynamic(model, Int8())
        assert bytes_of(result.model) < grid().nbytes / 10


class TestWeights:
    def test_weights_of_float_layers_are_float16_and_computed_in_float32(self, tmp_path):
        model = layers(he(np.random.default_rng(0), 32, 32, 1, 1))
        packed = layers(he(np.random.default_rng(0), 32, 32, 1, 1))
        assert pack_constants(packed) == {"c0"}
        assert [value.const_value.dtype for value in packed.graph.initializers.values()] == [ir.DataType.FLOAT16]
        wanted, got = run(model, feeds_of(model))["c0"], run(packed, feeds_of(model))["c0"]
        assert got.dtype == np.float32
        assert 60 < 10 * np.log10((wanted**2).sum() / ((wanted - got) ** 2).sum()) < 90
        (node,) = (node for node in optimized(packed, tmp_path).graph.node if node.op_type.endswith("Conv"))
        kinds = {one.name: one.data_type for one in onnx.load(tmp_path / "optimized.onnx").graph.initializer}
        assert kinds[node.input[1]] == onnx.TensorProto.FLOAT

    @pytest.mark.parametrize("factor", [1e6, 1e-7])
    def test_a_channel_out_of_reach_of_float16_keeps_the_layer_s_weights(self, factor):
        weights = he(np.random.default_rng(0), 32, 32, 1, 1)
        weights[3] *= factor
        model = layers(weights)
        assert pack_constants(model) == set()
        assert [value.const_value.dtype for value in model.graph.initializers.values()] == [ir.DataType.FLOAT]

    def test_a_channel_of_zeros_keeps_nothing(self):
        weights = he(np.random.default_rng(0), 32, 32, 1, 1)
        weights[3] = 0
        assert pack_constants(layers(weights)) == {"c0"}

    def test_kept_layers_keep_float32(self):
        model = layers(he(np.random.default_rng(0), 32, 32, 1, 1))
        assert pack_constants(model, {"c0"}) == set()

    @pytest.mark.parametrize(("op_type", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
    def test_recurrent_layers_have_half_precision_for_both_weights_and_none_for_biases(self, op_type, gates):
        generator = np.random.default_rng(0)
        tensors = {
            "w": he(generator, 2, gates * 16, 24),
            "u": he(generator, 2, gates * 16, 16),
            "b": he(generator, 2, 2 * gates * 16),
        }
        node = oh.make_node(op_type, ["x", "w", "u", "b"], ["y"], "recurrent", hidden_size=16, direction="bidirectional")
        model = network([node], tensors, ["y"], inputs={"x": [7, 1, 24]})
        feeds = {"x": generator.standard_normal((7, 1, 24), np.float32)}
        wanted = run(model, feeds)["y"]
        assert pack_constants(model) == {"recurrent"}
        assert [value.dtype for value in model.graph.initializers.values() if len(value.shape) == 3] == [ir.DataType.FLOAT16] * 2
        got = run(model, feeds)["y"]
        assert 10 * np.log10((wanted**2).sum() / ((wanted - got) ** 2).sum()) > 60
        assert not [node for node in optimized_nodes(as_bytes(model)) if node.op_type == "Cast"]

    def test_equal_constants_become_one(self):
        model = layers(he(np.random.default_rng(0), 32, 32, 1, 1), count=3)
        assert pack_constants(model) == {"c0", "c1", "c2"}
        assert len(model.graph.initializers) == 1


class TestQuantized:
    """Layers that stay float because a pattern names them, or because they are heads."""

    @pytest.fixture(scope="class")
    def parts(self) -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
        generator = np.random.default_rng(0)
        tensors = {
            "stem.w": he(generator, 16, 3, 3, 3),
            "body.w": he(generator, 16, 16, 3, 3),
            "head.w": he(generator, 4, 16, 3, 3),
        }
        nodes = [
            oh.make_node("Conv", ["x", "stem.w"], ["s"], "stem", pads=[1, 1, 1, 1]),
            oh.make_node("Relu", ["s"], ["sr"], "sr"),
            oh.make_node("Conv", ["sr", "body.w"], ["b"], "body", pads=[1, 1, 1, 1]),
            oh.make_node("Relu", ["b"], ["br"], "br"),
            oh.make_node("Conv", ["br", "head.w"], ["y"], "head", pads=[1, 1, 1, 1]),
        ]
        model = network(nodes, tensors, ["y"])
        return model, [{"x": generator.random((1, 3, 16, 16), np.float32)} for _ in range(8)]

    @pytest.mark.parametrize("form", ["qdq", "qoperator"])
    def test_the_record_says_what_is_float16_and_keep_float_keeps_float32(self, parts, form):
        model, feeds = parts
        recipe = Int8(method="minmax", placement="all", repair=False, keep_float=["stem"], format=form)
        result = quantize_static(model, statistics_of(model, feeds), recipe, Images(feeds[:4], feeds[4:]))
        reasons = {one.node: one.reason for one in result.decisions}
        assert reasons["head"].endswith("; weights float16 in the file")
        assert "float16" not in reasons["stem"] + reasons["body"]
        kinds = {value.const_value.dtype for value in result.model.graph.initializers.values() if value.const_value.size > 400}
        assert kinds == {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT8}
        assert forms_of(result.model)[-1] == "weights"
        wanted, got = run(model, feeds[5])["y"], run(result.model, feeds[5])["y"]
        assert 10 * np.log10((wanted**2).sum() / ((wanted - got) ** 2).sum()) > 25

    @pytest.mark.parametrize("form", ["qdq", "qoperator"])
    def test_no_two_layers_share_weights_or_their_zero_points(self, parts, form):
        """ONNX Runtime's exact kernels for CPUs without VNNI: a file where two do can't be loaded there."""
        model, feeds = parts
        recipe = Int8(method="minmax", placement="all", repair=False, format=form)
        result = quantize_static(model, statistics_of(model, feeds), recipe, Images(feeds[:4], feeds[4:])).model
        constants = list(result.graph.initializers.values())
        codes = [value for value in constants if value.const_value.dtype == ir.DataType.INT8]
        assert len(codes) >= 4
        assert {len(list(value.uses())) for value in codes} == {1}
        assert any(len(list(value.uses())) > 1 for value in constants)
        session = Session(as_bytes(result), entries={"session.x64quantprecision": "1"})
        assert session.run(feeds[5])["y"].shape == (1, 4, 16, 16)

    @pytest.mark.parametrize("target", ["openvino", "tensorrt"])
    def test_files_for_other_runtimes_keep_float32(self, parts, target):
        model, feeds = parts
        recipe = Int8(method="minmax", placement="all", repair=False, keep_float=["head"], target=target)
        result = quantize_static(model, statistics_of(model, feeds), recipe, Images(feeds[:4], feeds[4:]))
        kinds = {value.const_value.dtype for value in result.model.graph.initializers.values() if value.const_value.size > 400}
        assert kinds == {ir.DataType.FLOAT, ir.DataType.INT8}
