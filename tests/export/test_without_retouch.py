"""Exports are loaded, and the code of their cards runs, in a process without `retouch`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
from exports import PROMPTS, assert_no_local_path, features, noise, with_odd_names
from PIL import Image
from tiny import tiny_clip
from tokenizers import Tokenizer

from retouch.clip import Clip
from retouch.export import export, of_run, onnx
from retouch.train import open_run

SCRIPT = r"""
import contextlib, io, json, os, re, sys

sys.modules["retouch"] = None  # any import of it fails
import torch

for name in ("nms", "qnms"):  # a torchvision wheel beside a CPU-only torch
    boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    torch.library.define("torchvision::" + name, boxes)
import numpy as np
import open_clip
import transformers

pixels = torch.from_numpy(np.load("pixels.npy"))
prompts, jobs = json.load(open("job.json"))
with_odd_images = ("hf-hf", "open-open_clip", "open-onnx", "two-hf")
outputs, odd = {}, {}
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
        arrays = [torch.nn.functional.normalize(t, dim=-1).numpy() for t in (image, text)]
        np.savez(folder + ".npz", image=arrays[0], text=arrays[1])
    cwd = os.getcwd()
    os.chdir(folder)
    stdout = io.StringIO()
    load = open("README.md").read().split("## How it was taught")[0]
    code = "\n".join(re.findall(r"```python\n(.*?)```", load, re.S))
    with contextlib.redirect_stdout(stdout):
        exec(code, {})
        outputs[folder] = stdout.getvalue()
        for file in sorted(os.listdir("../odd")) if folder in with_odd_images else []:
            scope = {}
            exec(code.split("\nfrom tokenizers")[0].replace("image.jpg", "../odd/" + file), scope)
            probability = float(scope["probabilities"][scope["best"]])
            odd.setdefault(folder, []).append([file, scope["names"][scope["best"]], probability])
    os.chdir(cwd)
