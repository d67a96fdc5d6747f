"""NumPy's and SciPy's linear algebra on one thread.

OpenBLAS, which both their wheels bring, starts a thread a core and lets those that wait spin: where other work runs beside it, a
hundred small products cost three times the processor time that one thread needs, for no less wall time. One thread also sums in one
order, whatever the machine's number of cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import scipy

__all__ = ["one_blas_thread"]

_PREFIXES, _SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Set the number of threads of each one's own OpenBLAS to one, and back; without one (another BLAS) nothing happens."""
    found = _controls()
    before = [get() for get, _ in found]
    for _, put in found:
        put(1)
    try:
        yield
    finally:
        for (_, put), threads in zip(found, before, strict=True):
            put(threads)


def _controls() -> list[tuple]:
    """(get, set) of each OpenBLAS that lies beside the two, as their wheels have it; opening it again gives the loaded one."""
    files = []
    for package in (np, scipy):
        beside = Path(package.__file__).parent
        files += sorted([*beside.parent.glob(f"{package.__name__}.libs/*openblas*"), *beside.glob(".dylibs/*openblas*")])
    found = []
    for file in files:
        library = ctypes.CDLL(str(file))
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                get, put = (getattr(library, f"{prefix}_{what}_num_threads{suffix}", None) for what in ("get", "set"))
                if get is not None and put is not None:
                    found.append((get, put))
    return found
