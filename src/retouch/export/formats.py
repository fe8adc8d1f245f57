"""The formats that a model can be exported to, and what their writers report."""

from dataclasses import dataclass, field
from typing import Literal, get_args

Format = Literal["hf", "open_clip", "onnx", "peft", "deltas"]
"""The name of a format."""
FORMATS: tuple[Format, ...] = get_args(Format)
"""All formats that `export` writes."""
LIBRARIES: dict[Format, str] = {
    "hf": "transformers",
    "open_clip": "open_clip",
    "onnx": "onnx",
    "peft": "peft",
    "deltas": "retouch",
}
"""The library that loads each format, as the Hugging Face hub calls it."""


@dataclass(frozen=True)
class WriteReport:
    """What a writer found when it loaded again what it had written."""

    difference: float
    """The largest difference between a normalized feature of the written model and the original."""
    tolerance: float
    """The largest difference allowed."""
    same: bool = False
    """Whether the library stayed the same, and so did every bit of the weights."""
    limits: list[str] = field(default_factory=list)
    """What the reader of the model card should know."""
