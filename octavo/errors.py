"""The exception tree. Every error that a user can mend is one of these; anything else is a bug and shows its traceback.

    OctavoError
    ├── ParamsError         params.yaml or the command line asks for something that cannot be
    ├── DataError           an image, a label, a split or a dataset folder
    ├── SourceError         the FP32 model: weights, architecture, ONNX file
    ├── ModelRunError       ONNX Runtime cannot load or run a graph, or its output is not a number
    ├── CalibrationError    statistics that cannot be made, or that belong to another model
    ├── QuantizationError   a graph that cannot be quantized as asked
    ├── CodecError          an embedding that cannot be coded, or a token or block that cannot be read
    ├── RegistryError       a version that must not be released, or that cannot be fetched
    └── OutputError         a result that cannot be written

Stage scripts turn an OctavoError into its text on stderr and exit code 2 (`octavo.cli`).
"""

from __future__ import annotations

__all__ = [
    "CalibrationError",
    "CodecError",
    "DataError",
    "ModelRunError",
    "OctavoError",
    "OutputError",
    "ParamsError",
    "QuantizationError",
    "RegistryError",
    "SourceError",
]


class OctavoError(Exception):
    """A mistake that its reader can mend.

    Args:
        problem: what is wrong, naming the file or the setting.
        mend: the command or setting that puts it right; empty where nothing general can be said.
    """

    exit_code = 2

    def __init__(self, problem: str, mend: str = "") -> None:
        super().__init__(problem if not mend else f"{problem}\n  to mend: {mend}")
        self.problem = problem
        self.mend = mend


class ParamsError(OctavoError):
    """params.yaml or the command line asks for something that cannot be."""


class DataError(OctavoError):
    """An image, a label, a split or a dataset folder that cannot be used."""


class SourceError(OctavoError):
    """An FP32 model that cannot be read or exported."""


class ModelRunError(OctavoError):
    """A graph that ONNX Runtime cannot load or run, or whose output is NaN or infinite."""


class CalibrationError(OctavoError):
    """Statistics that cannot be made, or that were made for another model, preprocessing or image list."""


class QuantizationError(OctavoError):
    """A graph that cannot be quantized as asked."""


class CodecError(OctavoError):
    """An embedding that cannot be coded, or a token or block that is damaged or of an unknown version."""


class RegistryError(OctavoError):
    """A version of a model that must not be released, or that cannot be fetched whole."""


class OutputError(OctavoError):
    """A result that cannot be written (disk full, no permission)."""
