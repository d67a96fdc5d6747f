"""ONNX files in and out, the passes, and the questions asked of a graph; every result is run in ONNX Runtime."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from octavo.errors import SourceError
from octavo.graph.clean import clean
from octavo.graph.inspect import check_float, check_supported, custom_ops, image_input, quantized_nodes
from octavo.graph.io import copied, load, save, weight_bytes
from octavo.graph.passes.cleaning.batch import DynamicBatchPass
from octavo.graph.passes.cleaning.node_names import NodeNamesPass
from octavo.graph.passes.cleaning.opset_up import OpsetUpPass
from octavo.graph.passes.cleaning.scope_names import SCOPES, ScopeNamesPass
from octavo.graph.passes.shapes import InferShapesPass
from octavo.graph.precision import check_weights
from octavo.graph.protos import branchless, leading_to
from octavo.intake.inputs import ImageInput, sides_of


def run(path, image):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options)
    return session.run(None, {session.get_inputs()[0].name: image})


def text(source):
    return ir.from_onnx_text(source)


def old_export(path, opset=9, ir_version=4, *, external=None):
    """A detector's tail as torch 1.2 wrote it: initializers among the inputs, constants as nodes, no node names."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "scale": rng.random(8).astype(np.float32) + 0.5,
        "shift": rng.standard_normal(8).astype(np.float32),
        "mean": rng.standard_normal(8).astype(np.float32),
        "var": rng.random(8).astype(np.float32) + 0.5,
    }
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["1", "scale", "shift", "mean", "var"], ["2"]),
        helper.make_node("Relu", ["2"], ["3"]),
        helper.make_node("Transpose", ["3"], ["4"], perm=[0, 2, 3, 1]),
        helper.make_node("Constant", [], ["5"], value=numpy_helper.from_array(np.array([1, -1, 4], np.int64))),
        helper.make_node("Reshape", ["4", "5"], ["6"]),
        helper.make_node("Slice", ["6"], ["7"], axes=[2], starts=[0], ends=[2]),
        helper.make_node("Unsqueeze", ["7"], ["8"], axes=[1]),
        helper.make_node("Squeeze", ["8"], ["9"], axes=[1]),
        helper.make_node("Identity", ["9"], ["10"]),
        helper.make_node("Neg", ["6"], ["never used"]),
        helper.make_node("Softmax", ["10"], ["scores"], axis=2),
    ]
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 16, 16])]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in weights.items()]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 128, 2])]
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(value, name) for name, value in weights.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version, producer_name="pytorch")
    onnx.save(model, path, save_as_external_data=external is not None, location=external, size_threshold=0)
    return path


IMAGE = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)

# ---------------------------------------------------------------- load


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "does not exist"),
        (b"", "truncated or not an ONNX file"),
        (b"not a model at all, just text", "truncated or not an ONNX file"),
        (b"\x08\x08", "truncated or not an ONNX file"),  # an IR version and nothing else: valid protobuf
        (b"version https://git-lfs and so on", "git lfs pull"),
    ],
)
def test_load_says_what_is_wrong_with_the_file(tmp_path, content, says):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=says) as caught:
        load(path)
    assert str(path) in caught.value.problem
    assert caught.value.mend


def test_load_refuses_a_folder_and_a_truncated_file(tmp_path):
    with pytest.raises(SourceError, match="is a folder"):
        load(tmp_path)
    path = old_export(tmp_path / "m.onnx")
    whole = path.read_bytes()
    for length in (len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match="truncated"):
            load(path)


def test_load_leaves_open_what_the_file_says_is_minus_one(tmp_path):
    """As Paddle2ONNX wrote open sizes; such a graph takes any height."""
    value = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [-1, 3, 32, -1]) for name in "xyz"}
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    graph = helper.make_graph(nodes, "g", [value["x"]], [value["z"]], value_info=[value["y"]])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "open.onnx")
    model = load(tmp_path / "open.onnx")
    shapes = [list(one.shape) for one in (model.graph.inputs[0], model.graph.node(0).outputs[0], model.graph.outputs[0])]
    assert [[size if isinstance(size, int) else size.value for size in shape] for shape in shapes] == [[None, 3, 32, None]] * 3
    image = ImageInput.of(model.graph.inputs[0])
    assert sides_of(image, (32, 320), model.graph.outputs, {}).size == (32, 320)


def test_load_names_missing_and_truncated_external_data(tmp_path):
    path = old_export(tmp_path / "m.onnx", external="weights.bin")
    weights = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(weights[:-1])
    with pytest.raises(SourceError, match=r"weights\.bin is truncated"):
        load(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(SourceError, match=r"weights\.bin is missing") as caught:
        load(path)
    assert str(path) in caught.value.problem


def test_external_data_of_subgraphs_and_constants_is_read(tmp_path):
    x = np.array([1, 2], np.float32)
    inner = [helper.make_tensor("k", TensorProto.FLOAT, [2], [10, 20])]
    value = helper.make_tensor_value_info("o", TensorProto.FLOAT, [2])
    then = helper.make_graph([helper.make_node("Add", ["x", "k"], ["o"])], "a", [], [value], inner)
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["o"])], "b", [], [value])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True])),
        helper.make_node("If", ["c"], ["t"], then_branch=then, else_branch=other),
        helper.make_node("Constant", [], ["m"], value=helper.make_tensor("m", TensorProto.FLOAT, [2], [3, 5])),
        helper.make_node("Mul", ["t", "m"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", info[:1], info[1:]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    (tmp_path / "w.bin").write_bytes(np.array([10, 20, 3, 5], np.float32).tobytes())
    branch = next(part for part in model.graph.node[1].attribute if part.name == "then_branch").g.initializer[0]
    for tensor, offset in ((branch, 0), (model.graph.node[2].attribute[0].t, 8)):
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, entry in {"location": "w.bin", "offset": str(offset), "length": "8"}.items():
            tensor.external_data.add(key=key, value=entry)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    read = load(tmp_path / "m.onnx")
    clean(read, 18)
    (tmp_path / "out").mkdir()
    save(read, tmp_path / "out" / "m.onnx")
    assert run(tmp_path / "out" / "m.onnx", x)[0].tolist() == [33, 110]
    (tmp_path / "w.bin").unlink()
    with pytest.raises(SourceError, match=r"w\.bin is missing"):
        load(tmp_path / "m.onnx")


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname"])
def test_load_reads_no_weights_outside_the_models_folder(tmp_path, location):
    (tmp_path / "weights.bin").write_bytes(bytes(10_000))
    (tmp_path / "in").mkdir()
    path = old_export(tmp_path / "in" / "m.onnx")
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SourceError, match="outside its folder"):
        load(path)


# ---------------------------------------------------------------- save


def test_save_drops_what_differs_between_two_machines(tmp_path):
    models = []
    for machine in ("alice", "bob"):
        model = load(old_export(tmp_path / "m.onnx"))
        model.producer_name, model.producer_version, model.doc_string = machine, machine, machine
        model.graph.doc_string = machine
        model.metadata_props["trace"] = model.graph.metadata_props["trace"] = f"/home/{machine}/train.py"
        for node in model.graph:
            node.doc_string = node.metadata_props["trace"] = f"/home/{machine}/train.py"
            for value in node.outputs:
                value.metadata_props["trace"] = f"/home/{machine}"
        for value in model.graph.initializers.values():
            value.metadata_props["trace"] = machine
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name, doc_string=machine)
        model.graph[0].attributes["strides"] = ir.AttrInt64s("strides", [2, 2], doc_string=machine)
        if machine == "bob":  # another order of the attributes
            model.graph[0].attributes["pads"] = model.graph[0].attributes.pop("pads")
        save(model, tmp_path / f"{machine}.onnx")
        assert model.producer_name == machine  # the model itself is left as it was
        assert model.graph[0].doc_string == f"/home/{machine}/train.py"
        models.append((tmp_path / f"{machine}.onnx").read_bytes())
    assert models[0] == models[1]
    assert b"alice" not in models[0]
    assert b"octavo" in models[0]
    np.testing.assert_array_equal(run(tmp_path / "bob.onnx", IMAGE)[0], run(tmp_path / "m.onnx", IMAGE)[0])


