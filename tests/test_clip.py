"""One interface over every CLIP: contract tests run over all backbones that there are."""

import copy
import json
import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from threading import Event

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import images, tiny_clip, tiny_config, tiny_folder, tiny_tokenizer
from torch import nn

import retouch
from retouch.clip import Clip, DualEncoder, Preprocess
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.open_clip import OpenClip, _library
from retouch.clip.zero_shot import PromptEnsemble, classifier, fill_template
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.methods import Settings
from retouch.sparse import Delta, fingerprint, locate
from retouch.train import Callback, run_on_disk, teach

PROMPTS = ["a photo of the dark red", "red", "a picture of a bright green"]


def dual() -> Clip:
    import transformers

    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    tower |= {"num_attention_heads": 2}
    vision = transformers.CLIPVisionConfig(**tower, image_size=16, patch_size=8)
    text = transformers.BertConfig(**tower, vocab_size=64, max_position_embeddings=12)
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
        vision, text, projection_dim=16
    )
    torch.manual_seed(0)
    model = transformers.VisionTextDualEncoderModel(config)
    return HuggingFaceClip(model, tiny_tokenizer(), Preprocess(size=(16, 16)), "dual")


def small_open_clip(name: str = "tiny", **extra: object) -> str:
    """Tell open_clip of a small model, and return its name."""
    library = _library()
    vision = {"image_size": 16, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text, **extra}
    library.factory._MODEL_CONFIGS[name] = config
    return name


def open_clip(**extra: object) -> OpenClip:
    torch.manual_seed(0)
    return retouch.load(f"open_clip:{small_open_clip(**extra)}", random_weights=True)


