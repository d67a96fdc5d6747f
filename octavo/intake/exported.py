"""What ultralytics' exporter writes into a file's properties: `names`, a Python dictionary of index to name, and `imgsz`, a list.

Source: `Exporter.metadata` of https://github.com/ultralytics/ultralytics (ultralytics/engine/exporter.py); YOLOv5's own exporter
writes `names` as well.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

__all__ = ["exported_names", "exported_size"]


def exported_names(metadata: Mapping[str, str]) -> tuple[str, ...] | None:
    """The classes' names in the order of their index; None where they are not told, have gaps, or one of them is there twice."""
    names = _value(metadata, "names")
    if not isinstance(names, dict) or set(names) != set(range(len(names))):
        return None
    listed = tuple(str(names[index]) for index in range(len(names)))
    return listed if len(set(listed)) == len(listed) else None


def exported_size(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """(height, width) that a graph was exported for, also where it leaves them open; None where that is not told."""
    sides = _value(metadata, "imgsz")
    if isinstance(sides, list) and len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides):
        return sides[0], sides[1]
    return None


def _value(metadata: Mapping[str, str], key: str) -> Any:
    try:
        return ast.literal_eval(metadata.get(key, ""))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
