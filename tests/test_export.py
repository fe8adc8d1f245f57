"""Export: plain models that their library loads with no `retouch` there, and a card for each."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
import yaml
from backbones import dual, open_clip, own_pair
from markdown_it import MarkdownIt
from PIL import Image
from tiny import images, tiny_clip, tiny_config, tiny_folder, tiny_tokenizer
from tokenizers import Tokenizer
from typer.testing import CliRunner

import retouch
from retouch.cli import app
from retouch.clip import Clip, Preprocess
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.open_clip import OpenClip
from retouch.clip.open_clip import import_open_clip as library
from retouch.clip.pool_prompts import PoolPrompts
from retouch.clip.visual_prompts import attach
from retouch.clip.zero_shot import classifier
from retouch.data import Images, Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.evaluate.per_class import ClassRow, PerClass
from retouch.export import ExportModel, export, of_model, of_run, onnx, write
from retouch.export.export_model import hub_id, shown
from retouch.export.plain import _CLEAN
from retouch.export.tokenizer import fast_tokenizer
from retouch.methods import Settings
from retouch.report import phrasing
from retouch.sparse import fingerprint
from retouch.train import open_run

ODD = [
    "dark `red`",
    "bright | red",
    "<b>green</b> & co",
    "*bright* _green_ [x](y)",
    "dark \\ # $blue$",
    '<script>alert("blue")</script>',
]
PROMPTS = ["a photo of the dark red", "red", "a picture of a bright green"]
CODE = re.compile(r"```python\n(.*?)```", re.S)

ALONE = r"""
import contextlib, io, json, os, re, sys

sys.modules["retouch"] = None  # any import of it fails
import torch

for name in ("nms", "qnms"):  # torchvision's wheel beside a torch for processors
    boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    torch.library.define("torchvision::" + name, boxes)
import numpy as np
import open_clip
import transformers

pixels = torch.from_numpy(np.load("pixels.npy"))
prompts, jobs = json.load(open("job.json"))
strange = ("hf-hf", "open-open_clip", "open-onnx")
said, odd = {}, {}
for to, folder in jobs:
    with torch.no_grad():
        if to == "hf":
            model = transformers.AutoModel.from_pretrained(folder).eval()
            tokenizer = transformers.CLIPProcessor.from_pretrained(folder).tokenizer
            ids = tokenizer(prompts, padding=True, return_tensors="pt")["input_ids"]
            image = model.get_image_features(pixel_values=pixels).pooler_output
            text = model.get_text_features(input_ids=ids).pooler_output
        elif to == "open_clip":
            model, _, _ = open_clip.create_model_and_transforms("local-dir:" + folder)
            tokenizer = open_clip.get_tokenizer("local-dir:" + folder)
            image = model.eval().encode_image(pixels)
            text = model.encode_text(tokenizer(prompts))
    if to != "onnx":
        two = [torch.nn.functional.normalize(t, dim=-1).numpy() for t in (image, text)]
        np.savez(folder + ".npz", image=two[0], text=two[1])
    here = os.getcwd()
    os.chdir(folder)
    told = io.StringIO()
    load = open("README.md").read().split("## How it was taught")[0]
    code = "\n".join(re.findall(r"```python\n(.*?)```", load, re.S))
    with contextlib.redirect_stdout(told):
        exec(code, {})
        said[folder] = told.getvalue()
        for file in sorted(os.listdir("../odd")) if folder in strange else []:
            known = {}
            exec(code.split("\nfrom tokenizers")[0].replace("picture.jpg", "../odd/" + file), known)
            found = float(known["chances"][known["best"]])
            odd.setdefault(folder, []).append([file, known["names"][known["best"]], found])
    os.chdir(here)
