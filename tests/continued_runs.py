"""A run in March and its continuation in April, which tests of several subpackages share."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from model_copies import copy_clip
from recipes_for_tests import quick, reference
from tiny import images

import retouch
from retouch.clip import Clip
from retouch.data import Images, Stream
from retouch.evaluate import Results
from retouch.methods import Method, Settings
from retouch.train import open_run
from retouch.train.extend_stream import extend_stream
from retouch.train.run_folder.images import has_stored_images, read_stored_images

QUICK = Settings(epochs=2, batch=4, lr=1e-3)
GIVEN = {"settings": QUICK, "control": images("control", 4, 3), "reference": reference()}
Pair = tuple[Images, Images]
"""Images to learn from, and to evaluate on."""


def of(some: Images, labels: range) -> Images:
    """Only these classes, as a folder of its own would hold them."""
    part = some.subset(some.of_classes(labels))
    return replace(
        part, classes=[part.classes[i] for i in labels], labels=part.labels - labels.start
    )


def halves() -> tuple[Pair, Pair]:
    """Two classes for March, two others for April."""
    train, test = images("train", 4, 6), images("test", 4, 3)
    early, late = range(2), range(2, 4)
    return (of(train, early), of(test, early)), (of(train, late), of(test, late))


def _options(more: dict[str, Any]) -> dict[str, Any]:
    """A run with a callback, which may stop it, writes a checkpoint after every step."""
    checkpoints = {"checkpoint_seconds": 0} if "callback" in more else {}
    return {**GIVEN, **checkpoints, **more}


@cache
def _prototype(model: Path) -> Clip:
    return retouch.load(str(model))


def loaded(model: Path) -> Clip:
    """A copy of a model that was loaded once: loading takes a quarter of so short a run."""
    return copy_clip(_prototype(model))


def march(
    model: Path, out: Path, method: str | Method = "spu", **more: Any
) -> tuple[Results, Clip, Stream]:
    """Teach the first two classes in one task, in steps of 4 images."""
    stream = Stream.split(*halves()[0], tasks=1, order=["bright red", "dark red"])
    clip = loaded(model)
    configured = quick(method) if isinstance(method, str) else method
    results = retouch.teach(clip, stream, configured, out=out, **_options(more))
    return results, clip, stream


def april(
    model: Path, before: Path, out: Path, name: str = "spu", new: Pair | None = None, **more: Any
) -> tuple[Results, Clip, Stream]:
    """Continue that run with the other two classes, or with `new` images."""
    run = open_run(before, model=loaded(model))
    order = ["bright green", "dark green"]
    stored = read_stored_images(before) if has_stored_images(before) else None
    stream, earlier = extend_stream(
        run, stored, Stream.split(*(new or halves()[1]), tasks=1, order=order)
    )
    results = retouch.teach(
        run.clip, stream, quick(name), out=out, earlier=earlier, **_options(more)
    )
    return results, run.clip, stream
