"""What is of the wrong kind gets a sentence: in Python, in YAML and on the command line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from tiny import images, tiny_clip

import retouch
from retouch.bench.suite import load_suite
from retouch.cli.learn_checks import read_changes
from retouch.data import Splits, Stream
from retouch.errors import UserError
from retouch.methods import Settings

TRAIN, TEST = images("train", 6, 4), images("test", 6, 2)
BOMB = "[&a [1], &b [*a, *a, *a, *a], &c [*b, *b, *b, *b], *c]"


@pytest.mark.parametrize(
    ("argument", "value", "complaint"),
    [
        ("clip", tiny_clip().model, "a CLIPModel; .*retouch.DualEncoder"),
        ("clip", "openai/clip", r"'openai/clip'; load it first: retouch.load\('openai/clip'\)"),
        ("clip", None, "clip cannot be None"),
        ("stream", TRAIN, "stream cannot be a Images; .*Stream.split"),
        ("method", 7, "method cannot be 7"),
        ("method", retouch.methods.Method, "the class Method"),
        ("method", "spi", "there is no method 'spi'"),
        ("settings", {"epochs": 1}, "settings cannot be a dict; .*retouch.Settings"),
        ("control", "imagenet", r"'imagenet'; read it first: retouch.read_data\('imagenet'\)"),
        ("control", Path("x"), "control cannot be .*retouch.read_data"),
        ("control", Splits(TRAIN, TEST), "evaluation_images"),
        ("reference", "pairs.csv", "retouch.read_pairs"),
        ("out", 7, "out cannot be 7"),
        ("callback", "bar", "callback cannot be 'bar'"),
    ],
)
def test_teach(argument: str, value: Any, complaint: str):
    given: dict[str, Any] = {"clip": tiny_clip(), "stream": Stream.split(TRAIN, TEST, tasks=2)}
    with pytest.raises(UserError, match=complaint):
        retouch.teach(**{**given, argument: value})
    if argument in ("clip", "stream", "method", "settings", "reference"):
        with pytest.raises(UserError, match=complaint):
            retouch.preview(**{**given, argument: value})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"train": "photos"}, r"train cannot be 'photos'; .*read_data\('photos'\).train_and_test"),
        ({"test": Splits(TRAIN, TEST)}, "test cannot be a Splits"),
        ({"tasks": "two"}, "tasks='two'"),
        ({"tasks": 2.5}, "tasks=2.5"),
        ({"tasks": True}, "tasks=True"),
        ({"tasks": [3, "3"]}, "tasks="),
        ({"tasks": None}, "tasks=None"),
        ({"tasks": 0}, "cannot be split into 0 tasks"),
        ({"order": -1}, "order=-1 is not a seed"),
        ({"order": 1.5}, "order=1.5"),
        ({"order": "dark red"}, "order='dark red' is not a list"),
        ({"order": [1, 2]}, "not a list of names"),
    ],
)
def test_split(given: dict[str, Any], complaint: str):
    with pytest.raises(UserError, match=complaint):
        Stream.split(**{"train": TRAIN, "test": TEST, "tasks": 2, **given})


def test_numpys_numbers_are_numbers():
    one, other = (Stream.split(TRAIN, TEST, n, o) for n, o in ((2, 1), (np.int64(2), np.int8(1))))
    assert [task.classes for task in one.tasks] == [task.classes for task in other.tasks]
    several = Stream.split(TRAIN, TEST, np.array([3, 3]), np.array(TRAIN.classes))
    assert several.tasks[0].classes == (0, 1, 2)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"epochs": -1}, "^epochs=-1: input should be greater than or equal to 0$"),
        ({"epochs": "many"}, "^epochs='many': input should be a valid integer"),
        ({"lr": float("inf")}, "lr=inf: input should be a finite number"),
        ({"betas": (2, 0.9)}, "betas.0=2: input should be less than 1"),
        ({"precision": "fp8"}, "precision='fp8': input should be 'fp32' or 'bf16'"),
        ({"epoch": 3}, "^epoch: there is no such entry; the settings are epochs, batch, lr"),
    ],
)
def test_settings(given: dict[str, Any], complaint: str):
    with pytest.raises(UserError, match=complaint):
        Settings(**given)


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system [touch ran]",
        "!odd 3",
        BOMB,
        "2024-13-45",
        "2024-01-01",
        "!!set {a, b}",
        "{",
        "[" * 500,
        "9" * 5000,
        "\x00",
    ],
)
def test_yaml_of_an_option(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"--set trains\.rate=") as why:
        read_changes([f"update.rate={value}"])
    assert len(str(why.value)) < 7000
    assert not list(tmp_path.iterdir())
    assert read_changes(["a.b=[1, x, true]", "c=0.5"]) == {"a.b": [1, "x", True], "c": 0.5}


def test_an_option_of_the_wrong_kind(tmp_path: Path):
    words = ["learn", "builtin", "--model", "builtin", "--out", tmp_path / "r", "--dry-run"]
    for value in ("!!python/name:os.system", "[1, 2]", "{a: 1}", "x", "''"):
        said = run(*words, "--set", f"update.rate={value}", code=1).stderr
        assert "update.rate" in said
        assert "http" not in said


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "no suite"),
        (b"7", "no suite"),
        (b"[a, b]", "no suite"),
        (b"title: x", "rows: Field required"),
        (b"title: x\nrows: 7", "rows=7: input should be"),
        (b"title: x\nrows: [{name: a, method: 3}]", "rows.0.method=3"),
        (b"title: x\nrows: []\nodd: 1", "odd: there is no such entry"),
        (b"title: !!python/name:os.system\nrows: []", "cannot be read as YAML"),
        (b"title: x\nrows: " + BOMB.encode(), "alias"),
        (b"title: 2024-01-01\nrows: []", "date"),
        ("title: Größe".encode("latin-1"), "UTF-8"),
        (b"title: [", "cannot be read as YAML"),
    ],
)
def test_a_suite(content: bytes, complaint: str, tmp_path: Path):
    (tmp_path / "own.yaml").write_bytes(content)
    with pytest.raises(UserError, match=complaint) as why:
        load_suite(str(tmp_path / "own.yaml"))
    assert "http" not in str(why.value)


def test_a_model_is_named_by_a_path_too(tmp_path: Path):
    from tiny import tiny_folder

    assert retouch.load(tiny_folder(tmp_path / "m")).name == str(tmp_path / "m")
    with pytest.raises(UserError, match="a int names no model"):
        retouch.load(7)  # type: ignore[arg-type]
