"""`--set NAME=VALUE`: YAML that cannot be a setting."""

from pathlib import Path

import pytest
from commands import error_of, run

from retouch.cli.learn.checks import read_changes
from retouch.errors import UserError

BOMB = "[&a [1], &b [*a, *a, *a, *a], &c [*b, *b, *b, *b], *c]"


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
    with pytest.raises(UserError, match=r"--set update\.rate=") as why:
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
    ("options", "problem"),
    [
        (
            ["--replay", "none", "--set", "replay.size=5"],
            "replay none and replay.size=5 contradict each",
        ),
        (["--replay", "none", "--set", "replay=BalancedReplay"], "contradict each other"),
        (["--replay", "9", "--set", "replay.size=5"], "replay 9 and replay.size=5"),
        (["--replay", "none", "--set", "store_images=true"], "contradict each other"),
        (["--replay", "9", "--method", "spu+no-images"], "spu+no-images replays no images"),
        (["--replay", "0"], "use a number of images"),
    ],
)
def test_options_that_contradict_each_other(options: list[str], problem: str, tmp_path: Path):
    words = ["learn", "builtin", "--model", "builtin", "--out", tmp_path / "r", "--dry-run"]
    assert problem in error_of(*words, *options)
