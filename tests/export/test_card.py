"""Model cards."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from domains import domain_run
from exports import ODD_NAMES, assert_no_local_path, with_odd_names
from fake_results import evaluated_at_the_end
from markdown_it import MarkdownIt
from PIL import Image
from recipes_for_tests import QUICK, quick
from tiny import tiny_folder

import retouch
from retouch.data import Stream
from retouch.data.stores.array import ArrayStore
from retouch.errors import UserError
from retouch.evaluate.per_class import ClassRow, PerClass
from retouch.evaluate.predict import classify_images
from retouch.evaluate.row import ControlPart
from retouch.export import export, of_run
from retouch.export.export_model import ExportModel
from retouch.report.sentences import run_sentences
from retouch.sparse import fingerprint
from retouch.train import open_run

CODE = re.compile(r"```python\n(.*?)```", re.S)


@pytest.mark.slow
def test_the_card_describes_the_run_and_escapes_names(hf_run: Path, tmp_path: Path):
    rows = [ClassRow(name=name, images=3, before=0, after=50) for name in ODD_NAMES]
    rows.append(ClassRow(name="an <old> one", images=8, before=100, after=75, learned=False))
    PerClass(classes=rows).write(hf_run)
    try:
        model = of_run(hf_run)
    finally:
        (hf_run / "classes.json").unlink()
    export(model, "hf", tmp_path / "exported")
    text = (tmp_path / "exported" / "README.md").read_text()
    _, front_matter, body = text.split("---\n", 2)
    assert yaml.safe_load(front_matter)["pipeline_tag"] == "zero-shot-image-classification"
    assert "base_model" not in yaml.safe_load(front_matter)
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    inline = [child for t in tokens for child in t.children or []]
    assert not [t for t in [*tokens, *inline] if "html" in t.type or t.type == "link_open"]
    seen = ["".join(c.content for c in t.children) for t in tokens if t.type == "inline"]
    for name in [*ODD_NAMES, "an <old> one"]:
        assert name in seen
    metrics = model.run.metrics()
    for name in ("accuracy", "frozen_accuracy", "control", "control_before"):
        assert f"{metrics[name]:.1f} %" in body
    assert "| control accuracy, on " in body
    assert "| both together, choosing among all " in body
    for sentence in run_sentences(model.run):
        assert sentence in body
    assert "This is my model, taught" in body
    assert "method `flyp`" in body
    assert "lr: 0.005" in body
    assert_no_local_path(tmp_path / "exported")


@pytest.mark.slow
def test_a_run_evaluated_at_its_end_says_nothing_about_earlier_tasks(hf_run: Path, tmp_path: Path):
    texts = []
    for name in ("every-task", "at-the-end"):
        model = of_run(hf_run)
        assert model.run is not None
        if name == "at-the-end":
            evaluated_at_the_end(model.run)
        export(model, "hf", tmp_path / name)
        texts.append((tmp_path / name / "README.md").read_text())
    assert ["from its best, on average" in text for text in texts] == [True, False]
    assert all("| new classes recognized |" in text for text in texts)


@pytest.mark.slow
def test_an_estimate_says_how_many_control_images_were_checked(hf_run: Path, tmp_path: Path):
    """The model after a task that is not the last, of a run that checked a part after it."""
    model = of_run(hf_run, task=1)
    assert model.run is not None
    assert "| control accuracy, on 12 images of 4 classes" in card_of(model, tmp_path / "all")
    model.run.rows[1].control_part = ControlPart(images=8, accuracy=50)
    text = card_of(model, tmp_path / "part")
    assert "| control accuracy, on 8 of 12 images of 4 classes" in text
    assert "So far control accuracy is an estimate: 8 of the 12 control images" in text


@pytest.mark.slow
def test_an_export_has_the_prompts_of_each_data_set(two_sets_run: Path, tmp_path: Path):
    card = card_of(of_run(two_sets_run), tmp_path / "both")
    learned = json.loads((tmp_path / "both" / "classes.json").read_text())
    assert learned["classes"] == open_run(two_sets_run).classes
    prompts = dict(zip(learned["classes"], learned["prompts"], strict=True))
    assert prompts["dark red (colors)"] == ["a photo of dark red"]
    paints = ["the picture of dark red", "the dark red", "a dark red"]
    assert prompts["dark red (paints)"] == paints
    assert learned["data_sets"] == ["colors"] * 6 + ["paints"] * 4
    for sentence in (
        "Classes of colors were tested with the prompt “a photo of {}”; classes of paints were "
        "tested with the prompts “the picture of {}”, “the {}”, “a {}”.",
        "an image was classified among the classes of its own data set",
    ):
        assert sentence in " ".join(card.split())
    first = card_of(of_run(two_sets_run, task=1), tmp_path / "first")
    assert "classes of paints" not in first
    assert len(json.loads((tmp_path / "first" / "classes.json").read_text())["classes"]) == 3


@pytest.mark.slow
def test_merged_twins_have_one_name_in_an_export(tmp_path: Path):
    run = domain_run(tmp_path, choices="all", twins="merge")[0]
    export(of_run(run), "hf", tmp_path / "merged")
    learned = json.loads((tmp_path / "merged" / "classes.json").read_text())
    reds = [i for i, name in enumerate(learned["classes"]) if name == "dark red"]
    assert [len(learned["prompts"][i]) for i in reds] == [1, 3], "each with its own prompts"


def card_of(model: ExportModel, folder: Path) -> str:
    export(model, "hf", folder)
    return (folder / "README.md").read_text()


@pytest.mark.slow
def test_the_code_for_going_back_restores_the_earlier_model(hf_run: Path, tmp_path: Path):
    export(of_run(hf_run), "hf", tmp_path / "last")
    code = CODE.findall((tmp_path / "last" / "README.md").read_text())[-1]
    clip = retouch.load(str(tmp_path / "last"))
    exec(code.replace("RUN", str(hf_run)), {"model": clip.model})
    export(of_run(hf_run, task=1), "hf", tmp_path / "earlier")
    earlier = retouch.load(str(tmp_path / "earlier"))
    assert fingerprint(clip.model) == fingerprint(earlier.model)
    card = (tmp_path / "earlier" / "README.md").read_text()
    assert "So far it has seen 3 of 6 new classes" in card
    assert "1 of the run's 2 tasks are not in this model" in card
    assert len(json.loads((tmp_path / "earlier" / "classes.json").read_text())["classes"]) == 3
    export(of_run(hf_run, task=0), "hf", tmp_path / "first")
    first = retouch.load(str(tmp_path / "first"))
    assert fingerprint(first.model) == fingerprint(open_run(hf_run).clip.model)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lda", "ridge"])
def test_the_code_of_the_card_multiplies_class_vectors(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    clip = retouch.load(str(tiny_folder(tmp_path / "model")))
    stream = Stream.split(with_odd_names("train", 6), with_odd_names("test", 3), tasks=2, order=3)
    retouch.teach(clip, stream, quick(name), settings=QUICK, out=tmp_path / "run")
    folder = tmp_path / "exported"
    assert "class_vectors.safetensors" in export(of_run(tmp_path / "run"), "hf", folder).files
    pixels = stream.test.store.read(np.arange(len(stream.test)), clip.preprocess)
    run = open_run(tmp_path / "run")
    store = ArrayStore(pixels)
    found, _ = classify_images(run.load_task(), store, run.choices, learned=2, top=1)
    monkeypatch.chdir(folder)
    text = (folder / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text.split("## How it was taught")[0], re.S)[0]
    assert "unchanged, with a vector for each new class" in text
    for index in (0, 5, 17):
        Image.fromarray(pixels[index]).save(folder / "image.jpg.png")
        scope: dict[str, Any] = {}
        exec(code.replace("image.jpg", "image.jpg.png"), scope)
        best = found[index][0]
        assert scope["names"][scope["best"]] == best.name
        probability = float(scope["probabilities"][scope["best"]])
        assert probability == pytest.approx(best.probability, abs=1e-4)
    assert "is not loaded" not in caplog.text
    for light in (False, True):
        retouch.load(str(folder), light=light)
        assert "class_vectors.safetensors is not loaded" in caplog.messages.pop()
    for to in ("onnx", "peft", "deltas"):
        with pytest.raises(UserError, match=r"the model is unchanged, so .* class vectors"):
            export(of_run(tmp_path / "run"), to, tmp_path / to)
    assert (
        "class_vectors.safetensors"
        not in export(of_run(tmp_path / "run", task=0), "hf", tmp_path / "before").files
    )