def with_own_tokenizer(**extra: object) -> OpenClip:
    """As open_clip's hub has many: cut into tokens by a tokenizer of transformers'."""
    folder = mkdtemp()
    tiny_tokenizer().save_pretrained(folder)
    text = {"context_length": 12, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    text |= {"hf_tokenizer_name": folder, "pool_type": "eos", "eos_id": 3, **extra}
    return open_clip(name="own tokenizer", custom_text=True, text_cfg=text)


def seeing_all() -> OpenClip:
    """Whose text tower looks at what stands behind a prompt's end, too."""
    return with_own_tokenizer(no_causal_mask=True, pool_type="last")


class Words(nn.Module):
    """The mean of a prompt's letters: no transformer at all."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, 16)

    def forward(self, letters: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (self.letters(letters) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def own_pair() -> Clip:
    def tokenize(prompts):
        length = max(map(len, prompts))
        letters = torch.tensor([[ord(c) % 256 for c in p.ljust(length)] for p in prompts])
        mask = torch.tensor([[1.0] * len(p) + [0.0] * (length - len(p)) for p in prompts])
        return {"letters": letters, "mask": mask}

    torch.manual_seed(0)
    images = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 16))
    return DualEncoder(images, Words(), tokenize, Preprocess(size=(16, 16)), logit_scale=50)


BACKBONES: dict[str, Callable[[], Clip]] = {
    "transformers CLIPModel": tiny_clip,
    "transformers dual encoder": dual,
    "open_clip": open_clip,
    "open_clip, custom text": lambda: open_clip(name="custom", custom_text=True),
    "open_clip, own tokenizer": with_own_tokenizer,
    "own pair": own_pair,
    "builtin": lambda: retouch.load("builtin"),
}


@pytest.fixture(params=BACKBONES)
def backbone(request: pytest.FixtureRequest) -> Clip:
    return BACKBONES[request.param]()


def some_pixels(clip: Clip, count: int = 3) -> torch.Tensor:
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (40, 30, 3), np.uint8)) for _ in range(count)]
    return torch.from_numpy(np.stack([clip.preprocess.prepare(p) for p in pictures]))


def test_features_have_length_one_and_a_gradient(backbone: Clip):
    images = backbone.image_features(some_pixels(backbone))
    texts = backbone.text_features(backbone.tokenize(PROMPTS))
    assert images.shape[0] == texts.shape[0] == 3
    assert images.shape[1] == texts.shape[1]
    for features in (images, texts):
        torch.testing.assert_close(features.norm(dim=1), torch.ones(3))
    (backbone.logit_scale * images @ texts.T).square().mean().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.model.parameters())


def test_a_prompts_feature_does_not_depend_on_its_neighbours(backbone: Clip):
    together = backbone.text_features(backbone.tokenize(PROMPTS))
    alone = torch.cat([backbone.text_features(backbone.tokenize([p])) for p in PROMPTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-6)
    assert not torch.allclose(together[0], together[1])


def test_blocks_of_each_tower(backbone: Clip):
    blocks = backbone.blocks
    assert blocks.keys() == {"image", "text"}
    if not isinstance(backbone, DualEncoder):
        assert blocks["image"]
        assert blocks["text"]
        assert all(name.startswith(backbone.image_prefix) for name in blocks["image"])
        assert len(locate(backbone.model)) == len(blocks["image"]) + len(blocks["text"])
    for name in backbone.projections.values():
        assert backbone.model.get_parameter(name).ndim == 2


def test_a_task_is_written_as_it_was_learned_whatever_judging_does_meanwhile(
    backbone: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """open_clip is lent a shorter table of positions while it reads prompts, for one."""
    judging, written, file = Event(), Event(), tmp_path / "run" / "deltas" / "task-01.safetensors"

    class Begun(Callback):
        def on_task_begin(self, task: int, steps: int) -> None:
            for part in backbone.model.modules():
                part.register_forward_pre_hook(self.wait)

        def wait(self, part: nn.Module, given: object) -> None:
            """In the middle of a pass of the judging."""
            if not torch.is_grad_enabled():
                judging.set()
                written.wait(20)

    def when_judging(write: Callable[[], None], *where: object) -> Callable[[], None]:
        def job() -> None:
            judging.wait(20)
            try:
                write()
            finally:
                written.set()

        return job

    monkeypatch.setattr(run_on_disk, "on_side_stream", when_judging)
    first = copy.deepcopy(backbone.model)
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=1, order=0)
    settings = Settings(epochs=1, batch=8, lr=1e-3)
    options = {"settings": settings, "out": tmp_path / "run", "callback": Begun()}
    retouch.teach(backbone, stream, "flyp", **options)
    assert judging.is_set()
    Delta.load(file).apply(first)
    assert fingerprint(first) == fingerprint(backbone.model)


def test_saved_as_a_plain_model(backbone: Clip, tmp_path: Path):
    backbone.save(tmp_path / "model")
    files = sorted((tmp_path / "model").glob("*.safetensors"))
    assert files
    assert not [f for f in (tmp_path / "model").iterdir() if f.suffix in (".bin", ".pt", ".pkl")]


def test_bf16_features_are_close_and_float32(backbone: Clip):
    exact = backbone.image_features(some_pixels(backbone))
    backbone.bf16 = True
    rough = backbone.image_features(some_pixels(backbone))
    assert rough.dtype == torch.float32
    assert (exact * rough).sum(1).min() > 0.99


# Text features cut at the longest prompt equal those at full length, in both libraries.


def test_cut_prompts_in_transformers():
    clip = tiny_clip()
    short = clip.tokenize(PROMPTS)
    ids = short["input_ids"]
    assert ids.shape[1] < clip._context
    full = clip.tokenizer(
        PROMPTS, padding="max_length", max_length=clip._context, return_tensors="pt"
    )
    whole = clip.model.get_text_features(input_ids=full["input_ids"]).pooler_output
    torch.testing.assert_close(clip.encode_texts(short), whole, rtol=0, atol=2e-6)


@pytest.mark.parametrize("custom", [False, True])
def test_cut_prompts_in_open_clip(custom: bool):
    clip = open_clip(name=f"cut {custom}", custom_text=custom)
    short = clip.tokenize(PROMPTS)
    assert short["text"].shape[1] < 12
    whole = clip.model.encode_text(clip.tokenizer(PROMPTS), normalize=True)
    torch.testing.assert_close(clip.text_features(short), whole, rtol=0, atol=2e-6)


def test_towers_that_look_behind_the_end_are_not_cut():
    text = {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    for odd in ({"no_causal_mask": True, "pool_type": "last"}, {"embed_cls": True}):
        clip = open_clip(name=f"odd {odd}", custom_text=True, text_cfg={**text, **odd})
        tokens = clip.tokenize(PROMPTS)
        assert tokens["text"].shape[1] == 20
        whole = clip.model.encode_text(clip.tokenizer(PROMPTS), normalize=True)
        torch.testing.assert_close(clip.text_features(tokens), whole)


@pytest.mark.parametrize("make", [tiny_clip, dual, open_clip, with_own_tokenizer, seeing_all])
def test_a_truncated_prompt_is_named(make: Callable[[], Clip], caplog: pytest.LogCaptureFixture):
    clip = make()
    long = "a photo of " + f"red blue green {make.__name__} " * 40
    with caplog.at_level(logging.WARNING, "retouch"):
        tokens = clip.tokenize(["red", long])
        clip.tokenize([long])
        clip.tokenize(["dark red " * 5])  # which just fits the smallest
    assert clip.text_features(tokens).shape[0] == 2
    cut = [record for record in caplog.records if "cut at the model's" in record.getMessage()]
    assert len(cut) == 1


def test_every_model_and_every_run_warns_of_truncated_prompts(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    """Five are named and all are counted, however many were named in this process before."""
    long = [f"{letter} " + "red " * 20 for letter in "abcdefgh"]
    for clip in (tiny_clip(), tiny_clip()):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "retouch"):
            clip.tokenize(long)
            clip.tokenize(long)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 6
        assert said[-1].startswith("8 prompts in all were cut at the model's 12 tokens")
    train, test = (replace(images(n, 6, 4), classes=long[:6]) for n in ("train", "test"))
    for out in (tmp_path / "first", tmp_path / "second"):  # of one and the same model
        stream = Stream.split(train, test, tasks=2, order=0)
        results = teach(clip, stream, "flyp", settings=Settings(epochs=1, batch=4), out=out)
        named = [note for note in results.notes if note.startswith("a prompt of")]
        counted = [note for note in results.notes if "prompts in all" in note]
        assert len(named) == 5
        assert counted[0].startswith("6 prompts in all")
        assert Results.read(out).notes == results.notes


class Bare:
    """A tokenizer that has no more than it must; as one of open_clip's, it may hold another."""

    def __init__(self, whole: object) -> None:
        self.cut = whole
        if hasattr(whole, "tokenizer"):
            self.tokenizer = whole.tokenizer

    def __call__(self, texts: list[str]) -> torch.Tensor:
        return self.cut(texts)


@pytest.mark.parametrize("make", [open_clip, with_own_tokenizer])
def test_a_tokenizer_that_tells_little_cuts_all_the_same(make: Callable[[], OpenClip]):
    clip, long = make(), ["red " * 90]
    expected = clip.tokenize(long)
    clip.tokenizer = Bare(clip.tokenizer)
    assert torch.equal(clip.tokenize(long)["text"], expected["text"])


def pair_with_tokenizer() -> Clip:
    """Someone's own encoders with a tokenizer of transformers'."""
    tokenizer = tiny_tokenizer()

    def tokenize(prompts):
        longest = max(len(ids) for ids in tokenizer(prompts)["input_ids"])
        return tokenizer(prompts, padding="max_length", max_length=longest, return_tensors="pt")

    return DualEncoder(nn.Flatten(), Words(), tokenize, Preprocess(size=(16, 16)))


@pytest.mark.parametrize("name", [*BACKBONES, "own pair with a tokenizer"])
def test_threads_cut_prompts_at_once(name: str):
    """Batches are made ready side by side, while a tokenizer changes its settings with each."""
    clip, long = BACKBONES.get(name, pair_with_tokenizer)(), "red blue " * 60
    jobs = [PROMPTS, ["red"], [long, "blue"], ["dark red " * 4]] * 40
    expected = [clip.tokenize(job) for job in jobs[:4]] * 40
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(clip.tokenize, jobs))
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_class_features_are_the_normalised_mean_over_templates():
    clip = tiny_clip()
    names, templates = ["red", "dark blue"], ["a photo of {}", "the {}"]
    ensemble = PromptEnsemble(clip, names, templates, at_once=3)
    found = ensemble.features(clip)
    assert torch.equal(found, ensemble.features(clip))
    assert torch.allclose(found, classifier(clip, names, templates), atol=1e-6)
    for number, name in enumerate(names):
        each = clip.text_features(clip.tokenize([t.replace("{}", name) for t in templates]))
        expected = nn.functional.normalize(each.mean(0), dim=-1)
        torch.testing.assert_close(found[number], expected, rtol=0, atol=2e-6)
    with pytest.raises(UserError, match=r"must hold \{\} once"):
        fill_template("a photo", names)


