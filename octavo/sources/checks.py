"""Graphs and torch modules held against what they came from, and a graph against itself at another batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import ModelRunError, SourceError
from octavo.layout import TORCH_OUTPUTS
from octavo.sources.same_rows import SAME_ROWS, SAME_VALUES, TOLERANCE, Run, in_rows, same_rows, same_values

__all__ = [
    "compare_at_another_size",
    "compare_with_graph",
    "compare_with_reference",
    "compared",
    "refuse_mixed_batch",
    "told",
]

# Images on which a source file is run beside the graph that was made of it.
COMPARED = 2
# Sides of a crop on which a graph of open height and width is run: what a network takes are multiples of its largest stride.
STRIDE = 32
Outputs = Mapping[str, np.ndarray]


def compare_with_reference(
    reference: Run, samples: Sequence[tuple[str, np.ndarray]], outputs: Sequence[Outputs], folder: Path, *, selecting: bool = False
) -> dict[str, Any]:
    """Hold the graph's outputs against the torch module's and keep the latter in `folder`.

    Args:
        reference: the torch module, from a tensor with batch dimension 1 to outputs by name.
        samples: (sha256 of the image, tensor with batch dimension 1).
        outputs: the graph's outputs on them.
        folder: `torch_outputs.npz` goes here, with keys "<sha256>/<output>".
        selecting: the graph chooses among values (`octavo.graph.selection`): rows are compared with their counterparts, wherever
            they stand, and a tenth of them may have none. Of outputs without rows (maps behind peaks, or behind places of
            maxima) two values in a hundred may be others.

    Returns:
        `images`, `max_abs_diff` (of rows or values that are the same, with `selecting`), `largest_output`, and with `selecting`
        `same_values`, their share, or `same_rows`, that of rows, and where that is small `own_rows`, which share the module itself
        keeps (`own_rows`).

    Raises:
        SourceError: they differ by more than rounding does.
    """
    truths = [reference(tensor) for _, tensor in samples]
    tensors = [tensor for _, tensor in samples[:COMPARED]]
    found = compared(
        truths,
        outputs,
        ("the exported graph", "the torch module"),
        "try the other `source.exporter`, or another `source.opset`",
        selecting=selecting,
        own=lambda: _own(reference, tensors, truths),
    )
    kept = {f"{digest}/{key}": value for (digest, _), truth in zip(samples, truths, strict=True) for key, value in truth.items()}
    np.savez_compressed(folder / TORCH_OUTPUTS, **kept)
    return found


def _own(reference: Run, tensors: Sequence[np.ndarray], truths: Sequence[Outputs]) -> float:
    # With torch, which what exports no module does not need.
    from octavo.sources.own_rows import own_rows

    return own_rows(reference, tensors, truths)


def told(found: Mapping[str, Any]) -> str:
    """What `compare_with_reference` found, in words."""
    rows = f", in {found['same_rows']:.1%} of the rows" if "same_rows" in found else ""
    rows = f", in {found['same_values']:.2%} of the values" if "same_values" in found else rows
    own = ""
    if "own_rows" in found:
        own = (
            f"; other rows are chance: the module itself keeps {found['own_rows']:.0%} when scores change by a millionth "
            "(random weights?)"
        )
    return f"largest difference to the torch module on {found['images']} images: {found['max_abs_diff']:.3g}{rows}{own}"


def compare_at_another_size(reference: Run, run: Run, tensor: np.ndarray, *, selecting: bool = False) -> list[str]:
    """Hold a graph of open height and width against its torch module on a crop of an image.

    What a forward computes of `x.shape` in Python (a grid, a scale to shares of the image, embeddings of places) tracing turns into
    constants, and a graph with those of one size may run at others all the same.

    Args:
        reference: the torch module, as in `compare_with_reference`.
        run: the graph.
        tensor: a preprocessed image, 1 x channels x height x width.
        selecting: as in `compare_with_reference`.

    Returns:
        A line that says why nothing was compared, where the module itself does not run on the crop; else nothing.

    Raises:
        SourceError: the graph does not run on it, or puts out something else than the module.
    """
    # Of another aspect ratio, too: height and width may have changed places.
    rows, columns = (-(-round(side * share) // STRIDE) * STRIDE for side, share in zip(tensor.shape[2:], (0.5, 0.75), strict=True))
    crop = np.ascontiguousarray(tensor[:, :, :rows, :columns])
    if crop.shape == tensor.shape:
        return []  # no larger than a stride
    at = "x".join(map(str, crop.shape[2:]))
    mend = (
        "compute what depends on height and width with torch's operations on the input, try the other `source.exporter`, or set "
        "`source.dynamic_size: false` and give each resolution an entry of its own in params.yaml"
    )
    try:
        truth = reference(crop)
    except Exception as error:
        why = f"the torch module does not run at {at} ({type(error).__name__})"
        return [f"height and width are open, and held against nothing: {why}"]
    try:
        found = run(crop)
    except ModelRunError as error:
        raise SourceError(f"the exported graph does not run at {at}, the torch module does: {error.problem}", mend) from error
    compared([truth], [found], (f"the exported graph at {at}", "the torch module"), mend, selecting=selecting)
    return []


def compare_with_graph(
    run: Run, tensors: Sequence[np.ndarray], outputs: Sequence[Outputs], *, selecting: bool = False
) -> dict[str, Any]:
    """Hold a torch module that was made of a graph (`octavo.sources.onnx_to_torch`) against the graph.

    Args:
        run: the module (`octavo.sources.torch_export.reference`).
        tensors: preprocessed images.
        outputs: the graph's outputs on each, as ONNX Runtime gives them.
        selecting: as in `compare_with_reference`.

    Returns:
        As `compare_with_reference`.

    Raises:
        SourceError: they differ by more than rounding does.
    """
    return compared(
        outputs,
        [run(tensor) for tensor in tensors],
        ("the torch module made of the graph", "the graph"),
        "train from the torch module that the graph was exported from (`source: {kind: torch}`)",
        selecting=selecting,
    )


def compared(
    truths: Sequence[Outputs],
    outputs: Sequence[Outputs],
    names: tuple[str, str],
    mend: str,
    *,
    selecting: bool,
    own: Callable[[], float] = lambda: 1.0,
) -> dict[str, Any]:
    """The figures of `compare_with_reference`.

    Args:
        truths, outputs: of each image, by name.
        names: what gave the outputs, and what gave the truths, in words.
        mend: the way out, for the error.
        selecting: as in `compare_with_reference`.
        own: as `own_rows`; asked where few rows are the same.

    Raises:
        SourceError: they differ by more than rounding does.
    """
    shares, what, least = None, "rows", SAME_ROWS
    pairs = list(zip(truths, outputs, strict=True))
    values = [(truth[key], mine[key]) for truth, mine in pairs for key in truth]
    if selecting and in_rows(pairs):
        pairs, shares = same_rows(pairs)
    elif any(truth.shape != mine.shape for truth, mine in values):
        truth, mine = next(pair for pair in values if pair[0].shape != pair[1].shape)
        raise SourceError(f"{names[0]} puts out {list(mine.shape)} where {names[1]} puts out {list(truth.shape)}", mend)
    elif selecting:
        what, least = "values", SAME_VALUES
        pairs, shares = same_values(pairs)
    largest = max(float(np.abs(truth[key] - mine[key]).max(initial=0.0)) for truth, mine in pairs for key in truth)
    scale = max(float(np.abs(truth).max(initial=0.0)) for truth in (value for each in truths for value in each.values()))
    others = shares is not None and shares < least
    # Other rows may be chance; of a map's values the share alone counts.
    steady = own() if others and what == "rows" else 1.0
    if not largest <= TOLERANCE * max(scale, 1e-6) or (others and steady >= least):
        same = "" if shares is None else f"; {shares:.0%} of its {what} are the same"
        raise SourceError(f"{names[0]} differs from {names[1]} by {largest:.3g} (outputs reach {scale:.3g}){same}", mend)
    found = {"images": len(truths), "max_abs_diff": largest, "largest_output": scale}
    found |= {} if shares is None else {f"same_{what}": round(shares, 6 if what == "values" else 4)}
    return found | ({"own_rows": round(steady, 4)} if others else {})


def refuse_mixed_batch(
    run: Run,
    tensors: Sequence[np.ndarray],
    outputs: Sequence[Outputs],
    *,
    selecting: bool = False,
    own: object = None,
) -> None:
    """Two images in one batch must come out as they do alone; for graphs whose batch dimension is dynamic.

    A graph whose fixed batch was made dynamic can still hold a Reshape that mixes images; only running it shows that.

    Args:
        run: from a tensor to the graph's outputs.
        tensors: real images, batch dimension 1.
        outputs: the graph's outputs on each alone.
        selecting: as in `compare_with_reference`.
        own: what the file itself calls its batch, where that is open without `source.dynamic_batch`.

    Raises:
        SourceError: an output differs.
    """
    inside, mend = "the graph has a fixed batch size inside", "set `source.dynamic_batch: false`"
    if own is not None:
        inside = "the file has an open batch and mixes its images"
        mend = (
            f"make a file of it that takes one image: `python -m onnxruntime.tools.make_dynamic_shape_fixed --dim_param {own} "
            "--dim_value 1 in.onnx out.onnx`, and name that one in `source.file`"
        )
    if len(tensors) < 2 or tensors[0].shape != tensors[1].shape:
        return  # `resize.stride`: photos of different shapes never come in one batch
    both = run(np.concatenate(tensors[:2]))
    chosen = selecting and all(value.ndim >= 3 and len(value) == 2 for value in both.values())
    pairs = [(outputs[place], {name: value[place : place + 1] for name, value in both.items()}) for place in range(2) if chosen]
    maps = all(truth[name].shape == mine[name].shape for truth, mine in pairs for name in truth)
    if pairs and (in_rows(pairs) or maps):
        what, share, least = ("rows", same_rows, SAME_ROWS) if in_rows(pairs) else ("values", same_values, SAME_VALUES)
        if share(pairs)[1] < least:
            raise SourceError(
                f"the {what} of two images in one batch are not those that each gives alone: {inside}",
                mend,
            )
        return
    for name, value in both.items():
        alone = [single[name] for single in outputs[:2]]
        if not np.issubdtype(value.dtype, np.floating) or any(single.shape[:1] != (1,) for single in alone):
            continue
        expected = np.concatenate(alone) if value.shape[1:] == alone[0].shape[1:] else None
        scale = max(float(np.abs(single).max(initial=0.0)) for single in alone)
        if expected is None or expected.shape != value.shape or not np.abs(value - expected).max() <= TOLERANCE * max(scale, 1e-6):
            raise SourceError(
                f"output {name!r} of two images in one batch is not what each gives alone: {inside}",
                mend,
            )
