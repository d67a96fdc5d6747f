"""From a torch module to an ONNX graph, or to a TorchScript trace."""

from __future__ import annotations

import io
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.utils import _pytree as pytree

from octavo.errors import OctavoError, SourceError
from octavo.graph.io import load
from octavo.graph.passes.cleaning.batch import BATCH
from octavo.graph.passes.cleaning.scope_names import ScopeNamesPass
from octavo.params.source import OTHER_EXPORTER
from octavo.sources.fetched import Reference

__all__ = ["HEIGHT", "INPUT", "WIDTH", "export", "named_outputs", "quiet", "reason", "reference", "trace"]

INPUT = "input"
# Names of the input's dimensions that are dynamic, beside `BATCH`.
HEIGHT, WIDTH = "height", "width"
# What each exporter writes by itself; the difference to the target is converted on the graph.
DYNAMO_LOWEST = 18
TORCHSCRIPT_HIGHEST = 20


def named_outputs(value: Any) -> dict[str, torch.Tensor]:
    """The tensors in what a module returns, named, in the order in which both exporters write them.

    One tensor is `output`; a sequence gives `output_0`, `output_1`, ...; a dict its keys; nested containers join these with
    `_`. The list around a single image's dict, which detection models return, adds nothing. None is left out.

    Raises:
        SourceError: there is no tensor.
    """
    leaves = [(path, leaf) for path, leaf in pytree.tree_flatten_with_path(value)[0] if isinstance(leaf, torch.Tensor)]
    if not leaves:
        raise SourceError(
            f"the module returns no tensor but a {type(value).__name__}", "give an `entry` whose forward returns tensors"
        )
    if isinstance(value, list | tuple) and len(value) == 1:
        leaves = [(path[1:], leaf) for path, leaf in leaves]
    named: dict[str, torch.Tensor] = {}
    for path, leaf in leaves:
        name = "_".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
        # A graph's names must differ, and an input may be called like a dict's key.
        if not path or isinstance(path[0], pytree.SequenceKey) or name == INPUT:
            name = f"output_{name}".rstrip("_")
        named[name] = leaf
    return named


def reference(module: nn.Module) -> Reference:
    """The module as a function from a float32 array to its named output arrays."""

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            value = module(torch.from_numpy(np.array(images)))
        return {name: tensor.numpy() for name, tensor in named_outputs(value).items()}

    return run


def export(
    module: nn.Module, example: torch.Tensor, names: list[str], *, exporter: str, opset: int, dynamic: dict[int, str], scratch: Path
) -> tuple[ir.Model, list[str]]:
    """Export a module in eval mode; nothing is printed.

    Args:
        example: [N, ...] float32; N must be 2 or more for a dynamic batch, since 1 is taken for a constant.
        names: the outputs' names.
        exporter: `dynamo` or `torchscript`.
        dynamic: dimensions of the input that stay open, to their names.
        opset: the opset wanted; the graph has the nearest that the exporter can write.
        scratch: an existing folder for temporary files.

    Returns:
        The graph, and notes.

    Raises:
        SourceError: the exporter fails, or makes another number of outputs than the module has.
    """
    try:
        with quiet():
            if exporter == "dynamo":
                model = _dynamo(module, example, names, opset=opset, dynamic=dynamic)
            else:
                model = _torchscript(module, example, names, opset=opset, dynamic=dynamic, scratch=scratch)
    except OctavoError:
        raise
    except Exception as error:
        fixed = "".join(
            f", or set `source.{key}: false`" for dim, key in ((0, "dynamic_batch"), (2, "dynamic_size")) if dim in dynamic
        )
        raise SourceError(
            f"the {exporter} exporter fails: {reason(error)}", f"try `source.exporter: {OTHER_EXPORTER[exporter]}`{fixed}"
        ) from error
    if len(model.graph.outputs) != len(names):
        raise SourceError(
            f"the {exporter} exporter wrote {len(model.graph.outputs)} outputs for the module's {len(names)}: {', '.join(names)}",
            f"try `source.exporter: {OTHER_EXPORTER[exporter]}`",
        )
    notes = []
    if exporter == "dynamo" and opset < DYNAMO_LOWEST:
        notes.append(f"opset {DYNAMO_LOWEST} instead of {opset}: the lowest that the dynamo exporter writes")
    return model, notes


