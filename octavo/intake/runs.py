"""A file run once, as it is: what its outputs look like, and the shapes that inference cannot tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octavo.errors import OctavoError
from octavo.graph.custom_ops import CustomOps, resolve
from octavo.graph.inspect import custom_ops
from octavo.graph.io import INLINE_LIMIT, weight_bytes
from octavo.graph.readable import readable
from octavo.images.feeds import USUAL
from octavo.intake.inputs import ImageInput
from octavo.runtime.mapped import session_of
from octavo.runtime.session import Session

__all__ = ["CUT", "Runnable"]

# Why a family is not told by what a run gives.
CUT = "the graph is cut before its outputs, at a custom operator that has no body"

_TYPES = {"INT64": np.int64, "INT32": np.int32, "FLOAT": np.float32, "BOOL": np.bool_, "FLOAT16": np.float16, "UINT8": np.uint8}


class Runnable:
    """A file as ONNX Runtime takes it: with bodies in place of operators that it lacks, or cut before them.

    Args:
        path: the file.
        model: what was read from it.
        changed: the model is no longer what the file has, and is run as it is.

    Attributes:
        custom: the operators that ONNX Runtime lacks.
        notes: what stands in for them.
        source: what a session is made of: the path, or the bytes of what stands in for it.
    """

    def __init__(self, path: Path, model: ir.Model, *, changed: bool = False) -> None:
        self.model = model
        self._own = [value.name for value in model.graph.outputs]
        self.custom, self.notes = CustomOps(), []
        if custom_ops(model):
            self.custom, self.notes = resolve(model, {}, 0)
            self.model = self.custom.whole(model)
        self.source: Path | bytes = path if self.model is model and not changed else _bytes(self.model)

    def outputs(self, image: ImageInput, size: tuple[int, int]) -> dict[str, np.ndarray]:
        """What one grey image gives.

        Raises:
            ModelRunError: it does not load or run.
        """
        return Session(self.source).run(self._feeds(image, size))

    def own(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """Of what a run gives the file's own outputs; None where the graph is cut before one of them (`CUT`): it puts out other
        tensors then, in which a family of detectors may be seen that it is not of.
        """
        return {name: outputs[name] for name in self._own} if set(self._own) <= set(outputs) else None

    def shapes(self, names: Iterable[str], image: ImageInput, size: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        """Shapes of inner tensors on one grey image; {} where that cannot be seen.

        Args:
            names: tensors of `readable` of the file.
        """
        copy = readable(self.model)
        if weight_bytes(copy) > INLINE_LIMIT:
            return {}
        present = {value.name: value for node in copy.graph for value in node.outputs}
        wanted = [name for name in dict.fromkeys(names) if name in present]
        outputs = {value.name for value in copy.graph.outputs}
        copy.graph.outputs.extend(present[name] for name in wanted if name not in outputs)
        try:
            found = session_of(copy, optimization="off").run(self._feeds(image, size), wanted) if wanted else {}
        except OctavoError:
            return {}
        return {name: value.shape for name, value in found.items()}

    def _feeds(self, image: ImageInput, size: tuple[int, int]) -> Mapping[str, np.ndarray]:
        feeds = {image.name: image.grey(size)}
        sides = dict(zip(("height", "width"), size, strict=True))
        for value in self.model.graph.inputs:
            if value.name in feeds or value.is_initializer() or value.dtype is None:
                continue
            # Beside the image mostly its size in pixels, or thresholds.
            shape = [side if isinstance(side, int) else 1 for side in value.shape or ()]
            filled = [size[0] if value.dtype.name.startswith("INT") else 1]
            # What exporters are known for is fed as the stages feed it, where that many values fit.
            usual = [sides.get(one, one) for one in USUAL.get(value.name, ())]
            fitting = usual if shape and shape[-1] == len(usual) else filled
            feeds[value.name] = np.broadcast_to(fitting, shape).astype(_TYPES.get(value.dtype.name, np.float32))
        return feeds


def _bytes(model: ir.Model) -> bytes:
    copy = model.clone()
    ir.external_data.load_to_model(copy)
    return ir.to_proto(copy).SerializeToString()