@pytest.mark.parametrize("name", BACKBONES)
def test_a_prompt_is_read_up_to_its_length(name: str):
    """What lies behind may be cut off, or filled with anything that was there before."""
    clip = BACKBONES[name]()
    tokens = clip.tokenize(PROMPTS)
    lengths = clip.lengths(tokens)
    if lengths is None:
        return
    width = next(iter(tokens.values())).shape[1]
    assert int(lengths.max()) == width, "the longest is as long as the batch"
    assert int(lengths.min()) < width
    whole = clip.text_features(tokens)
    for place, length in enumerate(lengths.tolist()):
        alone = {key: each[place : place + 1, :length] for key, each in tokens.items()}
        torch.testing.assert_close(clip.text_features(alone)[0], whole[place], rtol=0, atol=1e-5)


def test_prompts_are_encoded_with_others_of_as_many_tokens(monkeypatch: pytest.MonkeyPatch):
    """However long they look: so that few are padded."""
    clip = tiny_clip()
    short, long = "red " + 20 * " ", "a b c d e f"
    names = [short, long, long, short + " "]
    seen = []
    own = clip.text_features

    def look(tokens: dict[str, torch.Tensor]) -> torch.Tensor:
        seen.append(tuple(tokens["input_ids"].shape))
        return own(tokens)

    monkeypatch.setattr(clip, "text_features", look)
    ensemble = PromptEnsemble(clip, names, ["{}"], at_once=2)
    found = ensemble.features(clip)
    assert [count for count, _ in seen] == [2, 2]
    assert seen[0][1] < seen[1][1]
    for place, name in enumerate(names):
        expected = own(clip.tokenize([name]))[0]
        torch.testing.assert_close(found[place], expected, rtol=0, atol=2e-6)


