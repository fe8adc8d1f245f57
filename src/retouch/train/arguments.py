"""Check the types of the arguments of `teach` and `preview`, before any work is done."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from retouch.clip import Clip
from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.data.splits import Splits
from retouch.data.stream import Stream
from retouch.errors import UserError
from retouch.methods import RECIPES, Method, Settings
from retouch.train.callbacks import Callback


def check_arguments(
    clip: Any,
    stream: Any,
    method: Any,
    *,
    settings: Any = None,
    control: Any = None,
    reference: Any = None,
    out: Any = None,
    callback: Any = None,
) -> None:
    """Refuse arguments that are not of the annotated type, and say how to make them so."""
    if not isinstance(clip, Clip):
        raise _wrong("clip", clip, _clip_remedy(clip))
    if not isinstance(stream, Stream):
        raise _wrong("stream", stream, "make one with retouch.Stream.split(train, test, tasks=…)")
    if not isinstance(method, str | Method):
        names = ", ".join(list(RECIPES)[:4])
        raise _wrong("method", method, f"use a name ({names}, …) or a retouch.methods.Method")
    for name, value, expected, remedy in (
        ("settings", settings, Settings, "make them with retouch.Settings(epochs=…, lr=…)"),
        ("control", control, Images, _images_remedy(control)),
        ("reference", reference, Pairs, "read it first: retouch.read_pairs(FILE)"),
        ("out", out, str | os.PathLike, "use the path of a folder"),
        ("callback", callback, Callback, "use an instance of a subclass of retouch.train.Callback"),
    ):
        if value is not None and not isinstance(value, expected):
            raise _wrong(name, value, remedy)


def check_domain_rates(stream: Stream, settings: Settings) -> None:
    """Refuse a learning rate for a data set that the stream does not have."""
    names = [domain.name for domain in stream.train.domains]
    if unknown := [name for name in settings.domain_lr if name not in names]:
        existing = ", ".join(names) or "a single one without a name"
        raise UserError(
            f"domain_lr has a learning rate for {unknown[0]!r}, which is no data set of the stream;"
            f" its data sets are {existing}"
        )


def _wrong(name: str, value: object, remedy: str) -> UserError:
    shown = repr(value) if isinstance(value, str | Path | int | float | None) else ""
    return UserError(f"{name} cannot be {shown or _type_name(value)}; {remedy}")


def _type_name(value: object) -> str:
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"the class {name}" if isinstance(value, type) else f"a {name}"


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