def test_save_drops_traces_inside_subgraphs(tmp_path):
    model = text(
        """<ir_version: 8, opset_import: ["": 18]> g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] o) { o = Neg(x) }, else_branch = b () => (float[2] p) { p = Abs(x) }> }"""
    )
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props["trace"] = "/home/alice"
        node.doc_string = "/home/alice"
    save(model, tmp_path / "m.onnx")
    assert b"alice" not in (tmp_path / "m.onnx").read_bytes()


def test_save_leaves_out_what_constants_tell_themselves(tmp_path):
    proto = onnx.shape_inference.infer_shapes(onnx.load(old_export(tmp_path / "m.onnx")))
    of_weight = next(tensor for tensor in proto.graph.initializer if len(tensor.dims) == 4)
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info(of_weight.name, of_weight.data_type, of_weight.dims))
    del proto.graph.input[1:]
    onnx.save(proto, tmp_path / "stated.onnx")
    save(load(tmp_path / "stated.onnx"), tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx").graph
    stated = {value.name for value in saved.value_info}
    assert stated == {value.name for value in proto.graph.value_info} - {of_weight.name}
    assert stated
    np.testing.assert_array_equal(run(tmp_path / "saved.onnx", IMAGE)[0], run(tmp_path / "stated.onnx", IMAGE)[0])


def test_save_puts_weights_inside_and_above_the_limit_beside(tmp_path):
    path = old_export(tmp_path / "m.onnx", external="weights.bin")
    expected = run(path, IMAGE)[0]
    model = load(path)
    (tmp_path / "one").mkdir()
    save(model, tmp_path / "one" / "model.onnx")
    assert [file.name for file in (tmp_path / "one").iterdir()] == ["model.onnx"]
    np.testing.assert_array_equal(run(tmp_path / "one" / "model.onnx", IMAGE)[0], expected)
    assert weight_bytes(model) == 4 * (8 * 27 + 4 * 8)
    model = load(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.graph.io.SMALL_TENSOR", 100)
        for folder in ("two", "three"):
            (tmp_path / folder).mkdir()
            save(model, tmp_path / folder / "model.onnx", inline_limit=weight_bytes(model) - 1)
    assert sorted(file.name for file in (tmp_path / "two").iterdir()) == ["model.data", "model.onnx"]
    assert (tmp_path / "two" / "model.data").stat().st_size >= 4 * 8 * 27
    for name in ("model.onnx", "model.data"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()
    np.testing.assert_array_equal(run(tmp_path / "two" / "model.onnx", IMAGE)[0], expected)
    # What was written is read and written again unchanged.
    save(load(tmp_path / "one" / "model.onnx"), tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "one" / "model.onnx").read_bytes()


# ---------------------------------------------------------------- clean and its passes


def test_a_copy_shares_weights_and_nothing_else():
    model = text(
        """
        <ir_version: 9, opset_import: ["" : 17]>
        agraph (float[1,4] x, bool c) => (float[1,4] y) <float[4] w = {1, 2, 3, 4}>
        { s = Add (x, w)
          y = If (c) <then_branch = one () => (float[1,4] a) { a = Relu (s) },
                      else_branch = two () => (float[1,4] b) { b = Neg (s) }> }
        """
    )
    before = ir.to_proto(model)
    copy = copied(model)
    assert ir.to_proto(copy) == before
    assert copy.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value
    for graph in copy.graphs():
        for value in [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]:
            value.dtype, value.shape, value.name = ir.DataType.FLOAT16, ir.Shape([7]), f"{value.name}.changed"
        for node in graph:
            node.name, node.attributes["new"] = "changed", ir.AttrInt64("new", 1)
    assert ir.to_proto(model) == before


@pytest.mark.parametrize("external", [None, "weights.bin"])
@pytest.mark.parametrize("opset", [18, 21, 23])
def test_clean_brings_an_old_export_up_without_changing_its_outputs(tmp_path, opset, external):
    path = old_export(tmp_path / "m.onnx", external=external)
    model = load(path)
    notes = clean(model, opset)
    assert model.opset_imports == {"": opset}
    assert [value.name for value in model.graph.inputs] == ["input"]
    assert not {"Constant", "Identity", "Neg"} & {node.op_type for node in model.graph}
    names = [node.name for node in model.graph]
    assert all(names)
    assert len(set(names)) == len(names)
    assert "Conv_1" in names
    assert model.graph.node("Conv_1").outputs[0].shape == [1, 8, 8, 8]
    assert any("5 initializers were listed among the inputs" in note for note in notes)
    assert f"opset converted from 9 to {opset}" in notes
    (tmp_path / "out").mkdir()
    save(model, tmp_path / "out" / "model.onnx")
    np.testing.assert_allclose(run(tmp_path / "out" / "model.onnx", IMAGE)[0], run(path, IMAGE)[0], atol=1e-6)
    onnx.checker.check_model(tmp_path / "out" / "model.onnx", full_check=True)


def test_clean_twice_changes_nothing_and_gives_the_same_bytes(tmp_path):
    model = load(old_export(tmp_path / "m.onnx"))
    clean(model, 18)
    save(model, tmp_path / "once.onnx")
    assert clean(model, 18) == []
    save(model, tmp_path / "twice.onnx")
    assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "twice.onnx").read_bytes()


def test_clean_reads_ir_version_3_where_initializers_had_to_be_inputs(tmp_path):
    path = old_export(tmp_path / "m.onnx", opset=8, ir_version=3)
    model = load(path)
    clean(model, 18)
    assert model.ir_version == 8  # what opset 18 came with
    save(model, tmp_path / "new.onnx")
    np.testing.assert_allclose(run(tmp_path / "new.onnx", IMAGE)[0], run(path, IMAGE)[0], atol=1e-6)


def test_clean_leaves_a_higher_opset_alone():
    model = text('<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { [n] y = Neg(x) }')
    clean(model, 18)
    assert model.opset_imports[""] == 21


def test_clean_inlines_functions_and_keeps_runtime_domains(tmp_path):
    model = text(
        """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1, "mine": 1]>
        g (float[2] x) => (float[2] y) { [a] t = mine.twice(x) [b] u = com.microsoft.Gelu(t) [c] y = Neg(u) }
        <domain: "mine", opset_import: ["": 13]> twice (x) => (y) { y = Add(x, x) }"""
    )
    save(model, tmp_path / "m.onnx")
    check_supported(model)
    notes = clean(model, 18)
    assert [node.op_type for node in model.graph] == ["Add", "Gelu", "Neg"]
    assert model.opset_imports == {"": 18, "com.microsoft": 1}
    assert any("1 model-local functions inlined" in note for note in notes)
    save(model, tmp_path / "new.onnx")
    x = np.array([0.3, -2], np.float32)
    np.testing.assert_allclose(run(tmp_path / "new.onnx", x)[0], run(tmp_path / "m.onnx", x)[0], atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "y = Relu(x) z = Identity(y)",
        "a = Relu(x) y = Identity(a) z = Identity(a)",  # as tf2onnx names outputs
        "y = Relu(x) z = Dropout(y)",
        "y = Relu(x) z = Concat<axis=0>(y)",
        """r = Relu(x) m = ReduceMax<keepdims=0>(x) c = Greater(m, k)
        y, z = If(c)<then_branch=t() => (p, q) { p = Sin(r) q = Identity(p) },
        else_branch=e() => (u, v) { u = Identity(r) v = Exp(x) }>
        """,
        """r = Relu(x) y, s = Loop(n, yes, r)<body=b(int64 i, bool c, float[2,2] p) => (d, q, t) {
            d = Identity(c) q = Sin(p) t = Identity(r) }> z = ReduceSum<keepdims=0>(s, first)""",
        """w, s = Scan<num_scan_inputs=1, body=b(float[2] h, float[2] v) => (p, q) { p = Add(h, v) q = Identity(p) }>(zeros, x)
        y = Relu(s) z = Unsqueeze(w, first)""",
    ],
    ids=["output", "outputs", "dropout", "concat", "if", "loop", "scan"],
)
def test_clean_keeps_the_identities_that_outputs_need(body):
    model = text(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[2,2] x) => (float[A,B] y, float[C,D] z)
        <float k = {{0.0}}, int64 n = {{3}}, bool yes = {{1}}, int64[1] first = {{0}}, float[2] zeros = {{0, 0}}> {{ {body} }}"""
    )
    runs = [ort.InferenceSession(ir.to_proto(model).SerializeToString())]
    clean(model, 18)
    runs.append(ort.InferenceSession(ir.to_proto(model).SerializeToString()))
    assert [value.name for value in runs[1].get_outputs()] == ["y", "z"]
    for sign in (1, -1):
        x = sign * np.array([[1, 2], [3, 4]], np.float32)
        expected, found = (each.run(None, {"x": x}) for each in runs)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_clean_keeps_one_copy_of_weights_that_are_handed_on_by_identity():
    """So torch's exporter writes a backbone that sees two images, its batch norms folded."""
    weights = "float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}"
    model = text(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[1,2] x, float[1,2] y) => (float[1,2] z) <{weights}> {{
        again = Identity(w) bias = Identity(b)
        p = Gemm(x, w, b) q = Gemm(y, again, bias) z = Sub(p, q) }}"""
    )
    clean(model, 18)
    assert sorted(model.graph.initializers) == ["b", "w"]
    assert [[value.name for value in node.inputs[1:]] for node in model.graph if node.op_type == "Gemm"] == [["w", "b"]] * 2


def test_clean_refuses_an_invalid_graph():
    model = text('<ir_version: 8, opset_import: ["": 18]> g (float[2,2] x) => (float[2,2] y) { y = Neg<slope = 3>(x) }')
    with pytest.raises(SourceError, match=r"not valid ONNX.*slope"):
        clean(model, 18)


@pytest.mark.parametrize("opset", [13, 18])
def test_an_output_of_which_nothing_tells_the_rank_is_taken_as_onnx_runtime_takes_it(tmp_path, opset):
    """tf2onnx and scripted torch modules write such behind loops; the checker wants a shape."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Neg", ["before"], ["after"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [value("turn", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("before", TensorProto.FLOAT, None)],
        [value("on", TensorProto.BOOL, []), value("after", TensorProto.FLOAT, None)],
    )
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Loop", ["turns", "", "r"], ["y"], body=body)],
        "g",
        [value("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(3), "turns")],
    )
    path, image = tmp_path / "m.onnx", np.ones((1, 3, 4, 4), np.float32)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    model = load(path)
    clean(model, 18)
    assert model.graph.outputs[0].shape is None
    save(model, tmp_path / "clean.onnx")
    (wanted,), (found,) = (ort.InferenceSession(file).run(None, {"x": image}) for file in (path, tmp_path / "clean.onnx"))
    np.testing.assert_array_equal(found, wanted)


def test_an_input_without_shape_is_refused_with_what_it_lacks():
    """ONNX Runtime takes it: neither `input.name` nor another export of the same kind would help."""
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["image"], ["y"])],
            "g",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, None)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 4, 4])],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    for look in (lambda model: clean(model, 18), image_input):
        with pytest.raises(SourceError, match=r"input 'image' has no shape.*\n.*make_tensor_value_info\('image', 1"):
            look(ir.from_proto(proto))


