"""What all blocks of params.yaml share."""

from __future__ import annotations

from typing import Annotated, Any, LiteralString

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = [
    "MAX_PIXELS",
    "MOST_PIXELS",
    "Block",
    "ClassKey",
    "Fraction",
    "Level",
    "Number",
    "Positive",
    "Side",
    "Whole",
]

# Pixels of a photo: what is decoded unless `data.max_pixels` says otherwise, and what that may say: Pillow refuses more by itself.
MAX_PIXELS, MOST_PIXELS = 100_000_000, 178_956_970


def _no_switch(kind: str, message: LiteralString) -> BeforeValidator:
    def checked(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticCustomError(kind, message)
        return value

    return BeforeValidator(checked)


# Python takes true for 1: `fidelity: true` would ask for 1 dB, `samples: yes` for one image.
_NO_SWITCH = _no_switch("number_type", "expected a number")
Whole = Annotated[int, _NO_SWITCH]
Number = Annotated[float, _NO_SWITCH]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Positive = Annotated[Whole, Field(ge=1)]
# Of an image set: its name or its number.
ClassKey = Annotated[str | int, _no_switch("class_type", "a class named yes, no, on or off is a switch to YAML: put it in quotes")]
# Of one channel of a colour.
Level = Annotated[Whole, Field(ge=0, le=255)]
# Of a network's input, in pixels; 8192 x 8192 x 3 floats are 800 MB.
Side = Annotated[Whole, Field(ge=1, le=8192)]


class Block(BaseModel):
    """A block of params.yaml: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
