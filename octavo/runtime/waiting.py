"""How much of its time a thread is kept off the processor by what else the machine does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Waiting"]

# Linux: nanoseconds on a core, nanoseconds ready to run without one, time slices (Documentation/scheduler/sched-stats.rst).
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def _times() -> tuple[int, int] | None:
    try:
        ran, waited, *_ = map(int, _SCHEDSTAT.read_text().split())
    except (OSError, ValueError):
        return None
    return ran, waited


@dataclass(frozen=True)
class Waiting:
    """The calling thread, from here on.

    Attributes:
        begun: (nanoseconds on a core, nanoseconds that it waited for one) so far; None where the system does not say.
    """

    begun: tuple[int, int] | None = field(default_factory=_times)

    @property
    def share(self) -> float:
        """Of the time since that the thread had something to do, the share in which it had no core, 0 to 1; 0 where nobody knows.

        Asked for in the same thread. Waiting for a file, or for other threads without spinning, is neither.
        """
        now = _times()
        if self.begun is None or now is None:
            return 0.0
        ran, waited = (after - before for before, after in zip(self.begun, now, strict=True))
        return waited / max(ran + waited, 1)
