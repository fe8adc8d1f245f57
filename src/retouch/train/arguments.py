"""What `teach` is given from Python: what is of the wrong kind gets a sentence, before any work."""

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
    """Refuse whatever is not what the annotations of `teach` say, and tell how to make it that."""
    if not isinstance(clip, Clip):
        raise _wrong("clip", clip, _to_clip(clip))
    if not isinstance(stream, Stream):
        raise _wrong("stream", stream, "make one by retouch.Stream.split(train, test, tasks=…)")
    if not isinstance(method, str | Method):
        names = ", ".join(list(RECIPES)[:4])
        raise _wrong("method", method, f"give a name ({names}, …) or a retouch.methods.Method")
    for name, value, kind, remedy in (
        ("settings", settings, Settings, "make them by retouch.Settings(epochs=…, lr=…)"),
        ("control", control, Images, _to_images(control)),
        ("reference", reference, Pairs, "read it first: retouch.read_pairs(FILE)"),
        ("out", out, str | os.PathLike, "give a folder's path"),
        ("callback", callback, Callback, "give a subclass of retouch.train.Callback"),
    ):
        if value is not None and not isinstance(value, kind):
            raise _wrong(name, value, remedy)


def _wrong(name: str, value: object, remedy: str) -> UserError:
    shown = repr(value) if isinstance(value, str | Path | int | float | None) else ""
    return UserError(f"{name} cannot be {shown or _kind(value)}; {remedy}")


def _kind(value: object) -> str:
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"the class {name}" if isinstance(value, type) else f"a {name}"


def _to_clip(value: object) -> str:
    if isinstance(value, str | Path):
        return f"load it first: retouch.load({str(value)!r})"
    if isinstance(value, nn.Module):
        return (
            "load it by retouch.load(NAME), or wrap its encoders, its tokenizer and how it wants "
            "its pictures in retouch.DualEncoder"
        )
    return "give what retouch.load(NAME) returns"


def _to_images(value: object) -> str:
    if isinstance(value, Splits):
        return "choose the part to judge by: splits.evaluation_images()"
    place = repr(str(value)) if isinstance(value, str | Path) else "PATH"
    return f"read it first: retouch.read_data({place}).evaluation_images()"
