"""What a reader of the figures must know beside them: on what they were measured, what falls short and what was not made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.evidence.series import headline_setting
from octavo.layout import INT8_VARIANTS

__all__ = ["caption", "held_out", "missing", "remarks", "shortfalls", "stood_in"]


def caption(accuracy: Mapping[str, Any], latency: Mapping[str, Any]) -> str:
    """On what the figures were measured: images, host, execution provider and threads; and how much of each file is INT8."""
    setting = (headline_setting(latency) or "").split(".")
    place = {"t": "threads", "b": "batch"}
    words = [setting[0]] + [
        f"{place[part[0]]} {part[1:]}" if part[:1] in place and part[1:].isdigit() else part for part in setting[1:]
    ]
    read = f", outputs read as {accuracy['decoder']}" if "decoder" in accuracy else ""
    if "genuine_pairs" in accuracy:
        read += f", {accuracy['genuine_pairs']:,} genuine and {accuracy['impostor_pairs']:,} impostor pairs"
        read += f" of {accuracy['identities']:,} identities"
    host = f"{latency['host.cpu']}, {latency['host.cores']} cores, VNNI: {'yes' if latency['host.vnni'] else 'no'}"
    held = [f"{part} ({accuracy[f'images.{part}']} images)" for part in held_out(accuracy)]
    apart = f"; held out, never calibrated on: {', '.join(held)}" if held else ""
    shares = {variant: accuracy[f"{variant}.int8_share"] for variant in INT8_VARIANTS if f"{variant}.int8_share" in accuracy}
    integers = ", ".join(f"{variant} {share:.0%}" for variant, share in shares.items())
    return (
        f"{accuracy['images']} images, {accuracy['labelled']} labelled{apart}{read}; speed on host {latency['host.id']} ({host}), "
        f"{', '.join(words)}, session {latency['host.session']}" + (f"; multiplications in INT8: {integers}" if integers else "")
    )


def held_out(accuracy: Mapping[str, Any]) -> list[str]:
    """Names of the datasets that were not calibrated on and have figures of their own."""
    return [key.removeprefix("images.") for key in accuracy if key.startswith("images.")]


def remarks(record: Mapping[str, Any]) -> list[str]:
    """What a reader of accuracy.json must know, and which gates did not pass, a line each."""
    words = {
        "decoder": "outputs read as",
        "flip": "vectors:",
        "holdout": "held out, with figures of their own:",
        "pairs": "note: compared are",
        "warning": "note:",
    }
    found = [f"{words[key]} {record[key]}" for key in words if key in record]
    found += [f"note: {line}" for line in _moved(record)]
    return found + [f"gate {key}: {value}" for key, value in record.items() if ".gate." in key and value != "pass"]


def stood_in(record: Mapping[str, Any]) -> list[str]:
    """What figures are about where that is not the whole graph as its file has it, one line each.

    Args:
        record: as stage `validate` writes it.
    """
    mark = "custom_ops."
    ran = {key.removeprefix(mark): value for key, value in record.items() if key.startswith(mark)}
    found = [f"custom operator {operator}: {how}" for operator, how in ran.items()]
    if any(how.startswith("cut") for how in ran.values()):
        found.append("every figure and time here is of the part before the cut")
    return [*found, *([f"fidelity is that of {record['compared']}"] if "compared" in record else []), *_moved(record)]


def missing(record: Mapping[str, Any]) -> list[str]:
    """Variants that params.yaml asks for and that were not made, one line each.

    Args:
        record: as stage `validate` writes it.
    """
    return [f"{key.removesuffix('.skipped')} is skipped: {value}" for key, value in record.items() if key.endswith(".skipped")]


def shortfalls(record: Mapping[str, Any]) -> list[str]:
    """What a reader of latency.json must not overlook: INT8 variants that are larger or slower than FP32.

    Args:
        record: as stage `benchmark` writes it.

    Returns:
        One line each; a slower one whose interval of the median meets FP32's is said to be within noise, and one for another
        runtime to be that.
    """
    found = []
    for variant in INT8_VARIANTS:
        if record.get(f"{variant}.size_ratio", 0) > 1:
            found.append(f"{variant} is larger than FP32: {record[f'{variant}.size_ratio']:.0%} of its bytes")
        for key in sorted(key for key in record if key.startswith(f"{variant}.") and key.endswith(".speedup")):
            # As it is shown: 1.00x is not slower.
            if round(record[key], 2) < 1:
                setting = key.removeprefix(f"{variant}.").removesuffix(".speedup")
                apart = record[f"{variant}.{setting}.median_low_ms"] > record[f"fp32.{setting}.median_high_ms"]
                target = record.get(f"{variant}.target")
                found.append(
                    f"{variant} is slower than FP32 at {setting}: {record[key]:.2f}x"
                    + ("" if apart else ", which is within noise")
                    + (f"; it is for {target}, whose speed this does not tell" if target else "")
                )
    return found


def _moved(record: Mapping[str, Any]) -> list[str]:
    """Of outputs whose dB is that of where they stand."""
    if "pasted" not in record:
        return []
    return [
        f"{record['pasted']}: pasted at whole pixels, and a rounding moves all that is pasted by one: low `sqnr_db` and cosines "
        "there need not mean a worse mask"
    ]
