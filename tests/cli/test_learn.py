"""`retouch learn`: from a folder of images to a run, and from a run to the next."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import error_of, run, run_json
from layouts import make_folder
from PIL import Image
from tiny import tiny_clip, tiny_folder

import retouch
from retouch.cli.learn.summary import control_note
from retouch.clip.text.zero_shot import classifier
from retouch.data import in_memory
from retouch.evaluate import Results
from retouch.evaluate.image_features import image_features
from retouch.methods import DEFAULT_METHOD, recipe
from retouch.methods.method_config import method_config
from retouch.sparse import Delta, fingerprint
from retouch.train import open_run
from retouch.train.plan import plan_stream
from retouch.train.run_folder.files import refuse_foreign
from retouch.train.run_folder.read import read_config

FAST = ["--epochs", "2", "--batch", "8", "--lr", "1e-3", "--no-cache"]
ONE_EPOCH = ["--epochs", "1", *FAST[2:]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("a model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of two months, and of what the model must still know."""
    folder = tmp_path_factory.mktemp("my data")
    make_folder(folder / "photos", {"dark_red": 6, "bright green": 6})
    make_folder(folder / "more", {"blue <script>": 6, 'the "photo"': 6})
    make_folder(folder / "known", {"a": 5, "b": 5})
    make_folder(folder / "hollow", {"a": 3, "b": 0})
    make_folder(folder / "broken", {"a": 3, "b": 3})
    (folder / "broken" / "b" / "1.png").write_bytes(b"broken")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(scope="module")
