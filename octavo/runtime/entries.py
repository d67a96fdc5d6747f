"""Session entries that a machine needs so that INT8 files have right results on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.runtime.host import has_vnni

__all__ = ["exact_from", "session_config", "session_warning", "session_words"]

# Operators that sum products of uint8 and int8; as Q/DQ say it, layers are computed in float where nothing is optimized.
_INTEGER_SUMS = frozenset(
    {"DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QGemm", "QLinearConv", "QLinearMatMul"}
)


def session_config(*, fits16: bool = False) -> dict[str, str]:
    """Session entries that this machine needs for right results.

    Args:
        fits16: the file's weights leave room for sums of 16 bits (`int8.target: cpu-no-vnni`) or it has no integer kernels, so that
            defaults are right.

    On x86 without VNNI, ONNX Runtime's uint8 x int8 kernels add pairs of products in a saturating int16: EfficientNet-Lite0
    falls from 19 dB to 7 dB. `session.x64quantprecision` makes it take uint8 x uint8 kernels there: exact, and slower.
    """
    return {} if fits16 or has_vnni() else {"session.x64quantprecision": "1"}


def session_words(entries: Iterable[Mapping[str, str]]) -> str:
    """The session entries of several files in one line; `defaults` where there are none."""
    said = dict(sorted(pair for own in entries for pair in own.items()))
    return ", ".join(f"{key}={value}" for key, value in said.items()) or "defaults"


def session_warning(entries: Iterable[Mapping[str, str]]) -> str | None:
    """What a user of this machine must know about INT8 on it, or None.

    Args:
        entries: of each file that is run, as `session_config` gives them.
    """
    if not any(entries):
        return None
    return (
        "this CPU has no VNNI: INT8 runs with session.x64quantprecision=1 here (exact, slower). A service on such a CPU without "
        "that session entry loses accuracy by saturation; set it there (with optimization level extended or all, below which files "
        "of `format: qoperator` and int8_dynamic saturate all the same), or quantize with int8.target: cpu-no-vnni"
    )


def exact_from(op_types: Iterable[str]) -> str:
    """The lowest optimization level at which a graph of these operators has exact sums on this machine: `off` or `extended`.

    What `session_config` asks for on x86 without VNNI is one of ONNX Runtime's graph optimizations of level `extended`: below it
    integer operators that stand in the file saturate whatever the session asks for.
    """
    return "extended" if session_config() and not _INTEGER_SUMS.isdisjoint(op_types) else "off"
