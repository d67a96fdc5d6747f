"""Tell what an ONNX file is: inputs, outputs, layers with their precision and MACs, and what FP16 and INT8 would make of it.

Takes FP32, FP16 and INT8 files (Q/DQ, QOperator, dynamic). Nothing is written. MACs are for one image.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from octavo.commands.tables import heading, show_table
from octavo.intake.described import described
from octavo.intake.inputs import parsed_size
from octavo.params.grammar import Int8
from octavo.progress import working
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.report import integer_layers

__all__ = ["arguments", "run"]

# Names listed of a group; `--json` has all.
SHOWN = 6


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--size", metavar="HxW", help="height x width of the input, where the graph leaves them open")
    parser.add_argument("--input", metavar="NAME", help="the graph input that takes the image, where there are several")
    targets = get_args(Int8.model_fields["target"].annotation)
    parser.add_argument(
        "--target", choices=targets, default="cpu", help="the `int8.target` that INT8 is foreseen for (default: cpu)"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(chosen: argparse.Namespace) -> None:
    """Describe the file and print it."""
    size = parsed_size(chosen.size) if chosen.size else None
    with working(f"reading {chosen.model}"):
        found = described(chosen.model, size, Int8(target=chosen.target), chosen.input)
    if chosen.json:
        print(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))
        return
    show_table(("", ""), _head(found))
    heading("Inputs and outputs")
    values = [("input", one) for one in found["inputs"]] + [("output", one) for one in found["outputs"]]
    show_table(("", "name", "type", "shape"), [(kind, one["name"], one["dtype"], _shape(one["shape"])) for kind, one in values])
    heading("Operators")
    print(", ".join(f"{count} {op}" for op, count in found["ops"].items()) or "none")
    _custom(found["custom_ops"])
    heading("Precision of the layers, as the file says it")
    rows = [(name, *map(_count, (one["layers"], one["macs"], one["parameters"]))) for name, one in found["precisions"].items()]
    show_table(("precision", "layers", "MACs", "parameters"), rows, right=("layers", "MACs", "parameters"))
    _runs(found["runs"], found["made_for"] or "cpu")
    _foreseen(found)
    heading("Layers")
    columns = ("layer", "op", "output", "MACs", "parameters", "precision", "weights", "ONNX Runtime runs", "note")
    rows = [
        (
            one["name"],
            one["op_type"],
            _shape(one["output"]),
            None if one["macs"] is None else _count(one["macs"]),
            _count(one["parameters"]),
            one["precision"],
            one["weights"] if one["weights"] != one["precision"] else None,
            f"{one['kernel']} ({one['runs']})" if one["kernel"] else None,
            one["note"] or None,
        )
        for one in found["layers"]
    ]
    told = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    show_table([columns[place] for place in told], [[row[place] for place in told] for row in rows], right=("MACs", "parameters"))
    for note in found["notes"]:
        print(f"note: {note}")


def _head(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    opset = ", ".join(f"{domain} {version}" for domain, version in found["opset"].items())
    rows = [
        ("file", f"{found['file']}, {_bytes(found['bytes'])}"),
        ("opset", f"{opset} (IR version {found['ir_version']})"),
        ("quantized", ", ".join(found["quantized"]) or "no: float"),
        ("parameters", f"{_count(found['parameters'])}; all constants {_bytes(found['constants_bytes'])}"),
        ("MACs", _macs(found)),
    ]
    decoder = found["decoder"]
    if decoder["family"]:
        classes = f", {decoder['classes']} classes" if decoder["classes"] else ""
        others = f"; would fit, too: {', '.join(decoder['others'])}" if decoder["others"] else ""
        rows.append(("detector family", f"{decoder['family']}{classes} ({decoder['networks']}){others}"))
    else:
        rows.append(("detector family", f"none: {decoder['why']}"))
    return rows


def _macs(found: Mapping[str, Any]) -> str:
    if found["macs"] is None:
        return "not known: no sizes"
    by = {
        "graph": "the graph's own size",
        "asked": "--size",
        "exporter": "as its exporter wrote beside the graph, which leaves it open: --size HxW sets it",
        "default": "a default, as the graph leaves it open: --size HxW sets it",
    }
    at = f" at {found['size'][0]}x{found['size'][1]} ({by[found['size_by']]}), one image" if found["size"] else ""
    unknown = len(found["macs_unknown"])
    return _count(found["macs"]) + at + (f"; {unknown} layers of unknown size are left out" if unknown else "")


def _custom(operators: Sequence[Mapping[str, Any]]) -> None:
    if not operators:
        return
    heading("Operators that ONNX Runtime lacks")
    rows = [
        (one["op_type"], one["domain"], one["nodes"], one["body"] or "none: the graph is cut before it to run, files keep it")
        for one in operators
    ]
    show_table(("operator", "domain", "nodes", "body that runs in its place"), rows, right=("nodes",))


def _runs(ran: Mapping[str, Any], target: str) -> None:
    heading("What ONNX Runtime runs on this machine (its optimized graph)")
    if ran["refused"]:
        print(f"nothing: {ran['refused']}")
        return
    rows = [(kind, sum(ops.values()), _listed(ops)) for kind, ops in ran["kernels"].items()]
    show_table(("kind", "nodes", "by op type"), rows, right=("nodes",))
    if ran["int8_layers"]:
        print(f"layers in int8: {integer_layers(ran, target)}")
    # Where it was not made to run, nothing is.
    for odd in ran["unexpected"][:SHOWN] if target_of(target).runs_here else ():
        print(f"unexpected: {odd['node']} ({odd['op_type']}) is {odd['decided']} and runs as {odd['runs']} ({odd['kernel']})")


def _foreseen(found: Mapping[str, Any]) -> None:
    expected, int8 = found["expected"], found["int8"]
    if any(expected.values()):
        heading("Expected bytes of all constants")
        whole = expected["fp32"]
        rows = [
            (name, _bytes(size), f"{size / whole:.0%}" if whole else "-") for name, size in expected.items() if size is not None
        ]
        show_table(("variant", "constants", "of FP32"), rows, right=("constants", "of FP32"))
    heading(f"INT8 (target {int8['target']})")
    if int8["refused"]:
        print(f"not made: {int8['refused']}")
        return
    print(f"{int8['layers']} layers of weights can be INT8 by the rules that `quantize_int8` begins with")
    rows = [
        (
            group["reason"],
            len(group["nodes"]),
            _listed(group["ops"]),
            ", ".join(group["nodes"][:SHOWN]) + (f" and {len(group['nodes']) - SHOWN} more" if len(group["nodes"]) > SHOWN else ""),
        )
        for group in int8["float"]
    ]
    if rows:
        show_table(("stays float, because", "nodes", "by op type", "which"), rows, right=("nodes",))
    else:
        print("nothing stays float by rule")
    print("decided by measurement alone, when `quantize_int8` runs:")
    for words in int8["later"]:
        print(f"- {words}")


def _listed(ops: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {op}" for op, count in sorted(ops.items()))


def _shape(shape: Sequence[Any] | None) -> str | None:
    return None if shape is None else "x".join("?" if size is None else str(size) for size in shape)


def _count(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**4)):
        if number >= size:
            return f"{number / (size if unit != 'k' else 1000):.2f} {unit}"
    return str(number)


def _bytes(number: int) -> str:
    return f"{number / 1e6:.2f} MB" if number >= 10_000 else f"{number} bytes"
