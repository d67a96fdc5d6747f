"""What a model's outputs mean: one module a task, one registry line each.

A task's `Score` takes one image's outputs at a time and gives per-image scores and the task's metrics. Tasks without an entry
are validated by fidelity alone.
"""

from __future__ import annotations

from octavo.tasks import classification

__all__ = ["SCORES"]

SCORES = {"classification": classification.ClassificationScore}
