"""CLIPs of the open_clip library, an extra: `pip install retouch[open-clip]`.

`clip.open_clip.load` loads them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import pad

from retouch.clip.fast.padding import padded_length
from retouch.clip.model import Clip, save_weights
from retouch.clip.preprocess import Preprocess
from retouch.clip.prompts.file import without_prompts
from retouch.clip.text.tokens import Tokens
from retouch.errors import UserError
from retouch.torchvision_compat import patch_torchvision

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"

_PROJECTIONS = {
    "visual.proj": "image",
    "visual.head.proj.weight": "image",
    "visual.trunk.head.weight": "image",
    "text_projection": "text",
    "text.text_projection": "text",
    "text_projection.weight": "text",
    "text.text_projection.weight": "text",
}


def import_open_clip() -> Any:
    """The open_clip module; a `UserError` if it is not installed."""
    patch_torchvision()
    try:
        import open_clip
    except ImportError as error:
        raise UserError(f"no open_clip ({error}): pip install 'retouch[open-clip]'") from None
    return open_clip


class OpenClip(Clip):
    """A model of open_clip with its tokenizer."""

    image_prefix = "visual."

    def __init__(self, model: Any, tokenizer: Any, name: str = "open_clip") -> None:
        self.model = self._open_clip = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.preprocess = read_preprocess(model.visual.preprocess_cfg)
        names = dict(model.named_parameters())
        self.projections = {tower: name for name, tower in _PROJECTIONS.items() if name in names}
        self._text_prefix = "text." if hasattr(model, "text") else ""
        self._text = getattr(model, "text", model)
        self._pool = getattr(self._text, "text_pool_type", getattr(self._text, "pool_type", None))

    @property
    def visual_kind(self) -> str:
        """The architecture of the visual tower, by the name of its class."""
        visual = self._open_clip.visual
        return type(getattr(visual, "trunk", visual)).__name__

    def encode_images(self, pixels: Tensor) -> Tensor:
        features: Tensor = self._open_clip.encode_image(pixels)
        return features

    def encode_texts(self, tokens: Tokens) -> Tensor:
        text = tokens["text"]
        if not self._causal:
            full_length: Tensor = self._open_clip.encode_text(text)
            return full_length
        # The library only takes prompts of full length, so its position embeddings and mask are
        # replaced by shorter ones for this call.
        length = text.shape[1]
        shorter = {
            f"{self._text_prefix}positional_embedding": self._text.positional_embedding[:length],
            f"{self._text_prefix}attn_mask": self._text.attn_mask[:length, :length],
        }
        output = functional_call(self.model, shorter, kwargs={"text": text})
        features: Tensor = output["text_features"] if isinstance(output, dict) else output[1]
        return features

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        text: Tensor = self.tokenizer(list(prompts))
        hf_tokenizer = getattr(self.tokenizer, "tokenizer", None)  # if it wraps transformers'
        pad_id = getattr(hf_tokenizer, "pad_token_id", None) or 0
        # The last token of a truncated prompt is the end token, so the one before tells.
        if (text[:, -2] != pad_id).any():
            self._report_truncated(prompts, hf_tokenizer, text.shape[1])
        if not self._causal:
            return {"text": text}
        return {"text": text[:, : int(self._end(text).max()) + 1]}

    def _report_truncated(self, prompts: Sequence[str], hf_tokenizer: Any, context: int) -> None:
        """Whether the tokenizer can tell how many tokens the untruncated prompts have."""
        if hf_tokenizer is not None:
            clean = getattr(self.tokenizer, "clean_fn", str)
            cleaned = [clean(prompt) for prompt in prompts]
            untruncated = hf_tokenizer(cleaned, verbose=False)["input_ids"]
            self.truncated_prompts.add(prompts, [len(ids) for ids in untruncated], context)
        elif hasattr(self.tokenizer, "encode"):
            lengths = [len(self.tokenizer.encode(prompt)) + 2 for prompt in prompts]
            self.truncated_prompts.add(prompts, lengths, context)

    def lengths(self, tokens: Tokens) -> Tensor | None:
        return self._end(tokens["text"]) + 1 if self._causal else None

    def pad_tokens(self, tokens: Tokens) -> Tokens:
        text = tokens["text"]
        if not self._causal:
            return tokens
        length = padded_length(text.shape[1], len(self._text.positional_embedding))
        return {"text": pad(text, (0, length - text.shape[1]))}

    @property
    def logit_scale(self) -> Tensor:
        scale: Tensor = self._open_clip.logit_scale
        return scale.exp()

    @property
    def logit_bias(self) -> Tensor | None:
        bias: Tensor | None = getattr(self._open_clip, "logit_bias", None)
        return bias

    def save(self, folder: str | Path) -> None:
        with without_prompts(self.model, folder):
            save_weights(self.model, Path(folder) / WEIGHTS)

    @property
    def _causal(self) -> bool:
        """Whether tokens after the end of a prompt have no effect on its feature."""
        mask, pool = getattr(self._text, "attn_mask", None), self._pool
        plain = getattr(self._text, "cls_emb", None) is None
        return mask is not None and plain and pool in ("argmax", "eos")

    def _end(self, text: Tensor) -> Tensor:
        """The position of each prompt's end token, whose feature is used."""
        if self._pool == "argmax":
            return text.argmax(dim=-1)
        eos_id: Any = getattr(self._text, "text_eos_id", getattr(self._text, "eos_id", None))
        return text.eq(eos_id).int().argmax(dim=-1)


def read_preprocess(settings: dict[str, Any]) -> Preprocess:
    """How a model's images are prepared, from open_clip's `preprocess_cfg`."""
    size = settings["size"]
    height, width = (size, size) if isinstance(size, int) else size
    mode = settings.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash") or (mode == "shortest" and height != width):
        raise UserError(
            f"open_clip prepares this model's images with resize_mode={mode!r} to "
            f"{height}×{width}, which retouch does not support; use a model with square images"
        )
    bilinear = settings.get("interpolation") == "bilinear"
    return Preprocess(
        size=(height, width),
        shortest=height if mode == "shortest" else None,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        resample=Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC,
        odd_pixel="round",
    )
