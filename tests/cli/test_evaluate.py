"""`retouch eval`: what a model recognizes, before and now."""

import shutil
from pathlib import Path

import pytest
import torch
from commands import error_of, run, run_json
from domains import domain_run
from tiny import tiny_clip

from retouch.cli.terminal.console import out
from retouch.evaluate import Results


@pytest.fixture
def results(evaluated: Path) -> Results:
    return Results.read(evaluated / "run")


def test_a_run_before_and_now(evaluated: Path, results: Results):
    data = ("--data", evaluated / "photos", "--control", evaluated / "control", "--no-cache")
    facts = run_json("eval", evaluated / "run", *data)
    assert facts["data"]["after"] == pytest.approx(results.metrics()["accuracy"])
    assert facts["data"]["before"] == pytest.approx(results.frozen_accuracy)
    assert facts["control"]["after"] == pytest.approx(results.rows[-1].control)
    assert (facts["tasks"], facts["data"]["images"], facts["data"]["choices"]) == (3, 24, 6)
    assert [note for note in facts["notes"] if "for training" not in note] == []
    assert facts["joint"]["before"] == results.rows[0].joint.model_dump()
    assert facts["joint"]["after"] == results.rows[-1].joint.model_dump()
    marks = [(row["set"], row["learned"]) for row in facts["classes"]]
    # The four control classes have names that the run learned.
    assert marks == [("data", True)] * 6 + [("control", True)] * 4


@pytest.mark.slow
def test_the_tables_of_a_run(evaluated: Path):
    data, control = ("--data", evaluated / "photos"), ("--control", evaluated / "control")
    text = run("eval", evaluated / "run", *data, *control).stdout
    for words in ("Control set ", "New classes, among all", "Both, among all"):
        assert words in text
    text = run("eval", evaluated / "run", *data).stdout
    for words in ("New classes", "before %", "now %", "change", "dark red", "bright blue"):
        assert words in text
    assert "Control set" not in text
    assert "among all" not in text


