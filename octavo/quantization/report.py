"""report.md beside a quantized model: its manifest as a page to read. Equal manifests give equal pages; no time stands in them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.quantization.decisions import said
from octavo.quantization.int8.structure.targets import target_of

__all__ = ["alike", "integer_layers", "markdown"]

# Names listed in one cell; the manifest has all.
SHOWN = 8
# What stood for the graph as written, by its optimization level.
_WRITTEN = {
    "off": "off",
    "extended": "at level `extended` in place of off: below it this CPU's sums in integer operators of the file are not exact",
}
# dB that what was chosen lies below the best way for other reasons: an equalized way yields to one of 1 dB less.
_APART = 1.5
# Reasons that differ between nodes by a name or a figure.
_ALIKE = (
    (re.compile(r"^its input comes from .*"), "its input comes from a float node"),
    (re.compile(r"^placement\b.*"), "placement: float costs less here, borders included"),
    (re.compile(r"^repair\b.*"), "repair: given back to float, so that `int8.fidelity` holds"),
    (re.compile(r"^(\S+) is a constant$"), "an input is a constant"),
    (re.compile(r"^\S+ is \w+, not float32$"), "its input is not a float32 activation"),
)
# What preparation computes in parts is float for the reason that its parts have.
_PARTS = re.compile(r"^(in \d+ parts|\d+ of its \d+ parts are int8, and not .+?): ")


def markdown(manifest: Mapping[str, Any]) -> str:
    """The page of one variant.

    Args:
        manifest: as `write_manifest` gives it, with `made` as the stages `quantize_int8` and `qat` fill it.
    """
    made = manifest["made"]
    parts = [
        f"# {manifest['name']}: {manifest['variant']}",
        *_warnings(made["warnings"]),
        _table(("what", "value"), _summary(manifest)),
        *_tried(made.get("measured", {})),
        "## Nodes of the trained graph" if "training" in made else "## Nodes of the FP32 graph",
        _table(("precision", "nodes", "by op type"), _precisions(made["nodes"])),
        *_floats(made["nodes"]),
        *_executed(made["executed"], manifest["host"]["id"], made["settings"].get("target", "cpu")),
        *_runs(made["accepted"]),
        "## Made from",
        _table(("what", "value"), _origin(manifest)),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    made, settings = manifest["made"], manifest["made"]["settings"]
    size = f"{manifest['bytes'] / 1e6:.3f} MB, {made['size_ratio']:.1%} of FP32's {made['from_bytes'] / 1e6:.3f} MB"
    rows = [("size", size)]
    if "training" in made:
        rows += [(name.replace("_", " "), _text(value)) for name, value in made["training"].items()]
        rows.append(("file against the trained network", _listed(f"{name} {value}" for name, value in made["parity"].items())))
    else:
        rows.append(("corrected biases", f"{made['corrected_biases']} (`correction: {settings['correction']}`)"))
    measured = made.get("measured")
    if measured:
        rows += [
            ("way chosen", str(measured.get("chosen", settings["method"]))),
            ("tensors with channels equalized", str(measured.get("equalized_tensors", 0))),
            *_reached(measured),
            *_found(measured),
            *_dear(measured),
            *([("computes in float throughout", str(measured["in_float"]))] if "in_float" in measured else []),
            ("measured on", f"{measured['held_out_images']} calibration images that the statistics leave out"),
            *_for_calibration(measured),
            *([("placed by times of", str(measured["times_of"]))] if "times_of" in measured else []),
            *(
                [("float by prices, faster in INT8 here", _listed(measured["faster_in_int8"]))]
                if "faster_in_int8" in measured
                else []
            ),
        ]
    ran = made["executed"]
    rows.append(("layers decided INT8", integer_layers(ran, settings.get("target", "cpu"))))
    if "int8_share" in ran:
        rows.append(("multiplications in INT8", f"{ran['int8_share']:.1%}"))
    return rows


def integer_layers(ran: Mapping[str, Any], target: str) -> str:
    """How many layers were decided INT8, and how many are integer kernels where that could be looked at."""
    decided, integer = ran["int8_layers"], ran["int8_layers_integer"]
    if target_of(target).runs_here:
        return f"{decided}, of which {integer} run as integer kernels"
    others = f"ONNX Runtime's CPU, whose fusions are others, has integer kernels for {integer}"
    return f"{decided}, for `target: {target}`, which was not run; {others}"


def _reached(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What fidelity is: of a detector judged by its boxes the share of AP that it is expected to lose, else SQNR at the heads."""
    what, whole, found = "SQNR at the heads", f"{measured['all_int8_db']} dB", f"{measured['db']} dB"
    wanted = f"{measured['fidelity_db']} dB wanted"
    if "expected_loss" in measured:
        what = "expected loss of AP"
        whole = f"{10 ** (-measured['all_int8_db'] / 10):.1%} ({whole})"
        found = f"{measured['expected_loss']:.1%} ({found})"
    return [(f"{what}, all in INT8", whole), (f"{what}, as written", f"{found}, {wanted}")]


