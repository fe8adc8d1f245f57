"""What is cheap to check is checked before a model is loaded; a refused start leaves no trace."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import error_of, run
from layouts import make_folder
from tiny import tiny_folder

from retouch.evaluate import Results

pytestmark = pytest.mark.usefixtures("no_page")
FAST = ["--epochs", "1", "--batch", "8", "--lr", "1e-3", "--set", "replay.size=6"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, images, and a finished run."""
    home = tmp_path_factory.mktemp("home")
    tiny_folder(home / "model")
    make_folder(home / "photos", {"dark_red": 6, "bright green": 6})
    make_folder(home / "more", {"blue": 6, "pale": 6})
    make_folder(home / "one", {"cat": 6})
    make_folder(home / "capitals", {"Dark red": 6, "pale": 6})
    (home / "broken.json").write_text('{"dark red": 3}')
    (home / "order.txt").write_text("dark red\nsomething else\n")
    (home / "file").write_text("not a folder")
    words = ("learn", home / "photos", "--model", home / "model", "--out", home / "march")
    run(*words, *FAST)
    return home


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which models were loaded, by the real loader."""
    loaded: list[str] = []
    module = sys.modules["retouch.clip.loading.load"]
    real = module.load_hf

    def load_hf(source: str, **options: Any) -> Any:
        loaded.append(source)
        return real(source, **options)

    monkeypatch.setattr(module, "load_hf", load_hf)
    return loaded


def fill(home: Path, out: Path, words: list[str]) -> list[str]:
    return [word.format(home=home, out=out) for word in words]


PHOTOS = ["{home}/photos", "--model", "{home}/model", "--out", "{out}"]
KNOWN = [*PHOTOS, "--control", "{home}/more"]
ONWARD = ["{home}/more", "--from", "{home}/march", "--out", "{out}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{home}/nothing", *PHOTOS[1:]], "there is no such file or folder"),
        (["{home}/photos", "--out", "{out}"], "--model"),
        ([*PHOTOS, "--max-drop", "1"], "--control"),
        ([*ONWARD, "--max-drop", "1"], "--control"),
        ([*PHOTOS, "--method", "spu-bounded"], "--control"),
        ([*PHOTOS, "--control", "{home}/nothing"], "there is no such file or folder"),
        ([*PHOTOS, "--control", "{home}/march/../photos"], "is what is to be learned"),
        (
            [*PHOTOS[:2], "{home}/march", *PHOTOS[3:]],
            "export its model first (--from {home}/march)",
        ),
        ([*PHOTOS, "--method", "spo"], "no method 'spo'"),
        ([*PHOTOS, "--method", "zscl"], "--reference"),
        ([*PHOTOS, "--reference", "{home}/nothing"], "no images with captions"),
        ([*PHOTOS, "--set", "rate"], "write NAME=VALUE"),
        ([*PHOTOS, "--set", "update.rate=7"], "less than or equal to 1"),
        ([*PHOTOS, "--set", "update.rat=0.1"], "no such setting; did you mean update.rate?"),
        (["{home}/one", *PHOTOS[1:]], "there is only one class, 'cat'"),
        (["{home}/capitals", *ONWARD[1:]], "'dark red' and 'Dark red' differ only in case"),
        ([*ONWARD[:2], "{home}/nothing", *ONWARD[3:]], "there is no folder"),
        ([*PHOTOS, "--replay", "some"], "--replay some"),
        ([*PHOTOS, "--replay", "²"], "--replay ²"),
        ([*PHOTOS, "--order", "²"], "neither a number nor a file"),
        ([*PHOTOS, "--set", "replay.size=1e400"], "should be a finite number"),
        ([*PHOTOS, "--set", "update.where=*.nowhere"], "no weights for where="),
        ([*PHOTOS, "--order", "x.txt"], "neither a number nor a file"),
        ([*PHOTOS, "--order", "{home}/order.txt"], "'bright green'"),
        ([*PHOTOS, "--names", "{home}/nothing.csv"], "there is no file"),
        ([*PHOTOS, "--names", "{home}/broken.json"], "broken.json"),
        ([*PHOTOS, "--device", "cuda:99"], "cuda:99"),
        ([*PHOTOS, "--precision", "fp64"], "unknown precision 'fp64'"),
        ([*PHOTOS, "--device", "gpu"], "unknown device"),
        ([*PHOTOS, "--tasks", "9"], "cannot be split into 9 tasks"),
        ([*PHOTOS, "--holdout", "2"], "holdout=2"),
        ([*PHOTOS, "--lr", "-1"], "lr"),
        ([*PHOTOS, "--template", "a photo"], "must hold {} once"),
        ([*ONWARD, "--template", "the {{}}"], "keeps the prompts"),
        ([*ONWARD, "--method", "er"], "learned by text-first"),
        ([*ONWARD[:2], "{home}/more", *ONWARD[3:]], "holds no run"),
        ([*PHOTOS[:-1], "{home}/file"], "is a file"),
        ([*PHOTOS[:-1], "{home}/file/run"], "is a file"),
        ([*PHOTOS[:-1], "{home}/more"], "holds no run"),
        ([*PHOTOS, "--tensorboard", "{home}/file"], "is a file"),
        (["{home}/photos", "--model", "./nowhere", "--out", "{out}"], "there is no folder"),
    ],
)
def test_learn_refuses_before_it_loads_a_model(
    words: list[str], complaint: str, home: Path, loads: list[str], tmp_path: Path
):
    out = tmp_path / "run"
    done = run("learn", *fill(home, out, words), code=1)
    assert complaint.replace("{home}", str(home)) in " ".join(done.stderr.split()), done.stderr
    assert not loads
    assert not list(tmp_path.iterdir())


def test_an_unfinished_run_is_refused_before_its_model_is_loaded(
    home: Path, loads: list[str], tmp_path: Path
):
    half = shutil.copytree(home / "march", tmp_path / "half")
    results = Results.read(half)
    results.tasks.append(results.tasks[0])
    results.write(half)
    done = run("learn", home / "more", "--from", half, "--out", tmp_path / "x", code=1)
    assert "not finished" in " ".join(done.stderr.split())
    assert not loads


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["export", "{home}/march", "--to", "hf", "-o", "{out}"],
        ["delta", "apply", "{home}/model", "{home}/march", "-o", "{out}"],
        ["delta", "undo", "{home}/march", "{home}/march", "-o", "{out}"],
        ["delta", "merge", "{home}/march", "{home}/march", "-o", "{out}"],
        ["delta", "diff", "{home}/model", "{home}/march", "-o", "{out}"],
        ["cam", "{home}/march", "{home}/photos", "-o", "{out}"],
        ["trace", "{home}/march", "--coco", "builtin", "-o", "{out}"],
        ["overlap", "{home}/march", "-o", "{out}"],
        ["report", "{home}/march", "-o", "{out}"],
        ["bench", "demo", "--model", "{home}/model", "-o", "{out}"],
        ["demo", "-o", "{out}"],
    ],
    ids=lambda words: "-".join(words[:2]) if words[0] == "delta" else words[0],
)
def test_every_command_checks_first_where_it_will_write(
    words: list[str], home: Path, loads: list[str]
):
    done = run(*fill(home, home / "file" / "out", words), code=1)
    assert f"{home / 'file'} is a file" in " ".join(done.stderr.split()), done.stderr
    assert not loads


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 160 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_or_read_only_disk_is_noticed_first(home: Path, loads: list[str], disk: Path):
    words = ("learn", home / "photos", "--model", home / "model", "--out", disk / "run", *FAST[:6])
    many = run(*words, "--method", "flyp", code=1)
    assert "of disk, and there is room for" in " ".join(many.stderr.split()), many.stderr
    assert not list(disk.iterdir())
    loads.clear()
    (disk / "filling").write_bytes(bytes(160 * 1024))
    assert "is full" in " ".join(run(*words, code=1).stderr.split())
    (disk / "filling").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert "cannot be written" in " ".join(run(*words, code=1).stderr.split())
    assert not loads


@pytest.mark.slow
def test_a_refused_start_does_not_block_the_next(home: Path, tmp_path: Path):
    """An image that turns out to be broken when it is read."""
    photos = shutil.copytree(home / "photos", tmp_path / "photos")
    (photos / "dark_red" / "1.png").write_bytes(b"broken")
    words = ("learn", photos, "--model", home / "model", "--out", tmp_path / "x", *FAST)
    run(*words, "--no-cache", code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]
    run(*words, "--no-cache", "--skip-bad", "--seed", 1)


@pytest.mark.slow
def test_a_path_that_is_not_utf8(home: Path, loads: list[str], tmp_path: Path):
    """As the place of images it is escaped in documents; as that of a run it is refused."""
    photos = home / "photos"
    undecodable = tmp_path / os.fsdecode(b"r\xff")
    words = ("learn", "--model", home / "model", *FAST, "--no-cache")
    error = error_of(*words, photos, "--out", undecodable)
    assert "this path is not valid UTF-8; choose another" in error
    assert not loads
    assert not list(tmp_path.iterdir())
    run(*words, shutil.copytree(photos, undecodable), "--out", tmp_path / "run")
    results = Results.read(tmp_path / "run")
    assert results.data["train"].name.endswith("r\\udcff")
    assert "r\\udcff" in results.command


@pytest.mark.slow
def test_a_run_that_holds_the_only_copy_of_another_is_never_replaced(home: Path, tmp_path: Path):
    """It was killed before it learned anything, and the run that it continues is gone."""
    march = shutil.copytree(home / "march", tmp_path / "march")
    out = tmp_path / "april"
    words = ("learn", home / "more", "--model", home / "model", "--out", out, *FAST)
    run(*words, "--from", march, "--method", "text-first")
    shutil.copytree(march, out / "earlier")  # as it was while it was learned
    results, before = Results.read(out), Results.read(march)
    results.rows, results.fraction_kept = results.rows[: before.done + 1], before.fraction_kept
    results.trained, results.seconds = before.trained, before.seconds
    results.steps = before.steps
    results.write(out)
    shutil.rmtree(march)
    message = " ".join(run(*words, "--from", march, "--seed", 1, code=1).stderr.split())
    assert "settings.seed: 0 in that run, 1 now" in message
    assert message.endswith("overwrite that run (--overwrite)")
    assert (out / "earlier" / "config.yaml").exists()


@pytest.mark.slow
def test_only_runs_are_overwritten(home: Path, loads: list[str], tmp_path: Path):
    out = shutil.copytree(home / "march", tmp_path / "run")
    words = ("learn", home / "photos", "--model", home / "model", *FAST, "--overwrite", "--out")
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("colour: blue\n")
    assert "it holds no run" in " ".join(run(*words, other, code=1).stderr.split())
    assert (other / "config.yaml").read_text() == "colour: blue\n"
    nested = shutil.copytree(home / "march", tmp_path / "nested")
    shutil.copytree(home / "march", nested / "april")
    assert "april" in " ".join(run(*words, nested, code=1).stderr.split())
    assert (nested / "april" / "config.yaml").exists()
    inside = ("learn", out / "examples", "--model", home / "model", "--overwrite", "--out", out)
    assert "lies in it" in " ".join(run(*inside, code=1).stderr.split())
    assert not loads
    run(*words, out, "--seed", 1)
    assert Results.read(out).settings["seed"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nested", "other", "run"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["{home}/photos", "--out", "{home}/photos/runs/a"], "DATA"),
        (["{home}/photos", "--out", "{home}/photos"], "DATA"),
        (["{home}/more", "{home}/photos", "--out", "{home}/more/../photos/a"], "DATA"),
        (["{home}/more", "--control", "{home}/photos", "--out", "{home}/photos/a"], "--control"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_a_run_is_not_written_into_its_images(
    words: list[str], name: str, more: list[str], tmp_path: Path
):
    """Its pictures would be a class of their own, and it could never be resumed."""
    home = tmp_path
    make_folder(home / "photos", {"dark_red": 2, "bright green": 2})
    make_folder(home / "more", {"blue": 2, "pale": 2})
    before = sorted(home.rglob("*"))
    error = error_of("learn", *fill(home, home, words), "--model", "builtin", *more)
    assert f"is inside {name} {home}/photos" in error
    assert sorted(home.rglob("*")) == before


def test_a_run_inside_its_images_is_refused_even_if_it_is_there_already(tmp_path: Path):
    make_folder(tmp_path / "photos", {"dark_red": 2, "bright green": 2})
    out = tmp_path / "photos" / "run"
    out.mkdir()
    (out / "config.yaml").write_text("x: 1")
    error = error_of("learn", tmp_path / "photos", "--model", "builtin", "--out", out)
    assert f"is inside DATA {tmp_path}/photos" in error
