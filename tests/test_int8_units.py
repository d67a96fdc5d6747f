"""Units: what is grouped and what is not; placement: which units are INT8, and the reason where they are not."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network

from octavo.quantization.int8.structure.heads import heads_of, is_last_weighted
from octavo.quantization.int8.structure.placement import decisions_of, place
from octavo.quantization.int8.structure.units import Unit, units_of

GENERATOR = np.random.default_rng(12)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def conv(source: str, target: str, *more: str) -> object:
    return oh.make_node("Conv", [source, "w", *more], [target], target)


SAME = {"w": normal(3, 3, 1, 1), "b": normal(3), "zero": np.float32(0), "six": np.float32(6), "slopes": normal(3, 1, 1)}


def grouped(nodes: list, outputs: list[str], **options: object) -> list[Unit]:
    """The units, held to what must always be true of them."""
    model = network(nodes, options.pop("tensors", SAME), outputs, **options)
    units = units_of(model)
    members = [node for unit in units for node in unit.nodes]
    assert len(members) == len(set(members)) == len(model.graph)
    assert set(members) == set(model.graph)
    made = set(model.graph.inputs)
    for unit in units:
        assert made.issuperset(unit.inputs), f"{unit.name} comes before what it reads"
        assert all(value.dtype == ir.DataType.FLOAT for value in unit.inputs)
        made |= {value for node in unit.nodes for value in node.outputs}
    return units


def shape(units: list[Unit]) -> list[tuple[str, tuple[str, ...]]]:
    return [(unit.kind, tuple(node.name for node in unit.nodes)) for unit in units]


def test_relu_and_clip_fold_behind_their_producer():
    units = grouped(
        [
            conv("x", "a", "b"),
            oh.make_node("Relu", ["a"], ["r"], "r"),
            conv("r", "c"),
            oh.make_node("Clip", ["c", "zero", "six"], ["k"], "k"),
            oh.make_node("Add", ["k", "r"], ["s"], "s"),
            oh.make_node("Relu", ["s"], ["y"], "y"),
        ],
        ["y"],
    )
    assert shape(units) == [("linear", ("a", "r")), ("linear", ("c", "k")), ("Add", ("s", "y"))]
    assert [[value.name for value in unit.inputs] for unit in units] == [["x"], ["r"], ["k", "r"]]
    assert [[value.name for value in unit.outputs] for unit in units] == [["r"], ["k"], ["y"]]


@pytest.mark.parametrize("second", ["node", "graph output", "none"])
def test_relu_folds_only_where_it_is_the_only_reader(second):
    nodes = [conv("x", "a"), oh.make_node("Relu", ["a"], ["r"], "r")]
    nodes += [oh.make_node("Add", ["a", "r"], ["y"], "y")] if second == "node" else []
    units = grouped(nodes, {"node": ["y"], "graph output": ["r", "a"], "none": ["r"]}[second])
    assert (shape(units)[0] == ("linear", ("a", "r"))) is (second == "none")


def test_a_clip_with_computed_bounds_does_not_fold():
    units = grouped(
        [
            conv("x", "a"),
            oh.make_node("ReduceMax", ["x"], ["top"], "top", keepdims=0),
            oh.make_node("Clip", ["a", "", "top"], ["y"], "y"),
        ],
        ["y"],
    )
    assert shape(units) == [("linear", ("a",)), ("ReduceMax", ("top",)), ("Clip", ("y",))]


def test_relu_behind_another_op_is_a_unit_of_its_own():
    units = grouped([oh.make_node("GlobalAveragePool", ["x"], ["p"], "p"), oh.make_node("Relu", ["p"], ["y"], "y")], ["y"])
    assert [unit.kind for unit in units] == ["GlobalAveragePool", "Relu"]


@pytest.mark.parametrize("factors", [["a", "s"], ["s", "a"]])
def test_silu_is_sigmoid_and_mul(factors):
    units = grouped([conv("x", "a"), oh.make_node("Sigmoid", ["a"], ["s"], "s"), oh.make_node("Mul", factors, ["y"], "y")], ["y"])
    assert shape(units) == [("linear", ("a",)), ("silu", ("s", "y"))]
    assert [value.name for value in units[1].inner] == ["s"]
    assert [value.name for value in units[1].inputs] == ["a"]
    assert [value.name for value in units[1].outputs] == ["y"]


@pytest.mark.parametrize("case", ["read by a node", "read by the caller", "a gate on another tensor", "squared"])
def test_what_looks_like_silu_and_is_not(case):
    nodes = [conv("x", "a"), oh.make_node("Sigmoid", ["a"], ["s"], "s")]
    nodes.append(
        oh.make_node("Mul", {"a gate on another tensor": ["x", "s"], "squared": ["s", "s"]}.get(case, ["a", "s"]), ["m"], "m")
    )
    nodes += [oh.make_node("Add", ["m", "s"], ["y"], "y")] if case == "read by a node" else []
    units = grouped(nodes, {"read by a node": ["y"], "read by the caller": ["m", "s"]}.get(case, ["m"]))
    assert [unit.kind for unit in units][:3] == ["linear", "Sigmoid", "Mul"]


@pytest.mark.parametrize(
    ("slopes", "kind"),
    [
        (normal(3, 1, 1), "prelu"),
        (normal(1, 3, 1, 1), "prelu"),
        (normal(1), "prelu"),
        (normal(16), "PRelu"),
        (normal(3, 16, 16), "PRelu"),
        (None, "PRelu"),
    ],
    ids=["a channel", "with a batch axis", "one", "a column", "an element", "computed"],
)
def test_prelu_needs_a_constant_slope_a_channel(slopes, kind):
    tensors = SAME | ({} if slopes is None else {"slopes": slopes})
    nodes = [conv("x", "a"), oh.make_node("PRelu", ["a", "slopes" if slopes is not None else "found"], ["y"], "y")]
    if slopes is None:
        nodes.insert(1, oh.make_node("Exp", ["slopes"], ["found"], "exp"))
    assert grouped(nodes, ["y"], tensors=tensors)[-1].kind == kind


def test_weighted_nodes_are_those_with_constant_matrices_and_plain_attributes():
    tensors = {"m": normal(6, 6), "stack": normal(2, 6, 6), "row": normal(6), "rows": normal(5, 6)}
    nodes = [
        oh.make_node("MatMul", ["x", "m"], ["matrix"], "matrix"),
        oh.make_node("MatMul", ["x", "stack"], ["batched"], "batched"),
        oh.make_node("MatMul", ["m", "x2"], ["weights first"], "weights first"),
        oh.make_node("MatMul", ["x", "x2"], ["computed"], "computed"),
        oh.make_node("Gemm", ["x", "m", "row"], ["plain"], "plain"),
        oh.make_node("Gemm", ["x", "m", "row"], ["scaled"], "scaled", alpha=0.5),
        oh.make_node("Gemm", ["x2", "m"], ["turned"], "turned", transA=1),
        oh.make_node("Gemm", ["x", "m", "rows"], ["a bias a row"], "a bias a row"),
    ]
    outputs = [node.output[0] for node in nodes]
    units = grouped(nodes, outputs, tensors=tensors, inputs={"x": [5, 6], "x2": [6, 6]})
    assert [unit.name for unit in units if unit.kind == "linear"] == ["matrix", "plain"]


def test_the_last_weights_are_known_and_the_tail_is_what_is_left():
    units = grouped(
        [
            conv("x", "a"),
            oh.make_node("MaxPool", ["a"], ["p"], "p", kernel_shape=[1, 1]),
            conv("p", "b1"),
            conv("p", "b2"),
            oh.make_node("Concat", ["b1", "b2"], ["tail"], "tail", axis=1),
            oh.make_node("Softmax", ["tail"], ["y"], "y", axis=1),
        ],
        ["y"],
    )
    assert {unit.name: last for unit, last in is_last_weighted(units).items()} == {"a": False, "p": False, "b1": True, "b2": True}


def chosen_behind(op_type: str, **settings: object) -> tuple[list, dict[str, np.ndarray]]:
    """A Conv `a` whose output two branches of an If read, `c`, each as an average or as the largest value of each channel."""
    branches = {
        name: oh.make_graph([oh.make_node(kind, ["a"], [f"{name}_y"])], name, [], [oh.make_tensor_value_info(f"{name}_y", 1, None)])
        for name, kind in (("then_branch", "GlobalAveragePool"), ("else_branch", "GlobalMaxPool"))
    }
    nodes = [conv("x", "a"), oh.make_node("ReduceMax", ["x"], ["most"], "most", keepdims=0)]
    nodes += [oh.make_node("Greater", ["most", "one"], ["is"], "is"), oh.make_node("If", ["is"], ["c"], "c", **branches)]
    return [*nodes, oh.make_node(op_type, ["c", "v"], ["y"], "y", **settings)], {"one": np.float32(1)}


def test_what_the_branches_of_an_if_read_leads_on_as_far_as_the_if_does():
    nodes, tensors = chosen_behind("Conv")
    units = grouped(nodes, ["y"], tensors={**tensors, "w": normal(4, 3, 1, 1), "v": normal(2, 4, 1, 1)})
    leads = {unit.name: last for unit, last in is_last_weighted(units).items()}
    assert leads["a"] is False
    assert leads["y"] is True


def test_what_an_if_s_branch_averages_is_no_head():
    """A tensor in a branch has no name in the graph that is measured."""
    nodes, tensors = chosen_behind("Add")
    units = grouped(nodes, ["y"], tensors={**tensors, "w": normal(4, 3, 1, 1), "v": np.ones(1, np.float32)})
    assert [value.name for value in heads_of(units)] == ["a"]


def decoded(mean: str, bins: np.ndarray, **settings: object) -> dict[str, bool]:
    """What leads to weights, and is the last to: heads `a` for edges, four distributions of eight bins that `mean` decodes, and `c`
    for classes, in one Concat as YOLOv8 has them.
    """
    shapes = {"edges": [0, 32, -1], "classes": [0, 3, -1], "parted": [1, 4, 8, 256], "sizes": [32, 3]}
    tensors = {"w": normal(32, 3, 1, 1), "v": normal(3, 3, 1, 1), "bins": bins}
    tensors |= {name: np.array(sizes) for name, sizes in shapes.items()}
    # As YOLOv8 has it, bins on axis 1; for products of matrices last.
    order = [0, 2, 1, 3] if mean == "Conv" else [0, 1, 3, 2]
    nodes = [
        conv("x", "a"),
        oh.make_node("Conv", ["x", "v"], ["c"], "c"),
        oh.make_node("Reshape", ["a", "edges"], ["ar"], "ar"),
        oh.make_node("Reshape", ["c", "classes"], ["cr"], "cr"),
        oh.make_node("Concat", ["ar", "cr"], ["both"], "both", axis=1),
        oh.make_node("Split", ["both", "sizes"], ["e", "k"], "e", axis=1),
        oh.make_node("Sigmoid", ["k"], ["scores"], "scores"),
        oh.make_node("Reshape", ["e", "parted"], ["p"], "p"),
        oh.make_node("Transpose", ["p"], ["t"], "t", perm=order),
        oh.make_node(settings.pop("of", "Softmax"), ["t"], ["s"], "s", **settings),
        oh.make_node(mean, ["s", "bins"], ["y"], "y"),
    ]
    units = grouped(nodes, ["y", "scores"], tensors=tensors)
    return {unit.name: last for unit, last in is_last_weighted(units).items()}


@pytest.mark.parametrize(
    ("mean", "bins", "axis"),
    [("Conv", np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1), 1), ("MatMul", np.arange(8, dtype=np.float32).reshape(8, 1), -1)],
)
def test_the_mean_of_a_distribution_is_decoding_and_no_layer(mean, bins, axis):
    assert decoded(mean, bins, axis=axis) == {"a": True, "c": True}, "the Convs before are the last layers"
    lasts = decoded(mean, bins, of="Sigmoid")
    assert lasts["y"], "gates are no distribution"
    several = np.tile(bins, (2, 1, 1, 1) if mean == "Conv" else (1, 2))
    assert decoded(mean, several, axis=axis)["y"], "a layer of two outputs is none that takes a mean"


@pytest.mark.parametrize(("columns", "layers"), [(4, {"a": True}), (16, {"a": False, "t": False, "p": False, "y": True})])
def test_centres_and_sizes_to_corners_is_decoding_and_no_layer(columns, layers):
    tensors = {"w": normal(4, 3, 1, 1), "turn": normal(4, columns), "rows": np.array([0, 4, -1])}
    nodes = [conv("x", "a"), oh.make_node("Reshape", ["a", "rows"], ["p"], "p")]
    nodes += [oh.make_node("Transpose", ["p"], ["t"], "t", perm=[0, 2, 1]), oh.make_node("MatMul", ["t", "turn"], ["y"], "y")]
    units = grouped(nodes, ["y"], tensors=tensors)
    assert {unit.name: last for unit, last in is_last_weighted(units).items()} == layers


@pytest.mark.parametrize(
    ("form", "rows", "layers"),
    [
        ("MatMul", [64, 4], {"a": True}),
        ("Gemm", [64, 4], {"a": True}),
        ("MatMul", [1, 1, 64, 4], {"a": True}),
        ("Conv", [1, 4, 64], {"a": True}),
        # A vector of four features is what a layer reads.
        ("Gemm", [1, 4], {"a": False, "g": False, "p": False, "y": True}),
    ],
)
def test_corners_are_decoding_in_whatever_form(form, rows, layers):
    tensors = {"w": normal(4, 3, 1, 1), "turn": normal(4, 4, 1) if form == "Conv" else normal(4, 4), "rows": np.array(rows)}
    pooled = rows[0] == 1 and len(rows) == 2
    nodes = [conv("x", "a"), *([oh.make_node("GlobalAveragePool", ["a"], ["g"], "g")] if pooled else [])]
    nodes += [oh.make_node("Reshape", ["g" if pooled else "a", "rows"], ["p"], "p"), oh.make_node(form, ["p", "turn"], ["y"], "y")]
    units = grouped(nodes, ["y"], tensors=tensors)
    assert {unit.name: last for unit, last in is_last_weighted(units).items()} == layers


class TestPlacement:
    def decided(self, nodes: list, outputs: list[str], kept: dict[str, str] | None = None, **options: object) -> dict[str, str]:
        """Node name to the reason why it is float; "" for INT8."""
        reasons = place(grouped(nodes, outputs, **options), kept or {})
        decisions = decisions_of(reasons)
        assert all(decision.reason for decision in decisions)
        assert [decision.node for decision in decisions] == [node.name for unit in reasons for node in unit.nodes]
        return {decision.node: decision.reason if decision.precision == "float" else "" for decision in decisions}

    @pytest.mark.parametrize("mean", ["Conv", "MatMul"])
    def test_decoding_that_layers_follow_says_what_it_is(self, mean):
        """As D-FINE's decoder has it: the next layer refines what was decoded."""
        wide, bins = (normal(5, 1, 1, 1), normal(1, 3, 1, 1)) if mean == "Conv" else (normal(1, 5), normal(16, 1))
        nodes = [conv("x", "a"), oh.make_node("Softmax", ["a"], ["s"], "s", axis=1 if mean == "Conv" else -1)]
        nodes += [oh.make_node(mean, ["s", "bins"], ["m"], "m"), oh.make_node(mean, ["m", "wide"], ["y"], "y")]
        found = self.decided(nodes, ["y"], tensors=SAME | {"bins": bins, "wide": wide})
        assert "decodes boxes" in found.pop("m")
        assert found.pop("s") == "no INT8 rule for Softmax"
        assert found == {"a": "", "y": ""}

    def between(self, *middle: object, tensors: dict | None = None) -> dict[str, str]:
        """Convs `first` (tensor `a`) before and `last` (it reads `m`) behind some nodes."""
        return self.decided([conv("x", "a"), *middle, conv("m", "last")], ["last"], tensors=SAME | (tensors or {}))

    def test_weights_and_what_carries_between_them_are_int8(self):
        found = self.between(
            oh.make_node("Relu", ["a"], ["r"], "r"),
            oh.make_node("MaxPool", ["r"], ["p"], "p", kernel_shape=[2, 2]),
            oh.make_node("AveragePool", ["r"], ["q"], "q", kernel_shape=[2, 2]),
            oh.make_node("Add", ["p", "q"], ["s"], "s"),
            oh.make_node("Sigmoid", ["s"], ["g"], "g"),
            oh.make_node("Mul", ["s", "g"], ["u"], "u"),
            oh.make_node("PRelu", ["u", "slopes"], ["v"], "v"),
            oh.make_node("LeakyRelu", ["v"], ["m"], "m"),
        )
        assert set(found.values()) == {""}

    def test_a_carrier_right_behind_the_graph_input_is_int8(self):
        found = self.decided([oh.make_node("MaxPool", ["x"], ["p"], "p", kernel_shape=[2, 2]), conv("p", "y")], ["y"])
        assert found == {"p": "", "y": ""}

    def test_the_tail_is_float(self):
        found = self.decided(
            [conv("x", "a"), oh.make_node("Sigmoid", ["a"], ["s"], "s"), oh.make_node("Concat", ["a", "s"], ["y"], "y", axis=1)],
            ["y"],
        )
        assert found == {
            name: "no weights follow: decoding, scores and other tails stay float" if name != "a" else "" for name in "asy"
        }

    def test_keep_float_holds_for_the_unit_and_reaches_what_it_feeds(self):
        found = self.decided(
            [
                conv("x", "a"),
                oh.make_node("Relu", ["a"], ["r"], "r"),
                oh.make_node("MaxPool", ["r"], ["p"], "p", kernel_shape=[2, 2]),
                conv("p", "y"),
            ],
            ["y"],
            {"r": "r*"},
        )
        assert found == {
            "a": "keep_float: r*",
            "r": "keep_float: r*",
            "p": "its input comes from a (linear), which is float",
            "y": "",
        }

    @pytest.mark.parametrize("levels", [1, 2])
    def test_boxes_by_which_regions_are_cut_out_again_are_a_tail(self, levels):
        """Those of a Mask R-CNN, before its masks: the layers behind the regions multiply other values than these."""
        nodes = [
            conv("x", "a"),
            oh.make_node("GlobalAveragePool", ["a"], ["g"], "g"),
            oh.make_node("Flatten", ["g"], ["f"], "f"),
            oh.make_node("MatMul", ["f", "wide"], ["d"], "deltas"),
            oh.make_node("Reshape", ["d", "rows"], ["r"], "rows"),
            oh.make_node("RoiAlign", ["a", "r", "first"], ["c"], "regions"),
        ]
        if levels > 1:
            # Regions of several levels are put together by indices that the boxes tell, into as many rows as there are boxes.
            nodes += [
                oh.make_node("Shape", ["r"], ["count"], "count", end=1),
                oh.make_node("Concat", ["count", "region"], ["all"], "all", axis=0),
                oh.make_node("ConstantOfShape", ["all"], ["none"], "none"),
                oh.make_node("ReduceMax", ["r", "last"], ["m"], "largest"),
                oh.make_node("Cast", ["m"], ["index"], "index", to=7),
                oh.make_node("ScatterND", ["none", "index", "c"], ["s"], "scatter"),
            ]
        nodes.append(conv("s" if levels > 1 else "c", "y"))
        tensors = SAME | {"wide": normal(3, 4), "rows": np.array([-1, 4]), "first": np.array([0])}
        tensors |= {"region": np.array([3, 1, 1]), "last": np.array([1])}
        found = self.decided(nodes, ["y", "r"], tensors=tensors)
        assert found["deltas"] == found["a"] == found["y"] == ""
        assert found["rows"] == "no weights follow: decoding, scores and other tails stay float"
        ends = {unit.name: last for unit, last in is_last_weighted(grouped(nodes, ["y", "r"], tensors=tensors)).items()}
        assert (ends["a"], ends["deltas"], ends["y"]) == (False, True, True)

    def test_constants_and_computed_weights(self):
        found = self.between(oh.make_node("Add", ["a", "b4"], ["m"], "m"), tensors={"b4": normal(1, 3, 1, 1)})
        assert found == {"a": "", "m": "b4 is a constant", "last": ""}
        found = self.decided(
            [oh.make_node("Exp", ["w"], ["v"], "v"), oh.make_node("Conv", ["x", "v"], ["a"], "a"), conv("a", "y")], ["y"]
        )
        assert found["a"] == "its weights are not constant"

    @pytest.mark.parametrize(("mode", "int8"), [("nearest", True), ("linear", False), ("cubic", False)])
    def test_only_nearest_resize_is_int8(self, mode, int8):
        node = oh.make_node("Resize", ["a", "", "scales"], ["m"], "m", mode=mode)
        found = self.between(node, tensors={"scales": np.array([1, 1, 2, 2], np.float32)})
        assert found["m"] == ("" if int8 else "interpolation has no fast integer kernel")

    @pytest.mark.parametrize("join", ["Add", "Concat", "Mul"])
    @pytest.mark.parametrize(
        ("larger", "int8"),
        [
            (oh.make_node("Resize", ["d", "", "scales"], ["u"], "u", mode="linear"), True),
            (oh.make_node("ConvTranspose", ["d", "t"], ["u"], "u", strides=[2, 2]), True),
            (oh.make_node("Exp", ["a"], ["u"], "u"), False),
        ],
        ids=["Resize", "ConvTranspose", "Exp"],
    )
    def test_what_was_made_larger_in_float_is_rounded_where_it_joins_what_is_int8(self, larger, int8, join):
        nodes = [oh.make_node("Conv", ["a", "w"], ["d"], "d", strides=[2, 2]), larger]
        more = {"scales": np.array([1, 1, 2, 2], np.float32), "t": normal(3, 3, 2, 2)}
        settings = {"axis": 0} if join == "Concat" else {}
        found = self.between(*nodes, oh.make_node(join, ["a", "u"], ["m"], "m", **settings), tensors=more)
        assert found["u"]
        assert found["m"] == ("" if int8 else "its input comes from u (Exp), which is float")
        assert found["last"] == ""

    @pytest.mark.parametrize(
        ("join", "outputs", "kept", "int8"),
        [
            ("Add", ["y"], {}, False),
            ("Concat", ["y"], {}, True),
            ("Concat", ["y", "e"], {}, False),
            ("Concat", ["y", "m"], {}, False),
            ("Concat", ["y"], {"last": "last"}, False),
            ("Concat", ["y"], {"m": "m"}, False),
        ],
        ids=["Add", "Concat", "read in float, too", "an output, too", "its layer in float", "itself in float"],
    )
    def test_of_float_maps_alone_only_a_concat_for_layers_is_int8(self, join, outputs, kept, int8):
        """SegFormer's head: four levels, each made larger in float, in one Concat before a layer."""
        settings = {"axis": 0} if join == "Concat" else {}
        nodes = [
            conv("x", "a"),
            oh.make_node("Resize", ["a", "", "scales"], ["u"], "u", mode="linear"),
            oh.make_node("Resize", ["a", "", "scales"], ["v"], "v", mode="cubic"),
            oh.make_node(join, ["u", "v"], ["m"], "m", **settings),
            oh.make_node("Conv", ["m", "w"], ["y"], "last"),
            *([oh.make_node("Exp", ["m"], ["e"], "e")] if "e" in outputs else []),
        ]
        found = self.decided(nodes, outputs, kept, tensors=SAME | {"scales": np.array([1, 1, 2, 2], np.float32)})
        float_why = "keep_float: m" if "m" in kept else "its input comes from u (Resize), which is float"
        assert found["m"] == ("" if int8 else float_why)

    def test_what_is_computed_of_a_map_made_larger_in_float_is_rounded_where_it_joins_what_is_int8(self):
        """PIDNet's `(1 - g) x + g up(y)`, where g is float; BiSeNetV2's `x * Sigmoid(up(y))`."""
        nodes = [
            oh.make_node("Resize", ["a", "", "scales"], ["u"], "u", mode="linear"),
            oh.make_node("Exp", ["a"], ["e"], "e"),
            oh.make_node("Mul", ["e", "u"], ["v"], "v"),
            oh.make_node("Sigmoid", ["u"], ["s"], "s"),
            oh.make_node("Add", ["a", "v"], ["c"], "c"),
            oh.make_node("Mul", ["c", "s"], ["m"], "m"),
        ]
        found = self.between(*nodes, tensors={"scales": np.array([1, 1, 1, 1], np.float32)})
        assert [name for name, reason in found.items() if reason] == ["u", "e", "v", "s"]

    @pytest.mark.parametrize(
        ("axes", "join", "gate", "reason"),
        [
            ([2, 3], "Mul", "Exp", ""),
            ([2, 3], "Add", "Exp", ""),
            ([1], "Mul", "Exp", ""),
            ([1], "Mul", "Sigmoid", ""),
            ([1], "Concat", "Exp", "its input comes from g (Exp), which is float"),
            (None, "Mul", "Sigmoid", "its input comes from g (Sigmoid), which is float"),
            (None, "Mul", "Exp", "its input comes from g (Exp), which is float"),
            (None, "Add", "Sigmoid", "its input comes from g (Sigmoid), which is float"),
        ],
    )
    def test_a_gate_in_float_is_rounded_where_it_meets_a_map_that_is_int8(self, axes, join, gate, reason):
        """Made of what has no integer form (ReduceL2): one number a channel or a pixel."""
        before = oh.make_node("Exp", ["a"], ["r"], "r")
        if axes is not None:
            before = oh.make_node("ReduceL2", ["a", "axes"], ["r"], "r", keepdims=1)
        nodes = [before, oh.make_node(gate, ["r"], ["g"], "g")]
        settings = {"axis": 1} if join == "Concat" else {}
        joined = oh.make_node(join, ["a", "g"], ["m"], "m", **settings)
        last = oh.make_node("Conv", ["m", "wide"], ["y"], "last")
        channels = 4 if join == "Concat" else 3
        found = self.decided(
            [conv("x", "a"), *nodes, joined, last],
            ["y"],
            tensors=SAME | {"axes": np.array(axes or [1]), "wide": normal(3, channels, 1, 1)},
        )
        assert found["g"]
        assert found["m"] == reason

    @pytest.mark.parametrize(
        ("inputs", "settings", "int8"),
        [
            (["a", "pads"], {}, True),
            (["a", "pads", "none"], {}, True),
            (["a", "pads"], {"mode": "reflect"}, True),
            (["a", "pads", "one"], {"mode": "edge"}, True),
            (["a", "pads", "one"], {}, False),
            (["a", "pads", "given"], {}, False),
        ],
    )
    def test_a_pad_is_int8_where_what_it_pads_with_has_a_code(self, inputs, settings, int8):
        pads = {"pads": np.array([0, 0, 1, 1, 0, 0, 0, 0]), "none": np.float32(0), "one": np.float32(1)}
        nodes = [conv("x", "a"), oh.make_node("Pad", inputs, ["m"], "m", **settings), conv("m", "y")]
        given = {"inputs": {"x": [1, 3, 16, 16], "given": []}} if "given" in inputs else {}
        found = self.decided(nodes, ["y"], tensors=SAME | pads, **given)
        assert found == {"a": "", "m": "" if int8 else "what it pads with is not known to be 0 or of the tensor", "y": ""}

    @pytest.mark.parametrize(
        ("node", "reason"),
        [
            (oh.make_node("Relu", ["p"], ["m"], "m"), ""),
            (oh.make_node("Clip", ["p", "none", "one"], ["m"], "m"), ""),
            (oh.make_node("Clip", ["p", "given"], ["m"], "m"), "its bounds are computed"),
        ],
    )
    def test_a_cut_behind_no_layer_is_int8_where_its_bounds_are_known(self, node, reason):
        nodes = [conv("x", "a"), oh.make_node("MaxPool", ["a"], ["p"], "p", kernel_shape=[2, 2]), node, conv("m", "y")]
        tensors = SAME | {"none": np.float32(0), "one": np.float32(1)}
        given = {"inputs": {"x": [1, 3, 16, 16], "given": []}} if "given" in node.input else {}
        assert self.decided(nodes, ["y"], tensors=tensors, **given) == {"a": "", "p": "", "m": reason, "y": ""}

    @pytest.mark.parametrize(("other", "int8"), [("a", True), ("p", True), ("layer", False), ("some", False)])
    def test_the_larger_of_what_has_no_one_scale_is_float(self, other, int8):
        pool = oh.make_node("MaxPool", ["a"], ["p"], "p", kernel_shape=[1, 1])
        nodes = [conv("x", "a"), conv("a", "layer"), pool, oh.make_node("Max", ["a", other], ["m"], "m"), conv("m", "y")]
        nodes.append(oh.make_node("GlobalAveragePool", ["p"], ["side"], "side"))
        reason = "what it compares are not parts of one tensor, and have no one scale"
        found = self.decided(nodes, ["y", "side", "layer"], tensors=SAME | {"some": np.float32(0.5)})
        assert found["m"] == ("" if int8 else reason)

    def test_max_pool_with_indices_is_float(self):
        pool = oh.make_node("MaxPool", ["a"], ["m", "indices"], "m", kernel_shape=[2, 2])
        places = oh.make_node("Cast", ["indices"], ["places"], "places", to=1)
        found = self.decided([conv("x", "a"), pool, places, conv("m", "y")], ["y", "places"])
        assert (found["a"], found["m"], found["y"]) == ("", "MaxPool with indices has no integer kernel", "")

    def test_ops_without_a_rule_and_of_other_domains_are_float(self):
        assert self.between(oh.make_node("Exp", ["a"], ["m"], "m"))["m"] == "no INT8 rule for Exp"
        model = network([conv("x", "a"), oh.make_node("LeakyRelu", ["a"], ["m"], "m"), conv("m", "y")], SAME, ["y"])
        model.graph[1].domain = "com.maker"
        reasons = {unit.name: reason for unit, reason in place(units_of(model), {}).items()}
        assert reasons == {"a": "", "m": "no INT8 rule for com.maker.LeakyRelu", "y": ""}

    def test_pools_of_sequences_are_float(self):
        tensors = {"w": normal(3, 3, 1)}
        nodes = [conv("x", "a"), oh.make_node("MaxPool", ["a"], ["m"], "m", kernel_shape=[2]), conv("m", "y")]
        found = self.decided(nodes, ["y"], tensors=tensors, inputs={"x": [1, 3, 16]})
        assert found == {"a": "", "m": "integer kernels of this op are for images", "y": ""}