def _found(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of a detector that chooses rows itself, what `octavo.quantization.int8.noise.found` counted."""
    if "found_f1" not in measured:
        return []
    return [("F1 of the boxes to FP32's, by the rows that each chooses", str(measured["found_f1"]))]


def _for_calibration(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    """By what `octavo.quantization.int8.placed` placed once more."""
    count = measured.get("calibration_images")
    return [("given back to float by", f"these and {count} that ranges come from, which lost far more at first")] if count else []


def _dear(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `Search.settled` left out; `int8.fidelity` asks for it."""
    if "dear_db" not in measured:
        return []
    return [
        (
            f"not asked for: {measured['dear_db']} dB",
            f"{measured['dear_price']} times the time by the cost table; `fidelity: {measured['dear_db']:g}` has it",
        )
    ]


def _warnings(warnings: Sequence[str]) -> list[str]:
    return ["\n".join(f"- **Warning**: {_text(warning)}" for warning in warnings)] if warnings else []


def _tried(measured: Mapping[str, Any]) -> list[str]:
    tried = measured.get("tried_db", {})
    if not tried:
        return []
    page = ["## Ways tried", _table(("way", "SQNR dB, all in INT8"), [(name, f"{value}") for name, value in tried.items()])]
    whole = measured["all_int8_db"]
    if whole + _APART < max(tried.values()):
        page.append(
            f"Images far worse than the median one are cut down where ways are compared; in full, what was chosen has {whole} dB."
        )
    return page


def _precisions(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    counts = Counter((said(node["precision"], node.get("arithmetic", "")), node["op_type"]) for node in nodes)
    return [
        (
            precision,
            str(sum(count for (kind, _), count in counts.items() if kind == precision)),
            _listed(f"{count} {op}" for (kind, op), count in sorted(counts.items()) if kind == precision),
        )
        for precision in sorted({kind for kind, _ in counts})
    ]


def _floats(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for node in nodes:
        if node.get("arithmetic", node["precision"]) != "int8":
            groups[alike(node["reason"])].append(node)
    if not groups:
        return []
    rows = []
    for reason, members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        ops = Counter(node["op_type"] for node in members)
        names = [f"`{node['node']}`" for node in members]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        rows.append(
            (
                reason,
                str(len(members)),
                _listed(f"{count} {op}" for op, count in sorted(ops.items())),
                _listed(names[:SHOWN]) + more,
            )
        )
    return ["## Not in INT8, and why", _table(("reason", "nodes", "by op type", "which"), rows)]


def _executed(ran: Mapping[str, Any], host: str, target: str) -> list[str]:
    rows = [
        (kind, str(sum(ops.values())), _listed(f"{count} {op}" for op, count in sorted(ops.items())))
        for kind, ops in ran["kernels"].items()
    ]
    parts = [
        "## What ONNX Runtime runs",
        f"Its optimized graph (level `all`, on host {host}); `border` changes precision or layout and computes nothing, `other` is "
        "arithmetic on shapes and indices.",
        _table(("kind", "nodes", "by op type"), rows),
    ]
    if ran["unexpected"]:
        keys = ("node", "op_type", "decided", "runs", "kernel")
        parts += [
            "### Unexpected",
            *(
                []
                if target_of(target).runs_here
                else [f"Not of `target: {target}`, which the file is for and whose fusions are others."]
            ),
            _table(("node", "op type", "decided", "runs", "kernel"), [[each[key] for key in keys] for each in ran["unexpected"]]),
        ]
    if ran["unresolved"]:
        parts.append(f"No kernel was found by name for: {_listed(f'`{name}`' for name in ran['unresolved'])}.")
    return parts


def _runs(accepted: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            f"`{name}`",
            accepted["sqnr_db"][name],
            accepted["written_db"][name],
            accepted["off_on_db"][name],
            accepted["off_on_max"][name],
        )
        for name in accepted["sqnr_db"]
    ]
    heading = ("output", "to FP32, optimized, dB", "to FP32, as written, dB", "one to the other, dB", "largest difference")
    parts = [
        "## Runs before it was accepted",
        f"On {accepted['images']} images, ONNX Runtime's optimizations on and {_WRITTEN[accepted['written_level']]}.",
    ]
    parts += [_table(heading, rows)] if rows else []
    if "pasted" in accepted:
        names = _listed(f"`{name}`" for name in accepted["pasted"])
        parts.append(f"{names}: pasted at whole pixels; a rounding moves all that is pasted by one.")
    if "agreement" in accepted:
        parts.append(f"The class is the same with and without optimizations at {accepted['agreement']:.2%} of positions.")
    return parts


def _origin(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    made, host = manifest["made"], manifest["host"]
    if "calibration" in made:
        calibration = made["calibration"]
        counts = f"{calibration['samples']} counted, {calibration['held_out']} held out, list {calibration['images']}"
        images = ("calibration images", counts)
    else:
        images = ("training images", f"list {made['key']['training images']}")
    return [
        ("this file", f"sha256 {manifest['sha256']}"),
        ("FP32 model", f"sha256 {made['from_sha256']}"),
        images,
        ("settings", _listed(f"{key} {_setting(value)}" for key, value in sorted(made["settings"].items()))),
        ("versions", _listed(f"{name} {version}" for name, version in sorted(manifest["versions"].items()))),
        ("host", f"{host['id']} ({host['cpu']}, {host['cores']} cores, VNNI: {'yes' if host['vnni'] else 'no'})"),
        ("session entries", _listed(f"{key}={value}" for key, value in manifest["session"].items()) or "none"),
    ]


def _setting(value: Any) -> str:
    return f"`{value}`" if not isinstance(value, bool) else f"`{str(value).lower()}`"


def alike(reason: str) -> str:
    """A node's reason without what differs between nodes that stay float for the same one."""
    reason = _PARTS.sub("", reason)
    return next((group for pattern, group in _ALIKE if pattern.match(reason)), reason)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def _text(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _table(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(_text(cell) for cell in line) + " |" for line in lines)
