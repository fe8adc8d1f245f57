"""Streams of two data sets that have a class of the same name, for tests of several subpackages."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from runs import QUICK, method
from tiny import images, tiny_folder

import retouch
from retouch.data import Images, Stream
from retouch.evaluate import Results


def colors(split: str, each: int) -> Images:
    """The six colors of all tests, with the prompts of all tests."""
    return images(split, 6, each)


def paints(split: str, each: int) -> Images:
    """Four classes, of which two have names that `colors` has too; with prompts of their own."""
    classes = ["pale red", "dark red", "pale blue", "bright red"]
    templates = ("the picture of {}", "the {}", "a {}")
    base = images(f"{split} paints", 4, each)
    return replace(base, classes=classes, prompt="the {}", templates=templates)


def two_streams(each: int = 6, tasks: int = 1) -> dict[str, Stream]:
    return {
        "colors": Stream.split(colors("train", each), colors("test", 3), 2 * tasks),
        "paints": Stream.split(paints("train", each), paints("test", 2), tasks),
    }


def domain_run(folder: Path, **join: Any) -> tuple[Path, Results, Stream]:
    """A run over both in FOLDER/run, whose model is in FOLDER/model; its results and its stream."""
    stream = Stream.join(two_streams(), **join)
    clip = retouch.load(str(tiny_folder(folder / "model")))
    results = retouch.teach(clip, stream, method(), settings=QUICK, out=folder / "run")
    return folder / "run", results, stream
