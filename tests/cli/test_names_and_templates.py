"""Class names from a file and prompt templates, given on the command line."""

from pathlib import Path

import pytest
from commands import run
from layouts import make_folder
from tiny import tiny_folder

FAST = ["--epochs", "1", "--batch", "8", "--lr", "1e-3", "--method", "flyp"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("names")
    make_folder(home / "photos", {"f1": 6, "f2": 6})
    tiny_folder(home / "model")
    return home


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
def test_invalid_names_in_json(text: str, complaint: str, home: Path, tmp_path: Path):
    (tmp_path / "names.json").write_text(text)
    command = ("learn", home / "photos", "--model", "builtin", "--names", tmp_path / "names.json")
    message = " ".join(run(*command, "-o", tmp_path / "x", code=1).stderr.split())
    assert complaint in message, message


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_template_is_part_of_the_run(home: Path, tmp_path: Path):
    """The same command continues the run; another template is refused."""
    command = ["learn", home / "photos", "--model", home / "model", "-o", tmp_path / "run", *FAST]
    run(*command, "--template", "the {}")
    run(*command, "--template", "the {}")
    message = " ".join(run(*command, code=1).stderr.split())
    assert "data.prompt: the {} in that run, a photo of {} now" in message
