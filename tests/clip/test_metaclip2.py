"""MetaCLIP 2 of transformers: a CLIP whose text tower ends at its own end token."""

from pathlib import Path

import torch
from backbones import PROMPTS, random_pixels
from tiny import tiny_metaclip2

import retouch


def test_a_folder_of_metaclip_2(tmp_path: Path):
    clip = tiny_metaclip2()
    clip.save(tmp_path / "metaclip")
    again = retouch.load(tmp_path / "metaclip")
    assert type(again.model).__name__ == "MetaClip2Model"
    pixels = random_pixels(clip)
    assert torch.equal(again.image_features(pixels), clip.image_features(pixels))
    assert again.logit_bias is None, "it was trained with CLIP's loss"


def test_short_batches_without_a_mask_equal_full_length_with_one():
    clip = tiny_metaclip2()
    short = clip.tokenize(PROMPTS)
    assert short.keys() == {"input_ids"}
    assert short["input_ids"].shape[1] < 12
    full = clip.tokenizer(PROMPTS, padding="max_length", max_length=12, return_tensors="pt")
    whole = clip.model.get_text_features(
        input_ids=full["input_ids"], attention_mask=full["attention_mask"]
    ).pooler_output
    torch.testing.assert_close(clip.encode_texts(short), whole, rtol=0, atol=2e-6)
