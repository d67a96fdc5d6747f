"""The fingerprint of the machine: a speed figure never goes without it."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import onnxruntime

from octavo.files import sha256_bytes

__all__ = ["FEATURES", "cores", "cpu_features", "fingerprint", "gpu", "has_vnni", "memory_limit", "versions"]

# The instruction sets that decide which integer kernels run.
FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")


@functools.cache
def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    fields: dict[str, str] = {}
    for key, _, value in pairs:
        fields.setdefault(key.strip(), value.strip())
    return fields


def cpu_features() -> list[str]:
    """Those of `FEATURES` that this CPU has; empty where /proc/cpuinfo does not tell (not Linux)."""
    flags = set((_cpuinfo().get("flags") or _cpuinfo().get("Features") or "").split())
    return [feature for feature in FEATURES if feature in flags]


def has_vnni() -> bool:
    """Whether the CPU multiplies uint8 by int8 into int32 without an intermediate int16 that can saturate.

    x86 without it (AVX2, AVX512F alone) saturates in ONNX Runtime's U8S8 kernels (onnxruntime #5849, #6004); ARM never does.
    """
    x86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
    return not x86 or any(feature in cpu_features() for feature in ("avx512_vnni", "avx_vnni", "amx_int8"))


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_limit() -> int:
    """Bytes of memory that this process may use: the machine's, or what its container (cgroup) allows."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            allowed = Path(limit).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if allowed.isdigit():
            total = min(total, int(allowed)) or int(allowed)
    return total


@functools.cache
def gpu() -> str | None:
    """The first NVIDIA GPU's name as `nvidia-smi` has it; None where there is none, or none that this container may use."""
    try:
        query = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return query.stdout.strip().splitlines()[0] if query.stdout.strip() else None


def versions() -> dict[str, str]:
    """Versions of what decides the bytes and the speed of a model."""
    import numpy
    import onnx

    return {
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def fingerprint() -> dict[str, Any]:
    """What this machine is, without its name or anything else that identifies its owner.

    Returns:
        `cpu` (model name), `cores`, `features`, `vnni`, `memory_gib`, `os`, `gpu`, `onnxruntime`, and `id`: 12 hex digits over
        all of these. Figures are compared only between equal ids.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    facts: dict[str, Any] = {
        "cpu": _cpuinfo().get("model name") or platform.processor() or platform.machine(),
        "cpu_family": "/".join(_cpuinfo().get(key, "?") for key in ("vendor_id", "cpu family", "model")),
        "cores": cores(),
        "features": cpu_features(),
        "vnni": has_vnni(),
        "memory_gib": round(memory / 2**30),
        "os": f"{platform.system()} {platform.machine()}",
        "gpu": gpu(),
        "onnxruntime": onnxruntime.__version__,
    }
    facts["id"] = sha256_bytes(repr(sorted(facts.items())).encode())[:12]
    return facts