# Loading.


def test_a_folder_of_transformers(tmp_path: Path):
    clip = retouch.load(str(tiny_folder(tmp_path / "a model")))
    pixels = some_pixels(clip)
    expected = tiny_clip().image_features(pixels)
    torch.testing.assert_close(clip.image_features(pixels), expected)
    assert clip.preprocess == tiny_clip().preprocess


def test_a_folder_of_a_dual_encoder(tmp_path: Path):
    dual().save(tmp_path)
    clip = retouch.load(str(tmp_path))
    tokens = clip.tokenize(PROMPTS)
    torch.testing.assert_close(clip.text_features(tokens), dual().text_features(tokens))


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.pop("visual_projection.weight"), "missing: visual_projection.weight"),
        (lambda t: t.update(junk=torch.zeros(2)), "unexpected: junk"),
        (lambda t: t.update(logit_scale=torch.zeros(3)), "could not be loaded"),
    ],
)
def test_weights_that_do_not_fit_are_never_filled_in(tmp_path: Path, change, complaint: str):
    folder = tiny_folder(tmp_path)
    edit(folder, change)
    with pytest.raises(UserError, match=complaint):
        retouch.load(str(folder))


def test_random_weights_must_be_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors"):
        retouch.load(str(folder))
    with caplog.at_level(logging.WARNING, "retouch"):
        retouch.load(str(folder), random_weights=True)
    assert "random weights, as asked for" in caplog.text


def test_no_pickle_is_read(tmp_path: Path):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(tiny_clip().model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"model\.safetensors \(no \.bin"):
        retouch.load(str(folder))


def test_openai_weights_without_quick_gelu(tmp_path: Path):
    folder = tiny_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["_name_or_path"] = "openai/clip-vit-base-patch16"
    config["text_config"]["hidden_act"] = "gelu"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="QuickGELU"):
        retouch.load(str(folder))


@pytest.mark.parametrize("name", ["no/such/folder", "./nothing", "/nowhere/model"])
def test_a_missing_folder(name: str):
    with pytest.raises(UserError, match="there is no folder"):
        retouch.load(name)


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"hub cannot be reached|no model"):
        retouch.load("openai/clip-vit-base-patch16-that-is-not-there")
    with pytest.raises(UserError, match="no model 'not a name'"):
        retouch.load("not a name")


def test_another_kind_of_model(tmp_path: Path):
    import transformers

    transformers.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"type 'bert'.*retouch\.DualEncoder"):
        retouch.load(str(tmp_path))


