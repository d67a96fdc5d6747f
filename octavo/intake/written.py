"""An entry appended to params.yaml as text: what stood there stays byte for byte, and the whole loads, or nothing is written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml

from octavo.errors import ParamsError
from octavo.files import replace_file
from octavo.layout import shared_artifact
from octavo.params import load
from octavo.params.grammar import NAME
from octavo.params.places import inside

__all__ = ["append_entry", "model_name", "refuse_taken"]

_MODELS, _ALLOWED = "models:", "allow_outside"


def model_name(model: Path, asked: str | None) -> str:
    """The entry's name: what was asked, else the file's, made fit for a folder's name.

    Raises:
        ParamsError: what was asked is no name.
    """
    if asked is not None:
        if not NAME.fullmatch(asked):
            raise ParamsError(f"--name {asked!r} must be letters, digits, '_' and '-'", "it becomes a folder's name")
        return asked
    stem = model.stem if model.stem.lower() != "model" else model.resolve().parent.name
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", stem).strip("_-")
    if not name:
        raise ParamsError(f"{model}: no model name can be made of the file's", "give one: `--name NAME`")
    return name


def refuse_taken(params: Path, name: str) -> None:
    """Refuse a name that is there already, or is another's in the model registry, before anything is looked at.

    Raises:
        ParamsError: it is, or the file as it stands does not load.
    """
    known = load(params, params.resolve().parent).models if params.is_file() and _models(params) else {}
    shared = shared_artifact([*known, name])
    if shared is not None:
        raise ParamsError(
            f"{params} has a model {shared[0]!r}: with {name!r} both would have the artifact {shared[2]!r} in the model registry",
            f"give another name (`--name {name}_2`)",
        )
    if name in known:
        raise ParamsError(f"{params} has a model {name!r} already", f"give another name (`--name {name}_2`), or remove that entry")


def append_entry(params: Path, name: str, lines: Sequence[str], outside: Sequence[str] = ()) -> list[str]:
    """Append a model, or make the file.

    Args:
        params: params.yaml.
        name: the model's.
        lines: below the name, indented from there.
        outside: paths that `allow_outside` shall allow.

    Returns:
        Those of them that it names from now on; what it names already holds the others.

    Raises:
        ParamsError: the file cannot be appended to, or would not load.
        OutputError: it cannot be written.
    """
    params = params.resolve()  # a link stays a link
    before = params.read_bytes() if params.is_file() else b""
    ending = "\r\n" if b"\r\n" in before else "\n"
    text = before.decode("utf-8")
    allowed = ((yaml.safe_load(text) or {}).get(_ALLOWED) or []) if outside else []
    added = [path for path in outside if not inside(path, [params.parent, *allowed])]
    text = _allowing(text, added, ending, first=not allowed)
    indent = _indent(text)
    known = _models(params)
    if known == []:
        # As YAML is dumped of no models: nothing can stand below it.
        text = re.sub(rf"^({_MODELS})[ \t]*(\{{[ \t]*\}}|null|~)(?=[ \t]*(#.*)?\r?$)", r"\1", text, flags=re.MULTILINE)
    parts = [] if known is not None or re.search(rf"^{_MODELS}\s*(#.*)?$", text, re.MULTILINE) else [_MODELS]
    if known:
        parts.append("")
    parts += [f"{indent}{name}:", *(f"{indent}{indent}{line}" if line else "" for line in lines)]
    gap = ending if text and not text.endswith("\n") else ""
    after = (text + gap + ending.join(parts) + ending).encode()
    with replace_file(params) as temporary:
        temporary.write_bytes(after)
        if params.is_file():
            shutil.copymode(params, temporary)
        try:
            found = load(temporary, params.parent).models
        except ParamsError as error:
            problem = str(error).replace(str(temporary), str(params.name)).splitlines()
            raise ParamsError(
                f"{params}: the entry cannot be appended: {' '.join(line.strip() for line in problem[:3])}",
                "`models:` must be the last block of the file, written one entry below the other; nothing was written",
            ) from error
        if list(found) != [*(known or ()), name]:
            raise ParamsError(f"{params}: the entry does not stand below `models:`", "nothing was written; add it by hand")
    return added


def _allowing(text: str, added: Sequence[str], ending: str, *, first: bool) -> str:
    """The file's text with paths added to its `allow_outside`, the first of it or not, or with that key above `models:`."""
    lines = [yaml.safe_dump(path, width=1 << 20).splitlines()[0] for path in added]
    if not lines:
        return text
    flow = re.search(rf"^{_ALLOWED}:[ \t]*\[[^\]\n#]*(?=\])", text, re.MULTILINE)
    block = re.search(rf"^{_ALLOWED}:[ \t]*(#.*)?\r?\n(?=(?P<indent>[ \t]*)- )", text, re.MULTILINE)
    if flow:
        return (
            text[: flow.end()]
            + "".join(f"{', ' if place or not first else ''}{line}" for place, line in enumerate(lines))
            + text[flow.end() :]
        )
    if block:
        return text[: block.end()] + "".join(f"{block['indent']}- {line}{ending}" for line in lines) + text[block.end() :]
    models = re.search(rf"^{_MODELS}", text, re.MULTILINE)
    place = models.start() if models else len(text)
    block = [
        "# Outside of this folder, and may be read: octavo init was given it.",
        f"{_ALLOWED}:",
        *(f"  - {line}" for line in lines),
    ]
    gap = ending if text[:place] and not text[:place].endswith("\n") else ""
    return text[:place] + gap + ending.join(block) + ending + text[place:]


def _models(params: Path) -> list[str] | None:
    """Names of the models in the file; [] for none below `models:`, None where the key is missing."""
    if not params.is_file():
        return None
    try:
        content = yaml.safe_load(params.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ParamsError(f"{params} is not readable YAML: {' '.join(str(error).split())}", "mend the line named above") from error
    if content is None:
        return None
    if not isinstance(content, dict) or not isinstance(content.get("models"), dict | None):
        raise ParamsError(f"{params}: expected a map with the key 'models'", "is it the params.yaml of an Octavo project?")
    return list(content["models"] or ()) if "models" in content else None


def _indent(text: str) -> str:
    """How deep the file's models stand."""
    behind = text.partition(_MODELS)[2].splitlines()[1:]
    first = next((line for line in behind if line.strip() and not line.lstrip().startswith("#")), "")
    return first[: len(first) - len(first.lstrip(" "))] or "  "
