"""The worst picture, of the model that a reviewer should look at: annotated, FP32 and INT8 side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.layout import metrics_dir
from octavo.review.assets import Assets
from octavo.review.gates import Gate
from octavo.review.markdown import Section, code
from octavo.review.project import cached_file
from octavo.review.records import Side
from octavo.verdicts import FAIL

if TYPE_CHECKING:
    from dvc.repo import Repo

__all__ = ["by_need", "section"]

KINDS = (".jpg", ".jpeg", ".png")


def by_need(head: Side, found: Sequence[Gate]) -> list[str]:
    """The head's models, those first that a reviewer should look at: with a failed gate, then by how little is kept."""
    failing = {one.model for one in found if one.now is not None and one.now.answer == FAIL}

    def kept(model: str) -> float:
        record = head.accuracy.get(model, {})
        # What gates judge: the kept share; where there are no labels cosines, of whole numbers agreement.
        # int8_dynamic is in no picture.
        keys = ("retained", "cosine_mean" if any(key.endswith(".cosine_mean") for key in record) else "agreement")
        figures = [record.get(f"{variant}.{key}") for key in keys for variant in ("int8", "qat")]
        return min((one for one in figures if isinstance(one, int | float)), default=2.0)

    return sorted(head.models, key=lambda model: (model not in failing, kept(model), head.models.index(model)))


def section(head: Side, models: Sequence[str], repo: Repo | None, assets: Assets | None) -> Section:
    """The first picture that there is, of the first model that has some.

    Args:
        models: by `by_need`.
        repo: for pictures that lie in DVC's cache only.
        assets: where it is copied to; None names the file instead.
    """
    missing = []
    for model in models:
        folder = metrics_dir(model) / "pictures"
        found = _first(folder, head, repo)
        if found is None:
            continue
        name, content = found
        if content is None:
            missing.append((model, folder))
            continue
        where = folder / name
        told = f"Where INT8 differs most from FP32 in {code(model)}: {code(where)}"
        parts = ["### Worst picture", *_pull(missing)]
        if assets is None:
            parts.append(f"{told} (`--assets FOLDER` copies it; `dvc plots show` has all).")
        else:
            parts.append(f"{told}, what is annotated, FP32 and INT8 side by side.")
            parts.append(assets.show(f"{model}-worst{Path(name).suffix.lower()}", content, f"{model}: the worst picture"))
        return Section("\n\n".join(parts))
    if missing:
        return Section("\n\n".join(["### Worst picture", *_pull(missing)]))
    return Section("### Worst picture\n\nNo model has pictures (`validate.pictures`).")


def _first(folder: Path, head: Side, repo: Repo | None) -> tuple[str, bytes | None] | None:
    if head.commit is None and folder.is_dir():
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in KINDS)
        return (files[0].name, files[0].read_bytes()) if files else None
    return cached_file(repo, folder, head.commit) if repo is not None else None


def _pull(missing: Sequence[tuple[str, Path]]) -> list[str]:
    if not missing:
        return []
    folders = " ".join(folder.as_posix() for _, folder in missing[:4])
    models = ", ".join(code(model) for model, _ in missing[:4]) + (" ..." if len(missing) > 4 else "")
    return [f"The pictures of {models} are not in DVC's cache here: {code(f'dvc pull {folders}', 400)} brings them."]
