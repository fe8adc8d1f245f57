"""CLIPs of the transformers library: `CLIPModel`, `MetaClip2Model`, `VisionTextDualEncoderModel`.

`clip.hf.siglip` has its `SiglipModel`; `clip.hf.load` loads them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from retouch.clip.fast.padding import padded_length
from retouch.clip.hf.preprocess import write_preprocess
from retouch.clip.model import Clip
from retouch.clip.preprocess import Preprocess
from retouch.clip.prompts.file import without_prompts
from retouch.clip.text.tokens import Tokens

CAUSAL = ("clip", "metaclip_2")
"""Types of models whose text tower reads a prompt from left to right, and pools it at its end."""


class HuggingFaceClip(Clip):
    """A transformers model with its tokenizer; its text tower may be pooled in any way."""

    image_prefix = "vision_model."
    image_processor = "CLIPImageProcessor"
    """The class of transformers that prepares the model's images."""
    projections: Mapping[str, str] = {
        "image": "visual_projection.weight",
        "text": "text_projection.weight",
    }

    def __init__(self, model: Any, tokenizer: Any, preprocess: Preprocess, name: str = "") -> None:
        self.model = self._hf = model.eval()
        self.tokenizer = tokenizer
        self.preprocess = preprocess
        self.name = name or type(model).__name__
        # A causal tower never attends to the padding after a prompt, so it needs no mask.
        self._causal = model.config.model_type in CAUSAL
        self._context = int(model.config.text_config.max_position_embeddings)

    def encode_images(self, pixels: Tensor) -> Tensor:
        features: Tensor = self._hf.get_image_features(pixel_values=pixels).pooler_output
        return features

    def encode_texts(self, tokens: Tokens) -> Tensor:
        with nullcontext() if "attention_mask" in tokens else _no_mask_while_capturing():
            features: Tensor = self._hf.get_text_features(**tokens).pooler_output
        return features

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        tokens = self._tokenize_fast(prompts)
        if tokens is not None:
            return tokens
        limit = {"truncation": True, "max_length": self._context}
        batch = self.tokenizer(list(prompts), padding="longest", return_tensors="pt", **limit)
        if batch["input_ids"].shape[1] == self._context:
            untruncated = self.tokenizer(list(prompts), verbose=False)["input_ids"]
            self.truncated_prompts.add(prompts, [len(ids) for ids in untruncated], self._context)
        return {key: batch[key] for key in self._keys}

    def _tokenize_fast(self, prompts: Sequence[str]) -> Tokens | None:
        """Call the Rust tokenizer directly, in half the time; None if a prompt is too long."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None or self.tokenizer.padding_side != "right":
            return None
        backend.no_padding()
        backend.no_truncation()
        encoded = [encoding.ids for encoding in backend.encode_batch_fast(list(prompts))]
        lengths = torch.tensor([len(ids) for ids in encoded])
        longest = int(lengths.max())
        if longest >= self._context:
            return None
        mask = torch.arange(longest) < lengths[:, None]
        input_ids = torch.full(mask.shape, self._pad_id)
        input_ids[mask] = torch.from_numpy(np.fromiter(chain.from_iterable(encoded), np.int64))
        batch = {"input_ids": input_ids, "attention_mask": mask.long()}
        return {key: batch[key] for key in self._keys}

    @property
    def _keys(self) -> tuple[str, ...]:
        """The part of a tokenizer's output that the text tower takes."""
        return ("input_ids",) if self._causal else ("input_ids", "attention_mask")

    @property
    def _pad_id(self) -> int:
        return self.tokenizer.pad_token_id or 0

    def lengths(self, tokens: Tokens) -> Tensor | None:
        if self.tokenizer.padding_side != "right":
            return None
        if not self._causal:
            return tokens["attention_mask"].sum(dim=1)
        ids, pad_id = tokens["input_ids"], self._pad_id
        # Where the end token is also the padding token, the first one counts.
        end = int(pad_id == self.tokenizer.eos_token_id)
        width = ids.shape[1]
        last = (ids != pad_id) * torch.arange(1, 1 + width, device=ids.device)
        return (last.amax(dim=1) + end).clamp(1, width)

    def pad_tokens(self, tokens: Tokens) -> Tokens:
        length = tokens["input_ids"].shape[1]
        missing = padded_length(length, self._context) - length
        padding = {"input_ids": self._pad_id, "attention_mask": 0}
        return {key: pad(value, (0, missing), value=padding[key]) for key, value in tokens.items()}

    @property
    def logit_scale(self) -> Tensor:
        scale: Tensor = self._hf.logit_scale
        return scale.exp()

    def save(self, folder: str | Path) -> None:
        import transformers

        with without_prompts(self.model, folder), quiet(transformers):
            self._hf.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write_preprocess(self.preprocess, Path(folder), self.image_processor)


@contextmanager
def _no_mask_while_capturing() -> Iterator[None]:
    """Keep transformers from building a mask while a CUDA graph is captured.

    transformers 5.17 takes a capture for tracing and then builds a mask, which a tower that is
    given none does not need and was not compiled with.
    """
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        yield
        return
    from transformers import masking_utils

    before = masking_utils.is_tracing
    masking_utils.is_tracing = lambda *_: False
    try:
        yield
    finally:
        masking_utils.is_tracing = before


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence the library's log and progress bars; problems are raised as errors instead."""
    logging_ = transformers.logging
    level = logging_.get_verbosity()
    logging_.set_verbosity_error()
    logging_.disable_progress_bar()
    try:
        yield
    finally:
        logging_.set_verbosity(level)
        logging_.enable_progress_bar()