json.dump([outputs, odd], open("outputs.json", "w"))
"""


CONVERSIONS = [
    ("hf", "hf"),
    ("hf", "open_clip"),
    ("open", "hf"),
    ("open", "open_clip"),
    ("open", "onnx"),
    ("two", "hf"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("onednn")  # as in the other process, whose features are the same bits
def test_exports_load_and_cards_run_without_retouch(
    hf_run: Path,
    open_clip_run: Path,
    two_sets_run: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    """One process that cannot import retouch loads all exports and runs the code of their cards."""
    runs = {"hf": hf_run, "open": open_clip_run, "two": two_sets_run}
    clips = {name: open_run(run).load_task() for name, run in runs.items()}
    image = Image.fromarray(
        with_odd_names("test", 3).store.read(np.array([4]), tiny_clip().preprocess)[0]
    )
    for start, to in CONVERSIONS:
        folder = tmp_path / f"{start}-{to}"
        capfd.readouterr()
        done = export(of_run(runs[start]), to, folder)
        assert capfd.readouterr() == ("", ""), "exporters are silent"
        assert done.max_difference < 1e-5
        image.save(folder / "image.jpg", quality=100)
    write_odd_images(tmp_path / "odd")
    outputs, odd = run_without_retouch(
        tmp_path, [(to, f"{start}-{to}") for start, to in CONVERSIONS]
    )
    classified = {name: classify(run, tmp_path / "odd") for name, run in runs.items()}
    assert len(odd) == 4
    for start, to in CONVERSIONS:
        folder = tmp_path / f"{start}-{to}"
        assert outputs[folder.name] == expected_output(clips[start], folder)
        predictions = odd.get(folder.name, classified[start])
        for (file, name, probability), ours in zip(predictions, classified[start], strict=True):
            assert (file, name) == ours[:2], folder.name
            assert probability == pytest.approx(ours[2], abs=1e-4), (folder.name, file)
        if to == "onnx":
            check_onnx(folder, clips[start])
            continue
        arrays = np.load(f"{folder}.npz")
        theirs = torch.from_numpy(arrays["image"]), torch.from_numpy(arrays["text"])
        tolerance = 0 if (start, to) in (("hf", "hf"), ("two", "hf")) else 1e-5
        torch.testing.assert_close(features(clips[start]), theirs, rtol=0, atol=tolerance)


def write_odd_images(folder: Path) -> None:
    """Rotated by EXIF, of 16 and of 32 bits, with a palette, with an alpha channel."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    shade = np.linspace(0, 200, 16).astype(np.uint8)[:, None, None]  # up is not down
    image = Image.fromarray(shade + rng.integers(0, 55, (16, 16, 3)).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(folder / "rotated.jpg", exif=exif, quality=100)
    deep = rng.integers(0, 2**16, (16, 16)).astype(np.uint16)
    Image.fromarray(deep).save(folder / "deep.png")
    Image.fromarray(deep.astype(np.int32) >> 8).save(folder / "shallow.tif")
    image.quantize(8).save(folder / "palette.png", transparency=3)
    clear = Image.fromarray(rng.integers(0, 256, (16, 16), np.uint8))
    Image.merge("RGBA", (*image.split(), clear)).save(folder / "clear.png")


def classify(run: Path, folder: Path) -> list[tuple[str, str, float]]:
    """The command's first prediction for each image, and its probability."""
    output = json.loads(commands.run("classify", run, folder, "--json", "--top", 1).stdout)
    firsts = [(Path(image["file"]).name, image["after"][0]) for image in output["images"]]
    return [(file, first["name"], first["probability"]) for file, first in firsts]


def check_onnx(folder: Path, clip: Clip) -> None:
    """The encoders take any batch size, and the class features are those of the classes."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(PROMPTS)])
    text_features = onnx.run(folder / "text_encoder.onnx", {"input_ids": ids})
    torch.testing.assert_close(text_features, features(clip)[1], rtol=0, atol=1e-5)
    metadata = json.loads((folder / "encoders.json").read_text())
    assert metadata["logit_scale"] == pytest.approx(clip.logit_scale.item())
    assert metadata["features"] == "normalized to length 1"
    assert list(ids.shape) == [3, metadata["context_length"]]
    prompts = json.loads((folder / "classes.json").read_text())
    class_features = torch.from_numpy(np.load(folder / "class_features.npy"))
    torch.testing.assert_close(class_features, text_features_of(clip, prompts["prompts"]))
    for count in (1, 5):
        pixels = clip.preprocess.normalize(noise(clip, count))
        image_features = onnx.run(folder / "image_encoder.onnx", {"pixel_values": pixels})
        with torch.no_grad():
            torch.testing.assert_close(image_features, clip.image_features(noise(clip, count)))
    assert_no_local_path(folder)


def text_features_of(clip: Clip, prompts: list[list[str]]) -> torch.Tensor:
    """A feature for each class: the normalized mean over its prompts."""
    with torch.no_grad():
        means = [clip.text_features(clip.tokenize(each)).mean(dim=0) for each in prompts]
    return torch.nn.functional.normalize(torch.stack(means), dim=-1)


def run_without_retouch(folder: Path, jobs: list[tuple[str, str]]) -> Any:
    (folder / "without_retouch.py").write_text(SCRIPT)
    np.save(folder / "pixels.npy", tiny_clip().preprocess.normalize(noise(tiny_clip())).numpy())
    (folder / "job.json").write_text(json.dumps([PROMPTS, jobs]))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "without_retouch.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return json.loads((folder / "outputs.json").read_text())


def expected_output(clip: Clip, folder: Path) -> str:
    """What the card's code should print."""
    prompts = json.loads((folder / "classes.json").read_text())
    with Image.open(folder / "image.jpg") as image:
        pixels = torch.tensor(clip.preprocess.prepare(image))[None]
    texts = text_features_of(clip, prompts["prompts"])
    probabilities = (clip.logit_scale.detach() * clip.image_features(pixels) @ texts.T).softmax(
        dim=-1
    )[0]
    best = int(probabilities.argmax())
    return f"{prompts['classes'][best]} {probabilities[best]:.0%}\n"
