"""The tokenizer of any CLIP as transformers keeps it, and as one file that needs no library."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.open_clip import OpenClip
from retouch.errors import UserError

_START, _END = "<|startoftext|>", "<|endoftext|>"


def fast_tokenizer(clip: Clip) -> Any:
    """A tokenizer of transformers that reads prompts as the model's own does."""
    if isinstance(clip, HuggingFaceClip):
        return clip.tokenizer
    assert isinstance(clip, OpenClip)
    own = clip.tokenizer
    kind = type(own).__name__
    if kind == "SimpleTokenizer" and own.reduction_fn is None and len(own.all_special_ids) == 2:
        return _of_openai(own)
    if kind == "HFTokenizer" and not own.tokenizer_mode and not own.strip_sep_token:
        return own.tokenizer
    raise UserError(
        f"this model's tokenizer ({kind}, with settings of its own) is open_clip's alone; export "
        "the model with --to open_clip"
    )


def _of_openai(own: Any) -> Any:
    """CLIP's own tokenizer, from the vocabulary that open_clip brings."""
    import transformers

    ends = dict(zip(own.all_special_ids, (_START, _END), strict=True))
    vocabulary = {ends.get(number, word): number for word, number in own.encoder.items()}
    return transformers.CLIPTokenizer(
        vocab=vocabulary, merges=list(own.bpe_ranks), model_max_length=own.context_length
    )


def context_of(clip: Clip) -> int:
    """How many tokens the text tower reads."""
    if isinstance(clip, HuggingFaceClip):
        config: Any = clip.model.config
        longest = int(config.text_config.max_position_embeddings)
        return min(longest, int(clip.tokenizer.model_max_length))
    return int(getattr(clip, "tokenizer").context_length)  # noqa: B009, no mypy: any tokenizer


def one_file(clip: Clip) -> Any:
    """A `tokenizers.Tokenizer` that gives prompts at the model's full length, cut and padded."""
    from tokenizers import Tokenizer

    fast = fast_tokenizer(clip)
    if not hasattr(fast, "backend_tokenizer"):
        raise UserError(
            f"this model's tokenizer ({type(fast).__name__}) exists in Python alone and cannot "
            "become a file; export the model with --to hf or --to open_clip"
        )
    copy = Tokenizer.from_str(fast.backend_tokenizer.to_str())
    context = context_of(clip)
    filler = 0 if fast is not _kept(clip) else fast.pad_token_id
    copy.enable_truncation(context)
    copy.enable_padding(
        length=context,
        pad_id=filler,
        pad_token=fast.convert_ids_to_tokens(filler),
        direction=fast.padding_side,
    )
    return copy


def _kept(clip: Clip) -> Any:
    """The tokenizer of transformers that the model has already; open_clip's own pads with 0."""
    own = getattr(clip, "tokenizer", None)
    return own if isinstance(clip, HuggingFaceClip) else getattr(own, "tokenizer", None)


def full_length(clip: Clip, prompts: Sequence[str]) -> dict[str, Tensor]:
    """Prompts at full length, as the model's own library makes them."""
    own: Any = getattr(clip, "tokenizer")  # noqa: B009
    if not isinstance(clip, HuggingFaceClip):
        return {"input_ids": own(list(prompts))}
    settings = {"padding": "max_length", "max_length": context_of(clip), "truncation": True}
    batch = own(list(prompts), return_tensors="pt", **settings)
    return {key: batch[key] for key in clip.tokenize(["x"])}


def by_file(tokenizer: Any, prompts: Sequence[str], inputs: Sequence[str]) -> dict[str, Tensor]:
    """The same by the one file: what a user of it gets."""
    read = tokenizer.encode_batch(list(prompts))
    columns = {"input_ids": "ids", "attention_mask": "attention_mask"}
    return {key: torch.tensor([getattr(line, columns[key]) for line in read]) for key in inputs}
