"""One interface over every CLIP: these tests run over all backbones."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from backbones import (
    BACKBONES,
    PROMPTS,
    MeanOfLetters,
    random_pixels,
)
from tiny import images, tiny_tokenizer
from torch import nn

import retouch
from retouch.clip import Clip, DualEncoder, Preprocess
from retouch.data import Stream
from retouch.methods import Settings
from retouch.sparse import Delta, fingerprint, locate
from retouch.train import Callback
from retouch.train.run_folder import record_on_disk as run_on_disk


@pytest.fixture(params=BACKBONES)
def backbone(request: pytest.FixtureRequest) -> Clip:
    return BACKBONES[request.param]()


def test_features_have_length_one_and_a_gradient(backbone: Clip):
    images = backbone.image_features(random_pixels(backbone))
    texts = backbone.text_features(backbone.tokenize(PROMPTS))
    assert images.shape[0] == texts.shape[0] == 3
    assert images.shape[1] == texts.shape[1]
    for features in (images, texts):
        torch.testing.assert_close(features.norm(dim=1), torch.ones(3))
    (backbone.logit_scale * images @ texts.T).square().mean().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.model.parameters())


def test_a_prompts_feature_does_not_depend_on_the_rest_of_the_batch(backbone: Clip):
    together = backbone.text_features(backbone.tokenize(PROMPTS))
    alone = torch.cat([backbone.text_features(backbone.tokenize([p])) for p in PROMPTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-6)
    assert not torch.allclose(together[0], together[1])


def test_tokens_beyond_a_prompts_length_have_no_effect(backbone: Clip):
    tokens = backbone.tokenize(PROMPTS)
    lengths = backbone.lengths(tokens)
    if lengths is None:
        return
    width = next(iter(tokens.values())).shape[1]
    assert int(lengths.max()) == width, "the longest is as long as the batch"
    assert int(lengths.min()) < width
    features = backbone.text_features(tokens)
    for row, length in enumerate(lengths.tolist()):
        cut = {key: ids[row : row + 1, :length] for key, ids in tokens.items()}
        torch.testing.assert_close(backbone.text_features(cut)[0], features[row], rtol=0, atol=1e-5)


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


@pytest.mark.slow
def test_a_delta_can_be_written_during_an_evaluation(
    backbone: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An evaluation must not change the weights, not even for the time of a forward pass.

    open_clip, for one, gets shorter position embeddings while it encodes prompts.
    """
    evaluating, written = Event(), Event()

    class PauseEvaluation(Callback):
        def on_task_begin(self, task: int, steps: int) -> None:
            for module in backbone.model.modules():
                module.register_forward_pre_hook(self.wait)

        def wait(self, module: nn.Module, args: object) -> None:
            """In the middle of a forward pass of the evaluation."""
            if not torch.is_grad_enabled():
                evaluating.set()
                written.wait(20)

    def write_during_evaluation(write: Callable[[], None], *_: object) -> Callable[[], None]:
        def job() -> None:
            evaluating.wait(20)
            try:
                write()
            finally:
                written.set()

        return job

    monkeypatch.setattr(run_on_disk, "on_side_stream", write_during_evaluation)
    start = copy.deepcopy(backbone.model)
    stream = Stream.split(images("train", 2, 2), images("test", 2, 1), tasks=1, order=0)
    settings = Settings(epochs=1, batch=4, lr=1e-3)
    options = {"settings": settings, "out": tmp_path / "run", "callback": PauseEvaluation()}
    retouch.teach(backbone, stream, "flyp", **options)
    assert evaluating.is_set()
    Delta.load(tmp_path / "run" / "deltas" / "task-01.safetensors").apply(start)
    assert fingerprint(start) == fingerprint(backbone.model)


def test_saved_as_safetensors_without_pickles(backbone: Clip, tmp_path: Path):
    backbone.save(tmp_path / "model")
    files = sorted((tmp_path / "model").glob("*.safetensors"))
    assert files
    assert not [f for f in (tmp_path / "model").iterdir() if f.suffix in (".bin", ".pt", ".pkl")]


def test_bf16_features_are_close_and_float32(backbone: Clip):
    exact = backbone.image_features(random_pixels(backbone))
    backbone.bf16 = True
    features = backbone.image_features(random_pixels(backbone))
    assert features.dtype == torch.float32
    assert (exact * features).sum(1).min() > 0.99


def dual_encoder_with_hf_tokenizer() -> Clip:
    """A `DualEncoder` with a tokenizer of transformers."""
    tokenizer = tiny_tokenizer()

    def tokenize(prompts):
        longest = max(len(ids) for ids in tokenizer(prompts)["input_ids"])
        return tokenizer(prompts, padding="max_length", max_length=longest, return_tensors="pt")

    return DualEncoder(nn.Flatten(), MeanOfLetters(), tokenize, Preprocess(size=(16, 16)))


@pytest.mark.parametrize("name", [*BACKBONES, "DualEncoder, hf tokenizer"])
def test_threads_can_tokenize_concurrently(name: str):
    """Batches are loaded by several threads, and a tokenizer changes its settings with each."""
    clip, long = BACKBONES.get(name, dual_encoder_with_hf_tokenizer)(), "red blue " * 60
    jobs = [PROMPTS, ["red"], [long, "blue"], ["dark red " * 4]] * 25
    expected = [clip.tokenize(job) for job in jobs[:4]] * 25
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(clip.tokenize, jobs))
    for tokens, reference in zip(results, expected, strict=True):
        assert tokens.keys() == reference.keys()
        assert all(torch.equal(tokens[key], reference[key]) for key in tokens)
