"""SigLIP, and SigLIP 2 with images of a fixed size: `SiglipModel` of transformers.

Besides its loss (`clip.losses`), it differs from CLIP in how it reads a prompt: the text
tower attends in both directions, without a mask, and pools the last of 64 tokens, padding or not.
A prompt of another length has another feature, so all are padded to full length.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.preprocess import Preprocess
from retouch.clip.text.tokens import Tokens
from retouch.errors import UserError


class SiglipClip(HuggingFaceClip):
    """A `SiglipModel` of transformers with its tokenizer."""

    image_processor = "SiglipImageProcessor"
    projections: Mapping[str, str] = {"text": "text_model.head.weight"}

    def __init__(self, model: Any, tokenizer: Any, preprocess: Preprocess, name: str = "") -> None:
        super().__init__(model, tokenizer, preprocess, name)
        if not getattr(model.config.vision_config, "vision_use_head", True):
            raise UserError(
                f"{self.name} has no pooling head (vision_use_head is false in its config.json), "
                "so it has no feature of a whole image; use a complete SigLIP"
            )
        tokenizer.padding_side = "right"  # as in pre-training; Gemma's own pads on the left

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        # SigLIP's own tokenizer lowers prompts; Gemma's, of SigLIP 2, needs to be given lower case.
        tokens = super()._tokenize([prompt.lower() for prompt in prompts])
        missing = self._context - tokens["input_ids"].shape[1]
        return {"input_ids": pad(tokens["input_ids"], (0, missing), value=self._pad_id)}

    @property
    def _keys(self) -> tuple[str, ...]:
        return ("input_ids",)

    def lengths(self, tokens: Tokens) -> Tensor | None:
        """None: padding affects the features too."""
        return None

    @property
    def logit_bias(self) -> Tensor:
        bias: Tensor = self._hf.logit_bias
        return bias