@pytest.mark.parametrize(
    ("opset", "op"),
    [
        (7, 'Upsample<mode="linear", scales=[1.0, 1.0, 2.0, 2.0]>(x)'),
        (7, 'Upsample<mode="nearest", scales=[1.0, 1.0, 1.5, 1.5]>(x)'),
        (9, 'Upsample<mode="linear">(x, s)'),
        (10, 'Resize<mode="linear">(x, s)'),
        (10, 'Resize<mode="nearest">(x, s)'),
        (11, 'Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, e, s)'),
    ],
)
def test_opset_up_keeps_the_pixels_of_old_upsampling(tmp_path, opset, op):
    model = text(
        f"""<ir_version: 7, opset_import: ["": {opset}]> g (float[1,2,4,4] x) => (float[a,b,c,d] y)
        <float[4] s = {{1, 1, 1.5, 1.5}}, float[0] e = {{}}> {{ y = {op} }}"""
    )
    save(model, tmp_path / "m.onnx")
    image = np.random.default_rng(0).random((1, 2, 4, 4), np.float32)
    expected = run(tmp_path / "m.onnx", image)[0]
    clean(model, 18)
    save(model, tmp_path / "new.onnx")
    np.testing.assert_allclose(run(tmp_path / "new.onnx", image)[0], expected, atol=1e-6)