json.dump([said, odd], open("said.json", "w"))
"""


def named(name: str, each: int) -> Images:
    """Pictures of classes whose names could break a page."""
    templates = ("a photo of {}", "a picture of the {}")
    return replace(images(name, 6, each), classes=ODD, templates=templates)


def taught(clip: Clip, out: Path) -> Path:
    """A run of two tasks in a folder."""
    stream = Stream.split(named("train", 6), named("test", 3), tasks=2, order=0)
    settings = Settings(epochs=2, batch=8, lr=5e-3)
    retouch.teach(clip, stream, "flyp", settings=settings, control=images("control", 4, 3), out=out)
    return out


@pytest.fixture(scope="module")
def hf_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a CLIPModel of transformers."""
    room = tmp_path_factory.mktemp("of transformers")
    return taught(retouch.load(str(tiny_folder(room / "my model"))), room / "run")


@pytest.fixture(scope="module")
def open_clip_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a CLIP of open_clip's."""
    room = tmp_path_factory.mktemp("of open_clip")
    vision = {"image_size": 16, "layers": 1, "width": 64, "head_width": 32, "patch_size": 8}
    text = {"width": 32, "heads": 2, "layers": 1}  # a layer each: ONNX takes seconds a layer
    open_clip(name="one-layer", vision_cfg=vision, text_cfg=text).save(room)
    clip = retouch.load(f"open_clip:one-layer@{room / 'open_clip_model.safetensors'}")
    return taught(clip, room / "run")


def unit(clip: Clip) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        return clip.image_features(noise(clip)), clip.text_features(clip.tokenize(PROMPTS))


def noise(clip: Clip, count: int = 3) -> torch.Tensor:
    rng = torch.Generator().manual_seed(5)
    return torch.randint(
        0, 256, (count, *clip.preprocess.size, 3), generator=rng, dtype=torch.uint8
    )


WAYS = [("hf", "hf"), ("hf", "open_clip"), ("open", "hf"), ("open", "open_clip"), ("open", "onnx")]


def test_models_load_and_cards_run_where_there_is_no_retouch(
    hf_run: Path, open_clip_run: Path, tmp_path: Path
):
    """One process that cannot import retouch loads all exports and runs the code of their cards."""
    runs = {"hf": hf_run, "open": open_clip_run}
    clips = {name: open_run(run).load_task() for name, run in runs.items()}
    picture = Image.fromarray(named("test", 3).store.read(np.array([4]), tiny_clip().preprocess)[0])
    for start, to in WAYS:
        folder = tmp_path / f"{start}-{to}"
        done = export(of_run(runs[start]), to, folder)
        assert done.max_difference < 1e-5
        picture.save(folder / "picture.jpg", quality=100)
    odd_pictures(tmp_path / "odd")
    said, odd = alone(tmp_path, [(to, f"{start}-{to}") for start, to in WAYS])
    classified = {name: classify(run, tmp_path / "odd") for name, run in runs.items()}
    assert len(odd) == 3
    for start, to in WAYS:
        folder = tmp_path / f"{start}-{to}"
        assert said[folder.name] == answer(clips[start], folder)
        theirs = odd.get(folder.name, classified[start])
        for (file, name, chance), ours in zip(theirs, classified[start], strict=True):
            assert (file, name) == ours[:2], folder.name
            assert chance == pytest.approx(ours[2], abs=1e-4), (folder.name, file)
        if to == "onnx":
            check_onnx(folder, clips[start])
            continue
        there = np.load(f"{folder}.npz")
        theirs = torch.from_numpy(there["image"]), torch.from_numpy(there["text"])
        near = 0 if (start, to) == ("hf", "hf") else 1e-5
        torch.testing.assert_close(unit(clips[start]), theirs, rtol=0, atol=near)