def trace(module: nn.Module, example: torch.Tensor, path: Path) -> None:
    """Write a TorchScript trace, load it again and compare it once.

    It returns what the module returns where that is one tensor, else a dict from the graph's output names to tensors: a
    trace cannot hold nested containers.

    Raises:
        SourceError: the module cannot be traced, or the file computes something else than the module.
    """
    try:
        with quiet(), torch.no_grad():
            returned = module(example)
            expected = named_outputs(returned)
            traced = module if isinstance(returned, torch.Tensor) else _Named(module)
            # strict=False: a dict is allowed.
            torch.jit.trace(traced, example, strict=False, check_trace=False).save(str(path))
            _without_paths(path)
            again = named_outputs(torch.jit.load(str(path), map_location="cpu")(example))
    except OctavoError:
        raise
    except Exception as error:
        raise SourceError(f"the module cannot be traced to TorchScript: {reason(error)}", "set `source.trace: false`") from error
    for name, value in expected.items():
        other = again.get(name)
        if other is None or value.shape != other.shape or not torch.allclose(value, other, rtol=1e-3, atol=1e-4):
            raise SourceError(f"the TorchScript trace gives another {name!r} than the module", "set `source.trace: false`")


def _without_paths(path: Path) -> None:
    """Take the debug records out of a TorchScript archive: they hold the paths of every source file on this machine."""
    reader, kept = torch._C.PyTorchFileReader(str(path)), path.with_name(f"{path.stem}.kept{path.suffix}")
    records = {name: reader.get_record(name) for name in reader.get_all_records() if not name.endswith(".debug_pkl")}
    writer = torch._C.PyTorchFileWriter(str(kept))
    for name, data in records.items():
        # Those the writer makes by itself.
        if name not in ("version", "byteorder", ".data/serialization_id"):
            writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    kept.replace(path)


class _Named(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        return named_outputs(self.module(image))


def _dynamo(module: nn.Module, example: torch.Tensor, names: list[str], *, opset: int, dynamic: dict[int, str]) -> ir.Model:
    program = torch.onnx.export(
        module,
        (example,),
        dynamo=True,
        verbose=False,
        opset_version=max(opset, DYNAMO_LOWEST),
        input_names=[INPUT],
        output_names=names,
        dynamic_shapes=(dynamic,) if dynamic else None,
    )
    ScopeNamesPass()(program.model)
    return program.model


def _torchscript(
    module: nn.Module, example: torch.Tensor, names: list[str], *, opset: int, dynamic: dict[int, str], scratch: Path
) -> ir.Model:
    # Through a file: above 2 GB this exporter writes the weights beside it.
    with tempfile.TemporaryDirectory(prefix=".torchscript", dir=scratch) as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            module,
            (example,),
            str(path),
            dynamo=False,
            verbose=False,
            opset_version=min(opset, TORCHSCRIPT_HIGHEST),
            input_names=[INPUT],
            output_names=names,
            dynamic_axes={INPUT: dynamic} | ({name: {0: BATCH} for name in names} if 0 in dynamic else {}),
        )
        return ir.external_data.load_to_model(load(path))


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing on the screen: what matters in the exporters' progress lines and warnings comes back as an exception."""
    threshold = logging.root.manager.disable
    with warnings.catch_warnings(), _compiled_quiet(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(threshold)


@contextmanager
def _compiled_quiet() -> Iterator[None]:
    """Nothing on stdout of what compiled code writes there by itself, past `sys.stdout`.

    The torchscript exporter writes all of a graph that it cannot export, a thousand lines in front of the error. stderr is left:
    progress is drawn there meanwhile.
    """
    if sys.stdout is None:
        # A process that was started without one.
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def reason(error: BaseException) -> str:
    """The first line of what began a chain of exceptions, with its type, in 300 characters at most."""
    while error.__cause__ is not None:  # the exporters wrap the cause in pages of advice
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A shape guard can run to thousands of characters.
    return shorten(f"{type(error).__name__}: {lines[0]}", 300, placeholder=" ...") if lines else type(error).__name__
