"""The program as a user starts it, in its own process, and what all commands have in common."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import error_of, run
from forked import Forked, run_program
from layouts import make_folder
from tiny import tiny_folder

from retouch.cli import ENVIRONMENT, app
from retouch.evaluate import Results

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and photos."""
    home = tmp_path_factory.mktemp("a home")
    tiny_folder(home / "model")
    make_folder(home / "my photos", {"dark_red": 6, "bright green": 6})
    return home


@pytest.mark.slow
def test_help_lists_the_commands():
    text = run("--help").stdout
    assert "Teach CLIP new things without making it forget." in text
    assert {"demo", "learn", "eval", "methods"} <= set(COMMANDS)
    for command in (*COMMANDS, "delta", "datasets"):
        assert command in text
        run(command, "--help")
    assert run("--version").stdout.startswith("retouch 0.")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["learn", "bench", "eval", "classify", "cam", "trace"])
def test_options_are_grouped_and_short_commands_are_not(command: str):
    assert "─ Output ─" in run(command, "--help").stdout
    assert "─ Output ─" not in run("report", "--help").stdout


@pytest.mark.slow
def test_help_does_not_import_torch():
    code = "import sys, retouch.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_environment_is_set_before_torch_is_imported_unless_the_user_has(
    before: str | None, after: str
):
    code = """
import os, sys, retouch.cli
sys.argv = ["retouch", "--version"]
try:
    retouch.cli.main()
except SystemExit:
    print(*map(os.environ.get, retouch.cli.ENVIRONMENT), "torch" in sys.modules)
"""
    environment = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT}
    environment |= {"OMP_WAIT_POLICY": before} if before else {}
    result = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert result.stdout.decode().split()[-4:] == [after, "60000", "1", "False"]


@pytest.mark.parametrize("option", ["--out=~/run", "-o~/run", "--out=~"])
def test_a_tilde_is_the_home_folder_where_the_shell_leaves_it(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Bash expands it only at the beginning of a word."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home" / "run").mkdir(parents=True)
    (tmp_path / "home" / "run" / "mine.txt").write_text("not a run")
    error = error_of("learn", "builtin", "--model", "builtin", option)
    assert str(tmp_path / "home") in error
    error = error_of("datasets", "check", "~/gone")
    assert f"{tmp_path}/home/gone" in error
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_methods_are_listed():
    text = run("methods").stdout
    for name in ("frozen", "flyp", "er", "spu", "spu-code", "random", "update.rate=0.1"):
        assert name in text


def test_settings_are_listed_as_set_reads_them():
    listed = "".join(run("methods").stdout.split())
    assert 'update.where=["*.q_proj.weight",' in listed
    assert "update.batches=null" in listed


def test_the_settings_of_a_method_are_explained():
    text = " ".join(run("methods", "spu+").stdout.split())
    assert "update.rate=0.2 Share of each tensor that is selected." in text
    assert "loss=label-aware" in text
    text = " ".join(run("methods", "lda").stdout.split())
    assert "after_task.shrinkage=0.1" in text
    assert "A prompt about a new class, and a search by text, are answered as before" in text
    assert "there is no method 'spo'" in run("methods", "spo", code=1).stderr


def fail_and_classify(learn: list[object], classify: list[object]) -> None:
    with pytest.raises(SystemExit) as end:
        run_program(*learn)
    assert end.value.code == 1
    try:
        run_program(*classify)
    finally:
        sys.stderr.write("still running")


@pytest.mark.slow
def test_an_error_has_no_traceback_and_classify_exits_at_once_with_its_code(
    home: Path, tmp_path: Path
):
    """As a program, whose second command prints JSON alone and ends the process."""
    photos, model = home / "my photos", home / "model"
    learn = ["learn", photos, "--model", model, "--tasks", "9", "--out", tmp_path / "run"]
    classify = ["classify", model, photos / "dark_red" / "0.png", home / "gone.png"]
    classify += ["--names", "red,green", "--json"]
    code, stdout, stderr = Forked(tmp_path / "printed", fail_and_classify, learn, classify).wait()
    assert "Traceback" not in stderr + stdout, stderr
    assert "cannot be split into 9 tasks" in " ".join(stderr.split())
    assert "still running" not in stderr
    assert code == 1
    assert len(json.loads(stdout)["images"]) == 1


@pytest.mark.slow
def test_ctrl_c(home: Path, tmp_path: Path):
    out = tmp_path / "run"
    words = ["learn", home / "my photos", "--model", home / "model", "--out", out, "--no-cache"]
    settings = ["--epochs", "4000", "--batch", "8", "--lr", "1e-4", "--set", "replay.size=6"]
    program = Forked(tmp_path / "printed", run_program, *words, *settings)
    while not (out / "metrics.jsonl").exists() and program.process.is_alive():
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(program.process.pid, signal.SIGINT)
    code, _, errors = program.wait()
    assert code == 130, errors
    assert "the same command resumes it" in " ".join(errors.split())
    assert (out / "checkpoint.safetensors").exists()
    assert Results.read(out).rows
