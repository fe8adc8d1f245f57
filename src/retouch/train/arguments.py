"""What is wrong with the arguments of `teach` and `preview`, and what to do about it."""

from pathlib import Path

from torch import nn

from retouch.arguments import Remedy
from retouch.data.splits import Splits
from retouch.data.stream import Stream
from retouch.errors import UserError
from retouch.methods import RECIPES, Settings


def check_domain_rates(stream: Stream, settings: Settings) -> None:
    """Refuse a learning rate for a data set that the stream does not have."""
    names = [domain.name for domain in stream.train.domains]
    if unknown := [name for name in settings.domain_lr if name not in names]:
        existing = ", ".join(names) or "a single one without a name"
        raise UserError(
            f"domain_lr has a learning rate for {unknown[0]!r}, which is no data set of the stream;"
            f" its data sets are {existing}"
        )


def _clip_remedy(value: object) -> str:
    if isinstance(value, str | Path):
        return f"load it first: retouch.load({str(value)!r})"
    if isinstance(value, nn.Module):
        return (
            "load it with retouch.load(NAME), or wrap its encoders, tokenizer and preprocessing in "
            "retouch.DualEncoder"
        )
    return "use what retouch.load(NAME) returns"


def _images_remedy(value: object) -> str:
    if isinstance(value, Splits):
        return "choose the part to evaluate on: splits.evaluation_images()"
    path = repr(str(value)) if isinstance(value, str | Path) else "PATH"
    return f"read it first: retouch.read_data({path}).evaluation_images()"


REMEDIES: dict[str, Remedy] = {
    "clip": _clip_remedy,
    "stream": "make one with retouch.Stream.split(train, test, tasks=…)",
    "method": f"use a name ({', '.join(list(RECIPES)[:4])}, …) or a retouch.methods.Method",
    "settings": "give those that you want, {'epochs': 5}, or all: retouch.Settings(epochs=5, …)",
    "control": _images_remedy,
    "reference": "read it first: retouch.read_pairs(FILE)",
    "out": "use the path of a folder",
    "callback": "use an instance of a subclass of retouch.train.Callback",
}
"""What to give instead of an argument of the wrong type, by the argument's name."""
