"""CLIPs of open_clip."""

from collections.abc import Callable

import pytest
import torch
from backbones import (
    PROMPTS,
    open_clip,
    open_clip_with_hf_tokenizer,
)

from retouch.clip.open_clip.model import OpenClip


@pytest.mark.parametrize("custom", [False, True])
def test_features_of_short_batches_equal_those_at_full_length(custom: bool):
    clip = open_clip(name=f"short {custom}", custom_text=custom)
    short = clip.tokenize(PROMPTS)
    assert short["text"].shape[1] < 12
    whole = clip.model.encode_text(clip.tokenizer(PROMPTS), normalize=True)
    torch.testing.assert_close(clip.text_features(short), whole, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_towers_that_attend_beyond_the_end_get_full_length():
    text = {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    for odd in ({"no_causal_mask": True, "pool_type": "last"}, {"embed_cls": True}):
        clip = open_clip(name=f"odd {odd}", custom_text=True, text_cfg={**text, **odd})
        tokens = clip.tokenize(PROMPTS)
        assert tokens["text"].shape[1] == 20
        whole = clip.model.encode_text(clip.tokenizer(PROMPTS), normalize=True)
        torch.testing.assert_close(clip.text_features(tokens), whole)


class MinimalTokenizer:
    """A tokenizer that can only be called; like open_clip's, it may wrap another."""

    def __init__(self, tokenizer: object) -> None:
        self._tokenize = tokenizer
        if hasattr(tokenizer, "tokenizer"):
            self.tokenizer = tokenizer.tokenizer

    def __call__(self, texts: list[str]) -> torch.Tensor:
        return self._tokenize(texts)


@pytest.mark.parametrize("make", [open_clip, open_clip_with_hf_tokenizer])
def test_a_minimal_tokenizer_truncates_too(make: Callable[[], OpenClip]):
    clip, long = make(), ["red " * 90]
    expected = clip.tokenize(long)
    clip.tokenizer = MinimalTokenizer(clip.tokenizer)
    assert torch.equal(clip.tokenize(long)["text"], expected["text"])