def odd_pictures(folder: Path) -> None:
    """Turned by EXIF, of 16 and of 32 bits, with a palette, with an alpha channel."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    shade = np.linspace(0, 200, 16).astype(np.uint8)[:, None, None]  # up is not down
    picture = Image.fromarray(shade + rng.integers(0, 55, (16, 16, 3)).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(folder / "turned.jpg", exif=exif, quality=100)
    deep = rng.integers(0, 2**16, (16, 16)).astype(np.uint16)
    Image.fromarray(deep).save(folder / "deep.png")
    Image.fromarray(deep.astype(np.int32) >> 8).save(folder / "shallow.tif")
    picture.quantize(8).save(folder / "palette.png", transparency=3)
    clear = Image.fromarray(rng.integers(0, 256, (16, 16), np.uint8))
    Image.merge("RGBA", (*picture.split(), clear)).save(folder / "clear.png")


def classify(run: Path, folder: Path) -> list[tuple[str, str, float]]:
    """What the command says of each picture now: its first answer, and how sure it is."""
    found = json.loads(commands.run("classify", run, folder, "--json", "--top", 1).stdout)
    firsts = [(Path(each["file"]).name, each["after"][0]) for each in found["images"]]
    return [(file, first["name"], first["probability"]) for file, first in firsts]


def check_onnx(folder: Path, clip: Clip) -> None:
    """What else must be true of the encoders: any number at a time, and ready classes."""
    known = json.loads((folder / "classes.json").read_text())
    ready = torch.from_numpy(np.load(folder / "class_features.npy"))
    torch.testing.assert_close(ready, classifier(clip, known["classes"], known["templates"]))
    for count in (1, 5):
        pixels = clip.preprocess.normalize(noise(clip, count))
        found = onnx.run(folder / "image_encoder.onnx", {"pixel_values": pixels})
        with torch.no_grad():
            torch.testing.assert_close(found, clip.image_features(noise(clip, count)))
    assert_no_path_of_this_machine(folder)


def alone(folder: Path, jobs: list[tuple[str, str]]) -> Any:
    (folder / "alone.py").write_text(ALONE)
    np.save(folder / "pixels.npy", tiny_clip().preprocess.normalize(noise(tiny_clip())).numpy())
    (folder / "job.json").write_text(json.dumps([PROMPTS, jobs]))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "alone.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "said.json").read_text())


def answer(clip: Clip, folder: Path) -> str:
    """What the card's code should print."""
    known = json.loads((folder / "classes.json").read_text())
    with Image.open(folder / "picture.jpg") as picture:
        pixels = torch.tensor(clip.preprocess.prepare(picture))[None]
    texts = classifier(clip, known["classes"], known["templates"])
    chances = (clip.logit_scale.detach() * clip.image_features(pixels) @ texts.T).softmax(dim=-1)[0]
    best = int(chances.argmax())
    return f"{known['classes'][best]} {chances[best]:.0%}\n"


def test_onnx_of_the_builtin_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    folder = tmp_path / "onnx"
    export(of_model("builtin"), "onnx", folder)
    assert capfd.readouterr() == ("", "")  # the exporter keeps quiet
    clip = retouch.load("builtin")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor([line.ids for line in tokenizer.encode_batch(PROMPTS)])
    found = onnx.run(folder / "text_encoder.onnx", {"input_ids": ids})
    torch.testing.assert_close(found, unit(clip)[1], rtol=0, atol=1e-5)
    about = json.loads((folder / "encoders.json").read_text())
    assert about["logit_scale"] == pytest.approx(clip.logit_scale.item())
    assert about["features"] == "of length one"
    assert list(ids.shape) == [3, about["context_length"]]


def test_onnx_that_says_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx, "_write_encoder", lambda *_: None)
    monkeypatch.setattr(onnx, "run", lambda *_: torch.zeros(3))
    with pytest.raises(UserError, match=r"differ by inf, and 1e-04 is allowed. Nothing was"):
        export(ExportModel(tiny_clip(), "tiny"), "onnx", tmp_path / "x")
    assert not list(tmp_path.iterdir())


