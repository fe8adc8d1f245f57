"""`retouch classify`: what is in an image, before and now."""

import json
from pathlib import Path

import pytest
from commands import run, run_json

from retouch.evaluate import Results


@pytest.mark.slow
def test_a_run_before_and_now(evaluated: Path):
    folder = evaluated / "photos" / "test" / "dark_red"
    facts = run_json("classify", evaluated / "run", folder, folder / "0.png", "--top", 2)
    files = [Path(image["file"]).name for image in facts["images"]]
    assert files == ["0.png", "1.png", "2.png", "3.png", "0.png"]
    tasks = Results.read(evaluated / "run").tasks
    assert facts["names"] == [name for task in tasks for name in task.classes]
    first = facts["images"][0]
    assert len(first["before"]) == len(first["after"]) == 2
    assert first["before"] != first["after"]
    start = run_json("classify", evaluated / "run", folder / "0.png", "--task", 0, "--top", 2)
    assert start["images"][0]["before"] is None
    assert start["images"][0]["after"] == first["before"]
    text = run("classify", evaluated / "run", folder / "0.png").stdout
    for words in ("0.png", "before", "now", first["after"][0]["name"], " %"):
        assert words in text


def test_readable_images_are_answered_despite_broken_ones(evaluated: Path, tmp_path: Path):
    (tmp_path / "broken.png").write_bytes(b"broken")
    (tmp_path / "names.txt").write_text("\ufeffred\n\n green \n", encoding="utf-8")
    good = evaluated / "photos" / "test" / "dark_red" / "0.png"
    words = ("classify", evaluated / "model", tmp_path / "broken.png", tmp_path / "gone.png", good)
    result = run(*words, "--names-file", tmp_path / "names.txt", "--json", code=1)
    facts = json.loads(result.stdout)
    unreadable = [Path(image["file"]).name for image in facts["unreadable"]]
    assert unreadable == ["broken.png", "gone.png"]
    assert facts["names"] == ["red", "green"]
    assert [image["file"] for image in facts["images"]] == [str(good)]
    result = run(*words, "--names", "red,green", "--template", "the {}", code=1)
    assert "broken.png cannot be read" in result.stderr
    assert "gone.png cannot be read as an image (there is no such file)" in result.stderr
    assert str(good) in result.stdout.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{model}", "{photos}"], "at least two classes"),
        (["{model}", "{photos}", "--names", "a,a"], "two classes have the name"),
        (["{model}", "{photos}", "--names", "{run}/config.yaml"], "--names-file"),
        (["{model}", "{photos}", "--names", "a,b", "--names-file", "x"], "give one of them"),
        (["{model}", "{photos}", "--names-file", "gone"], "there is no file gone"),
        (["{model}", "{run}/deltas", "--names", "a,b"], "holds no image"),
        (["{run}", "{photos}", "--template", "x"], "must hold {{}} once"),
    ],
)
def test_errors(words: list[str], complaint: str, evaluated: Path):
    folders = {name: evaluated / name for name in ("model", "run", "photos")}
    result = run("classify", *(word.format(**folders) for word in words), code=1)
    assert complaint.replace("{{}}", "{}") in " ".join(result.stderr.split())
    assert not result.stdout
