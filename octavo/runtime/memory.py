"""How freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["return_freed_blocks"]

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
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, above)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
