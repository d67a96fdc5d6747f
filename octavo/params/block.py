"""What all blocks of params.yaml share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = [
    "MAX_PIXELS",
    "MOST_PIXELS",
    "NUMBER",
    "Block",
    "Fraction",
    "Positive",
    "Side",
]

# Pixels of a photo: what is decoded unless `data.max_pixels` says otherwise, and what that may say: Pillow refuses more by itself.
MAX_PIXELS, MOST_PIXELS = 100_000_000, 178_956_970


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "expected a number")
    return value


# Python takes true for 1: `fidelity: true` would ask for 1 dB, `samples: yes` for one image.
NUMBER = BeforeValidator(_no_switch)
Fraction = Annotated[float, NUMBER, Field(ge=0, le=1)]
Positive = Annotated[int, NUMBER, Field(ge=1)]
# Of a network's input, in pixels; 8192 x 8192 x 3 floats are 800 MB.
Side = Annotated[int, NUMBER, Field(ge=1, le=8192)]


class Block(BaseModel):
    """A block of params.yaml: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
