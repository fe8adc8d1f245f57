"""The commands and snippets of the documents are run as they stand there."""

import ast
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from commands import run
from layouts import make_folder
from PIL import Image
from tiny import shallow_builtin, tiny_folder

from retouch.builtin import demo
from retouch.builtin.photos import write_photos
from retouch.clip import load
from retouch.evaluate import Results

pytestmark = pytest.mark.usefixtures("onednn")

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line for block in blocks(README, "sh") for line in block.splitlines()]


def test_the_readme_holds_these_commands():
    assert commands() == [
        "make demo",
        "make test",
        "pip install .",
        "retouch learn photos --model openai/clip-vit-base-patch16 --control imagenet "
        "--out runs/march",
        "retouch learn more --from runs/march --control imagenet --max-drop 1 --out runs/april",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_plots")
def test_make_demo_in_a_shortened_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"], capture_output=True, text=True, cwd=ROOT
    )
    command = next(line for line in recipe.stdout.splitlines() if "retouch demo" in line)
    words = command.split("retouch ", 1)[1].split()
    assert words == ["demo", "--out", "runs/demo"]
    monkeypatch.chdir(tmp_path)
    model = str(shallow_builtin(tmp_path / "model"))
    monkeypatch.setattr(
        demo, "load", lambda name, light: load({"builtin": model}[name], light=light)
    )
    control = demo.control_images(1)
    few = control.subset(control.of_classes(range(20)))
    few = replace(few, classes=control.classes[:20])
    monkeypatch.setattr(demo, "control_images", lambda per_class: few)
    done = run(*words, "--quick")
    for method in ("frozen", "flyp", "er", "spu", "text-first"):
        assert re.search(rf"^ {method} .* (s|min) *$", done.stdout, re.MULTILINE), done.stdout
    folder = tmp_path / "runs" / "demo"
    assert (folder / "report.html").exists()
    runs = {method: Results.read(folder / method) for method in ("frozen", "text-first")}
    assert all(run.finished and len(run.tasks) == 5 for run in runs.values())
    assert len({row.control for row in runs["frozen"].rows}) == 1


def test_make_test_is_what_runs_this():
    recipe = subprocess.run(["make", "-n", "test"], capture_output=True, text=True, cwd=ROOT).stdout
    assert "-m pytest" in recipe
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_plots")
def test_the_learn_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With a tiny model in place of one from the hub, which cannot be reached here."""
    tiny_folder(tmp_path / "model")
    make_folder(tmp_path / "photos", {"golden retriever": 12, "cat": 14})
    make_folder(tmp_path / "more", {"horse": 6, "cow": 6})
    make_folder(tmp_path / "imagenet", {"dog": 3, "cup": 3})
    monkeypatch.chdir(tmp_path)
    for command in commands()[-2:]:
        words = command.replace("openai/clip-vit-base-patch16", "model").split()[1:]
        run(*words, "--epochs", 1)
    for name in ("config.yaml", "results.json", "metrics.jsonl", "report.html", "deltas", "images"):
        assert (tmp_path / "runs" / "april" / name).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_plots")
def test_every_command_for_a_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In order, on the drawings that its first command writes, with a shallow model."""
    document = (ROOT / "docs" / "product.md").read_text()
    lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
    assert lines[0] == "python -m retouch.builtin.photos ."
    write_photos(tmp_path, per_class=4)
    for folder in sorted((tmp_path / "known").iterdir())[20:]:
        shutil.rmtree(folder)
    shallow_builtin(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    ran = set()
    for line in lines[1:]:
        words = ["model" if word == "builtin" else word for word in line.split()[1:]]
        ran.add(words[0])
        shown = run(*words, *(["--epochs", 1] if words[0] == "learn" else [])).stdout
        assert shown.strip()
    assert ran == {"learn", "report", "eval", "classify", "delta", "export"}
    assert {p.name for p in Path("models").iterdir()} == {
        *("as-in-march", "april", "hf", "open_clip", "onnx", "peft")
    }
    (code,) = blocks(document, "python")
    exec(code, {})


@pytest.mark.slow
def test_the_example_and_the_suite_for_several_data_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from retouch.bench import load_suite

    document = (ROOT / "docs" / "domains.md").read_text()
    (code,) = blocks(document, "python")
    exec(code, {})
    numbers = [float(word) for word in capsys.readouterr().out.split()]
    assert len(numbers) == 3
    assert all(0 <= number <= 100 for number in numbers)
    (suite,) = blocks(document, "yaml")
    (tmp_path / "mine.yaml").write_text(suite)
    mine = load_suite(str(tmp_path / "mine.yaml"))
    assert mine.stream.shots == 16
    published = load_suite("mtil").rows[:4]
    for row in published:
        numbers = " | ".join(f"{value:.1f}" for value in row.paper["mtil"])
        assert f"| {numbers} |" in document


def test_the_fingerprints_for_a_product_are_those_that_appear():
    """Of the built-in model to the letter; those of what was learned fit together."""
    import retouch

    document = (ROOT / "docs" / "product.md").read_text()
    (march,) = re.findall(r"^belongs to  weights (\w{64})$", document, re.MULTILINE)
    (april,) = re.findall(r"^leads to    weights (\w{64})$", document, re.MULTILINE)
    now = re.findall(r"the weights are now (\w{12})", document)
    assert now == [march[:12], april[:12]]
    builtin = retouch.fingerprint(retouch.load("builtin", light=True).model)
    leads = re.findall(r"leads from the weights (\w{12}) to (\w{12})", document)
    assert leads == [(builtin[:12], april[:12])] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("all_words", "undrawn_plots")
def test_the_python_example_prints_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (code,) = blocks(README, "python")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    shown = README.split("prints after half a minute")[1].split("```")[1].strip().splitlines()
    found = capsys.readouterr().out.strip().splitlines()
    assert found[:4] == shown[:4]  # then how many threads there are
    assert found[6] == shown[6] == "runs/shapes/report.html"
    expected, numbers = ast.literal_eval(shown[5]), ast.literal_eval(found[5])
    assert numbers.keys() == expected.keys()
    for name, value in numbers.items():  # another processor rounds differently
        assert value == pytest.approx(expected[name], abs=2), name


@pytest.mark.parametrize("number", range(3))
def test_the_examples_for_contributors_run(number: int, tmp_path: Path):
    from tiny import images, tiny_clip

    import retouch as package
    from retouch.data import Stream

    space: dict[str, object] = {}
    exec(blocks(CONTRIBUTING, "python")[number], space)
    settings = package.Settings(epochs=1, batch=8, lr=1e-3)
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2)
    if "l2_sp" in space:
        assert package.teach(tiny_clip(), stream, space["l2_sp"], settings=settings).finished
    elif "matches" in space:
        for number, name in enumerate(("cat_1", "cat_2", "dog_1", "dog_2", "dog_3")):
            Image.new("RGB", (20, 20), (50 * number, 0, 0)).save(tmp_path / f"{name}.jpg")
        assert space["matches"](tmp_path)
        own = Stream.split(*space["read"](tmp_path).train_and_test(0.3), tasks=1)
        assert own.train.classes == ["cat", "dog"]
        assert package.teach(tiny_clip(), own, "spu", settings=settings).finished
    else:
        assert package.teach(space["clip"], stream, "flyp", settings=settings).finished


def test_the_methods_of_the_readme_are_those_there_are():
    from retouch.methods import RECIPES

    listed = re.findall(r"^\| `([a-z0-9+-]+)` \|", README, re.MULTILINE)
    assert listed == list(RECIPES)


def test_make_is_there():
    assert shutil.which("make")
