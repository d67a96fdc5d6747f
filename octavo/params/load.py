"""Reading params.yaml: every mistake is named by file and path, with what was expected and the nearest valid key."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, Tag, ValidationError

from octavo.errors import ParamsError
from octavo.params import grammar, places

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
    lines = [_explain(schema, raw, item) for item in error.errors(include_url=False)]
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


def _explain(root: type[BaseModel], raw: Any, item: Any) -> str:
    """One line for one pydantic error: path, what is wrong, what was expected, nearest valid key."""
    # A tagged union puts its tag into the location; it is no key of the file.
    keys: list[Any] = []
    value, schema, place = raw, root, next(iter(root.model_fields))
    for part in item["loc"]:
        if isinstance(part, str) and not (isinstance(value, dict) and part in value) and _is_tag(schema, part):
            schema = _tagged(schema, part)
            continue
        keys.append(part)
        schema = _descend(schema, part)
        value = _get(value, part)
    place = ".".join(str(key) for key in keys) or place
    kind, message = item["type"], item["msg"]
    if kind == "extra_forbidden":
        parent = _walk(root, item["loc"][:-1], raw)
        valid = _keys(parent)
        near = difflib.get_close_matches(str(keys[-1]), valid, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"{place}: unknown key; {hint}valid here: {', '.join(valid)}"
    if kind == "missing":
        block = " (`{}` takes the defaults)" if _takes_defaults(schema) else ""
        return f"{place}: this key is required and missing{block}"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        tag = str(item["ctx"]["discriminator"]).strip("'")
        found = f"{tag!r} is missing" if kind == "union_tag_not_found" else f"{tag} {item['ctx']['tag']!r} is not known"
        expected = item["ctx"].get("expected_tags") or ", ".join(repr(name) for name in _tags(schema))
        near = difflib.get_close_matches(str(item["ctx"].get("tag", "")), _tags(schema), n=1)
        return f"{place}: {found}; expected one of {expected}" + (f"; did you mean {near[0]!r}?" if near else "")
    if kind == "literal_error":
        choices = _choices(schema)
        near = difflib.get_close_matches(str(item["input"]), choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{place}: {item['input']!r} is not possible; expected {item['ctx']['expected']}{hint}"
    if kind == "value_error":
        return f"{place}: {message.removeprefix('Value error, ')}"
    # In the words of YAML, not of Python.
    told = f"{message[:1].lower()}{message[1:]}".replace("tuple", "list").replace("dictionary", "map")
    return f"{place}: {told}, found {item['input']!r}"


def _walk(schema: Any, location: tuple[Any, ...], value: Any) -> Any:
    for part in location:
        if isinstance(part, str) and not (isinstance(value, dict) and part in value) and _is_tag(schema, part):
            schema = _tagged(schema, part)
        else:
            schema, value = _descend(schema, part), _get(value, part)
    return schema


def _get(value: Any, part: Any) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    return value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else None


def _descend(schema: Any, part: Any) -> Any:
    """The annotation of one key of a block, of a map's values or of a sequence's items."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        for name, field in schema.model_fields.items():
            if part in (name, field.alias):
                # Field() keeps the discriminator outside the annotation; the union itself is all that is needed here.
                return field.annotation
        return Any
    arguments = [argument for argument in typing.get_args(schema) if argument is not type(None)]
    origin = typing.get_origin(schema)
    if origin is typing.Annotated:
        return _descend(arguments[0], part)
    if origin is dict:
        return arguments[1]
    if origin in (tuple, list):
        return arguments[0]
    blocks = [argument for argument in arguments if isinstance(argument, type) and issubclass(argument, BaseModel)]
    return _descend(blocks[0], part) if len(blocks) == 1 else Any


def _alternatives(schema: Any) -> tuple[Any, ...]:
    """What a union chooses from; anything else is its only alternative."""
    if typing.get_origin(schema) is typing.Annotated:
        schema = typing.get_args(schema)[0]
    return typing.get_args(schema) if typing.get_origin(schema) in (typing.Union, types.UnionType) else (schema,)


def _members(schema: Any) -> list[type[BaseModel]]:
    return [member for member in _alternatives(schema) if isinstance(member, type) and issubclass(member, BaseModel)]


def _tag_of(member: Any) -> str | None:
    for note in getattr(member, "__metadata__", ()):
        if isinstance(note, Tag):
            return note.tag
    fields = member.model_fields if isinstance(member, type) and issubclass(member, BaseModel) else {}
    for key in ("name", "kind"):
        if key in fields:
            return str(typing.get_args(fields[key].annotation)[0])
    return None


def _tags(schema: Any) -> list[str]:
    return [tag for tag in map(_tag_of, _alternatives(schema)) if tag]


def _is_tag(schema: Any, part: str) -> bool:
    return part in _tags(schema)


def _tagged(schema: Any, part: str) -> Any:
    return next(member for member in _alternatives(schema) if _tag_of(member) == part)


def _keys(schema: Any) -> list[str]:
    members = _members(schema)
    return [field.alias or name for member in members[:1] for name, field in member.model_fields.items()]


def _takes_defaults(schema: Any) -> bool:
    members = _members(schema)
    return len(members) == 1 and not any(field.is_required() for field in members[0].model_fields.values())


def _choices(schema: Any) -> list[str]:
    if typing.get_origin(schema) is typing.Literal:
        return [str(choice) for choice in typing.get_args(schema)]
    return [choice for argument in typing.get_args(schema) for choice in _choices(argument)]


def _kind(value: Any) -> str:
    return {type(None): "nothing", str: "text", list: "a list"}.get(type(value), type(value).__name__)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