def saved_open_clip(folder: Path, **extra: object) -> Path:
    folder.mkdir(exist_ok=True)
    open_clip(**extra).save(folder)
    return folder / "open_clip_model.safetensors"


def test_open_clip_from_a_file(tmp_path: Path):
    file = saved_open_clip(tmp_path)
    clip = retouch.load(f"open_clip:tiny@{file}")
    pixels = some_pixels(clip)
    torch.testing.assert_close(clip.image_features(pixels), open_clip().image_features(pixels))


def test_open_clip_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = saved_open_clip(tmp_path)
    with pytest.raises(UserError, match="names no weights"):
        retouch.load("open_clip:tiny")
    with pytest.raises(UserError, match=r"no model 'ViT-B-61'.*ViT-B-16"):
        retouch.load("open_clip:ViT-B-61/openai")
    with pytest.raises(UserError, match="no weights 'nobody'"):
        retouch.load("open_clip:ViT-B-16/nobody")
    with pytest.raises(UserError, match="does not exist"):
        retouch.load("open_clip:tiny@missing.safetensors")
    with pytest.raises(UserError, match=r"QuickGELU mismatch.*ViT-B-16-quickgelu"):
        retouch.load("open_clip:ViT-B-16/openai")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pickled = tmp_path / "weights.pt"
    pickled.write_bytes(b"anything")
    with pytest.raises(UserError, match="is not a safetensors file"):
        retouch.load(f"open_clip:tiny@{pickled}")
    small_open_clip("wider", embed_dim=32)
    with pytest.raises(UserError, match="do not fit"):
        retouch.load(f"open_clip:wider@{file}")


def test_open_clip_quick_gelu_in_a_file(tmp_path: Path):
    file = saved_open_clip(tmp_path)
    settings = {"model_cfg": {"quick_gelu": True}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="QuickGELU mismatch"):
        retouch.load(f"open_clip:tiny@{file}")
    (tmp_path / "open_clip_config.json").unlink()
    named = file.rename(tmp_path / "vit_openai.safetensors")
    with pytest.raises(UserError, match="QuickGELU mismatch"):
        retouch.load(f"open_clip:tiny@{named}")


def test_open_clip_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(UserError, match=r"pip install 'retouch\[open-clip\]'"):
        retouch.load("open_clip:ViT-B-16/openai")


def test_the_configs_of_the_tests_are_what_they_say():
    assert tiny_config().text_config.eos_token_id == tiny_tokenizer().eos_token_id


def test_the_real_dual_encoder_through_the_wrapper(shared: Path, monkeypatch: pytest.MonkeyPatch):
    """Its text tower is mean-pooled; it must know a bear from a bus."""
    folder = shared / "models" / "clip-b16-minilm"
    if not folder.is_dir():
        pytest.skip("no real model here")
    monkeypatch.syspath_prepend(str(folder))
    import load as loader

    model, tokenizer = loader.load(folder)

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower, self.projection = model.vision_model, model.visual_projection

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return self.projection(self.tower(pixel_values=pixels).pooler_output)

    class Texts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower, self.projection = model.text_model, model.text_projection

        def forward(self, **tokens: torch.Tensor) -> torch.Tensor:
            return self.projection(self.tower(**tokens).pooler_output)

    settings = json.loads((folder / "preprocessor_config.json").read_text())
    clip = DualEncoder(
        Images(),
        Texts(),
        lambda prompts: tokenizer(list(prompts), padding=True, return_tensors="pt"),
        Preprocess.from_processor(settings, 224),
        logit_scale=model.logit_scale.exp().item(),
    )
    assert len(clip.blocks["image"]) == 12
    assert len(clip.blocks["text"]) == 6
    assert len(locate(clip.model, "first-mlp")) == 18
    names = ["a bear", "a bus", "a bowl of fruit", "a computer"]
    image = Image.open(shared / "data" / "coco-val-200" / "images" / "000000000285.jpg")
    with torch.no_grad():
        pixels = torch.from_numpy(clip.preprocess.prepare(image).copy())[None]
        answer = clip.image_features(pixels) @ classifier(clip, names, ["a photo of {}."]).T
        direct = HuggingFaceClip(model, tokenizer, clip.preprocess).image_features(pixels)
    assert names[answer.argmax()] == "a bear"
    torch.testing.assert_close(clip.image_features(pixels), direct, rtol=0, atol=1e-5)
