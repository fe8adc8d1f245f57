"""CLIPs of transformers."""

import torch
from backbones import (
    PROMPTS,
)
from tiny import tiny_clip, tiny_config, tiny_tokenizer


def test_features_of_short_batches_equal_those_at_full_length():
    clip = tiny_clip()
    short = clip.tokenize(PROMPTS)
    ids = short["input_ids"]
    assert ids.shape[1] < clip._context
    full = clip.tokenizer(
        PROMPTS, padding="max_length", max_length=clip._context, return_tensors="pt"
    )
    whole = clip.model.get_text_features(input_ids=full["input_ids"]).pooler_output
    torch.testing.assert_close(clip.encode_texts(short), whole, rtol=0, atol=2e-6)


def test_the_tiny_config_and_tokenizer_agree():
    assert tiny_config().text_config.eos_token_id == tiny_tokenizer().eos_token_id
