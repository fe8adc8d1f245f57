"""The installed program: it runs no Python files of the current folder, and finds the hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import TOKEN, FakeHub
from layouts import make_folder
from tiny import tiny_folder

from retouch.cli import app

NAMES = ("json", "torch", "multiprocessing", "sitecustomize", "typing", "numpy", "pillow_heif")
TRAP = "open({ran!r}, 'a').write(__file__ + '\\n')\nraise ImportError('it ran')\n"
MODEL = """
import beside
import letters

def load():
    return letters.letters_clip()
"""
SUITE = """
title: one
datasets: [photos]
control: others
rows: [{name: ER, method: er}]
"""
PROGRAM = """
import json, sys
from retouch.cli import main

for words in json.loads(sys.argv[1]) if __name__ == "__main__" else ():
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert end.code == (words[0] == "demo"), words
"""
LEARN = ("--epochs=1", "--tasks=2", "--batch=4", "--lr=1e-3", "--set", "replay.size=4", "-q")
COMMANDS = [
    ["--version"],
    ["methods"],
    ["datasets", "check", "photos"],
    ["learn", "photos", "--model", "model", "-o", "run", *LEARN],
    ["bench", "one.yaml", "--model", "mine/models.py:load", "--jobs=2", "-o", "b", *LEARN[:4]],
    ["eval", "run", "--data", "photos"],
    ["report", "run"],
    ["overlap", "run"],
    ["cam", "run", "photos/green/0.png"],
    ["trace", "builtin", "--images=1", "--tokens=1"],
    ["delta", "show", "run"],
    ["export", "run", "--to", "hf", "-o", "exported"],
    ["push", "run", "alice/birds"],
    ["delta", "apply", "model", "hf:alice/birds", "-o", "taught"],
    ["demo", "--methods=none"],  # there is no such method; it would take its time
    ["classify", "run", "photos", "--json"],  # ends the process
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Photos, a model, a model in Python, and modules that nobody asked for."""
    home = tmp_path / "home"
    make_folder(home / "photos", {"dark_red": 6, "green": 6})
    make_folder(home / "others", {"blue": 3, "pale": 3})
    tiny_folder(home / "model")
    (home / "one.yaml").write_text(SUITE)
    (home / "mine").mkdir()
    (home / "mine" / "models.py").write_text(MODEL)
    (home / "mine" / "beside.py").write_text("")
    for name in NAMES:
        (home / f"{name}.py").write_text(TRAP.format(ran=str(tmp_path / "ran")))
    return home


def run_in(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python there, with the tests' modules on its path; no module of the folder may run."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    process = subprocess.run(
        [sys.executable, *words], cwd=home, env=environment, capture_output=True, text=True
    )
    ran = home.parent / "ran"
    assert not ran.exists(), ran.read_text() + process.stderr
    return process


@pytest.mark.slow
def test_no_command_runs_modules_of_the_current_folder(home: Path):
    """All in one process, which is started as an installed program is: by a file elsewhere."""
    groups = [group.typer_instance.info.name for group in app.registered_groups]
    commands = [c.name or c.callback.__name__ for c in app.registered_commands]
    assert {*groups, *commands} == {words[0] for words in COMMANDS} - {"--version"}
    program = home.parent / "retouch"
    program.write_text(PROGRAM)
    with FakeHub().running() as hub:
        variables = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        variables["HF_HOME"] = str(home.parent / "hub")
        process = run_in(home, str(program), json.dumps(COMMANDS), **variables)
    assert process.returncode == 0, process.stderr
    assert "task-02.safetensors" in str(sorted(hub.repos["alice/birds"].files() or ()))
    assert "Applied 2 deltas" in process.stdout
    assert (home / "b" / "table.md").exists()
    assert '"images"' in process.stdout


@pytest.mark.slow
def test_python_m_retouch_runs_none_either(home: Path):
    process = run_in(home, "-m", "retouch", "--version")
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("retouch ")
