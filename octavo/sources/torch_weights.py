"""State dicts: read without running code, and matched with a module key by key."""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import nn

from octavo.errors import SourceError

__all__ = ["load_state", "read_state"]

State = dict[str, torch.Tensor]

# Where training scripts put the state dict, and what wrappers put before its keys (DataParallel, torch.compile).
NESTED = ("state_dict", "model", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.")
SHOWN = 3


def read_state(path: str | Path) -> State:
    """Read a state dict: bare, or under `state_dict`, `model` or `model_state_dict` of a checkpoint.

    Returns:
        Parameter name to tensor on the CPU, without the prefix of a wrapper that all names share.

    Raises:
        SourceError: no such file, not a torch file, a pickle that wants to run code, or no state dict in it.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceError(
            f"{path}: the weights file does not exist", "check `source.file`; `dvc pull` fetches a file that DVC tracks"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # The unpickler meets arbitrary bytes: a text file ends in a KeyError, an empty one in an EOFError.
        raise _explained(path, error) from error
    state = _state_in(content)
    if state is None:
        held = (
            f"keys {', '.join(map(repr, list(content)[:8]))}" if isinstance(content, dict) and content else type(content).__name__
        )
        raise SourceError(f"{path}: holds no state dict ({held})", "save `module.state_dict()`, bare or under the key 'state_dict'")
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def load_state(module: nn.Module, state: State, path: str | Path) -> None:
    """Copy a state dict into a module; names and shapes must agree exactly.

    BatchNorm's `num_batches_tracked`, which old files lack and inference does not use, may be missing.

    Raises:
        SourceError: keys missing, unexpected or of another shape (the first few of each are named), or NaN in a parameter.
    """
    own = module.state_dict()
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in own]
    reshaped = [
        f"{key} ({_shape(value)} in the file, {_shape(own[key])} in the module)"
        for key, value in state.items()
        if key in own and _shape(value) != _shape(own[key])
    ]
    problems = [
        _counted(missing, "missing from the file"),
        _counted(unexpected, "unknown to the module"),
        _counted(reshaped, "of another shape"),
    ]
    if any(problems):
        hint = (
            "check `source.args` (the number of classes, for one)"
            if reshaped
            else "check that `source.entry` and `source.args` build"
        )
        raise SourceError(
            f"{path}: the weights do not fit the module: {'; '.join(filter(None, problems))}",
            f"{hint}: they must give the architecture that the file was saved from",
        )
    try:
        module.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise SourceError(f"{path}: the module refuses the weights: {str(error).splitlines()[-1].strip()}") from error
    broken = [name for name, parameter in module.named_parameters() if parameter.isnan().any()]
    if broken:
        raise SourceError(f"{path}: {_counted(broken, 'with NaN inside')}", "the training run diverged, or the file is damaged")


def _state_in(content: object) -> State | None:
    candidates = [content[key] for key in NESTED if key in content] if isinstance(content, dict) else []
    for candidate in (*candidates, content):
        if isinstance(candidate, dict) and candidate and all(isinstance(value, torch.Tensor) for value in candidate.values()):
            return dict(candidate)
    return None


def _explained(path: Path, error: Exception) -> SourceError:
    text = str(error)
    if "TorchScript" in text:
        return SourceError(f"{path}: is a TorchScript archive, not a state dict", "save `module.state_dict()` with torch.save")
    with path.open("rb") as stream:
        pickled = zipfile.is_zipfile(path) or stream.read(1) == b"\x80"
    if isinstance(error, UnpicklingError) and pickled and "Weights only load failed" in text:
        named = re.search(r"GLOBAL (\S+)", text)
        what = f" ({named.group(1).rstrip('.,')})" if named else ""
        return SourceError(
            f"{path}: is a pickle that wants to run code{what}; only tensors are read", "save `module.state_dict()`, not the module"
        )
    return SourceError(f"{path}: is truncated or not a torch file", "copy it again, or save `module.state_dict()` with torch.save")


def _shape(value: object) -> list[int] | None:
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _counted(names: list[str], what: str) -> str:
    if not names:
        return ""
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what} ({', '.join(names[:SHOWN])}{more})"
