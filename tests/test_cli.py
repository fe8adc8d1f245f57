"""The command line, as a user meets it: in another process, with real exit codes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import layouts
import pytest
from commands import run
from layouts import make_folder
from tiny import tiny_folder

from retouch.data.registry import BENCHMARKS
from retouch.evaluate import Results
from retouch.sparse import Delta

FAST = ["--epochs", "2", "--batch", "8", "--lr", "1e-3", "--set", "replay.size=6"]


def retouch(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "retouch", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, **options
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("a model"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    classes = {"dark_red": 6, "bright green": 6, "blue <script>": 6, 'the "photo"': 6}
    return make_folder(tmp_path_factory.mktemp("my photos"), classes)


def test_help_reads_well():
    text = retouch("--help").stdout
    assert "Teach CLIP new things without making it forget." in text
    for command in ("demo", "learn", "methods"):
        assert command in text
        assert retouch(command, "--help").returncode == 0
    assert retouch("--version").stdout.startswith("retouch 0.")


def test_help_does_not_wait_for_torch():
    code = "import sys, retouch.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_learn_a_folder_and_go_on(model: Path, photos: Path, tmp_path: Path):
    out = tmp_path / "runs" / "march"
    words = ("learn", photos, "--model", model, "--control", photos, "--tasks", "2", "--out", out)
    done = retouch(*words, *FAST)  # as a program; the others in this process
    assert done.returncode == 0, done.stderr
    assert "task  2/2" in done.stdout
    assert "Control accuracy" in done.stdout
    assert (out / "report.html").exists()
    assert {p.suffix for p in (out / "plots").iterdir()} == {".png", ".svg"}
    results = Results.read(out)
    assert results.method == "spu"
    assert results.finished
    assert Delta.load(out / "deltas" / "task-02.safetensors").metadata["classes"]
    run(*words, *FAST)
    assert Results.read(out) == results
    other = run(*words, *FAST, "--seed", "1", code=1)
    assert "settings.seed: 0 in that run, 1 now" in " ".join(other.stderr.split())


def test_dry_run_shows_the_selection_and_writes_nothing(model: Path, photos: Path, tmp_path: Path):
    out = tmp_path / "x"
    done = run("learn", photos, "--model", model, "--out", out, "--dry-run", *FAST)
    assert "vision_model.encoder.layers.0.mlp.fc1.weight" in done.stdout
    assert "the whole model" in done.stdout
    assert not out.exists()


def test_methods_are_listed():
    text = retouch("methods").stdout
    for name in ("frozen", "flyp", "er", "spu", "spu-code", "random", "update.rate=0.1"):
        assert name in text


def test_an_own_folder_cached_and_not_gives_the_same(model: Path, tmp_path: Path):
    """Thirty images in three classes, one of them broken, in a given order of the classes."""
    photos = make_folder(tmp_path / "my photos", {"red kite": 10, "cat": 10, "dog": 10})
    (photos / "cat" / "3.png").write_bytes(b"broken")
    (tmp_path / "order.txt").write_text("dog\ncat\nred kite\n")
    found = []
    for how in ("--cache", "--no-cache"):
        out = tmp_path / f"run {how}"
        more = [how, tmp_path / "cache"] if how == "--cache" else [how, "--workers", 3]
        words = ("learn", photos, "--model", model, "--out", out, "--order", tmp_path / "order.txt")
        done = run(*words, "--tasks", 3, "--skip-bad", *more, *FAST)
        assert ("once (0.1 MB in" in done.stderr) == (how == "--cache")
        found.append(Results.read(out))
        assert [task.classes for task in found[-1].tasks] == [["dog"], ["cat"], ["red kite"]]
        assert "1 of 30 images skipped" in found[-1].notes[0]
        page = (out / "report.html").read_text()
        assert "cat/3.png" in page
    assert found[0].rows == found[1].rows


def test_datasets_are_listed_and_checked(tmp_path: Path):
    layouts.write_gtsrb(tmp_path)
    listed = retouch("datasets", "--data-root", tmp_path)
    assert listed.returncode == 0, listed.stderr
    for name, benchmark in BENCHMARKS.items():
        assert name in listed.stdout
        assert benchmark.facts.url in listed.stdout
    checked = retouch("datasets", "check", "gtsrb", "--data-root", tmp_path)
    assert checked.returncode == 1
    assert "of 26,640 or 39,209 images" in checked.stdout
    assert checked.stdout.endswith("not whole\n")
    whole = retouch("datasets", "check", make_folder(tmp_path / "own", {"a": 2, "b": 3}))
    assert whole.returncode == 0, whole.stderr
    assert "train: 5 images\nclasses: 2\nunreadable: 0\n" in whole.stdout
    assert "was not found" in retouch("datasets", "check", "cars", "--data-root", tmp_path).stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{photos}", "--model", "nowhere/at/all"], "there is no folder nowhere/at/all"),
        (["{photos}", "--model", "{photos}"], "could not be loaded"),
        (["{empty}", "--model", "{model}"], "has no subfolders"),
        (["{missing}", "--model", "{model}"], "is an unknown data set or path"),
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
        (["{broken}", "--model", "{model}", "--no-cache"], "b/1.png cannot be read as an image"),
        (["cub", "--model", "{model}", "--data-root", "{empty}"], "CUB-200-2011 was not found"),
    ],
)
def test_mistakes_get_a_sentence_and_no_traceback(
    words: list[str], complaint: str, model: Path, photos: Path, tmp_path: Path
):
    (tmp_path / "empty").mkdir()
    make_folder(tmp_path / "hollow", {"a": 3, "b": 0})
    make_folder(tmp_path / "broken", {"a": 3, "b": 3})
    (tmp_path / "broken" / "b" / "1.png").write_bytes(b"broken")
    names = {name: tmp_path / name for name in ("empty", "missing", "hollow", "broken")}
    filled = [word.format(model=model, photos=photos, **names) for word in words]
    done = run("learn", *filled, "--out", tmp_path / "run", code=1)
    assert complaint in " ".join(done.stderr.split()), done.stderr


def test_a_mistake_gets_no_traceback(model: Path, photos: Path, tmp_path: Path):
    done = retouch("learn", photos, "--model", model, "--tasks", 9, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    assert "cannot be split into 9 tasks" in " ".join(done.stderr.split())


def test_random_weights_must_be_asked_for(photos: Path, tmp_path: Path):
    bare = tiny_folder(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    words = ("learn", photos, "--model", bare, "--out", tmp_path / "run", *FAST)
    assert "model.safetensors" in run(*words, code=1).stderr
    run(*words, "--random-weights")


def test_ctrl_c(model: Path, photos: Path, tmp_path: Path):
    out = tmp_path / "run"
    many = ["--epochs", "4000", "--batch", "8", "--lr", "1e-4", "--set", "replay.size=6"]
    words = ["learn", photos, "--model", model, "--out", out, *many]
    process = subprocess.Popen(
        [sys.executable, "-m", "retouch", *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while not (out / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command goes on there" in " ".join(errors.split())
    assert (out / "checkpoint.safetensors").exists()
    assert Results.read(out).rows


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
def test_a_disk_that_fills_up(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", disk]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        words = ("learn", photos, "--model", model, "--method", "flyp", "--tasks", "4")
        monkeypatch.setattr("retouch.output_paths.free_bytes", lambda path: 10**9)  # as it was then
        done = run(*words, "--out", disk / "run", *FAST[:6], code=1)
        assert "the disk is full" in done.stderr, done.stderr
        assert Results.read(disk / "run").rows
    finally:
        subprocess.run(["umount", disk], check=True)
