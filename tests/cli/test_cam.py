"""The command `retouch cam`."""

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import error_of, run
from PIL import Image
from task_selections import learned_run
from tiny import images, tiny_folder

import retouch
from retouch.cli.analysis.cam_images import find_cam_images
from retouch.errors import UserError
from retouch.train.run_folder.files import refuse_foreign


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its model, and some images."""
    home = tmp_path_factory.mktemp("home")
    learned_run(home / "run", clip=retouch.load(str(tiny_folder(home / "model"))))
    photos = images("test", 6, 1)
    for number, label in enumerate(photos.labels):
        folder = home / "photos" / photos.classes[label].replace(" ", "_")
        folder.mkdir(parents=True)
        photos.store.image(number).save(folder / f"{number}.png")
    return home


@pytest.mark.slow
def test_a_run_before_and_now_side_by_side(home: Path):
    photos = home / "photos"
    done = run("cam", home / "run", photos, "--neurons", "selected", "--json")
    facts = json.loads(done.stdout)
    assert next(image["text"] for image in facts["images"]) == "a photo of bright blue"
    assert all(image["maps"].keys() == {"before", "now"} for image in facts["images"])
    changed = [image["maps"]["before"] != image["maps"]["now"] for image in facts["images"]]
    assert any(changed)
    folder = home / "run" / "analysis" / "cam"
    assert sorted(file.name for file in folder.iterdir()) == [
        f"cam.{ending}" for ending in ("csv", "json", "png", "svg")
    ]
    assert facts["files"] == [str(folder / f"cam.{e}") for e in ("png", "svg", "csv", "json")]
    written = json.loads((folder / "cam.json").read_text())
    assert "whose weights the run selected most" in written["caption"]
    assert "6 images" in written["caption"]
    rows = list(csv.DictReader((folder / "cam.csv").open()))
    assert len(rows) == 6 * 2 * 4
    assert {row["model"] for row in rows} == {"before", "now"}
    assert all(0 <= float(row["heat"]) <= 1 for row in rows)
    ElementTree.parse(folder / "cam.svg")
    assert Image.open(folder / "cam.png").size[0] > 800
    refuse_foreign(home / "run")  # which knows all that was written


@pytest.mark.slow
def test_the_default_text_is_the_class_that_the_run_predicts(home: Path, tmp_path: Path):
    image = next((home / "photos" / "bright_red").iterdir())
    answers = json.loads(run("classify", home / "run", image, "--json").stdout)["images"][0]
    facts = json.loads(run("cam", home / "run", image, "-o", tmp_path, "--json").stdout)
    assert facts["images"][0]["text"] == f"a photo of {answers['after'][0]['name']}"
    missing = run("cam", home / "run", image, "--task", "0", code=1).stderr
    assert "no text says what to look for" in missing
    explained = " ".join(run("cam", "--help").stdout.replace("│", " ").split())
    assert "if IMAGE is a folder of class folders; otherwise the class that the run" in explained


@pytest.mark.slow
def test_one_image_and_a_text(home: Path, tmp_path: Path):
    model, image = home / "model", next((home / "photos" / "dark_red").iterdir())
    done = run("cam", model, image, "--text", "a photo of\x1b[31m the $red$ 漢字", "-o", tmp_path)
    assert "Block 1 of 2, 6 of 64 neurons (gradient)" in done.stdout
    assert "\x1b[31m" not in done.stdout
    assert f"dark_red/{image.name}" in done.stdout
    ElementTree.parse(tmp_path / "cam.svg")
    facts = json.loads((tmp_path / "cam.json").read_text())
    assert facts["title"]
    assert list(facts["numbers"]["images"][0]["maps"]) == ["where they look"]
    few = run("cam", model, home / "photos", "--max-images", "4", "-o", tmp_path).stdout
    assert "4 of 6 images, evenly spread" in few


@pytest.mark.slow
def test_files_of_others_are_not_replaced(home: Path, tmp_path: Path):
    image = next((home / "photos" / "dark_red").iterdir())
    (tmp_path / "notes.txt").write_text("not in the way")
    words = ("cam", home / "model", image, "--text", "red", "-o", tmp_path)
    run(*words)
    run(*words)
    (tmp_path / "cam.json").write_text('{"camera": "front door"}')
    assert f"{tmp_path / 'cam.json'} exists already, and retouch does not" in error_of(*words)
    assert (tmp_path / "cam.json").read_text() == '{"camera": "front door"}'


@pytest.mark.slow
def test_mistakes_are_explained(home: Path, tmp_path: Path):
    model, image = home / "model", next((home / "photos" / "dark_red").iterdir())
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    for words, reason in {
        (image, "--layer", 7): "no layer 7: the visual tower of",
        (image, "--text", "red " * 30): "32 tokens, more than the 12",
        (image,): f"no text says what to look for in {image}; give one with --text, or give the "
        "folder that holds the class folders",
        (image.parent,): "or give the folder that holds the class folders",
        (image, "--text", "red", "--neurons", "selected"): "is not a run, so it has selected no",
        (image, "--text", "red", "--share", 2): "share=2.0 is not a share",
        (tmp_path / "empty", "--text", "red"): "holds no image",
        (tmp_path / "none.jpg", "--text", "red"): "there is no such file",
        (broken, "--text", "red"): "broken.jpg cannot be read as an image",
    }.items():
        assert reason in error_of("cam", model, *words, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    mixed = run("cam", model, broken, image, "--text", "red", "-o", tmp_path / "out", code=1)
    assert "broken.jpg cannot be read as an image" in mixed.stderr
    assert (tmp_path / "out" / "cam.png").is_file()  # of the other


def test_of_packaged_pictures_a_few_of_each_class():
    counts = {"builtin": (50, 25), "builtin:world": (154, 154), "builtin:shapes": (16, 8)}
    for name, (pictures, classes) in counts.items():
        found = find_cam_images([name])
        assert (len(found), len({image.label for image in found})) == (pictures, classes)
    with pytest.raises(UserError, match="builtin:nothing is no built-in data set"):
        find_cam_images(["builtin:nothing"])
