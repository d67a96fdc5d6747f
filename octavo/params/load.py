"""Reading params.yaml: every mistake is named by file and path, with what was expected and the nearest valid key."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from octavo.errors import ParamsError
from octavo.params import grammar, places
from octavo.params.mistakes import mistakes

__all__ = ["checked", "load", "load_model", "load_sets"]

S = TypeVar("S", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """The safe loader, refusing a key that stands twice (YAML would silently keep the last), and keys of which none comes first.

    DVC hashes what it watches of params.yaml in the order of its keys: with a number beside a word it ends in "'<' not supported
    between instances of 'str' and 'int'".
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # `<<: *other` is no key; what stands beside it overrules it
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        made = super().construct_mapping(node, deep)
        try:
            sorted(made)
        except TypeError:
            # As it is written: YAML takes `no`, `off` and `3` for no text.
            other = next(key.value for key, _ in node.value if not isinstance(self.construct_object(key, deep=True), str))
            problem = f"keys that are text and the key {other} beside them, which DVC cannot sort; write '{other}'"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None
        return made


def load(path: str | Path = "params.yaml", project: str | Path | None = None) -> grammar.Params:
    """Read and check a whole params.yaml.

    Args:
        path: the file.
        project: the folder that its paths are relative to and must not leave; None: this one, which stages run in.

    Raises:
        ParamsError: the file is missing, is not YAML, does not fit the grammar, or names a path outside the project that
            `allow_outside` does not allow; all mistakes are listed at once.
    """
    params = _read(Path(path), grammar.Params)
    _refuse_strays(path, params, params.models, project)
    return params


def _refuse_strays(path: str | Path, params: grammar.Params, names: Iterable[str], project: str | Path | None = None) -> None:
    """Refuse paths of these models that lead where params.yaml does not allow."""
    folders = [Path.cwd() if project is None else Path(project).resolve(), *params.allow_outside]
    strays = [(f"models.{name}.{key}", stray) for name in names for key, stray in places.outside(params.models[name], folders)]
    if strays:
        raise ParamsError(
            f"{path}:\n" + "\n".join(f"  {key}: {stray} lies outside the project {folders[0]}" for key, stray in strays),
            f"move it there, or allow it, or a folder that holds it, at the top of {path}: `allow_outside: [{strays[0][1]}]`",
        )


def load_sets(path: str | Path = "data/sources.yaml") -> grammar.PackagedSets:
    """Read and check the list of demo data that `prepare` copies out of installed packages or renders.

    Raises:
        ParamsError: as `load`.
    """
    return _read(Path(path), grammar.PackagedSets)


def _read(path: Path, schema: type[S], model: str | None = None) -> S:
    """The checked file; where `model` names one of its models, the mistakes of others alone leave it as if it were the only one."""
    root = next(iter(schema.model_fields))
    if not path.is_file():
        raise ParamsError(f"{path}: no such file", "run the stage from the project's folder, or name the file on the command line")
    try:
        with open(path, encoding="utf-8") as stream:
            raw = yaml.load(stream, Loader=_Loader)  # noqa: S506 (a subclass of SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ParamsError(f"{path} is not readable YAML: {_one_line(error)}", "mend the line named above") from error
    if not isinstance(raw, dict):
        raise ParamsError(f"{path}: expected a map with the key {root!r}, found {_kind(raw)}", "see the file in the repository")
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        items = error.errors(include_url=False)
        blocks = raw.get(root)
        others = all(item["loc"][:1] == (root,) and item["loc"][1:2] not in ((), (model,)) for item in items)
        if others and isinstance(blocks, dict) and model in blocks:
            return schema.model_validate(raw | {root: {model: blocks[model]}})
        raise _refused(schema, raw, str(path), error) from error


def checked(schema: type[S], raw: Any, what: str) -> S:
    """A block of params.yaml that comes from elsewhere: a command line.

    Args:
        schema: of `octavo.params.grammar` or `octavo.params.recipe`.
        raw: as YAML has it.
        what: where it comes from, for the error.

    Raises:
        ParamsError: it is none; each mistake is a line.
    """
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        raise _refused(schema, raw, what, error) from error


def _refused(schema: type[BaseModel], raw: Any, what: str, error: ValidationError) -> ParamsError:
    lines = mistakes(schema, raw, error.errors(include_url=False))
    return ParamsError(f"{what}:\n" + "\n".join(f"  {line}" for line in lines), f"correct {what} as the lines above say")


def load_model(path: str | Path, name: str) -> grammar.ModelSpec:
    """The one model that a stage works on; mistakes in the blocks of others do not keep it from running.

    Raises:
        ParamsError: as `load`, of the file and of this model, or params.yaml has no model of that name.
    """
    params = _read(Path(path), grammar.Params, name)
    models = params.models
    if name not in models:
        near = difflib.get_close_matches(name, models, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ParamsError(f"{path} has no model {name!r}", f"{hint}it has: {', '.join(sorted(models))}")
    _refuse_strays(path, params, [name])
    return models[name]


def _kind(value: Any) -> str:
    return {type(None): "nothing", str: "text", list: "a list"}.get(type(value), type(value).__name__)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
