"""The pre-training of the built-in model."""

from pathlib import Path

import pytest

import retouch
from tools.pretrain.__main__ import main


@pytest.mark.slow
def test_the_pre_training_runs(tmp_path: Path):
    """On 500 pictures it learns nothing, but every part of it works."""
    shape = {"width": 32, "layers": 1, "text_width": 32, "text_layers": 1}
    small = {"pictures": 500, "vocabulary_captions": 2000, "per_class": 1}
    main(tmp_path, steps=3, batch=16, **shape, **small)
    clip = retouch.load(str(tmp_path))
    assert clip.preprocess.size == (64, 64)
    assert "3 steps of 16 pairs" in (tmp_path / "README.md").read_text()
    tokens = clip.tokenize(["a photo of a red circle", "qwertyuiop"])
    assert tokens["input_ids"].max() < clip.model.config.text_config.vocab_size
    assert clip.tokenizer.decode(tokens["input_ids"][0], skip_special_tokens=True) == (
        "a photo of a red circle"
    )
