"""A plain CLIP loaded without transformers is the same, to the bit, and starts sooner.

That every method trains it to the same bits is in `train/test_same_result.py`.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from compiled_towers import encode
from layouts import make_folder
from tiny import tiny_clip, tiny_folder

import retouch
from retouch.clip.fast.fast_vit import fast_vit
from retouch.clip.fast.light import LightClip, load_light
from retouch.clip.hf.model import HuggingFaceClip
from retouch.sparse import fingerprint, linear_layers, locate

PROMPTS = ["a photo of a red sign", "blue", "", "a picture of the dark green photo, bright " * 9]


def assert_same(folder: Path | str) -> None:
    """Weights, tokens, features and preprocessing equal those of transformers."""
    light, full = retouch.load(str(folder), light=True), retouch.load(str(folder))
    assert type(light) is LightClip
    assert type(full) is HuggingFaceClip
    assert fingerprint(light.model) == fingerprint(full.model)
    names = [name for name, _ in full.model.named_parameters()]
    layers = [linear_layers(clip.model, names).keys() for clip in (light, full)]
    assert layers[0] == layers[1]
    assert locate(light.model, "first-mlp").keys() < layers[0]
    assert light.preprocess == full.preprocess
    height, width = full.preprocess.size
    noise = np.random.default_rng(0).integers(0, 256, (5, height, width, 3), np.uint8)
    with torch.no_grad():
        for prompts in (PROMPTS[:2], PROMPTS):
            tokens = [clip.tokenize(prompts) for clip in (light, full)]
            assert torch.equal(tokens[0]["input_ids"], tokens[1]["input_ids"])
            assert torch.equal(light.lengths(tokens[0]), full.lengths(tokens[1]))
            assert torch.equal(light.text_features(tokens[0]), full.text_features(tokens[1]))
        pixels = torch.from_numpy(noise)
        assert torch.equal(light.image_features(pixels), full.image_features(pixels))
        assert torch.equal(light.logit_scale, full.logit_scale)


def change(folder: Path, file: str, **values: Any) -> Path:
    settings = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**settings, **values}))
    return folder


@pytest.mark.slow
def test_it_equals_transformers_to_the_bit(tmp_path: Path):
    assert_same("builtin")
    assert_same(tiny_folder(tmp_path / "tiny"))
    gelu = tiny_folder(tmp_path / "gelu")
    config = json.loads((gelu / "config.json").read_text())
    for tower in ("text_config", "vision_config"):
        config[tower] |= {"hidden_act": "gelu", "layer_norm_eps": 1e-3}
    assert_same(change(gelu, "config.json", **config))
    config["text_config"]["eos_token_id"] = 2  # as in OpenAI's old configs, and so are these
    config |= {"text_config_dict": None, "vision_config_dict": None}
    assert_same(change(gelu, "config.json", **config))


@pytest.mark.parametrize("fused", [False, True])
def test_without_unused_work_it_equals_transformers_to_the_bit(
    fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`attention` is torch's own on a CPU, whichever way it is called."""
    monkeypatch.setattr("retouch.clip.fast.attention._is_faster", lambda device: fused)
    folder = str(tiny_folder(tmp_path / "model"))
    found = []
    for light in (True, False):
        clip = retouch.load(folder, light=light)
        with fast_vit(clip.model, clip.image_prefix, lambda function: function):
            switches = [m.fused for m in clip.model.modules() if hasattr(m, "fused")]
            assert sum(switches) == (2 if fused and light else 0), "blocks of the visual tower"
            found.append(encode(clip, 3))
        assert not any(m.fused for m in clip.model.modules() if hasattr(m, "fused"))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_clips_tokenizer(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "re", "red</w>"]
    marks = ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: i for i, word in enumerate([*words, *marks])}
    merges = [("r", "e"), ("re", "d</w>")]
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=merges)
    folder = tiny_folder(tmp_path / "model")
    config = tiny_clip().model.config
    config.text_config.vocab_size, config.text_config.eos_token_id = 600, vocabulary[marks[1]]
    torch.manual_seed(0)
    clip = HuggingFaceClip(transformers.CLIPModel(config), tokenizer, tiny_clip().preprocess)
    shutil.rmtree(folder)
    clip.save(folder)
    assert_same(folder)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"model_type": "vision-text-dual-encoder"}),
        ("config.json", {"quantization_config": {}}),
        ("config.json", {"projection_dim": 7}),
        ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer"}),
        ("tokenizer_config.json", {"padding_side": "left"}),
        ("prompts.safetensors", None),
        ("processor_config.json", None),
        ("model.safetensors", None),
    ],
)
def test_unusual_folders_are_left_to_transformers(
    file: str, values: dict[str, Any] | None, tmp_path: Path
):
    folder = tiny_folder(tmp_path / "model")
    assert load_light(folder, "x")
    if values is None:
        (folder / file).write_bytes(b"something else")
    else:
        change(folder, file, **values)
    assert load_light(folder, "x") is None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    make_folder(home / "photos", {"dark_red": 6, "bright green": 6})
    model = str(tiny_folder(home / "model"))
    train, test = retouch.read_data(home / "photos").train_and_test()
    stream = retouch.Stream.split(train, test, tasks=1)
    settings = retouch.Settings(epochs=1, batch=8, lr=1e-3)
    for method in ("spu", "l2p"):
        clip = retouch.load(model)
        options = {"settings": settings, "out": home / method, "store_images": False}
        retouch.teach(clip, stream, method, per_class=False, **options)
    return home


@pytest.mark.slow
def test_classify_prints_the_same_with_and_without_prompts(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    methods = ("spu", "l2p")
    commands = [["classify", home / method, home / "photos", "--json"] for method in methods]
    light = [run(*command).stdout for command in commands]
    monkeypatch.setattr("retouch.clip.fast.light.load_light", lambda folder, name: None)
    assert [run(*command).stdout for command in commands] == light


@pytest.mark.slow
def test_commands_import_nothing_that_they_do_not_need(home: Path, tmp_path: Path):
    """Imports took most of their time."""
    heavy = ["transformers", "torchvision", "scipy", "sympy", "pandas", "matplotlib", "jinja2"]
    code = f"""
import sys
from retouch.cli import app
run = {str(home / "spu")!r}
app(["classify", run, {str(home / "photos")!r}], standalone_mode=False)
app(["delta", "diff", run, run, "-o", {str(tmp_path / "x")!r}], standalone_mode=False)
imported = [name for name in {heavy} + ["torch._dynamo"] if name in sys.modules]
sys.exit(", ".join(imported) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
