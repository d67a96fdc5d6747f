"""What pydantic finds wrong with params.yaml, in the words of the file: path, what was expected, the nearest valid key."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Tag

__all__ = ["mistakes"]

Keys = tuple[Any, ...]


@dataclass(frozen=True)
class _Mistake:
    """One error of pydantic's.

    Attributes:
        keys: where it is, as the file has it.
        schema: what may stand there.
        parent: what the block or map is in which it stands.
        choice: the keys of a value that may be of several kinds (`auto` or a number), where it lies at or below one.
        item: the error itself.
    """

    keys: Keys
    schema: Any
    parent: Any
    choice: Keys | None
    item: Any

    @property
    def place(self) -> str:
        return ".".join(str(key) for key in self.keys)


def mistakes(root: type[BaseModel], raw: Any, items: Sequence[Any]) -> list[str]:
    """A line for each mistake.

    Args:
        root: the schema of the whole file.
        raw: the file, as YAML has it.
        items: `ValidationError.errors()`.
    """
    found = [_placed(root, raw, item) for item in items]
    # What is wrong with an item leaves it out of its list, which is too short then.
    found = [one for one in found if one.item["type"] != "too_short" or not any(_below(other, one.keys) for other in found)]
    lines: dict[Any, str] = {}
    for place, one in enumerate(found):
        if one.choice is None:
            lines[place] = _explain(one)
            continue
        # Of a value that may be of several kinds pydantic says of each why it is none. Where it is one, what is wrong in it counts.
        kinds = [other for other in found if other.choice == one.choice]
        if not any(_below(other, one.choice) for other in kinds):
            lines.setdefault(one.choice, _of_no_kind(kinds))
        elif _below(one, one.choice):
            lines[place] = _explain(one)
    return list(lines.values())


def _below(one: _Mistake, keys: Keys) -> bool:
    return len(one.keys) > len(keys) and one.keys[: len(keys)] == keys


def _placed(root: type[BaseModel], raw: Any, item: Any) -> _Mistake:
    """An error without what pydantic puts into its location and no key of the file is: tags and kinds of unions."""
    keys: list[Any] = []
    value, schema, parent, choice = raw, root, None, None
    for part in item["loc"]:
        if isinstance(part, str) and not (isinstance(value, dict) and part in value):
            if _is_tag(schema, part):
                schema = _tagged(schema, part)
                continue
            if (kind := _kind_of(schema, part)) is not None:
                schema, choice = kind, tuple(keys)
                continue
        keys.append(part)
        schema, parent, value = _descend(schema, part), schema, _get(value, part)
    return _Mistake(tuple(keys) or (next(iter(root.model_fields)),), schema, parent, choice, item)


def _kind_of(schema: Any, label: str) -> Any:
    """Of a value of several kinds the one that pydantic calls so: `constrained-float`, `literal['auto']`, `tuple[str, ...]`."""
    kinds = [kind for kind in _alternatives(schema) if kind is not type(None)]
    if len(kinds) < 2 or _members(schema):
        return None
    origin = {"tuple": tuple, "literal": typing.Literal}.get(label.partition("[")[0])
    return next((kind for kind in kinds if origin is not None and typing.get_origin(kind) is origin), Any)


def _of_no_kind(kinds: Sequence[_Mistake]) -> str:
    """One line for a value that is of none of the kinds that it may be of."""
    given = kinds[0].item["input"]
    words = [one.item["ctx"]["expected"] for one in kinds if one.item["type"] == "literal_error"]
    told = [_told(one.item["msg"]) for one in kinds if one.item["type"] != "literal_error"]
    near = difflib.get_close_matches(str(given), [choice for one in kinds for choice in _choices(one.schema)], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{kinds[0].place}: {', or '.join(dict.fromkeys(told + words))}, found {given!r}{hint}"


def _told(message: str) -> str:
    """In the words of YAML, not of Python."""
    message = re.sub(r" or instance of \w+", "", message)
    return f"{message[:1].lower()}{message[1:]}".replace("tuple", "list").replace("dictionary", "map")


def _explain(one: _Mistake) -> str:
    """One line: path, what is wrong, what was expected, nearest valid key."""
    keys, place, schema, item = one.keys, one.place, one.schema, one.item
    kind, message = item["type"], item["msg"]
    if kind == "extra_forbidden":
        valid = _keys(one.parent)
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
    return f"{place}: {_told(message)}, found {item['input']!r}"


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
    """What a union chooses from, unions within it too; anything else is its only alternative."""
    inner = typing.get_args(schema)[0] if typing.get_origin(schema) is typing.Annotated else schema
    if typing.get_origin(inner) not in (typing.Union, types.UnionType):
        return (inner,)
    # A kind that stands alone keeps what is noted at it: its tag.
    kinds = [(kind, _alternatives(kind)) for kind in typing.get_args(inner)]
    return tuple(one for kind, own in kinds for one in (own if len(own) > 1 else (kind,)))


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