def hf_clip(act: str, **text: Any) -> HuggingFaceClip:
    config = tiny_config()
    config.vision_config.hidden_act = config.text_config.hidden_act = act
    for name, value in text.items():
        setattr(config.text_config, name, value)
    torch.manual_seed(1)
    model = type(tiny_clip().model)(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases begin as ones and zeros
            parameter.add_(torch.randn_like(parameter) * 0.3)
    pixels = Preprocess(size=(16, 16), shortest=16, mean=(0.1, 0.2, 0.3))
    return HuggingFaceClip(model, tiny_tokenizer(), pixels, "tiny")


def stirred(**extra: Any) -> OpenClip:
    """With a small vocabulary, from a tokenizer of transformers."""
    text = {"context_length": 12, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    text |= {"hf_tokenizer_name": str(tiny_folder()), "pool_type": "eos", "eos_id": 3}
    clip = open_clip(**{"text_cfg": text, **extra})
    with torch.no_grad():
        for parameter in clip.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return clip


CROSSING: dict[str, tuple[Callable[[], Clip], str]] = {
    "quick_gelu to open_clip": (lambda: hf_clip("quick_gelu"), "open_clip"),
    "gelu to open_clip": (lambda: hf_clip("gelu"), "open_clip"),
    "largest token to open_clip": (lambda: hf_clip("gelu", eos_token_id=2), "open_clip"),
    "odd MLP to open_clip": (lambda: hf_clip("gelu", intermediate_size=41), "open_clip"),
    "other eps to open_clip": (lambda: hf_clip("gelu", layer_norm_eps=1e-2), "open_clip"),
    "gelu to hf": (stirred, "hf"),
    "quick_gelu to hf": (lambda: stirred(quick_gelu=True), "hf"),
    "custom text to hf": (lambda: stirred(name="custom", custom_text=True), "hf"),
}


@pytest.mark.parametrize("case", CROSSING)
def test_features_stay_the_same_in_the_other_library(case: str, tmp_path: Path):
    make, to = CROSSING[case]
    clip = make()
    done = export(ExportModel(clip, "tiny"), to, tmp_path / "there")
    again = load_there(tmp_path / "there", to)
    torch.testing.assert_close(unit(again), unit(clip), rtol=0, atol=1e-5)
    assert done.max_difference <= 1e-5
    assert float(again.logit_scale.detach()) == float(clip.logit_scale.detach())
    assert replace(again.preprocess, odd_pixel="floor") == replace(
        clip.preprocess, odd_pixel="floor"
    )


def load_there(folder: Path, to: str) -> Clip:
    if to == "hf":
        return retouch.load(str(folder))
    model = library().create_model(f"local-dir:{folder}")
    return OpenClip(model, library().get_tokenizer(f"local-dir:{folder}"))


def test_clips_own_tokenizer_in_transformers():
    """open_clip brings CLIP's vocabulary; transformers must read prompts by it in the same way."""
    own, there = open_clip().tokenizer, fast_tokenizer(open_clip())
    for prompt in ("A photo of a Café, isn't it?", "3.14 % of  #1\n🙂", "日本 <|x|> o'clock_s"):
        ids = there(prompt)["input_ids"]
        assert ids == own([prompt])[0][: len(ids)].tolist()
    long = there(["word " * 200], truncation=True)["input_ids"][0]
    assert long == own(["word " * 200])[0].tolist()


def test_a_class_that_the_other_library_reads_otherwise_is_named(
    hf_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    subject = of_run(hf_run)
    subject.run.tasks[0].classes[0] = "dark ’ red"  # open_clip straightens it
    clip = replace(subject, clip=hf_with_quotes())
    export(clip, "open_clip", tmp_path / "there")
    assert "read otherwise by open_clip, such as 'a photo of dark ’ red'" in caplog.text
    card = (tmp_path / "there" / "README.md").read_text()
    assert "such as “a photo of dark ’ red”" in card
    assert _CLEAN in card


def hf_with_quotes() -> HuggingFaceClip:
    clip = hf_clip("gelu")
    clip.tokenizer.add_tokens(["’"])  # number 51 of the model's 64
    return clip


UNFIT: dict[str, tuple[Callable[[], Clip], str, str]] = {
    "a dual encoder": (dual, "open_clip", "VisionTextDualEncoderModel. Export it with --to hf"),
    "two activations": (lambda: hf_clip("relu"), "open_clip", "whose activation is relu"),
    "a crop": (lambda: cropping(), "open_clip", "resized to 20 and cropped to 16×16"),
    "a ResNet": (lambda: resnet(), "hf", "is a ModifiedResNet.*Export it with --to open_clip"),
    "SigLIP": (lambda: open_clip(init_logit_bias=-10), "hf", "SigLIP"),
    "own encoders": (own_pair, "onnx", "is of no library"),
    "prompts": (lambda: prompted(), "hf", "l2p put prompts into the visual tower"),
}


def cropping() -> Clip:
    clip = hf_clip("gelu")
    clip.preprocess = replace(clip.preprocess, shortest=20)
    return clip


def resnet() -> Clip:
    vision = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}
    return open_clip(name="resnet", vision_cfg=vision)


def prompted() -> Clip:
    clip = tiny_clip()
    attach(clip, PoolPrompts(width=32, pool=3, length=2, top=2))
    return clip


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_exported_gets_a_sentence(case: str, tmp_path: Path):
    make, to, complaint = UNFIT[case]
    with pytest.raises(UserError, match=complaint):
        export(ExportModel(make(), "tiny"), to, tmp_path / "there")
    assert not list(tmp_path.iterdir())


def test_a_pair_that_cannot_be_loaded_again_is_told_of_by_its_name(tmp_path: Path):
    """A model of one's own put together: its tokenizer does not save what its library needs."""

    class Forgetful:
        pad_token_id, eos_token_id, padding_side, model_max_length = 0, 3, "right", 12

        def save_pretrained(self, folder: Path) -> None:
            (folder / "tokenizer_config.json").write_text("{}")

    clip = tiny_clip()
    clip.tokenizer = Forgetful()
    with pytest.raises(UserError, match="cannot be exported") as why:
        export(ExportModel(clip, base="own"), "hf", tmp_path / "there")
    assert ".part" not in str(why.value)
    assert str(tmp_path / "there") in str(why.value)
    assert not list(tmp_path.iterdir())


def test_a_dual_encoder_stays_in_its_library(tmp_path: Path):
    clip = dual()
    assert export(ExportModel(clip, "dual"), "hf", tmp_path / "there").max_difference == 0
    card = (tmp_path / "there" / "README.md").read_text()
    assert "model = AutoModel.from_pretrained" in card
    torch.testing.assert_close(unit(retouch.load(str(tmp_path / "there"))), unit(clip))


def test_the_card_tells_the_run_and_odd_names_stay_text(hf_run: Path, tmp_path: Path):
    rows = [ClassRow(name=name, images=3, before=0, after=50) for name in ODD]
    rows.append(ClassRow(name="an <old> one", images=8, before=100, after=75, learned=False))
    PerClass(classes=rows).write(hf_run)
    try:
        subject = of_run(hf_run)
    finally:
        (hf_run / "classes.json").unlink()
    export(subject, "hf", tmp_path / "there")
    text = (tmp_path / "there" / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front)["pipeline_tag"] == "zero-shot-image-classification"
    assert "base_model" not in yaml.safe_load(front)
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    inline = [child for t in tokens for child in t.children or []]
    assert not [t for t in [*tokens, *inline] if "html" in t.type or t.type == "link_open"]
    seen = ["".join(c.content for c in t.children) for t in tokens if t.type == "inline"]
    for name in [*ODD, "an <old> one"]:
        assert name in seen
    numbers = subject.run.metrics()
    for number in ("accuracy", "frozen_accuracy", "control", "control_before"):
        assert f"{numbers[number]:.1f} %" in body
    assert "| control accuracy, on " in body
    assert "| both together, choosing among all " in body
    for sentence in phrasing.verdict(subject.run):
        assert sentence in body
    assert "This is my model, taught" in body
    assert "method `flyp`" in body
    assert "lr: 0.005" in body
    assert_no_path_of_this_machine(tmp_path / "there")


def assert_no_path_of_this_machine(folder: Path) -> None:
    for file in folder.iterdir():
        content = file.read_bytes()
        for place in (str(folder.parent), str(Path(retouch.__file__).parent), "site-packages"):
            assert place.encode() not in content, f"{place} in {file.name}"


def test_the_card_leads_back(hf_run: Path, tmp_path: Path):
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


def test_names_for_people_hide_paths(tmp_path: Path):
    assert shown("builtin") == "the small CLIP that comes with retouch"
    assert shown(str(tmp_path / "clip b16")) == "clip b16"
    assert shown("openai/clip-vit-base-patch16") == "openai/clip-vit-base-patch16"
    assert shown("open_clip:ViT-B-32@/home/me/w.safetensors") == "open_clip:ViT-B-32@w.safetensors"
    assert hub_id("openai/clip-vit-base-patch16")
    assert not hub_id("open_clip:ViT-B-32/openai")
    assert not hub_id("./clip")
    assert not hub_id("src/retouch")  # a folder here


def test_a_failure_leaves_nothing_and_what_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="full exists already"):
        export(ExportModel(tiny_clip(), "tiny"), "hf", full)
    monkeypatch.setattr(write, "card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(ExportModel(tiny_clip(), "tiny"), "hf", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    monkeypatch.undo()
    (tmp_path / ".new.part").mkdir()  # of one that was killed
    (tmp_path / "new").mkdir()
    export(ExportModel(tiny_clip(), "tiny"), "hf", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "new"]
    assert (tmp_path / "new" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def command(*words: object) -> Any:
    return CliRunner().invoke(app, ["export", *map(str, words)])


def test_the_command(hf_run: Path, tmp_path: Path):
    done = command(hf_run, "--to", "hf", "-o", tmp_path / "a")
    assert done.exit_code == 0, done.output
    assert "a: the model after 2 tasks, 6 new classes, for transformers" in done.stdout
    assert "the features are the same" in done.stdout
    moved = hf_run.parent / "my model"
    words = ("--to", "open_clip", "--task", 1, "--model", moved, "-o", tmp_path / "b", "--json")
    done = command(hf_run, *words)
    said = json.loads(done.stdout)
    assert (said["written"], said["to"], said["tasks"]) == (str(tmp_path / "b"), "open_clip", 1)
    assert 0 <= said["max_difference"] <= said["tolerance"] == 1e-5
    assert "open_clip_model.safetensors" in said["files"]
    assert len(said["classes"]) == 3


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["{run}", "--to", "hf", "-o", "{run}"], 1, "exists already"),
        (["{run}", "--to", "hf", "-o", "{new}", "--task", "3"], 1, "has learned 2 tasks, not 3"),
        (["{run}", "--to", "hf", "-o", "{new}", "--model", "builtin"], 1, "began with weights"),
        (["builtin", "--to", "hf", "-o", "{new}", "--task", "1"], 1, "--task belongs to a run"),
        (["{new}", "--to", "hf", "-o", "{new}2"], 1, "there is no folder"),
        (["builtin", "--to", "keras", "-o", "{new}"], 2, "keras"),
    ],
)
def test_mistakes(words: list[str], code: int, complaint: str, hf_run: Path, tmp_path: Path):
    done = command(*(word.format(run=hf_run, new=tmp_path / "new") for word in words))
    assert done.exit_code == code
    assert complaint in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_a_run_that_has_learned_nothing(hf_run: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(hf_run, run)
    results = Results.read(run)
    none: dict[str, Any] = {"rows": results.rows[:1], "trained": [], "seconds": [], "kept": []}
    results.model_copy(update=none).write(run)
    with pytest.raises(UserError, match="has learned no task yet"):
        of_run(run)
    export(of_run(run, task=0), "hf", tmp_path / "there")
    assert "No class was taught" in (tmp_path / "there" / "README.md").read_text()


def test_what_was_exported_is_a_model_here_too(tmp_path: Path):
    """A converted folder can be judged, taught and exported again."""
    start = tiny_folder(tmp_path / "start")
    export(of_model(str(start)), "open_clip", tmp_path / "there")
    clip = retouch.load(str(tmp_path / "there"))
    for a, b in zip(unit(clip), unit(retouch.load(str(start))), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    export(of_model(str(tmp_path / "there")), "hf", tmp_path / "back")
    assert (tmp_path / "back" / "config.json").exists()
    (tmp_path / "there" / "open_clip_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no open_clip_model\.safetensors"):
        retouch.load(str(tmp_path / "there"))
