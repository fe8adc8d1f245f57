"""Tokenizers as transformers has them."""

import pytest
from backbones import open_clip

from retouch.export.tokenizer import fast_tokenizer


@pytest.mark.slow
def test_openais_tokenizer_in_transformers():
    """transformers must tokenize with the vocabulary that open_clip ships as open_clip does."""
    original, converted = open_clip().tokenizer, fast_tokenizer(open_clip())
    for prompt in ("A photo of a Café, isn't it?", "3.14 % of  #1\n🙂", "日本 <|x|> o'clock_s"):
        ids = converted(prompt)["input_ids"]
        assert ids == original([prompt])[0][: len(ids)].tolist()
    truncated = converted(["word " * 200], truncation=True)["input_ids"][0]
    assert truncated == original(["word " * 200])[0].tolist()
