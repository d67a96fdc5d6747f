"""Both sides of the comparison: models, gates' bounds and metrics, from the working tree or from a commit's objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from octavo.layout import metrics_dir
from octavo.params.grammar import Gates, ModelSpec
from octavo.review.git import git, git_bytes
from octavo.review.markdown import code

__all__ = ["LEDGER", "Side", "read_side"]

Record = Mapping[str, Any]
# metrics/hosts/<host id>/<model>.json: latency figures of every host that has measured.
LEDGER = Path("metrics") / "hosts"


@dataclass
class Side:
    """What one side has.

    Attributes:
        name: `the base` or `the head`, for sentences.
        commit: 40 hex digits; None is the working tree.
        models: in the order of params.yaml.
        bounds: by model, `validate.gates` with `auto` told; None where params.yaml cannot be read.
        accuracy, latency: by model, the flat records; a model without a readable one is missing.
        notes: sentences on what cannot be read.
    """

    name: str
    commit: str | None
    models: list[str] = field(default_factory=list)
    bounds: dict[str, Gates | None] = field(default_factory=dict)
    accuracy: dict[str, Record] = field(default_factory=dict)
    latency: dict[str, Record] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def text(self, path: str | Path) -> str | None:
        """A file's text; None where there is none."""
        path = Path(path)
        if self.commit is not None:
            found = git_bytes("cat-file", "blob", f"{self.commit}:./{path.as_posix()}")
        else:
            found = path.read_bytes() if path.is_file() else None
        return found.decode(errors="replace") if found is not None else None

    def record(self, path: str | Path) -> Record | None:
        """A flat JSON record; None where there is none, and with a sentence in `notes` where it is broken."""
        text = self.text(path)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            self.notes.append(f"{code(path)} of {self.name} is not readable JSON ({code(error)}): its figures are left out.")
            return None
        if not isinstance(found, dict):
            self.notes.append(f"{code(path)} of {self.name} holds no record: its figures are left out.")
            return None
        return {str(key): one for key, one in found.items() if isinstance(one, str | int | float)}


def read_side(name: str, commit: str | None) -> Side:
    """Read params.yaml and the metrics of its models.

    Args:
        name: `the base`, `the head`.
        commit: 40 hex digits; None reads the working tree.
    """
    side = Side(name, commit)
    blocks = _blocks(side)
    side.models = list(blocks) if blocks is not None else _measured(side)
    side.bounds = {model: _bounds((blocks or {}).get(model)) for model in side.models}
    for kind, records in (("accuracy.json", side.accuracy), ("latency.json", side.latency)):
        for model in side.models:
            record = side.record(metrics_dir(model) / kind)
            if record is not None:
                records[model] = record
    return side


def _blocks(side: Side) -> dict[str, Any] | None:
    text = side.text("params.yaml")
    if text is None:
        side.notes.append(f"There is no {code('params.yaml')} in {side.name}: models are those with metrics.")
        return None
    try:
        params = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        side.notes.append(
            f"{code('params.yaml')} of {side.name} is not readable YAML ({code(error)}): models are those with metrics, "
            "and what the gates ask for is not known."
        )
        return None
    models = params.get("models") if isinstance(params, dict) else None
    return {str(name): block for name, block in models.items()} if isinstance(models, dict) else {}


def _bounds(block: Any) -> Gates | None:
    """The gates alone are enough: what else is wrong with an entry its stages say."""
    try:
        spec = ModelSpec.model_validate(block)
        return spec.validation.gates.of_task(spec.task.name)
    except ValidationError:
        pass
    try:
        asked = ((block or {}).get("validate") or {}).get("gates") or {}
        task = block.get("task")
        return Gates.model_validate(asked).of_task(task if isinstance(task, str) else (task or {}).get("name", ""))
    except (ValidationError, AttributeError, TypeError):
        return None


def _measured(side: Side) -> list[str]:
    """Models that have metrics, where params.yaml does not tell."""
    if side.commit is None:
        names = [path.parent.name for path in Path("metrics").glob("*/accuracy.json")]
    else:
        listed = (git("ls-tree", "-r", "-z", "--name-only", side.commit, "--", "metrics/") or "").split("\0")
        names = [Path(path).parent.name for path in listed if Path(path).name == "accuracy.json" and len(Path(path).parts) == 3]
    return sorted(names)
