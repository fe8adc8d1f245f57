"""The tokenizer of any CLIP as transformers has it, and as one file that needs no library."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.hf.siglip import SiglipClip
from retouch.clip.open_clip.model import OpenClip
from retouch.errors import UserError

_START, _END = "<|startoftext|>", "<|endoftext|>"


def fast_tokenizer(clip: Clip) -> Any:
    """A tokenizer of transformers that encodes prompts as the model's own does."""
    if isinstance(clip, HuggingFaceClip):
        return clip.tokenizer
    assert isinstance(clip, OpenClip)
    tokenizer = clip.tokenizer
    kind = type(tokenizer).__name__
    if (
        kind == "SimpleTokenizer"
        and tokenizer.reduction_fn is None
        and len(tokenizer.all_special_ids) == 2
    ):
        return _from_simple_tokenizer(tokenizer)
    if kind == "HFTokenizer" and not tokenizer.tokenizer_mode and not tokenizer.strip_sep_token:
        return tokenizer.tokenizer
    raise UserError(
        f"this model's tokenizer ({kind}, with custom settings) exists only in open_clip; export "
        "the model for open_clip"
    )


def _from_simple_tokenizer(tokenizer: Any) -> Any:
    """OpenAI's CLIP tokenizer, from the vocabulary that open_clip ships."""
    import transformers

    special = dict(zip(tokenizer.all_special_ids, (_START, _END), strict=True))
    vocabulary = {special.get(number, word): number for word, number in tokenizer.encoder.items()}
    return transformers.CLIPTokenizer(
        vocab=vocabulary,
        merges=list(tokenizer.bpe_ranks),
        model_max_length=tokenizer.context_length,
    )


def context_length(clip: Clip) -> int:
    """The maximum number of tokens that the text tower takes."""
    if isinstance(clip, HuggingFaceClip):
        config: Any = clip.model.config
        max_positions = int(config.text_config.max_position_embeddings)
        return min(max_positions, int(clip.tokenizer.model_max_length))
    return int(_tokenizer_of(clip).context_length)


def standalone_tokenizer(clip: Clip) -> Any:
    """A `tokenizers.Tokenizer` that pads and truncates prompts to the model's full length."""
    from tokenizers import Tokenizer, normalizers

    fast = fast_tokenizer(clip)
    if not hasattr(fast, "backend_tokenizer"):
        raise UserError(
            f"this model's tokenizer ({type(fast).__name__}) exists only in Python and cannot be "
            "written to a file; export the model for transformers or open_clip instead"
        )
    standalone = Tokenizer.from_str(fast.backend_tokenizer.to_str())
    if isinstance(clip, SiglipClip):
        own = [standalone.normalizer] if standalone.normalizer else []
        standalone.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    length = context_length(clip)
    pad_id = fast.pad_token_id if fast is _existing_fast_tokenizer(clip) else 0
    standalone.enable_truncation(length)
    standalone.enable_padding(
        length=length,
        pad_id=pad_id,
        pad_token=fast.convert_ids_to_tokens(pad_id),
        direction=fast.padding_side,
    )
    return standalone


def _existing_fast_tokenizer(clip: Clip) -> Any:
    """The model's tokenizer of transformers, if it has one; open_clip's own pads with 0."""
    tokenizer = getattr(clip, "tokenizer", None)
    return tokenizer if isinstance(clip, HuggingFaceClip) else getattr(tokenizer, "tokenizer", None)


def tokenize_full_length(clip: Clip, prompts: Sequence[str]) -> dict[str, Tensor]:
    """Prompts padded to full length, as the model's own library encodes them."""
    tokenizer = _tokenizer_of(clip)
    if not isinstance(clip, HuggingFaceClip):
        return {"input_ids": tokenizer(list(prompts))}
    if isinstance(clip, SiglipClip):
        return clip.tokenize(prompts)
    settings = {"padding": "max_length", "max_length": context_length(clip), "truncation": True}
    batch = tokenizer(list(prompts), return_tensors="pt", **settings)
    return {key: batch[key] for key in clip.tokenize(["x"])}


def tokenize_standalone(
    tokenizer: Any, prompts: Sequence[str], inputs: Sequence[str]
) -> dict[str, Tensor]:
    """The same by a `standalone_tokenizer`: what a user of the file gets."""
    encodings = tokenizer.encode_batch(list(prompts))
    attributes = {"input_ids": "ids", "attention_mask": "attention_mask"}
    return {
        key: torch.tensor([getattr(encoding, attributes[key]) for encoding in encodings])
        for key in inputs
    }


def _tokenizer_of(clip: Clip) -> Any:
    return getattr(clip, "tokenizer")  # noqa: B009, `Clip` does not declare one
