"""Which variant is the best for this machine, and which come next where it does not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from octavo.deploy.artifact import Artifact

__all__ = ["FALLBACK", "chain", "fastest", "measured"]

# Each was made from the one behind it: what does not run here is replaced by what is nearer to FP32.
FALLBACK = ("int8", "qat", "int8_dynamic", "fp16", "fp32")
# Latencies that differ by less than this share are alike: what keeps more of FP32 is taken then.
ALIKE = 0.05


def fastest(latencies: Mapping[str, float], artifacts: Mapping[str, Artifact]) -> str:
    """The variant with the least latency; of those within 5 % of it the one that keeps most of FP32, then the smallest file.

    Args:
        latencies: variant to ms.
        artifacts: at least these variants.
    """
    least = min(latencies.values())
    alike = [variant for variant, taken in latencies.items() if taken <= least * (1 + ALIKE)]
    return max(alike, key=lambda variant: (artifacts[variant].kept, -artifacts[variant].manifest["bytes"]))


def chain(first: str, variants: Sequence[str]) -> list[str]:
    """The order in which variants are tried: the best, then the others from small to exact."""
    return [first, *(variant for variant in FALLBACK if variant in variants and variant != first)]


def measured(artifacts: Mapping[str, Artifact], providers: Callable[[Artifact], Sequence[str]], threads: int) -> dict[str, float]:
    """What `benchmark` measured of each variant on a machine like this one, ms; empty unless it did so for all of them.

    Args:
        artifacts: by variant.
        providers: those of an artifact that are there.
        threads: of a run.
    """
    found = {}
    for variant, artifact in artifacts.items():
        taken = [artifact.measured_ms(provider, threads) for provider in providers(artifact)]
        known = [ms for ms in taken if ms is not None]
        # One that would run elsewhere than where it was timed is not known.
        if not known or taken[0] is None:
            return {}
        found[variant] = taken[0]
    return found
