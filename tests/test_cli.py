"""The command line, as a user meets it: in another process, with real exit codes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_data import make_folder
from tiny import tiny_folder

from retouch.learn import Results
from retouch.sparse import Delta

FAST = ["--epochs", "2", "--batch", "8", "--lr", "1e-3", "--set", "replays.size=6"]


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
    done = retouch(*words, *FAST)
    assert done.returncode == 0, done.stderr
    assert "task  2/2" in done.stdout
    assert "forgot" in done.stdout
    assert (out / "report.html").exists()
    assert {p.suffix for p in (out / "plots").iterdir()} == {".png", ".svg"}
    results = Results.read(out)
    assert results.method == "spu"
    assert results.finished
    assert Delta.load(out / "deltas" / "task-02.safetensors").about["classes"]
    again = retouch(*words, *FAST)
    assert again.returncode == 0
    assert Results.read(out) == results
    other = retouch(*words, *FAST, "--seed", "1")
    assert other.returncode == 1
    assert "settings.seed: 0 there, 1 asked for" in other.stderr


def test_dry_run_shows_the_selection_and_writes_nothing(model: Path, photos: Path, tmp_path: Path):
    out = tmp_path / "x"
    done = retouch("learn", photos, "--model", model, "--out", out, "--dry-run", *FAST)
    assert done.returncode == 0, done.stderr
    assert "vision_model.encoder.layers.0.mlp.fc1.weight" in done.stdout
    assert "the whole model" in done.stdout
    assert not out.exists()


def test_methods_are_listed():
    text = retouch("methods").stdout
    for name in ("frozen", "flyp", "er", "spu", "spu-code", "random", "trains.rate=0.1"):
        assert name in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{photos}", "--model", "nowhere/at/all"], "there is no folder nowhere/at/all"),
        (["{photos}", "--model", "{photos}"], "could not be loaded"),
        (["{empty}", "--model", "{model}"], "holds no folders"),
        (["{missing}", "--model", "{model}"], "is no folder"),
        (["{hollow}", "--model", "{model}"], "the class 'b' has no image"),
        (["{photos}", "--model", "{model}", "--tasks", "9"], "9 tasks cannot be made of 4"),
        (["{photos}", "--model", "{model}", "--method", "spo"], "no method 'spo'"),
        (["{photos}", "--model", "{model}", "--set", "trains.rate=7"], "less than or equal to 1"),
        (["{photos}", "--model", "{model}", "--set", "rate"], "write NAME=VALUE"),
        (["{photos}", "--model", "{model}", "--lr", "1e30", *FAST[:4]], "the loss became nan"),
        (["{photos}", "--model", "{model}", "--lr", "-1"], "lr"),
        (["{photos}", "--model", "{model}", "--device", "cuda:7"], "cuda:7"),
    ],
)
def test_mistakes_get_a_sentence_and_no_traceback(
    words: list[str], complaint: str, model: Path, photos: Path, tmp_path: Path
):
    (tmp_path / "empty").mkdir()
    make_folder(tmp_path / "hollow", {"a": 3, "b": 0})
    names = {name: tmp_path / name for name in ("empty", "missing", "hollow")}
    filled = [word.format(model=model, photos=photos, **names) for word in words]
    done = retouch("learn", *filled, "--out", tmp_path / "run")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    assert complaint in " ".join(done.stderr.split()), done.stderr


def test_random_weights_must_be_asked_for(photos: Path, tmp_path: Path):
    bare = tiny_folder(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    words = ("learn", photos, "--model", bare, "--out", tmp_path / "run", *FAST)
    refused = retouch(*words)
    assert refused.returncode == 1
    assert "model.safetensors" in refused.stderr
    assert retouch(*words, "--random-weights").returncode == 0


def test_ctrl_c(model: Path, photos: Path, tmp_path: Path):
    out = tmp_path / "run"
    many = ["--epochs", "4000", "--batch", "8", "--lr", "1e-4", "--set", "replays.size=6"]
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
def test_a_full_disk(model: Path, photos: Path, tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", disk]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        words = ("learn", photos, "--model", model, "--method", "flyp", "--tasks", "4")
        done = retouch(*words, "--out", disk / "run", *FAST[:6])
        assert done.returncode == 1
        assert "the disk is full" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert Results.read(disk / "run").rows
    finally:
        subprocess.run(["umount", disk], check=True)
