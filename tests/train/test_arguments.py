"""Arguments of the wrong type are refused, with what to do instead."""

from pathlib import Path
from typing import Any

import pytest
from tiny import images, tiny_clip

import retouch
from retouch.data import Splits, Stream
from retouch.errors import UserError

TRAIN, TEST = images("train", 6, 4), images("test", 6, 2)
BOMB = "[&a [1], &b [*a, *a, *a, *a], &c [*b, *b, *b, *b], *c]"


@pytest.mark.parametrize(
    ("argument", "value", "complaint"),
    [
        ("clip", tiny_clip().model, "a CLIPModel; .*retouch.DualEncoder"),
        ("clip", "openai/clip", r"'openai/clip'; load it first: retouch.load\('openai/clip'\)"),
        ("clip", None, "clip cannot be None"),
        ("stream", TRAIN, "stream cannot be an Images; .*Stream.split"),
        ("method", 7, "method cannot be 7"),
        ("method", retouch.methods.Method, "the class Method"),
        ("method", "spi", "there is no method 'spi'"),
        ("settings", "epochs=1", "settings cannot be 'epochs=1'; .*retouch.Settings"),
        ("settings", {"epoch": 1}, "epoch: there is no such entry; the settings are epochs, batch"),
        ("settings", {"epochs": -1}, "epochs=-1: "),
        ("control", "imagenet", r"'imagenet'; read it first: retouch.read_data\('imagenet'\)"),
        ("control", Path("x"), "control cannot be .*retouch.read_data"),
        ("control", Splits(TRAIN, TEST), "evaluation_images"),
        ("reference", "pairs.csv", "retouch.read_pairs"),
        ("out", 7, "out cannot be 7"),
        ("callback", "bar", "callback cannot be 'bar'"),
    ],
)
def test_an_argument_of_the_wrong_type(argument: str, value: Any, complaint: str):
    given: dict[str, Any] = {"clip": tiny_clip(), "stream": Stream.split(TRAIN, TEST, tasks=2)}
    with pytest.raises(UserError, match=complaint):
        retouch.teach(**{**given, argument: value})
    if argument in ("clip", "stream", "method", "settings", "reference"):
        with pytest.raises(UserError, match=complaint):
            retouch.preview(**{**given, argument: value})
