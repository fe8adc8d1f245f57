"""The feature of a text, or an error if the model cannot read it to its end."""

from typing import Any

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.errors import UserError


@torch.no_grad()
def encode_full_text(clip: Clip, text: str) -> Tensor:
    """The feature of a text [D], of unit length."""
    if not text.strip():
        raise UserError("the text is empty; say what to look for")
    length, context = _token_count(clip, text)
    if length > context:
        excerpt = text if len(text) < 60 else f"{text[:57]}…"
        raise UserError(
            f"the text {excerpt!r} has {length} tokens, more than the {context} that {clip.name} "
            "reads; use a shorter one"
        )
    return clip.text_features(clip.tokenize([text]))[0]


def _token_count(clip: Clip, text: str) -> tuple[int, int]:
    """How many tokens a text has, and how many the model reads; (0, 0) if that is unknown."""
    tokenizer: Any = getattr(clip, "tokenizer", None)
    config: Any = getattr(clip.model, "config", None)
    if config is not None and callable(tokenizer):  # transformers
        ids = tokenizer(text, verbose=False)["input_ids"]
        return len(ids), int(config.text_config.max_position_embeddings)
    context = getattr(tokenizer, "context_length", None)
    if context and hasattr(tokenizer, "encode"):  # open_clip, which adds a start and an end token
        return len(tokenizer.encode(text)) + 2, int(context)
    return 0, 0
