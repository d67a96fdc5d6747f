"""From `source.entry` to a torch module: any importable factory, or an architecture of torchvision by its name."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from octavo.errors import SourceError

__all__ = ["build", "drop_auxiliary"]

# An auxiliary classifier serves training only: the argument that builds it, and what its weights' names begin with.
AUXILIARY = {"aux_logits": ("AuxLogits.", "aux1.", "aux2."), "aux_loss": ("aux_classifier.",)}
WITH_AUX_LOGITS = ("inception_v3", "googlenet")


def build(entry: str, args: Mapping[str, Any], keys: Collection[str]) -> nn.Module:
    """Call the factory.

    torchvision's builders are called so that they download nothing and skip a slow initialisation which the weights
    overwrite anyway; an auxiliary classifier is built exactly where the file has weights for one.

    Args:
        entry: `package.module:factory` (dots after the colon reach into a class), or a torchvision name without a colon. The
            current folder is on the import path.
        args: keyword arguments of the factory.
        keys: names in the state dict that will be loaded.

    Raises:
        SourceError: no such module, factory or architecture, or the factory raises or returns something else.
    """
    if ":" in entry:
        factory, args = _imported(entry), dict(args)
    else:
        factory, args = _torchvision(entry, args, keys)
    try:
        module = factory(**args)
    except Exception as error:
        raise SourceError(
            f"{entry!r} fails to build its module: {type(error).__name__}: {_first_line(error)}",
            "check `source.args` in params.yaml: they are the factory's keyword arguments",
        ) from error
    if not isinstance(module, nn.Module):
        raise SourceError(f"{entry!r} returns a {type(module).__name__}, not a torch.nn.Module", "name a factory in `source.entry`")
    return module


def drop_auxiliary(module: nn.Module, entry: str, args: Mapping[str, Any]) -> None:
    """Take torchvision's auxiliary segmentation head off, whose output would be a second one in the graph.

    It stays where `args` ask for it (`aux_loss: true`). Inception and GoogLeNet leave theirs out in eval mode by themselves.
    """
    if ":" not in entry and not args.get("aux_loss") and getattr(module, "aux_classifier", None) is not None:
        module.aux_classifier = None


def _imported(entry: str) -> Any:
    name, _, attribute = entry.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", entry):
        raise SourceError(
            f"`source.entry` {entry!r} is not of the form 'package.module:factory'",
            "name a module and a factory in it, as Python has them",
        )
    mend = "check `source.entry`; its package must be installed, or lie in the folder that the pipeline runs in"
    try:
        with _current_folder_importable():
            module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise SourceError(f"the module {name!r} of `source.entry` cannot be found", mend) from error
        raise SourceError(f"the module {name!r} cannot be imported: it needs {error.name!r}", f"install {error.name!r}") from error
    except Exception as error:
        raise SourceError(f"the module {name!r} cannot be imported: {type(error).__name__}: {_first_line(error)}", mend) from error
    try:
        factory = reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        near = get_close_matches(attribute, dir(module), 3)
        raise SourceError(
            f"the module {name!r} has no {attribute!r}", f"did you mean {' or '.join(near)}?" if near else "check `source.entry`"
        ) from error
    if not callable(factory):
        raise SourceError(f"{entry!r} cannot be called: it is a {type(factory).__name__}", "name a factory in `source.entry`")
    return factory


def _torchvision(name: str, args: Mapping[str, Any], keys: Collection[str]) -> tuple[Any, dict[str, Any]]:
    try:
        from torchvision import models  # here: modules of one's own need no torchvision
    except ImportError as error:
        raise SourceError(f"{name!r} is an architecture of torchvision, which is not installed", "install octavo[torch]") from error

    try:
        builder = models.get_model_builder(name)
    except ValueError as error:
        near = get_close_matches(name, models.list_models(), 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "write 'package.module:factory' for a module of your own"
        raise SourceError(f"torchvision has no architecture {name!r}", hint) from error
    for asked in ("weights", "weights_backbone"):
        if args.get(asked) is not None:
            raise SourceError(f"`source.args.{asked}` would download weights", "take it out: the weights come from `source.file`")
    known = inspect.signature(builder).parameters
    filled = {**args, "weights": None}
    if "weights_backbone" in known:
        filled["weights_backbone"] = None
    for argument, prefixes in AUXILIARY.items():
        if argument in known or (argument == "aux_logits" and name in WITH_AUX_LOGITS):
            filled[argument] = any(key.startswith(prefixes) for key in keys)
    if name in WITH_AUX_LOGITS:
        filled.setdefault("init_weights", False)
    return builder, filled


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    # A stage script has its own folder on the path, not the project's. Last, so that it hides no installed package.
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