def march(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two tasks, with a control set."""
    out = tmp_path_factory.mktemp("runs") / "march"
    words = ("--model", model, "--control", data / "known", "--tasks", 2, "--out", out)
    text = run("learn", data / "photos", *words, *FAST).stdout
    assert "task  2/2" in text
    assert "Control accuracy" in text
    return out


@pytest.mark.slow
def test_a_run_has_a_page_plots_and_deltas(march: Path):
    refuse_foreign(march)  # which knows all that was written
    assert (march / "report.html").exists()
    assert {p.suffix for p in (march / "plots").iterdir()} == {".png", ".svg"}
    results = Results.read(march)
    assert results.method == "text-first"
    assert results.finished
    assert Delta.load(march / "deltas" / "task-02.safetensors").metadata["classes"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_the_same_command_changes_nothing_and_another_is_refused(
    march: Path, model: Path, data: Path
):
    words = ("learn", data / "photos", "--model", model, "--control", data / "known")
    words = (*words, "--tasks", 2, "--out", march, *FAST)
    results = Results.read(march)
    assert "was finished before; nothing was trained" in " ".join(run(*words).stdout.split())
    assert Results.read(march) == results
    error = error_of(*words, "--seed", "1")
    assert "settings.seed: 0 in that run, 1 now" in error
    assert "--overwrite" in error


def test_dry_run_shows_the_plan_and_writes_nothing(model: Path, data: Path, tmp_path: Path):
    words = ["learn", data / "photos", "--model", model, "--out", tmp_path / "x", "--dry-run"]
    text = run(*words, "--no-cache").stdout
    assert "2 classes to learn, from 10 images; 2 more to test with" in text
    assert "a photo of dark red" in text
    assert "a photo of bright green" in text
    assert "Batches of 8, 30 epochs, learning rate 0.0008 (suited to 10 images" in text
    assert "Up to 8 images are kept to replay them later." in text
    assert "vision_model.encoder.layers.1.mlp.fc1.weight" in text
    assert "vision_model.encoder.layers.0.mlp.fc1.weight" not in text
    assert "the whole model" in text
    assert "It will take about" in text
    plan = run_json(*words, "--no-cache")
    assert plan["state"] == "new"
    assert plan["classes"] == ["bright green", "dark red"]
    assert (plan["images"], plan["test_images"], plan["tasks"]) == (10, 2, 1)
    assert (plan["method"], plan["settings"]["epochs"]) == ("text-first", 30)
    assert min(plan[name] for name in ("weights", "seconds", "memory", "disk")) > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_dry_run_says_what_becomes_of_the_run_that_is_there(
    march: Path, model: Path, data: Path, tmp_path: Path
):
    out = shutil.copytree(march, tmp_path / "run")
    words = ["learn", data / "photos", "--model", model, "--control", data / "known"]
    words += ["--tasks", 2, "--out", out, *FAST, "--dry-run"]
    assert f"{out} is finished; nothing would be trained." in " ".join(run(*words).stdout.split())
    error = error_of(*words, "--seed", 1)
    assert "settings.seed: 0 in that run, 1 now" in error
    assert "--overwrite" in error
    assert "It will take about" in run(*words, "--seed", 1, "--overwrite").stdout
    results = Results.read(out)
    results.rows, results.fraction_kept = results.rows[:2], results.fraction_kept[:1]
    results.trained, results.seconds = results.trained[:1], results.seconds[:1]
    results.steps = results.steps[:1]
    results.write(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    text = " ".join(run(*words).stdout.split())
    assert f"{out} would be resumed at task 2 of 2." in text
    facts = run_json(*words)
    assert facts == {"folder": str(out), "state": "unfinished", "learned": 1, "tasks": 2}
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_plan_says_how_much_of_the_control_set_is_checked(data: Path):
    splits, spu = retouch.read_data(data / "photos").train_and_test(), retouch.recipe("spu")
    known = retouch.read_control(data / "known")

    def note(tasks: int, part: int = 4) -> list[str]:
        stream, settings = retouch.Stream.split(*splits, tasks=tasks), {"control_part": part}
        return control_note(plan_stream(tiny_clip(), stream, spu, settings=settings, control=known))

    assert note(2) == [
        "4 of the 10 control images are checked after each task, all of them at the end"
    ]
    assert note(1) == note(2, part=2000) == []


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_images_decoded_once_or_every_time_give_the_same_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Three classes in a given order, and one broken image."""
    photos = make_folder(tmp_path / "my photos", {"red kite": 5, "cat": 5, "dog": 5})
    (photos / "cat" / "3.png").write_bytes(b"broken")
    (tmp_path / "order.txt").write_text("dog\ncat\nred kite\n")
    runs = []
    monkeypatch.setenv("RETOUCH_CACHE", str(tmp_path / "cache"))
    for cache in ([], ["--no-cache"]):
        out = tmp_path / f"run {len(runs)}"
        words = ("learn", photos, "--model", model, "--out", out, "--order", tmp_path / "order.txt")
        settings = ("--tasks", 3, "--skip-bad", "--epochs", 1, "--batch", 8, "--lr", 1e-3)
        result = run(*words, *settings, *cache)
        assert ("MB in" in result.stderr) == (not cache)
        assert (result.stdout + result.stderr).count("1 of 15 images skipped") == 1
        runs.append(Results.read(out))
        assert [task.classes for task in runs[-1].tasks] == [["dog"], ["cat"], ["red kite"]]
        assert "1 of 15 images skipped" in runs[-1].notes[0]
        assert "cat/3.png" in runs[-1].notes[0]
    assert runs[0].rows == runs[1].rows


@pytest.fixture(scope="module")
def april(march: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """March continued with one more task."""
    out = tmp_path_factory.mktemp("runs") / "april"
    words = ("learn", data / "more", "--from", march, "--control", data / "known", "--out", out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retouch.report.write_report", lambda folder, runs: folder / "report.html")
        result = run(*words, "--json", *FAST)
    assert "(it learned 2 classes before)" in result.stderr
    facts = json.loads(result.stdout)
    assert sorted(facts["classes"][:2]) == ["bright green", "dark red"]
    assert facts["classes"][2:] == ["blue <script>", 'the "photo"']
    assert facts["fraction_kept"] == [1.0, 1.0, 1.0]
    assert {"accuracy", "control_drop", "drift"} <= set(facts["metrics"])
    return out


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_continued_run_keeps_its_settings_and_can_be_resumed(
    april: Path, march: Path, data: Path
):
    results = Results.read(april)
    assert results.settings["lr"] == 1e-3, "as it was in March"
    assert not (april / "earlier").exists()
    words = ("learn", data / "more", "--from", march, "--control", data / "known", "--out", april)
    assert run_json(*words, *FAST)["metrics"] == results.metrics()


@pytest.mark.slow
def test_a_continued_run_needs_neither_the_earlier_folder_nor_its_place(
    april: Path, data: Path, tmp_path: Path
):
    moved = shutil.copytree(april, tmp_path / "elsewhere")
    classes = open_run(moved).classes
    assert len(classes) == 4
    words = ["learn", data / "photos", "--from", moved, "--out", tmp_path / "may", *ONE_EPOCH]
    text = run(*words).stdout
    assert "as it knows" not in text
    assert "In this run " in text
    assert "The 4 classes learned before: " in text
    results = Results.read(tmp_path / "may")
    assert (results.done, results.learned_before) == (4, 3), "a step starts at the last --from"
    assert results.command.startswith(f"retouch learn '{data / 'photos'}' --from ")
    assert results.data["train"].name == str(data / "photos")
    page = (tmp_path / "may" / "report.html").read_text()
    for heading in ("In this run ", "While it learned", "Confusion matrix", "--from"):
        assert heading in page


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_task_that_costs_more_than_the_allowed_drop_is_not_kept(
    model: Path, data: Path, tmp_path: Path
):
    clip = retouch.load(str(model))
    control = recognized_images(clip, tmp_path / "control")
    words = ["learn", data / "photos", "--model", model, "--control", control]
    wild = ["--method", "flyp", "--lr", "0.004", "--epochs", "3", "--batch", "4", "--no-cache"]
    cost = run_json(*words, *wild, "--out", tmp_path / "free")["metrics"]["control_drop"]
    assert cost > 2
    facts = run_json(*words, *wild, "--out", tmp_path / "none", "--max-drop", 0, code=3)
    assert facts["fraction_kept"] == [0.0]
    assert facts["metrics"]["control_drop"] == 0
    assert "nothing of task 1 was kept" in facts["notes"][0]
    unchanged = open_run(tmp_path / "none")
    before = fingerprint(unchanged.clip.model)
    assert fingerprint(unchanged.load_task().model) == before
    facts = run_json(*words, *wild, "--out", tmp_path / "some", "--max-drop", cost / 2)
    assert facts["metrics"]["control_drop"] <= cost / 2
    assert facts["fraction_kept"][0] < 1
    words = ["learn", data / "more", "--from", tmp_path / "some", "--out", tmp_path / "on"]
    said = error_of(*words)
    assert "was learned with a bound of" in said
    assert "name one (--control)" in said


def recognized_images(clip: Any, folder: Path) -> Path:
    """Random images in folders named after the class that the model takes them for."""
    rng = np.random.default_rng(0)
    arrays = rng.integers(0, 256, (60, 16, 16, 3)).astype(np.uint8)
    names = ["red", "blue", "pale", "dark"]
    images = in_memory("x", names, [0] * 60, arrays)
    texts = classifier(clip, names, ("a photo of {}",))
    labels = (image_features(clip, images, np.arange(60)) @ texts.T).argmax(dim=1).tolist()
    for number, (array, label) in enumerate(zip(arrays, labels, strict=True)):
        (folder / names[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(folder / names[label] / f"{number}.png")
    assert len(set(labels)) > 1
    return folder


def holds_images(folder: Path) -> bool:
    """Whether there is a picture in a run's folder that is not a plot, or in its page."""
    kinds = {file.suffix for file in folder.rglob("*") if file.is_file()}
    assert kinds <= {".json", ".jsonl", ".yaml", ".safetensors", ".html", ".svg", ".png", ".jpg"}
    pictures = [f for f in folder.rglob("*") if f.suffix in (".png", ".jpg")]
    page = (folder / "report.html").read_text()
    return any(f.parent.name != "plots" for f in pictures) or "data:image/jpeg" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--replay", "none"],
        ["--method", "spu", "--replay", "none"],
        ["--method", "spu", "--set", "store_images=false"],
    ],
    ids=" ".join,
)
def test_no_image_is_stored_by_a_run_and_those_that_continue_it(
    options: list[str], model: Path, data: Path, tmp_path: Path
):
    x, y, z = (tmp_path / name for name in "xyz")
    shown = run("learn", data / "photos", "--model", model, "--out", x, *options, *ONE_EPOCH).stdout
    assert "No image is stored in the folder of the run." in shown
    assert Results.read(x).method == ("spu" if "spu" in options else DEFAULT_METHOD)
    assert not holds_images(x)
    run("learn", data / "more", "--from", x, "--out", y, *ONE_EPOCH)
    assert Results.read(y).rows[-1].tasks[0] is None
    assert not holds_images(y)
    if options == ["--replay", "none"]:  # where the user asks for it, images are stored again
        stores_none = recipe(DEFAULT_METHOD, {"replay": "none", "store_images": False})
        assert read_config(x)["method"] == method_config(stores_none)
        asked = ["--set", "store_images=true"]
        run("learn", data / "known", "--from", y, "--out", z, *asked, *ONE_EPOCH)
        assert holds_images(z)


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_method_with_another_name_can_be_continued(model: Path, data: Path, tmp_path: Path):
    words = ["learn", data / "photos", "--model", model, "--out", tmp_path / "x"]
    run(*words, "--set", "name=mine", "--set", "after_task=Interpolate", *ONE_EPOCH)
    more = ["learn", data / "more", "--from", tmp_path / "x", "--out", tmp_path / "y"]
    run(*more, *ONE_EPOCH)
    results = Results.read(tmp_path / "y")
    assert (results.method, results.done) == ("mine", 2)
    config = read_config(tmp_path / "y")
    assert config["method"]["after_task"]["class"] == "Interpolate"


def test_classes_get_other_names(model: Path, data: Path, tmp_path: Path):
    (tmp_path / "names.csv").write_text('folder,name\ndark_red,"a mole, red"\n')
    names = ["--names", tmp_path / "names.csv"]
    words = ["learn", data / "photos", "--model", model, "--out", tmp_path / "x", *names]
    assert "a photo of a mole, red" in run(*words, "--dry-run").stdout
    (tmp_path / "names.csv").write_text("dark rod,mole\n")
    error = error_of(*words)
    assert "there is no class 'dark rod'" in error
    assert "dark red" in error


def test_random_weights_must_be_asked_for(data: Path, tmp_path: Path):
    bare = tiny_folder(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    words = ("learn", data / "photos", "--model", bare, "--out", tmp_path / "run", "--dry-run")
    assert "model.safetensors" in error_of(*words)
    run(*words, "--random-weights")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{photos}", "--model", "nowhere/at/all"], "there is no folder nowhere/at/all"),
        (["{photos}", "--model", "{photos}"], "could not be loaded"),
        (["{empty}", "--model", "{model}"], "has no subfolders"),
        (["{missing}", "--model", "{model}"], "there is no such file or folder"),
        (["{hollow}", "--model", "{model}"], "the class 'b' has no image"),
        (["{photos}", "--model", "{model}", "--tasks", "9"], "cannot be split into 9 tasks"),
        (["{photos}", "--model", "{model}", "--method", "spo"], "no method 'spo'"),
        (["{photos}", "--model", "{model}", "--set", "update.rate=7"], "less than or equal to 1"),
        (["{photos}", "--model", "{model}", "--set", "rate"], "write NAME=VALUE"),
        (["{photos}", "--model", "{model}", "--lr", "1e30", *FAST[:4]], "the loss became nan"),
        (["{photos}", "--model", "{model}", "--lr", "-1"], "lr"),
        (["{photos}", "--model", "{model}", "--device", "cuda:7"], "cuda:7"),
        (["{photos}", "--model", "{model}", "--order", "x.txt"], "neither a number nor a file"),
        (["{broken}", "--model", "{model}"], "b/1.png cannot be read as an image"),
        (["{broken}", "--model", "{model}"], "--skip-bad"),
        (["{broken}", "--model", "{model}", "--no-cache"], "b/1.png cannot be read as an image"),
        (["cub", "--model", "{model}", "--data-root", "{empty}"], "CUB-200-2011 was not found"),
        (["{more}"], "no model given"),
        (["{more}", "--from", "{more}"], "holds no run"),
        (["{more}", "--from", "{march}", "--method", "er"], "learned by text-first"),
        (["{more}", "--from", "{march}", "--model", "builtin"], "--model"),
        (["{more}", "--from", "{march}", "--replay", "-3"], "--replay -3"),
        (["{more}", "--from", "{march}", "--max-drop", "1"], "--control"),
    ],
)
def test_errors(
    words: list[str], complaint: str, model: Path, data: Path, march: Path, tmp_path: Path
):
    folders = {folder.name: folder for folder in data.iterdir()}
    folders |= {"model": model, "march": march, "missing": data / "missing"}
    words = [word.format(**folders) for word in words]
    assert complaint in error_of("learn", *words, "--out", tmp_path / "run")


def test_a_run_is_not_continued_in_its_own_folder(march: Path, data: Path):
    assert "the same" in error_of("learn", data / "more", "--from", march, "--out", march)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_fills_up(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", disk]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        words = ("learn", data / "known", "--model", model, "--method", "flyp", "--tasks", "2")
        monkeypatch.setattr(
            "retouch.files.output_paths.free_bytes", lambda path: 10**9
        )  # at the start
        assert "the disk is full" in error_of(*words, "--out", disk / "run", *FAST)
        assert Results.read(disk / "run").rows
    finally:
        subprocess.run(["umount", disk], check=True)
