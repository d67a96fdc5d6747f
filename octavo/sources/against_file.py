"""The cleaned graph held against the ONNX file that it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from octavo.errors import ModelRunError, SourceError
from octavo.images.feeds import Feeds
from octavo.params.preprocessing import Input
from octavo.runtime.rows import rows_of
from octavo.runtime.session import Session
from octavo.sources.checks import COMPARED, Outputs, compared
from octavo.sources.same_rows import SAME_ROWS

__all__ = ["compare_with_file"]

# ONNX Runtime's names of types that a file may have pixels in, which are uint8 in the graph made of it (`onnx_file.cleaned`).
_WIDE = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}


def compare_with_file(
    file: str, image: str, spec: Input, tensors: Sequence[np.ndarray], outputs: Sequence[Outputs], *, selecting: bool = False
) -> list[str]:
    """Hold a graph against the ONNX file that it was made of, on `COMPARED` images: output names and values.

    Args:
        file: path of the ONNX file; all its operators are ONNX Runtime's.
        image: the graph input that takes the image, of both.
        spec: the model's `input:` block.
        tensors: preprocessed images, batch dimension 1.
        outputs: the graph's outputs on each.
        selecting: as in `compare_with_reference`; where outputs have no rows in common, their names alone are compared.

    Returns:
        A line that says why nothing was compared, where the file does not run as it is (its opset is too old for ONNX Runtime);
        else nothing.

    Raises:
        SourceError: names differ, or values by more than rounding does; of integers a tenth may differ.
    """
    try:
        session = Session(file)
        feeds = Feeds.of(session.signature, image, spec)
        own = _WIDE.get(next((each["type"] for each in session.signature if each["name"] == image), ""))
        together, alone = session.input_shapes[image][0], len(session.input_shapes[image]) == 3
        truths = []
        for tensor in tensors[:COMPARED]:
            # A batch that is fixed at several images is filled with the one; an image of three dimensions has none.
            full = np.repeat(tensor, together, axis=0) if isinstance(together, int) and not alone and len(tensor) == 1 else tensor
            fed = feeds(full if own is None else full.astype(own))
            found = session.run(fed | ({image: fed[image][0]} if alone else {}))
            several = (len(full),) if len(full) > len(tensor) else None
            truths.append({name: value[:1] if value.shape[:1] == several else value for name, value in found.items()})
    except ModelRunError as error:
        problem = error.problem.removeprefix(f"{file}: ")
        return [f"the graph is not compared with {Path(file).name}, which does not run as it is: {problem}"]
    mine = list(outputs[:COMPARED])
    names = ("the graph made of the file", file)
    mend = "set `source.opset` to the file's own opset, or export it again with another one"
    if list(truths[0]) != list(mine[0]):
        raise SourceError(f"{names[0]} puts out {list(mine[0])} where {names[1]} puts out {list(truths[0])}", mend)
    try:
        _refuse_others(truths, mine, names, mend)
    except SourceError:
        if not selecting:
            raise
        # Pairing rows of some thousands takes seconds and half a gigabyte: only where they do not come in one order.
        if all(rows_of(truth) is not None for truth in truths):
            wide = [[{name: value.astype(np.float64) for name, value in each.items()} for each in both] for both in (truths, mine)]
            compared(*wide, names, mend, selecting=True)
    return []


def _refuse_others(truths: Sequence[Outputs], mine: Sequence[Outputs], names: tuple[str, str], mend: str) -> None:
    """Refuse outputs in another order or of other values; integers apart, of which steps of rounding may move some."""
    floats = [[{name: each[name] for name in each if _is_float(each[name])} for each in both] for both in (truths, mine)]
    if floats[0][0]:
        compared(*floats, names, mend, selecting=False)
    for truth, other in zip(truths, mine, strict=True):
        for name, value in truth.items():
            if not _is_float(value) and not _is_mostly(value, other[name]):
                raise SourceError(f"output {name!r} of {names[0]} differs from that of {names[1]}", mend)


def _is_float(value: np.ndarray) -> bool:
    return np.issubdtype(value.dtype, np.floating)


def _is_mostly(truth: np.ndarray, mine: np.ndarray) -> bool:
    return truth.shape == mine.shape and np.count_nonzero(truth == mine) >= SAME_ROWS * truth.size
