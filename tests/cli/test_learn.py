"""`retouch learn` for someone with a folder of images and a model in production."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import run
from layouts import make_folder
from tiny import tiny_clip, tiny_folder

import retouch
from retouch.evaluate import Results
from retouch.methods import recipe
from retouch.methods.merging import BoundedDrop
from retouch.sparse import fingerprint
from retouch.train import open_run
from retouch.train.defaults import choose_defaults

FAST = ["--epochs", "2", "--batch", "8", "--lr", "1e-3", "--no-cache"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of two months, and of what the model must still know."""
    folder = tmp_path_factory.mktemp("data")
    make_folder(folder / "photos", {"dark_red": 6, "bright green": 6})
    make_folder(folder / "more", {"blue <script>": 6, 'the "photo"': 6})
    make_folder(folder / "known", {"a": 5, "b": 5})
    return folder


@pytest.fixture(scope="module")
def march(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "march"
    control = ["--control", data / "known"]
    run("learn", data / "photos", "--model", model, "--out", out, *control, *FAST)
    return out


def test_before_training_it_says_what_will_happen(model: Path, data: Path, tmp_path: Path):
    words = ["learn", data / "photos", "--model", model, "--out", tmp_path / "x", "--dry-run"]
    said = run(*words, "--no-cache").stdout
    assert "2 classes to learn, from 10 images; 2 more to test with" in said
    assert "a photo of dark red" in said
    assert "a photo of bright green" in said
    assert "Batches of 8, 30 epochs, learning rate 0.001 (suited to 10 images" in said
    assert "Up to 8 images are kept to replay them later." in said
    assert "the whole model" in said
    assert "It will take about" in said
    assert not (tmp_path / "x").exists()


def test_a_month_later(march: Path, model: Path, data: Path, tmp_path: Path):
    out = tmp_path / "april"
    words = ["learn", data / "more", "--from", march, "--out", out, "--control", data / "known"]
    done = run(*words, "--json", *FAST)
    told = json.loads(done.stdout)
    assert told["classes"] == ["bright green", "dark red", "blue <script>", 'the "photo"']
    assert told["fraction_kept"] == [1.0, 1.0]
    assert {"accuracy", "control_drop", "drift"} <= set(told["metrics"])
    assert "(it learned 2 classes before)" in done.stderr
    results = Results.read(out)
    assert results.settings["lr"] == 1e-3  # as it was in March
    assert not (out / "earlier").exists()
    assert (out / "report.html").exists()
    again = run(*words, "--json", *FAST)
    assert json.loads(again.stdout)["metrics"] == told["metrics"]
    # All it needs lies in its folder: March may go, and April may move.
    moved = shutil.move(out, tmp_path / "elsewhere")
    assert open_run(moved).classes == told["classes"]
    may = ["learn", data / "photos", "--from", moved, "--out", tmp_path / "may", *FAST]
    said = run(*may).stdout
    assert "as it knows" not in said
    assert "In this run it " in said
    assert "The 4 classes learned before: " in said
    third = Results.read(tmp_path / "may")
    assert (third.done, third.learned_before) == (3, 2), "a step begins at the last --from"
    assert third.command.startswith(f"retouch learn {data / 'photos'} --from ")
    assert third.data["train"].name == str(data / "photos")
    page = (tmp_path / "may" / "report.html").read_text()
    for shown in ("In this run it ", "While it learned", "Confusion matrix", "--from"):
        assert shown in page


def test_more_than_the_allowed_drop_is_not_kept(model: Path, data: Path, tmp_path: Path):
    clip = retouch.load(str(model))
    control = sure_control(clip, tmp_path / "control")
    words = ["learn", data / "photos", "--model", model, "--control", control]
    wild = ["--method", "flyp", "--lr", "0.004", "--epochs", "3", "--batch", "4", "--no-cache"]
    free = run(*words, *wild, "--out", tmp_path / "free", "--json")
    cost = json.loads(free.stdout)["metrics"]["control_drop"]
    assert cost > 2
    done = run(*words, *wild, "--out", tmp_path / "held", "--max-drop", 0, "--json", code=3)
    told = json.loads(done.stdout)
    assert told["fraction_kept"] == [0.0]
    assert told["metrics"]["control_drop"] == 0
    assert "nothing of task 1 was kept" in told["notes"][0]
    held = open_run(tmp_path / "held")
    before = fingerprint(held.clip.model)
    assert fingerprint(held.load_task().model) == before
    half = ["--max-drop", cost / 2]
    told = json.loads(run(*words, *wild, "--out", tmp_path / "some", *half, "--json").stdout)
    assert told["metrics"]["control_drop"] <= cost / 2
    assert told["fraction_kept"][0] < 1


def sure_control(clip: Any, folder: Path) -> Path:
    """Pictures that the model recognises, whatever they show."""
    import numpy as np
    from PIL import Image

    from retouch.clip.zero_shot import classifier
    from retouch.data import in_memory
    from retouch.evaluate.image_features import image_features

    rng = np.random.default_rng(0)
    arrays = rng.integers(0, 256, (60, 16, 16, 3)).astype(np.uint8)
    names = ["red", "blue", "pale", "dark"]
    pictures = in_memory("x", names, [0] * 60, arrays)
    texts = classifier(clip, names, ("a photo of {}",))
    said = (image_features(clip, pictures, np.arange(60)) @ texts.T).argmax(dim=1).tolist()
    for number, (array, label) in enumerate(zip(arrays, said, strict=True)):
        (folder / names[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(folder / names[label] / f"{number}.png")
    assert len(set(said)) > 1
    return folder


def test_any_method_can_be_bounded_with_what_settles_it():
    from retouch.methods.merging import Interpolate, with_max_drop
    from retouch.train.run_folder import method_of

    halfway = with_max_drop(recipe("wise-ft"), 0.5)
    assert isinstance(halfway.after_task, BoundedDrop)
    assert isinstance(halfway.after_task.after, Interpolate)
    config = {"method": halfway.model_dump(mode="json")}
    assert method_of(config) == halfway
    assert with_max_drop(halfway, 2).after_task.after == halfway.after_task.after


def test_those_who_may_not_store_data_store_none(model: Path, data: Path, tmp_path: Path):
    out, words = tmp_path / "x", ["learn", data / "photos", "--model", model]
    run(*words, "--out", out, "--replay", "none", *FAST)
    kinds = {file.suffix for file in out.rglob("*") if file.is_file()}
    assert kinds <= {".json", ".jsonl", ".yaml", ".safetensors", ".html", ".svg", ".png"}
    pictures = [f for f in out.rglob("*.png") if f.parent.name != "plots"]
    assert not pictures
    assert "data:image/jpeg" not in (out / "report.html").read_text()
    more = ["learn", data / "more", "--from", out, "--out", tmp_path / "y", "--replay", "none"]
    run(*more, *FAST)
    assert Results.read(tmp_path / "y").rows[-1].tasks[0] is None


def test_classes_get_other_names(model: Path, data: Path, tmp_path: Path):
    (tmp_path / "names.csv").write_text('folder,name\ndark_red,"a mole, red"\n')
    out, names = tmp_path / "x", ["--names", tmp_path / "names.csv"]
    said = run("learn", data / "photos", "--model", model, "--out", out, *names, *FAST).stdout
    assert "a photo of a mole, red" in said
    assert sorted(Results.read(out).tasks[0].classes) == ["a mole, red", "bright green"]
    (tmp_path / "names.csv").write_text("dark rod,mole\n")
    words = ["learn", data / "photos", "--model", model, "--out", tmp_path / "y", *names, *FAST]
    complaint = run(*words, code=1).stderr.replace("\n", " ")
    assert "there is no class 'dark rod'" in complaint
    assert "dark red" in complaint


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{more}", "--out", "{x}"], "no model given"),
        (["{more}", "--from", "{march}", "--out", "{march}"], "the same"),
        (["{more}", "--from", "{more}", "--out", "{x}"], "holds no run"),
        (["{more}", "--from", "{march}", "--method", "er", "--out", "{x}"], "learned by spu"),
        (["{more}", "--from", "{march}", "--model", "builtin", "--out", "{x}"], "began with"),
        (["{more}", "--from", "{march}", "--replay", "-3", "--out", "{x}"], "--replay -3"),
        (["{more}", "--from", "{march}", "--max-drop", "1", "--out", "{x}"], "--control"),
    ],
)
def test_mistakes_are_explained(
    words: list[str], complaint: str, march: Path, data: Path, tmp_path: Path
):
    places = {"more": data / "more", "march": march, "x": tmp_path / "x"}
    done = run("learn", *(word.format(**places) for word in words), *FAST, code=1)
    assert complaint in " ".join(done.stderr.split())


def test_settings_suit_few_images_and_many():
    clip, method = tiny_clip(), recipe("spu")
    few = choose_defaults(clip, method, {}, images=[12], classes=3)
    assert (few.settings.batch, few.settings.epochs) == (8, 30)
    assert few.method.replay.size == 12
    many = choose_defaults(clip, method, {}, images=[6000], classes=20, learned=4000)
    assert (many.settings.batch, many.settings.epochs) == (128, 10)
    assert many.method.replay.size == 400
    asked = choose_defaults(
        clip, method, {"batch": 32, "epochs": 3, "lr": 1e-4}, images=[12], classes=3
    )
    assert (asked.settings.batch, asked.settings.epochs, asked.settings.lr) == (32, 3, 1e-4)
    for size in (7, 0.04):  # the default is respected as well, where it is asked for
        own = choose_defaults(
            clip, method.with_change({"replay.size": size}), {}, images=[12], classes=3
        )
        assert own.method.replay.size == size
        assert len(own.notes) == 1
    class_balanced = method.with_change({"replay.balance": "class"})
    assert (
        choose_defaults(clip, class_balanced, {}, images=[12], classes=3).method.replay.size == 12
    )
