"""Questions about a graph: its image input, whether it is quantized, operators that cannot be run."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from octavo.errors import OctavoError, SourceError
from octavo.graph.operators import MOVES

__all__ = ["check_float", "check_ranks", "check_supported", "custom_ops", "image_input", "quantized_nodes", "wide_pixels"]

# Domains, besides ONNX's own, with kernels in every ONNX Runtime for CPUs.
RUNTIME_DOMAINS = frozenset({"ai.onnx.ml", "com.microsoft"})
IMAGE_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.UINT8})
# TensorFlow's of pixels, which the graph casts to float.
WIDE_TYPES = frozenset({ir.DataType.INT32, ir.DataType.INT64})
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
# Those of com.microsoft with weights alone in codes.
QUANTIZED_WEIGHTS = frozenset({"GatherBlockQuantized", "MatMulBnb4", "MatMulFpQ4", "MatMulNBits"})
# Operators of an integer graph; QLinearConv, QLinearMatMul and com.microsoft's QLinear* and QGemm begin alike.
# fmt: off
QUANTIZED_OPS = QUANTIZED_WEIGHTS | frozenset((
    "ConvInteger", "DequantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger",
    "MatMulIntegerToFloat", "QAttention", "QGemm", "QuantizeLinear",
))
# fmt: on
SHOWN = 5


def custom_ops(model: ir.Model) -> list[tuple[str, str, str]]:
    """Operators that ONNX Runtime's CPU build has no kernel for, as far as their names tell.

    Subgraphs and the bodies of model-local functions are looked into; an operator of the ONNX domain counts when the onnx
    package knows no such operator at the model's opset. ai.onnx.ml and com.microsoft are accepted as they are.

    Returns:
        (domain, op type, node name), in graph order.
    """
    local = {(function.domain, function.name) for function in model.functions.values()}
    found = []
    for body in (model.graph, *model.functions.values()):
        opset = body.opset_imports.get("", model.opset_imports.get("", 1))
        for node in ir.traversal.RecursiveGraphIterator(body):
            if (node.domain, node.op_type) in local or node.domain in RUNTIME_DOMAINS:
                continue
            if node.domain == "" and _in_onnx(node.op_type, opset):
                continue
            found.append((node.domain, node.op_type, node.name or ""))
    return found


def check_supported(model: ir.Model) -> None:
    """Refuse a graph with operators that ONNX Runtime does not know.

    Raises:
        SourceError: naming each operator's type, node and domain (the first few).
    """
    unknown = custom_ops(model)
    if not unknown:
        return
    listed = "; ".join(
        f"op {op_type!r} of domain {domain or 'ai.onnx'!r} (node {name or 'without a name'!r})"
        for domain, op_type, name in unknown[:SHOWN]
    )
    more = f"; and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
    raise SourceError(
        f"the graph holds custom operators: {listed}{more}; an operator unknown to ONNX Runtime cannot be run here",
        "export it to an ONNX file and give that as `source: {kind: onnx}`, which takes custom operators",
    )


def check_ranks(model: ir.Model) -> None:
    """Refuse a graph with an input of which not even the number of dimensions is stated: ONNX Runtime takes it, ONNX does not.

    Raises:
        SourceError: naming the input.
    """
    for value in model.graph.inputs:
        if value.shape is None and isinstance(value.type, ir.TensorType):
            raise SourceError(
                f"the input {value.name!r} has no shape in the file, not even a number of dimensions",
                "export it again with one, or write one into the file: "
                f"`onnx.helper.make_tensor_value_info({value.name!r}, 1, ['batch', 3, 'height', 'width'])` in place of it, numbers "
                "where sizes are fixed",
            )


def image_input(model: ir.Model, name: str | None = None) -> ir.Value:
    """The graph input that takes the image: the named one, else the only 4-D float or uint8 one, else the only one of wide pixels.

    A named input only needs the type; initializers that stand among the inputs are none. Wide pixels are a 4-D int32 or int64
    input that nothing reads but Casts to float, moved about before or not.

    Raises:
        SourceError: no such input, several without a name, or one without a shape; the inputs are listed.
    """
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    listed = ", ".join(f"{value.name} {_described(value)}" for value in inputs) or "none"
    wide = [value for value in inputs if wide_pixels(value)]
    typed = [value for value in inputs if value.dtype in IMAGE_TYPES] + wide
    if name is not None:
        chosen = [value for value in inputs if value.name == name]
        if not chosen:
            raise SourceError(
                f"the graph has no input {name!r}; its inputs: {listed}",
                "set `input.name` in params.yaml, or a command's `--input`, to one of them",
            )
        if chosen[0] not in typed:
            raise SourceError(
                f"input {name!r} takes no image: it is {_described(chosen[0])}; the inputs: {listed}", "set `input.name`"
            )
        return chosen[0]
    if not typed:
        raise SourceError(
            f"the graph has no float input; its inputs: {listed}",
            "an image model takes a 4-D float or uint8 tensor, or int32 or int64 that only a Cast to float reads: export it so",
        )
    check_ranks(model)
    images = [value for value in typed if value not in wide and value.shape is not None and len(value.shape) == 4] or wide
    if not images:
        alone = any(value.shape is not None and len(value.shape) == 3 for value in typed)
        raise SourceError(
            f"no input of the graph has four dimensions; its inputs: {listed}",
            # torchvision's detectors take a list of images, and torch.onnx.export makes an input of each.
            "an image comes in a batch of one: export a module whose forward(batch) calls this one with list(batch)"
            if alone
            else "set `input.name` in params.yaml",
        )
    if len(images) > 1:
        raise SourceError(
            f"several inputs could take the image: {listed}",
            "set `input.name` in params.yaml, or a command's `--input`, to the one that does",
        )
    return images[0]


def wide_pixels(value: ir.Value) -> list[ir.Value]:
    """A graph input that is a 4-D int32 or int64 tensor and what it is moved to before Casts to float; empty of any other input."""
    if value.dtype not in WIDE_TYPES or value.shape is None or len(value.shape) != 4 or not value.uses():
        return []
    held = [value]
    for one in held:
        if one.is_graph_output():
            return []
        for node, place in one.uses():
            if node.op_type == "Cast" and node.attributes["to"].as_int() in FLOATS:
                continue
            if node.op_type not in MOVES or node.domain not in ("", "ai.onnx") or place > 0:
                return []
            held += node.outputs
    return held


def quantized_nodes(model: ir.Model) -> list[tuple[str, str]]:
    """(op type, node name) of what makes a graph integer already: Q/DQ, QLinear and Integer operators, subgraphs included."""
    return [
        (node.op_type, node.name or "without a name")
        for body in (model.graph, *model.functions.values())
        for node in ir.traversal.RecursiveGraphIterator(body)
        if node.op_type in QUANTIZED_OPS or node.op_type.startswith("QLinear")
    ]


def check_float(model: ir.Model, error: type[OctavoError] = SourceError) -> None:
    """Refuse a graph that is quantized already: rounding it again would stack two losses, and its ranges are not FP32's.

    Args:
        error: what is raised.

    Raises:
        OctavoError: of the type `error`, naming the first few of its nodes and how many there are.
    """
    found = quantized_nodes(model)
    if not found:
        return
    listed = ", ".join(f"{op_type} {name!r}" for op_type, name in found[:SHOWN])
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise error(
        f"the graph is quantized already: {listed}{more}",
        "give the FP32 model that it was made from (`source.file`); everything here starts from FP32",
    )


def _in_onnx(op_type: str, opset: int) -> bool:
    try:
        onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return True


def _described(value: ir.Value) -> str:
    shape = "of unknown shape" if value.shape is None else f"[{', '.join(str(d) for d in value.shape)}]"
    return f"{value.dtype.name.lower() if value.dtype is not None else 'not a tensor'} {shape}"
