"""How freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

__all__ = ["return_freed", "return_freed_blocks"]

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT = 64 << 20


def return_freed_blocks(above: int) -> None:
    """Have blocks above a size mapped one by one, so that each goes back to the system when it is freed.

    glibc raises its own threshold to the largest block that was ever freed (up to 32 MiB) and keeps what is below: a process that
    fetches a network's tensors then holds twice what it uses, and more with every image. Mapping costs a page fault for every
    4 KiB. The setting holds for the process until it is set again; other C libraries are left as they are.

    Args:
        above: bytes.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, above)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def return_freed(*, cycles: bool = False) -> None:
    """Give the system back what was freed so far, whatever its size: for where a step ends that made many copies of a network.

    Weights of a few MB lie between blocks that live on, and glibc gives back the end of its heap alone: of 850 MB that quantizing
    SSD300 (143 MB) held once its ways were tried, 350 were free. It takes milliseconds.

    Args:
        cycles: graphs that nobody holds any more go first; they are cycles, and lie in memory until these are looked for.
    """
    if cycles:
        gc.collect()
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Any:
    """A function of it; None where there is none."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
