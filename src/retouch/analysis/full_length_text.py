"""A text as a model reads it, or an error if it cannot read it to its end."""

from typing import Any

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.errors import UserError


@torch.no_grad()
def encode_full_text(clip: Clip, text: str) -> Tensor:
    """The feature of a text [D], of length one."""
    if not text.strip():
        raise UserError("the text is empty; say what to look for")
    length, context = _length(clip, text)
    if length > context:
        shown = text if len(text) < 60 else f"{text[:57]}…"
        raise UserError(
            f"the text {shown!r} has {length} tokens, more than the {context} that {clip.name} "
            "reads; use a shorter one"
        )
    return clip.text_features(clip.tokenize([text]))[0]


def _length(clip: Clip, text: str) -> tuple[int, int]:
    """How many tokens a text has, and how many the model reads; as many as it has if unknown."""
    tokenizer: Any = getattr(clip, "tokenizer", None)
    config: Any = getattr(clip.model, "config", None)
    if config is not None and callable(tokenizer):  # of transformers
        ids = tokenizer(text, verbose=False)["input_ids"]
        return len(ids), int(config.text_config.max_position_embeddings)
    context = getattr(tokenizer, "context_length", None)
    if context and hasattr(tokenizer, "encode"):  # of open_clip, with a beginning and an end
        return len(tokenizer.encode(text)) + 2, int(context)
    return 0, 0
