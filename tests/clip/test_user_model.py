"""Models defined in a user's Python file, from the command line."""

import json
from pathlib import Path

import pytest
import yaml
from commands import run
from layouts import make_folder

from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.files import checksummed
from retouch.train import open_run
from retouch.train.run_folder.read import read_config

ROOT = Path(__file__).resolve().parents[2]
FAST = ["--epochs", "1", "--batch", "8", "--lr", "1e-3", "--method", "flyp"]
MODEL_FILE = """
import torch
from letter_encoder import Letters, tokenize
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

def leaves():
    raise SystemExit(0)

def stops():
    raise BaseException("no more")

def wide():
    images = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 8))
    return retouch.DualEncoder(images, Letters(), tokenize, retouch.Preprocess(size=(16, 16)))

def spells():
    return retouch.DualEncoder(nn.Flatten(), Letters(), " ".join, retouch.Preprocess(size=(16, 16)))

def empty():
    return retouch.DualEncoder(None, Letters(), tokenize, retouch.Preprocess(size=(16, 16)))

class Leaving(nn.Module):
    def forward(self, pixels):
        raise SystemExit(3)

def leaves_later():
    return retouch.DualEncoder(Leaving(), Letters(), tokenize, retouch.Preprocess(size=(16, 16)))

class Half(retouch.Clip):
    _tokenize = encode_images = encode_texts = save = None
    logit_scale = 1.0

def half():
    return Half()
"""
LETTERS_FILE = (
    (ROOT / "CONTRIBUTING.md").read_text().split("class Letters")[1].split("images = nn.")[0]
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in a Python file, which imports another file in its folder, and images."""
    home = tmp_path_factory.mktemp("own")
    (home / "models").mkdir()
    (home / "models" / "user.py").write_text(MODEL_FILE)
    letters = f"import torch\nfrom torch import nn\n\n\nclass Letters{LETTERS_FILE}"
    (home / "models" / "letter_encoder.py").write_text(letters)
    (home / "models" / "odd.py").write_text("def load(:\n")
    (home / "models" / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    make_folder(home / "photos", {"f1": 6, "f2": 6})
    make_folder(home / "more", {"f3": 6, "f4": 6})
    (home / "names.json").write_text(json.dumps({"f1": "daisy", "f2": "löwenzahn"}))
    return home


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_user_model_can_be_trained_reopened_and_continued(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(home)
    model = ["--model", "models/user.py:load"]
    out, images = tmp_path / "run", "photos/f1"
    templates = ["--template", "a photo of a {}, a kind of flower.", "--template", "the {}"]
    run("learn", "photos", *model, *templates, "--names", "names.json", "-o", out, *FAST)
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["places"]["model"] == "models/user.py:load"
    assert config["data"]["prompt"] == "a photo of a {}, a kind of flower."
    assert config["data"]["templates"] == ["a photo of a {}, a kind of flower.", "the {}"]
    assert Results.read(out).tasks[0].classes == ["daisy", "löwenzahn"]

    answer = json.loads(run("classify", out, images, *model, "--json").stdout)
    assert answer["templates"] == config["data"]["templates"]
    assert answer["names"] == ["daisy", "löwenzahn"]
    april = tmp_path / "april"
    run("learn", "more", "--from", out, *model, "-o", april, *FAST)
    later = yaml.safe_load((april / "config.yaml").read_text())
    assert later["data"]["templates"] == config["data"]["templates"]
    assert later["data"]["prompt"] == config["data"]["prompt"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_opening_a_run_never_executes_the_code_that_it_names(home: Path, tmp_path: Path):
    out = tmp_path / "run"
    model = f"{home}/models/user.py:load"
    run("learn", home / "photos", "--model", model, "-o", out, *FAST, "--tasks", 2)
    trap = tmp_path / "trap.py"
    trap.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    config = read_config(out)
    config["places"]["model"] = f"{trap}:load"
    checksummed.write_yaml(out / "config.yaml", config)
    for command in (
        ["classify", out, home / "photos"],
        ["eval", out],
        ["export", out, "--to", "hf", "-o", tmp_path / "x"],
        ["delta", "undo", out, out, "-o", tmp_path / "x"],
        ["learn", home / "more", "--from", out, "-o", tmp_path / "x"],
    ):
        message = " ".join(run(*command, code=1).stderr.split())
        assert "not run unless you name it yourself" in message, message
        assert f"give {trap}:load, or where it is now, as the model" in message, message
    with pytest.raises(UserError, match="not run unless you name it yourself"):
        open_run(out)
    files = sorted((out / "deltas").iterdir())
    command = ["delta", "merge", *files, "--how", "mean", "-o", tmp_path / "one.safetensors"]
    message = " ".join(run(*command, code=1).stderr.split())
    assert f"give {model}, or where it is now, as the base" in message
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("models/gone.py:load", "there is no file models/gone.py"),
        ("models/user.py:lod", "there is no function lod in models/user.py; it defines load, noth"),
        ("models/user.py:nothing", "nothing() returned a int; it must return a retouch.Clip"),
        ("models/user.py:fails", "user.py: ZeroDivisionError: division by zero"),
        ("models/odd.py:load", "line 1 of"),
        ("models/leaving.py:load", "leaving.py: it ends the program (sys.exit(3))"),
        ("models/user.py:leaves", "user.py: it ends the program (sys.exit(0)); it must return"),
        ("models/user.py:leaves_later", "user.py: it ends the program (sys.exit(3))"),
        ("models/user.py:stops", "user.py: BaseException: no more"),
        ("models/user.py:wide", "user.py:wide: the image encoder returns features of 8 numbers"),
        ("models/user.py:spells", "user.py:spells: tokenize must return a dict of tensors"),
        ("models/user.py:empty", "DualEncoder: image_encoder must be a torch module, not None"),
        ("models/user.py:half", "AttributeError: 'Half' object has no attribute 'model'"),
        ("models/user.py:", "'' cannot be a function"),
    ],
)
def test_errors_in_a_user_model_name_the_line(
    model: str, complaint: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(home)
    done = run("learn", "photos", "--model", model, "-o", tmp_path / "x", *FAST, code=1)
    message = " ".join(done.stderr.split())
    assert complaint in message, message
    if "fails" in model:
        line = 1 + MODEL_FILE.splitlines().index("    return 1 / 0")
        assert f"line {line} of {home}/models/user.py" in message
