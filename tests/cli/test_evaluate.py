"""`retouch eval` and `retouch classify`, as a user meets them."""

import json
import os
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.cells import cell_len
from rich.console import Console
from runs import CONTROL, make_run
from tiny import images
from typer.testing import CliRunner

from retouch.cli import app
from retouch.cli.tables import classes_tables, confusions_table, guesses_table
from retouch.data import Images
from retouch.evaluate import Results
from retouch.evaluate.per_class import ClassRow, Confusion
from retouch.evaluate.predict import Prediction

ODD = [
    "red kite 🦅 👩‍👩‍👧",
    "שלום עולם",
    "كلب",
    "x" * 300,
    "漢字" * 40,
    "[bold]<script>",
    "two\nlines\tand \x1b[31m red",
    "\u202egnorw",
]


def retouch(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words: object) -> dict[str, Any]:
    """What the command says to scripts: one object, and nothing else on stdout."""
    done = retouch(*words, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def to_folder(pictures: Images, folder: Path) -> Path:
    for number, label in enumerate(pictures.labels):
        place = folder / pictures.classes[label].replace(" ", "_")
        place.mkdir(parents=True, exist_ok=True)
        pictures.store.image(number).save(place / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its model, and pictures to judge both by."""
    home = tmp_path_factory.mktemp("home")
    make_run(home)
    to_folder(images("test", 6, 4), home / "photos" / "test")
    to_folder(images("train", 6, 2), home / "photos" / "train")
    to_folder(CONTROL, home / "control")
    return home


def test_before_and_after_of_a_run(home: Path):
    found = answer(
        "eval", home / "run", "--data", home / "photos", "--control", home / "control", "--no-cache"
    )
    results = Results.read(home / "run")
    assert found["data"]["after"] == pytest.approx(results.metrics()["accuracy"])
    assert found["data"]["before"] == pytest.approx(results.frozen_accuracy)
    assert found["control"]["after"] == pytest.approx(results.rows[-1].control)
    assert (found["tasks"], found["data"]["images"], found["data"]["choices"]) == (3, 24, 6)
    assert len(found["classes"]) == 10
    assert [note for note in found["notes"] if "for training" not in note] == []
    assert found["joint"]["before"] == results.rows[0].joint.model_dump()
    assert found["joint"]["after"] == results.rows[-1].joint.model_dump()
    marks = [(row["set"], row["learned"]) for row in found["classes"]]
    # The four control classes have names that the run learned.
    assert marks == [("data", True)] * 6 + [("control", True)] * 4
    first = answer("eval", home / "run", "--control", home / "control", "--task", 1)
    taught = set(results.tasks[0].classes)
    assert {row["name"] for row in first["classes"] if row["learned"]} == taught & {
        row["name"] for row in first["classes"]
    }
    alone = answer("eval", home / "model", "--control", home / "control")
    assert alone["joint"] is None
    shown = retouch(
        "eval", home / "run", "--data", home / "photos", "--control", home / "control"
    ).stdout
    for words in ("Control set ", "New classes, among all", "Both, among all"):
        assert words in shown
    done = retouch("eval", home / "run", "--data", home / "photos")
    assert done.exit_code == 0, done.output
    for words in ("New classes", "before %", "now %", "change", "dark red", "bright blue"):
        assert words in done.stdout
    assert "Control set" not in done.stdout
    assert "among all" not in done.stdout


def test_one_model_or_two(home: Path):
    alone = answer("eval", home / "model", "--data", home / "photos")
    assert alone["tasks"] is None
    assert alone["data"]["before"] is None
    assert {row["before"] for row in alone["classes"]} == {None}
    assert {row["learned"] for row in alone["classes"]} == {False}, "no run taught it anything"
    done = retouch("eval", home / "model", "--data", home / "photos")
    assert "right %" in done.stdout
    assert "before" not in done.stdout
    two = answer("eval", home / "model", "--data", home / "photos", "--against", home / "run")
    run = answer("eval", home / "run", "--data", home / "photos")
    assert two["data"]["after"] == run["data"]["before"] == alone["data"]["after"]
    assert two["data"]["before"] == run["data"]["after"]


def test_an_earlier_moment_of_a_run(home: Path):
    first = answer("eval", home / "run", "--data", home / "photos", "--task", 1)
    assert (first["tasks"], first["data"]["choices"], first["data"]["images"]) == (1, 2, 8)
    assert "after 1 of 3 tasks" in first["notes"][0]
    wanted = Results.read(home / "run").rows[1].tasks[0]
    assert first["data"]["after"] == pytest.approx(wanted)
    begin = answer("eval", home / "run", "--data", home / "photos", "--task", 0)
    assert begin["data"]["before"] is None
    assert begin["data"]["after"] == pytest.approx(Results.read(home / "run").frozen_accuracy)


def test_what_should_be_known_is_said(home: Path, tmp_path: Path):
    undivided = answer("eval", home / "run", "--data", home / "photos" / "test")
    assert "may have learned from some of them" in undivided["notes"][0]
    foreign = shutil.copytree(home / "photos" / "test", tmp_path / "foreign")
    (foreign / "dark_red").rename(foreign / "a cat")
    found = answer("eval", home / "run", "--data", foreign)
    assert "did not learn 'a cat'" in found["notes"][0]
    assert found["data"]["choices"] == 6
    (tmp_path / "names.csv").write_text("a cat,dark red\n")
    named = answer("eval", home / "run", "--data", foreign, "--names", tmp_path / "names.csv")
    assert named["data"]["after"] == undivided["data"]["after"]
    assert "did not learn" not in " ".join(named["notes"])
    assert "Note: " in retouch("eval", home / "run", "--data", foreign).stdout


def test_a_run_can_be_judged_by_what_it_kept(home: Path, tmp_path: Path):
    run = shutil.copytree(home / "run", tmp_path / "run")
    found = answer("eval", run)
    assert found["data"]["after"] == pytest.approx(Results.read(run).metrics()["accuracy"])
    assert "images that the run kept" in found["notes"][0]
    shutil.rmtree(run / "images")
    assert "keeps no images to judge by" in retouch("eval", run).stderr
    only = answer("eval", run, "--control", home / "control")
    assert only["data"] is None
    assert only["control"]["images"] == 20


def test_a_damaged_run_is_refused_at_once(home: Path, tmp_path: Path):
    run = shutil.copytree(home / "run", tmp_path / "run")
    file = run / "deltas" / "task-02.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    done = retouch("eval", run, "--data", home / "photos")
    assert done.exit_code == 1
    assert "task-02.safetensors" in done.stderr
    assert "before" not in done.stderr


def test_classify_before_and_now(home: Path):
    folder = home / "photos" / "test" / "dark_red"
    found = answer("classify", home / "run", folder, folder / "0.png", "--top", 2)
    assert [Path(each["file"]).name for each in found["images"]] == [
        *("0.png", "1.png", "2.png", "3.png"),
        "0.png",
    ]
    assert found["names"] == [n for task in Results.read(home / "run").tasks for n in task.classes]
    first = found["images"][0]
    assert len(first["before"]) == len(first["after"]) == 2
    assert first["before"] != first["after"]
    begin = answer("classify", home / "run", folder / "0.png", "--task", 0, "--top", 2)
    assert begin["images"][0]["before"] is None
    assert begin["images"][0]["after"] == first["before"]
    shown = retouch("classify", home / "run", folder / "0.png").stdout
    for words in ("0.png", "before", "now", first["after"][0]["name"], " %"):
        assert words in shown


def test_classify_goes_on_after_a_broken_image(home: Path, tmp_path: Path):
    (tmp_path / "broken.png").write_bytes(b"broken")
    (tmp_path / "names.txt").write_text("\ufeffred\n\n green \n", encoding="utf-8")
    good = home / "photos" / "test" / "dark_red" / "0.png"
    words = ("classify", home / "model", tmp_path / "broken.png", tmp_path / "gone.png", good)
    done = retouch(*words, "--names-file", tmp_path / "names.txt", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert [Path(each["file"]).name for each in found["unreadable"]] == ["broken.png", "gone.png"]
    assert found["names"] == ["red", "green"]
    assert [each["file"] for each in found["images"]] == [str(good)]
    done = retouch(*words, "--names", "red,green", "--template", "the {}")
    assert done.exit_code == 1
    assert "broken.png cannot be read" in done.stderr
    assert "gone.png cannot be read as an image (there is no such file)" in done.stderr
    assert str(good) in done.stdout.replace("\n", "")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_name_breaks_a_table(width: int):
    rows = [
        ClassRow(name=name, images=1000 * n + 1, before=10.0 * n, after=90.0 - 10 * n)
        for n, name in enumerate(ODD)
    ]
    confusions = [Confusion(name=a, called=b, images=5, of=12000) for a in ODD for b in ODD[:1]]
    lines = [(Prediction(name, 0.001), Prediction(name, 0.9)) for name in ODD]
    tables = [
        *classes_tables(rows, ("before", "now"), "New classes", True),
        confusions_table(confusions),
        guesses_table(("before", "now"), lines, width // 2 - 9),
    ]
    for table in tables:
        console = Console(width=width, file=StringIO())
        console.print(table)
        text = console.file.getvalue()
        shown = text.splitlines()
        assert max(map(cell_len, shown)) <= width
        assert "[bold]<" in text
        assert not set("\x1b\u202e\t") & set(text)
        for odd in ("שלום", "كلب"):
            row = next(line for line in shown if odd[:2] in line)
            after = row[row.index(odd[:2]) :]
            assert "\u200e" in after, "what follows would be read from right to left"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["eval", "{model}"], "name some with --data"),
        (["eval", "nowhere/at/all", "--data", "{photos}"], "there is no folder nowhere/at/all"),
        (["eval", "{run}", "--data", "{photos}", "--task", "4"], "has learned 3 of 3 tasks"),
        (["eval", "{model}", "--data", "{photos}", "--task", "1"], "is no folder of a run"),
        (["eval", "{run}", "--data", "{photos}", "--model", "builtin"], "began with weights"),
        (["eval", "{run}", "--data", "missing"], "is an unknown data set or path"),
        (["classify", "{model}", "{photos}"], "two names or more"),
        (["classify", "{model}", "{photos}", "--names", "a,a"], "two classes have the name"),
        (["classify", "{model}", "{photos}", "--names", "{run}/config.yaml"], "--names-file"),
        (["classify", "{model}", "{photos}", "--names-file", "gone"], "cannot be read"),
        (["classify", "{model}", "{run}/deltas", "--names", "a,b"], "holds no image"),
        (["classify", "{run}", "{photos}", "--template", "x"], "must hold {{}} once"),
    ],
)
def test_mistakes_get_a_sentence(words: list[str], complaint: str, home: Path):
    places = {name: home / name for name in ("model", "run", "photos")}
    done = retouch(*(word.format(**places) for word in words))
    assert done.exit_code == 1
    assert complaint.replace("{{}}", "{}") in done.stderr, done.output
    assert not done.stdout


def test_as_a_program(home: Path):
    good = home / "photos" / "test" / "dark_red" / "0.png"
    words = ["classify", home / "run", good, home / "gone.png", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "retouch", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["images"]) == 1
    assert "Traceback" not in done.stderr
    helped = retouch("eval", "--help")
    assert "Example: retouch eval runs/march" in helped.stdout