@pytest.mark.slow
def test_a_narrow_terminal(evaluated: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(out, "width", 40)
    text = run("eval", evaluated / "run", "--data", evaluated / "photos").stdout
    for words in ("New", "classes", "before %", "now %", "change", "dark red"):
        assert words in text
    assert text.count("change") == 2


def test_a_control_set_alone(evaluated: Path, results: Results):
    control = ("--control", evaluated / "control")
    first = run_json("eval", evaluated / "run", *control, "--task", 1)
    names = {row["name"] for row in first["classes"]}
    learned = {row["name"] for row in first["classes"] if row["learned"]}
    assert learned == set(results.tasks[0].classes) & names
    assert run_json("eval", evaluated / "model", *control)["joint"] is None


@pytest.mark.slow
def test_one_model_or_two(evaluated: Path):
    data = ("--data", evaluated / "photos")
    alone = run_json("eval", evaluated / "model", *data)
    assert alone["tasks"] is None
    assert alone["data"]["before"] is None
    assert {row["before"] for row in alone["classes"]} == {None}
    assert {row["learned"] for row in alone["classes"]} == {False}, "no run taught it anything"
    text = run("eval", evaluated / "model", *data).stdout
    assert "right %" in text
    assert "before" not in text
    two = run_json("eval", evaluated / "model", *data, "--against", evaluated / "run")
    of_run = run_json("eval", evaluated / "run", *data)
    assert two["data"]["after"] == of_run["data"]["before"] == alone["data"]["after"]
    assert two["data"]["before"] == of_run["data"]["after"]


def test_a_run_after_an_earlier_task(evaluated: Path, results: Results):
    words = ("eval", evaluated / "run", "--data", evaluated / "photos", "--task")
    first = run_json(*words, 1)
    assert (first["tasks"], first["data"]["choices"], first["data"]["images"]) == (1, 2, 8)
    assert "after 1 of 3 tasks" in first["notes"][0]
    assert first["data"]["after"] == pytest.approx(results.rows[1].tasks[0])
    start = run_json(*words, 0)
    assert start["data"]["before"] is None
    assert start["data"]["after"] == pytest.approx(results.frozen_accuracy)


@pytest.mark.slow
def test_images_that_a_run_learned_from_under_other_names(evaluated: Path, tmp_path: Path):
    photos = shutil.copytree(evaluated / "photos" / "train", tmp_path / "photos")
    names = tmp_path / "names.csv"
    names.write_text("".join(f"{f.name},a {f.name.replace('_', ' ')}\n" for f in photos.iterdir()))
    model = ("--model", evaluated / "model", "--epochs", 0, "--out", tmp_path / "run")
    run("learn", photos, "--names", names, *model)
    for given in ((), ("--names", names)):
        facts = run_json("eval", tmp_path / "run", "--data", photos, *given)
        assert "the run learned from some of them" in " ".join(facts["notes"])


@pytest.mark.slow
def test_notes_on_the_images(evaluated: Path, tmp_path: Path):
    words = ("eval", evaluated / "run", "--data")
    undivided = run_json(*words, evaluated / "photos" / "test")
    assert "may have learned from some of them" in undivided["notes"][0]
    foreign = shutil.copytree(evaluated / "photos" / "test", tmp_path / "foreign")
    (foreign / "dark_red").rename(foreign / "a cat")
    facts = run_json(*words, foreign)
    assert "did not learn 'a cat'" in facts["notes"][0]
    assert facts["data"]["choices"] == 6
    (tmp_path / "names.csv").write_text("a cat,dark red\n")
    renamed = run_json(*words, foreign, "--names", tmp_path / "names.csv")
    assert renamed["data"]["after"] == undivided["data"]["after"]
    assert "did not learn" not in " ".join(renamed["notes"])
    assert "Note: " in run(*words, foreign).stdout


@pytest.mark.slow
def test_the_images_that_the_run_stored(evaluated: Path, results: Results, tmp_path: Path):
    copy = shutil.copytree(evaluated / "run", tmp_path / "run")
    facts = run_json("eval", copy)
    assert facts["data"]["after"] == pytest.approx(results.metrics()["accuracy"])
    assert "images that the run stored" in facts["notes"][0]
    shutil.rmtree(copy / "images")
    assert "stored no test images; name some with --data" in error_of("eval", copy)
    control = run_json("eval", copy, "--control", evaluated / "control")
    assert control["data"] is None
    assert control["control"]["images"] == 20


@pytest.mark.slow
def test_a_run_over_several_data_sets_has_the_accuracy_that_it_had(tmp_path: Path):
    folder, results, _ = domain_run(tmp_path)
    data = run_json("eval", folder)["data"]
    assert data["after"] == pytest.approx(results.metrics()["accuracy"])
    assert data["before"] == pytest.approx(results.frozen_accuracy)
    assert data["images"] == 6 * 3 + 4 * 2
    choices = [(each["name"], each["choices"]) for each in data["domains"]]
    assert choices == [("colors", 6), ("paints", 4)]
    assert [each["after"] for each in data["domains"]] == pytest.approx(results.domain_matrix[-1])
    text = " ".join(run("eval", folder).stdout.split())
    assert "among the classes of its own data set, as in the run" in text
    assert "paints 4 8" in text


def test_a_damaged_run_is_refused_at_once(evaluated: Path, tmp_path: Path):
    copy = shutil.copytree(evaluated / "run", tmp_path / "run")
    file = copy / "deltas" / "task-02.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    error = error_of("eval", copy, "--data", evaluated / "photos")
    assert "task-02.safetensors" in error
    assert "before" not in error


@pytest.mark.slow
def test_a_model_with_nan_has_no_accuracy(evaluated: Path, tmp_path: Path):
    clip = tiny_clip()
    clip.model.get_parameter("text_projection.weight").data[0, 0] = torch.nan
    clip.save(tmp_path / "broken")
    photos = evaluated / "photos" / "test"
    for command, *words in (
        ("eval", "--data", photos, "--no-cache"),
        ("classify", photos, "--names", "red,green"),
        ("export", "--to", "hf", "-o", tmp_path / "new"),
    ):
        error = error_of(command, tmp_path / "broken", *words)
        assert f"{tmp_path / 'broken'} has 1 of" in error, command
        assert "the first in text_projection.weight; take another copy" in error
    assert {path.name for path in tmp_path.iterdir()} == {"broken"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{model}"], "name some with --data"),
        (["nowhere/at/all", "--data", "{photos}"], "there is no folder nowhere/at/all"),
        (["{run}", "--data", "{photos}", "--task", "4"], "has learned 3 of 3 tasks"),
        (["{model}", "--data", "{photos}", "--task", "1"], "--task 1 is for a run"),
        (["{run}", "--data", "{photos}", "--model", "builtin"], "--model"),
        (["{run}", "--data", "missing"], "there is no such file or folder"),
    ],
)
def test_errors(words: list[str], complaint: str, evaluated: Path):
    folders = {name: evaluated / name for name in ("model", "run", "photos")}
    result = run("eval", *(word.format(**folders) for word in words), code=1)
    assert complaint in " ".join(result.stderr.split())
    assert not result.stdout


def test_help_has_an_example():
    assert "Example: retouch eval runs/march" in run("eval", "--help").stdout
