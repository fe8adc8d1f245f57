"""Prompts, names and models of one's own, said on the command line."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from commands import run
from layouts import make_folder

from retouch import checksummed
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.train import open_run
from retouch.train.run_folder import read_config

ROOT = Path(__file__).resolve().parents[1]
FAST = ["--epochs", "1", "--batch", "8", "--lr", "1e-3", "--method", "flyp"]
OWN = """
import torch
from beside import Letters, tokenize
import retouch
from torch import nn

def load():
    torch.manual_seed(1)
    images = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 32))
    return retouch.DualEncoder(images, Letters(), tokenize, retouch.Preprocess(size=(16, 16)))

def nothing():
    return 3

def fails():
    return 1 / 0
"""
BESIDE = (ROOT / "CONTRIBUTING.md").read_text().split("class Letters")[1].split("images = nn.")[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in a file of its own, which imports another beside it, and images."""
    home = tmp_path_factory.mktemp("own")
    (home / "models").mkdir()
    (home / "models" / "own.py").write_text(OWN)
    beside = f"import torch\nfrom torch import nn\n\n\nclass Letters{BESIDE}"
    (home / "models" / "beside.py").write_text(beside)
    (home / "models" / "odd.py").write_text("def load(:\n")
    make_folder(home / "photos", {"f1": 6, "f2": 6})
    make_folder(home / "more", {"f3": 6, "f4": 6})
    (home / "names.json").write_text(json.dumps({"f1": "daisy", "f2": "löwenzahn"}))
    return home


def test_an_own_model_is_taught_reopened_and_gone_on_with(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(home)
    model = ["--model", "models/own.py:load"]
    out, images = tmp_path / "run", "photos/f1"
    templates = ["--template", "a photo of a {}, a kind of flower.", "--template", "the {}"]
    run("learn", "photos", *model, *templates, "--names", "names.json", "-o", out, *FAST)
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["places"]["model"] == "models/own.py:load"
    assert config["data"]["prompt"] == "a photo of a {}, a kind of flower."
    assert config["data"]["templates"] == ["a photo of a {}, a kind of flower.", "the {}"]
    assert Results.read(out).tasks[0].classes == ["daisy", "löwenzahn"]

    said = json.loads(run("classify", out, images, *model, "--json").stdout)
    assert said["templates"] == config["data"]["templates"]
    assert said["names"] == ["daisy", "löwenzahn"]
    april = tmp_path / "april"
    run("learn", "more", "--from", out, *model, "-o", april, *FAST)
    later = yaml.safe_load((april / "config.yaml").read_text())
    assert later["data"]["templates"] == config["data"]["templates"]
    assert later["data"]["prompt"] == config["data"]["prompt"]


def test_opening_a_run_never_runs_the_code_that_it_names(home: Path, tmp_path: Path):
    out = tmp_path / "run"
    model = f"{home}/models/own.py:load"
    run("learn", home / "photos", "--model", model, "-o", out, *FAST, "--tasks", 2)
    trap = tmp_path / "trap.py"
    trap.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    config = read_config(out)
    config["places"]["model"] = f"{trap}:load"
    checksummed.write_yaml(out / "config.yaml", config)
    for words in (
        ["classify", out, home / "photos"],
        ["eval", out],
        ["export", out, "--to", "hf", "-o", tmp_path / "x"],
        ["delta", "undo", out, out, "-o", tmp_path / "x"],
        ["learn", home / "more", "--from", out, "-o", tmp_path / "x"],
    ):
        told = " ".join(run(*words, code=1).stderr.split())
        assert f"not run unless you say so: give it as --model {trap}:load" in told, told
    with pytest.raises(UserError, match="not run unless you say so"):
        open_run(out)
    files = sorted((out / "deltas").iterdir())
    words = ["delta", "merge", *files, "--how", "mean", "-o", tmp_path / "one.safetensors"]
    assert f"--base {model}" in " ".join(run(*words, code=1).stderr.split())
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("models/gone.py:load", "there is no file models/gone.py"),
        ("models/own.py:lod", "there is no function lod in models/own.py; it defines load, noth"),
        ("models/own.py:nothing", "nothing() returned a int; it must return a retouch.Clip"),
        ("models/own.py:fails", "own.py: ZeroDivisionError: division by zero"),
        ("models/odd.py:load", "line 1 of"),
        ("models/own.py:", "'' cannot be a function"),
    ],
)
def test_mistakes_in_an_own_model_are_told_with_their_line(
    model: str, complaint: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(home)
    done = run("learn", "photos", "--model", model, "-o", tmp_path / "x", *FAST, code=1)
    told = " ".join(done.stderr.split())
    assert complaint in told, told
    if "fails" in model:
        line = 1 + OWN.splitlines().index("    return 1 / 0")
        assert f"line {line} of {home}/models/own.py" in told


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "is empty"),
        ("{}", "is empty"),
        ('["daisy"]', "is not an object of FOLDER and NAME"),
        ('{"f1": 3}', "'f1' has the name 3"),
        ('{"f1": ""}', "'f1' has the name ''"),
        ('{"f1": {"a": "b"}}', "'f1' has the name"),
        ('{"f1": "a", "f1": "b"}', "'f1' is listed twice"),
        ("{f1: daisy}", "is not JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"f9": "daisy"}', "there is no class 'f9'"),
    ],
)
def test_odd_names_in_json(text: str, complaint: str, home: Path, tmp_path: Path):
    (tmp_path / "names.json").write_text(text)
    words = ("learn", home / "photos", "--model", "builtin", "--names", tmp_path / "names.json")
    told = " ".join(run(*words, "-o", tmp_path / "x", code=1).stderr.split())
    assert complaint in told, told


def test_a_template_is_part_of_the_run(home: Path, tmp_path: Path):
    """Another one is another run; the same command goes on."""
    out = tmp_path / "run"
    model = ["--model", f"{home}/models/own.py:load"]
    words = ["learn", home / "photos", *model, "-o", out, *FAST]
    run(*words, "--template", "the {}")
    run(*words, "--template", "the {}")
    told = " ".join(run(*words, code=1).stderr.split())
    assert "data.prompt: the {} in that run, a photo of {} now" in told
    shutil.rmtree(out)