def test_a_slice_of_opset_10_is_not_taken_for_as_long_as_what_it_cuts():
    """onnx's own shape inference takes it so, and ONNX Runtime ends in "Shape mismatch attempting to re-use buffer" by that."""
    numbers = {"one": [1], "end": [np.iinfo(np.int32).max], "axis": [2]}
    graph = helper.make_graph(
        [
            helper.make_node("Slice", ["x", "one", "end", "axis", "one"], ["cut"], "cut"),
            helper.make_node("Relu", ["cut"], ["y"], "relu"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5))
    OpsetUpPass(18)(model)
    InferShapesPass()(model)
    cut = next(node for node in model.graph if node.name == "cut").outputs[0]
    assert [str(side) for side in cut.shape][:2] == ["1", "3"]
    assert str(cut.shape[2]) != "h"
    assert str(cut.shape[3]) == "w"


@pytest.mark.parametrize("mode", ["reflect", "edge", "constant"])
def test_opset_up_takes_a_pad_that_names_a_value_whether_or_not_it_writes_it(tmp_path, mode):
    model = text(
        f"""<ir_version: 5, opset_import: ["": 10]> g (float[1,2,4,4] x) => (float[1,2,7,5] y)
        {{ y = Pad<mode="{mode}", pads=[0,0,1,0,0,0,2,1], value=0.5>(x) }}"""
    )
    save(model, tmp_path / "m.onnx")
    image = np.random.default_rng(0).random((1, 2, 4, 4), np.float32)
    OpsetUpPass(18)(model)
    save(model, tmp_path / "new.onnx")
    np.testing.assert_array_equal(run(tmp_path / "new.onnx", image)[0], run(tmp_path / "m.onnx", image)[0])


def test_opset_up_reaches_into_subgraphs(tmp_path):
    model = text(
        """<ir_version: 7, opset_import: ["": 11]> g (float[1,4] x) => (float[4] y) <bool c = {1}> {
        y = If (c) <then_branch = a () => (float[4] o) { o = Squeeze<axes=[0]>(x) },
                    else_branch = b () => (float[4] p) { n = Neg(x) p = Squeeze<axes=[0]>(n) }> }"""
    )
    save(model, tmp_path / "m.onnx")
    x = np.arange(4, dtype=np.float32)[None]
    expected = run(tmp_path / "m.onnx", x)[0]
    clean(model, 18)
    save(model, tmp_path / "new.onnx")
    np.testing.assert_array_equal(run(tmp_path / "new.onnx", x)[0], expected)


def test_opset_up_fails_loudly_naming_the_opsets(capfd):
    # A GroupNormalization whose input has no known rank: onnxscript's converter only warns and leaves it at its old meaning.
    model = text(
        """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        g (float[1,4,2] x, float[2] s, float[2] b) => (float[1,4,2] y) {
        t = com.microsoft.Unknowable(x) y = GroupNormalization<num_groups=2>(t, s, b) }"""
    )
    with pytest.raises(SourceError, match="from opset 18 to 21"):
        OpsetUpPass(21)(model)
    # ONNX's own converter knows no way up for this one.
    model = text('<ir_version: 3, opset_import: ["": 6]> g (float[2] x) => (float[2] y) { y = NoSuchOp(x) }')
    with pytest.raises(SourceError, match="from opset 6 to 18"):
        OpsetUpPass(18)(model)
    assert capfd.readouterr() == ("", "")


def test_opset_up_converts_group_normalization_whose_shape_must_be_inferred(tmp_path):
    model = text(
        """<ir_version: 8, opset_import: ["": 18]> g (float[1,4,6] x) => (float[1,4,6] y)
        <float[2] s = {1.5, 0.5}, float[2] b = {0.25, -1}> { t = Neg(x) y = GroupNormalization<num_groups=2>(t, s, b) }"""
    )
    save(model, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((1, 4, 6)).astype(np.float32)
    OpsetUpPass(21)(model)
    save(model, tmp_path / "new.onnx")
    np.testing.assert_allclose(run(tmp_path / "new.onnx", x)[0], run(tmp_path / "m.onnx", x)[0], atol=1e-5)


def test_clean_brings_a_group_normalization_that_onnx_took_back_up_to_one_that_it_takes(tmp_path):
    model = text(
        """<ir_version: 8, opset_import: ["": 18]> g (float[1,4,2,3] x) => (float[1,4,2,3] y)
        <float[2] s = {1.5, 0.5}, float[2] b = {0.25, -1}> { t = Neg(x) y = GroupNormalization<num_groups=2>(t, s, b) }"""
    )
    save(model, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((1, 4, 2, 3)).astype(np.float32)
    assert "opset converted from 18 to 21" in clean(model, 18)
    save(model, tmp_path / "new.onnx")
    np.testing.assert_allclose(run(tmp_path / "new.onnx", x)[0], run(tmp_path / "m.onnx", x)[0], atol=1e-5)


def test_opset_up_lifts_the_constants_that_it_brings(tmp_path):
    # From opset 18 on axes are an input: ONNX's converter makes a Constant without a name for each.
    model = text(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,6] x) => (float[1] y) {
        [norm] n = ReduceL2<axes=[1], keepdims=1>(x) [div] d = Div(x, n) [mean] m = ReduceMean<axes=[2], keepdims=0>(d)
        [last] y = ReduceMax<axes=[1], keepdims=0>(m) }"""
    )
    save(model, tmp_path / "m.onnx")
    OpsetUpPass(20)(model)
    assert [(node.op_type, node.name) for node in model.graph] == [
        ("ReduceL2", "norm"),
        ("Div", "div"),
        ("ReduceMean", "mean"),
        ("ReduceMax", "last"),
    ]
    save(model, tmp_path / "new.onnx")
    x = np.random.default_rng(0).standard_normal((1, 4, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(tmp_path / "new.onnx", x)[0], run(tmp_path / "m.onnx", x)[0])


def test_opset_up_keeps_the_names_of_nodes_that_a_converter_replaces():
    # At opset 20 GridSample's modes have other names.
    model = text(
        """<ir_version: 8, opset_import: ["": 18]> g (float[1,2,4,4] x, float[1,4,4,2] grid) => (float[1,2,4,4] y) {
        [first] a = GridSample<mode="bilinear">(x, grid) [second] y = GridSample<mode="bilinear">(a, grid) }"""
    )
    OpsetUpPass(20)(model)
    assert [(node.name, node.attributes["mode"].as_string()) for node in model.graph] == [("first", "linear"), ("second", "linear")]
    # What stands in for one node has names that no other has, and the one that makes its tensor has its own.
    model = text(
        """<ir_version: 8, opset_import: ["": 18]> g (float[1,4,6] x) => (float[1,4,6] y)
        <float[2] s = {1.5, 0.5}, float[2] b = {0.25, -1}> { [norm] y = GroupNormalization<num_groups=2>(x, s, b) }"""
    )
    OpsetUpPass(21)(model)
    names = [node.name for node in model.graph]
    assert len(names) > 1
    assert len(set(names)) == len(names)
    assert all(names)
    assert model.graph.outputs[0].producer().name == "norm"


def test_a_float64_grid_beside_a_float32_image_is_cast(tmp_path):
    """Deformable attention as torch's exporter without dynamo writes it: constants of `2 * places - 1` are float64."""

    def sampled(kind, before):
        return text(
            f"""<ir_version: 8, opset_import: ["": 18]> g (float[1,1,4,2] x) => (float[1,1,1,4] y)
            <{kind} two = {{2}}, {kind} one = {{1}}, int64[4] map = {{1, 1, 4, 2}}> {{
            image = Reshape(x, map) {before} twice = Mul(wide, two) grid = Sub(twice, one)
            [sampled] y = GridSample(image, grid) }}"""
        )

    model, single = sampled("double", "wide = Cast<to=11>(x)"), sampled("float", "wide = Identity(x)")
    for name, graph in (("given", model), ("single", single)):
        save(graph, tmp_path / f"{name}.onnx")
    x = np.random.default_rng(0).uniform(size=(1, 1, 4, 2)).astype(np.float32)
    with pytest.raises(Exception, match="Could not find an implementation for GridSample"):
        run(tmp_path / "given.onnx", x)
    assert "float64 grids of GridSample cast to float32: ONNX Runtime samples one type only" in clean(model, 18)
    assert not any("GridSample" in note for note in clean(single, 18))
    save(model, tmp_path / "model.onnx")
    np.testing.assert_allclose(run(tmp_path / "model.onnx", x)[0], run(tmp_path / "single.onnx", x)[0], atol=1e-6)


def test_node_names_are_unique_and_do_not_depend_on_the_position():
    model = text(
        """<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) {
        a = Neg(x) [same] b = Abs(a) [same] y = Neg(b) }"""
    )
    assert NodeNamesPass()(model).modified
    assert [node.name for node in model.graph] == ["Neg_a", "same", "same_1"]
    assert not NodeNamesPass()(model).modified


def test_scope_names_follow_the_modules():
    model = text(
        """<ir_version: 8, opset_import: ["": 18]> g (float[1,2,4,4] input) => (float[1,2,4,4] output)
        <float[2,2,1,1] "stem.conv.weight" = {1,2,3,4}> {
        [n0] getitem = Conv(input, "stem.conv.weight") [n1] r = Relu(getitem) [n2] s = Relu(r)
        [n3] a, b = Split<axis=1, num_outputs=2>(s) [n4] c = Concat<axis=1>(b, a) [n5] output = Neg(c) }"""
    )
    # The convolution carries the scope of the BatchNorm that was folded into it.
    scopes = [["", "stem", "stem.bn", "batch_norm"], ["", "stem", "relu"], ["", "stem", "relu_1"], ["", "split"], ["", "cat"], None]
    for node, scope in zip(model.graph, scopes, strict=True):
        if scope:
            node.metadata_props[SCOPES] = str(scope)
    ScopeNamesPass()(model)
    assert [node.name for node in model.graph] == ["stem.conv/Conv", "stem/Relu", "stem/Relu_1", "Split", "Concat", "n5"]
    outputs = [[value.name for value in node.outputs] for node in model.graph]
    assert outputs == [["stem.conv/Conv"], ["stem/Relu"], ["stem/Relu_1"], ["a", "b"], ["Concat"], ["output"]]
    assert list(model.graph.initializers) == ["stem.conv.weight"]


def test_infer_shapes_names_a_contradiction_and_infers_the_rest():
    model = text(
        """<ir_version: 8, opset_import: ["": 18]> g (float[2,3] x, float[2,3] w) => (float[n] y, float[2,3] z) {
        y = MatMul(x, w) t = Neg(x) z = Neg(t) }"""
    )
    infer = InferShapesPass()
    infer(model)
    assert "Incompatible dimensions for matrix multiplication" in infer.problem
    assert model.graph[1].outputs[0].shape == [2, 3]
    assert any("Incompatible dimensions" in note for note in clean(model, 18))
    fine = InferShapesPass()
    fine(text('<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { t = Neg(x) y = Neg(t) }'))
    assert fine.problem == ""


# ---------------------------------------------------------------- batch


def freed(model, path):
    assert DynamicBatchPass(image_input(model))(model).modified
    save(model, path)
    onnx.checker.check_model(path, full_check=True)
    return path


BATCHED = {
    "reshape whose data starts with the batch": "t = Relu(x) y = Reshape(t, keep)",
    "reshape with a -1 of its own": "t = Relu(x) y = Reshape(t, rest)",
    "reshape that merges the batch before": "t = Reshape(x, merged) y = Reshape(t, keep)",
    "resize to constant sizes": 'y = Resize<mode="linear">(x, , , sizes)',
    "resize to sizes that no scale makes": """t = MaxPool<kernel_shape=[1, 2], pads=[0, 1, 0, 1]>(x)
        y = Resize<mode="linear">(t, , , odd)""",
    "one shape for two": "t = Reshape(x, keep) u = Neg(t) y = Reshape(u, keep)",
}


@pytest.mark.parametrize("body", BATCHED.values(), ids=BATCHED.keys())
def test_batch_makes_each_image_of_a_batch_what_it_is_alone(tmp_path, body):
    model = text(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[1,4,4,6] x) => (float[1,b,c,d] y)
        <int64[4] keep = {{1, 2, 8, 6}}, int64[4] rest = {{1, -1, 2, 6}},
        int64[2] merged = {{-1, 6}}, int64[4] sizes = {{1, 4, 7, 9}}, int64[4] odd = {{1, 4, 7, 31}}>
        {{ {body} }}"""
    )
    clean(model, 18)
    save(model, tmp_path / "fixed.onnx")
    path = freed(model, tmp_path / "free.onnx")
    images = np.random.default_rng(0).standard_normal((3, 4, 4, 6)).astype(np.float32)
    alone = np.concatenate([run(tmp_path / "fixed.onnx", image[None])[0] for image in images])
    np.testing.assert_allclose(run(path, images)[0], alone, atol=1e-6)
    np.testing.assert_allclose(run(path, images[:1])[0], alone[:1], atol=1e-6)
    assert [str(value.shape[0]) for value in (*model.graph.inputs, *model.graph.outputs)] == ["batch", "batch"]
    assert load(path).graph.outputs[0].shape[0] == "batch"


def test_batch_writes_scales_of_a_resize_before_opset_18_too():
    model = text(
        """<ir_version: 8, opset_import: ["": 13]> g (float[1,4,4,6] x) => (float[1,b,c,d] y) <int64[4] sizes = {1, 4, 8, 9}>
        { y = Resize<mode="nearest">(x, , , sizes) }"""
    )
    assert DynamicBatchPass(image_input(model))(model).modified
    (node,) = model.graph
    assert len(node.inputs) == 3
    assert "axes" not in node.attributes
    assert node.inputs[2].const_value.numpy().tolist() == [1, 1, 2, 1.5]


def test_batch_reads_shapes_that_the_file_does_not_state(tmp_path):
    """ultralytics' head at `batch=4`: a Reshape to [4, c, -1] of what no shape is stated of, in a file that nothing has cleaned."""
    model = text(
        """<ir_version: 8, opset_import: ["": 13]> g (float[2,4,4,6] x) => (float[2,4,24] y)
        <int64[3] keep = {2, 4, -1}> { t = Relu(x) y = Reshape(t, keep) }"""
    )
    free = freed(model, tmp_path / "free.onnx")
    images = np.random.default_rng(0).standard_normal((1, 4, 4, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(free, images)[0], np.maximum(images, 0).reshape(1, 4, 24))


MERGED = {
    # YOLO12's: two parts of each image, as images of their own, in two heads.
    "areas": "t = Reshape(x, parts) u = Reshape(t, heads) v = Softmax<axis=1>(u) w = Reshape(v, parts) y = Reshape(w, whole)",
    # torch's MultiheadAttention: places first, images and heads in one dimension.
    "heads": """t = Transpose<perm=[1,0,2]>(x) u = Reshape(t, merged) v = Transpose<perm=[1,0,2]>(u) w = Softmax<axis=1>(v)
        a = Transpose<perm=[1,0,2]>(w) b = Reshape(a, rows) c = Relu(b) d = Reshape(c, apart) y = Transpose<perm=[1,0,2]>(d)""",
    "beside a size left open": "t = Reshape(x, rest) u = Softmax<axis=2>(t) y = Reshape(u, whole)",
    "not in what is reshaped": """t = ReduceMean<keepdims=0>(x, images) u = Reshape(t, parts_of_none) v = Reshape(u, none)
        y = Add(x, v)""",
}


@pytest.mark.parametrize("body", MERGED.values(), ids=MERGED.keys())
def test_batch_of_several_images_is_opened_where_it_is_merged(tmp_path, body):
    model = text(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[2,6,4] x) => (float[2,6,4] y)
        <int64[3] parts = {{4, 3, 4}}, int64[4] heads = {{4, 3, 2, 2}}, int64[3] whole = {{2, 6, 4}}, int64[3] merged = {{6, 4, 2}},
        int64[2] rows = {{12, 4}}, int64[3] apart = {{6, 2, 4}}, int64[4] rest = {{4, 3, -1, 2}}, int64[1] images = {{0}},
        int64[2] parts_of_none = {{2, 12}}, int64[2] none = {{6, 4}}>
        {{ {body} }}"""
    )
    path = tmp_path / "fixed.onnx"
    save(model, path)
    free = tmp_path / "free.onnx"
    assert DynamicBatchPass(model.graph.inputs[0])(model).modified
    save(model, free)
    images = np.random.default_rng(0).standard_normal((3, 6, 4)).astype(np.float32)
    if "ReduceMean" in body:
        images[1:] = images[0]  # the mean over images is then that of one
    both = np.concatenate([run(path, images[:2]), run(path, images[1:])], axis=1)[0]
    np.testing.assert_allclose(run(free, images)[0], both[[0, 1, 3]], rtol=1e-6)
    np.testing.assert_allclose(run(free, images[2:])[0], both[3:], rtol=1e-6)


def test_batch_repairs_the_old_export(tmp_path):
    path = old_export(tmp_path / "m.onnx")
    model = load(path)
    clean(model, 18)
    free = freed(model, tmp_path / "free.onnx")
    pair = np.concatenate([IMAGE, -IMAGE])
    alone = np.concatenate([run(path, image[None])[0] for image in pair])
    np.testing.assert_allclose(run(free, pair)[0], alone, atol=1e-6)


def test_batch_leaves_a_symbolic_batch_and_a_constants_shape_alone(tmp_path):
    model = text('<ir_version: 8, opset_import: ["": 18]> g (float[N,3,4,4] x) => (float[N,3,4,4] y) { y = Neg(x) }')
    assert not DynamicBatchPass(image_input(model))(model).modified
    assert model.graph.inputs[0].shape[0] == "N"
    model = text(
        """<ir_version: 8, opset_import: ["": 18]> g (float[1,2,2,2] x) => (float[1,2,2,2] y)
        <float[4] grid = {1, 2, 3, 4}, int64[4] shape = {1, 1, 2, 2}> { g = Reshape(grid, shape) y = Add(x, g) }"""
    )
    free = freed(model, tmp_path / "free.onnx")
    images = np.zeros((2, 2, 2, 2), np.float32)
    assert run(free, images)[0].tolist() == np.broadcast_to([[1, 2], [3, 4]], (2, 2, 2, 2)).tolist()


def test_batch_refuses_an_output_without_a_batch():
    model = text(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1,3,4,4] x) => (float[3,4,4] y) <int64[1] a = {0}> { y = Squeeze(x, a) }'
    )
    with pytest.raises(SourceError, match=r"'y'.*no batch dimension") as caught:
        DynamicBatchPass(image_input(model))(model)
    assert "dynamic_batch: false" in caught.value.mend
    assert model.graph.inputs[0].shape[0] == 1


# ---------------------------------------------------------------- questions


def test_custom_ops_are_named_with_their_domain_and_node():
    model = text(
        """<ir_version: 8, opset_import: ["": 18, "trt": 1, "com.microsoft": 1, "mine": 1]>
        g (float[2] x, bool c) => (float[2] y) {
        [nms] t = trt.EfficientNMS_TRT(x) [gelu] u = com.microsoft.Gelu(t) [typo] v = NotAnOp(u) [call] w = mine.wrap(v)
        [if] y = If (c) <then_branch = a () => (float[2] o) { [deep] o = trt.Plugin(w) },
        else_branch = b () => (float[2] p) { p = Neg(w) }> }
        <domain: "mine", opset_import: ["": 18, "trt": 1]> wrap (x) => (y) { [inside] y = trt.Hidden(x) }"""
    )
    assert custom_ops(model) == [
        ("trt", "EfficientNMS_TRT", "nms"),
        ("", "NotAnOp", "typo"),
        ("trt", "Plugin", "deep"),
        ("trt", "Hidden", "inside"),
    ]
    with pytest.raises(SourceError, match=r"'EfficientNMS_TRT' of domain 'trt' \(node 'nms'\)") as caught:
        check_supported(model)
    assert "unknown to ONNX Runtime cannot be run here" in caught.value.problem


def test_an_operator_newer_than_the_models_opset_is_custom():
    body = "g (float[2] x) => (float[2] y) { [n] y = Gelu(x) }"  # in ONNX since opset 20
    assert custom_ops(text(f'<ir_version: 8, opset_import: ["": 18]> {body}')) == [("", "Gelu", "n")]
    assert custom_ops(text(f'<ir_version: 9, opset_import: ["": 20]> {body}')) == []


def graph_with_inputs(inputs):
    return text(f'<ir_version: 8, opset_import: ["": 18]> g ({inputs}) => (float[1] y) <float[1] k = {{1}}> {{ y = Identity(k) }}')


def test_image_input_picks_the_only_image_or_the_named_one():
    both = graph_with_inputs("float[1,3,4,4] image, float[1,2] size, int64[1,3,4,4] ids")
    assert image_input(both).name == "image"
    assert image_input(graph_with_inputs("uint8[1,4,4,3] raw")).name == "raw"
    assert image_input(graph_with_inputs("float[1,3,4,4] a, float[1,3,4,4] b"), "b").name == "b"
    assert image_input(graph_with_inputs("float[1,3,4] flat"), "flat").name == "flat"


WIDE = """<ir_version: 8, opset_import: ["": 18]> g (%s) => (float[1,4,4,3] y) { f = Cast<to=1>(raw) y = %s }"""


@pytest.mark.parametrize(
    ("inputs", "last", "found"),
    [
        ("int32[1,4,4,3] raw", "Neg(f)", "raw"),
        ("int64[1,4,4,3] raw", "Neg(f)", "raw"),
        ("int32[1,4,4,3] raw, float[1,4,4,3] image", "Add(f, image)", "image"),
        ("int32[1,4,4,3] raw", "Add(f, g) t = Transpose(raw) g = Cast<to=1>(t)", "raw"),
        ("int32[1,4,4,3] raw", "Add(f, g) t = Transpose(raw) g = Cast<to=7>(t)", None),
        ("int32[1,4,4,3] raw", "Add(f, g) t = Add(raw, raw) g = Cast<to=1>(t)", None),
        ("int32[1,4,4,3] raw", "Gather(f, raw)", None),
        ("int32[4,3] raw", "Neg(f)", None),
        ("int32[1,4,4,3] raw", "CastLike(raw, f)", None),
        ("bool[1,4,4,3] raw", "Neg(f)", None),
    ],
)
def test_whole_numbers_that_are_only_cast_to_float_are_an_image(inputs, last, found):
    model = text(WIDE % (inputs, last))
    if found is None:
        with pytest.raises(SourceError, match="no float input") as caught:
            image_input(model)
        assert "only a Cast to float reads" in caught.value.mend
    else:
        assert image_input(model).name == image_input(model, found).name == found


@pytest.mark.parametrize(
    ("inputs", "name", "says"),
    [
        ("int64[1,3] ids", None, r"no float input.*ids int64 \[1, 3\]"),
        ("float[1,3] vector", None, "four dimensions.*vector.*\n.*input.name"),
        ("float[3,h,w] image", None, "four dimensions.*image.*\n.*batch of one.*list"),
        ("float[1,3,4,4] a, float[1,3,4,4] b", None, r"several inputs.*a float.*b float"),
        ("float[1,3,4,4] a", "c", "no input 'c'.*a float"),
        ("float[1,3,4,4] a, int64[2] b", "b", "'b' takes no image"),
    ],
)
def test_image_input_lists_the_inputs_when_it_cannot_choose(inputs, name, says):
    with pytest.raises(SourceError, match=says):
        image_input(graph_with_inputs(inputs), name)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Neg(x)", False),
        ("q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)", True),
        ("q, t, u = DynamicQuantizeLinear(x) y = Cast<to=1>(q)", True),
        ("y = com.microsoft.QLinearSigmoid(x, s, z, s, z)", True),
        ("y = com.microsoft.DynamicQuantizeMatMul(x, z, s)", True),
        ("y = com.microsoft.MatMulNBits<K = 2, N = 1, bits = 8, block_size = 16>(x, z, s)", True),
    ],
)
def test_what_is_quantized_already_is_refused(body, expected):
    model = text(
        f"""<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g (float[2] x) => (float[2] y)
        <float s = {{0.1}}, uint8 z = {{3}}> {{ {body} }}"""
    )
    found = quantized_nodes(model)
    assert bool(found) is expected
    if expected:
        with pytest.raises(SourceError, match=f"quantized already: {found[0][0]}"):
            check_float(model)
    else:
        check_float(model)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("f = Cast<to = 1>(codes) m = Mul(f, scale) y = MatMul(x, m)", "weights of MatMul 'without a name' are codes of 8 bits"),
        ("m = Cast<to = 1>(half) y = MatMul(x, m)", "weights of MatMul 'without a name' are float16"),
        ("h = Cast<to = 10>(x) m = MatMul(h, half) y = Cast<to = 1>(m)", "weights of MatMul 'without a name' are float16"),
        ("m = Cast<to = 1>(brain) y = MatMul(x, m)", "weights of MatMul 'without a name' are bfloat16"),
        # An image of bytes, a grid of places, and a kernel of whole numbers are FP32 networks' own.
        ("f = Cast<to = 1>(codes) m = Mul(f, scale) y = Add(x, m)", ""),
        ("f = Cast<to = 1>(codes) y = MatMul(x, f)", ""),
        ("b = Cast<to = 2>(x) f = Cast<to = 1>(b) m = Mul(f, scale) y = MatMul(x, m)", ""),
    ],
)
def test_layers_with_rounded_weights_are_refused(made, says):
    model = text(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[2, 2] x) => (float[2, 2] y)
        <int8[2, 2] codes = {{1, -2, 3, 127}}, float scale = {{0.1}}, float16[2, 2] half = {{1, 2, 3, 4}},
        bfloat16[2, 2] brain = {{1, 2, 3, 4}}> {{ {made} }}"""
    )
    if not says:
        check_weights(model)
        return
    with pytest.raises(SourceError, match=f"quantized already: {says}"):
        check_weights(model)


@pytest.mark.parametrize(("slopes", "ops"), [([0.25, 1.0, -0.5], ["Mul", "Max"]), ([0.25, 1.5, 0.0], ["PRelu"])])
def test_prelu_without_branches_has_the_same_bits(slopes, ops):
    slopes = np.array(slopes, np.float32).reshape(3, 1, 1)
    node = helper.make_node("PRelu", ["x", "s"], ["y"], "act")
    value = np.random.default_rng(3).standard_normal((1, 3, 8, 8)).astype(np.float32)
    constants = {"s": numpy_helper.from_array(slopes, "s")}

    def result(nodes):
        shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in "xy"]
        graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], list(constants.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        return ort.InferenceSession(model.SerializeToString()).run(None, {"x": value})[0]

    made = list(branchless([node], constants))
    assert [one.op_type for one in made] == ops
    assert (made[-1].name, list(made[-1].output)) == ("act", ["y"])
    np.testing.assert_array_equal(result(made), result([node]))


def test_nodes_that_lead_to_a_tensor_include_what_bodies_read():
    branch = helper.make_graph([helper.make_node("Neg", ["b"], ["t"])], "t", [], [helper.make_empty_tensor_value_info("t")])
    other = helper.make_graph([helper.make_node("Abs", ["c"], ["e"])], "e", [], [helper.make_empty_tensor_value_info("e")])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "a"),
        helper.make_node("Relu", ["a"], ["b"], "b"),
        helper.make_node("Relu", ["a"], ["c"], "c"),
        helper.make_node("Relu", ["a"], ["unused"], "unused"),
        helper.make_node("If", ["switch"], ["d"], "d", then_branch=branch, else_branch=other),
        helper.make_node("Relu", ["d"], ["late"], "late"),
    ]
    assert [node.name for node in leading_to(nodes, ["d"])] == ["a", "b", "c", "d"]


def test_nodes_that_stand_before_what_they_read_are_put_in_order(tmp_path):
    """As converters to float16 append their Casts; ONNX Runtime runs such files."""
    vector = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    nodes = [onnx.helper.make_node("Relu", ["z"], ["y"]), onnx.helper.make_node("Neg", ["x"], ["z"])]
    graph = onnx.helper.make_graph(nodes, "g", vector[:1], vector[1:])
    file = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)
    assert [node.op_type for node in copied(load(file)).graph] == ["Neg", "Relu"]


def test_nodes_that_read_each_other_are_no_graph(tmp_path):
    vector = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    nodes = [onnx.helper.make_node("Add", ["x", "z"], ["y"]), onnx.helper.make_node("Neg", ["y"], ["z"])]
    graph = onnx.helper.make_graph(nodes, "g", vector[:1], vector[1:])
    file = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)
    with pytest.raises(SourceError, match=r"m\.onnx: is not a valid ONNX graph: .*cycle"):
        load(file)
