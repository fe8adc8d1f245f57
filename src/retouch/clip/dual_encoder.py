"""A CLIP made of two torch modules, whatever they are."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite, nan
from pathlib import Path

import torch
from torch import Tensor, nn

from retouch.clip.model import Clip, save_weights
from retouch.clip.preprocess import Preprocess
from retouch.clip.text.tokens import Tokens
from retouch.errors import UserError


class DualEncoder(Clip):
    """Wraps an image encoder and a text encoder that are plain torch modules.

    Args:
        image_encoder: Maps normalized pixels [B, 3, H, W] to features [B, D].
        text_encoder: Called with what `tokenize` returns, as keyword arguments; returns [B, D].
        tokenize: Turns prompts into named tensors, each with one row per prompt.
        preprocess: The size of the images, and their mean and standard deviation.
        logit_scale: What similarities are multiplied by, as it was in pre-training. It is a
            parameter of the model and can be trained.
        logit_bias: What is added to them, if the model was pre-trained with SigLIP's sigmoid loss.
            It is a parameter too, and the model is then taught with that loss.
        name: How messages and reports refer to the model.
    """

    image_prefix = "images."

    def __init__(
        self,
        image_encoder: nn.Module,
        text_encoder: nn.Module,
        tokenize: Callable[[Sequence[str]], Mapping[str, Tensor]],
        preprocess: Preprocess,
        *,
        logit_scale: float = 100.0,
        logit_bias: float | None = None,
        name: str = "dual encoder",
    ) -> None:
        self._check_parts(image_encoder, text_encoder, tokenize, preprocess)
        self.name = name
        self.model = nn.ModuleDict({"images": image_encoder, "texts": text_encoder}).eval()
        log_scale = torch.tensor(_number("logit_scale", logit_scale, above=0.0)).log()
        self.model.register_parameter("logit_scale", nn.Parameter(log_scale))
        bias = None
        if logit_bias is not None:
            bias = nn.Parameter(torch.tensor(_number("logit_bias", logit_bias)))
        self.model.register_parameter("logit_bias", bias)
        self.preprocess = preprocess
        self._tokenize_fn = tokenize
        self._feature_sizes: dict[str, int] = {}

    @staticmethod
    def _check_parts(
        image_encoder: object, text_encoder: object, tokenize: object, preprocess: object
    ) -> None:
        for name, part, fits, expected in (
            ("image_encoder", image_encoder, isinstance(image_encoder, nn.Module), "torch module"),
            ("text_encoder", text_encoder, isinstance(text_encoder, nn.Module), "torch module"),
            ("tokenize", tokenize, callable(tokenize), "function"),
            ("preprocess", preprocess, isinstance(preprocess, Preprocess), "retouch.Preprocess"),
        ):
            if not fits:
                raise UserError(f"DualEncoder: {name} must be a {expected}, not {part!r:.80}")

    def encode_images(self, pixels: Tensor) -> Tensor:
        return self._checked("image", self.model.get_submodule("images")(pixels))

    def encode_texts(self, tokens: Tokens) -> Tensor:
        return self._checked("text", self.model.get_submodule("texts")(**tokens))

    def _checked(self, tower: str, features: object) -> Tensor:
        """Check that an encoder returned a matrix as wide as the other tower's, and return it."""
        if not isinstance(features, Tensor) or features.ndim != 2:
            raise UserError(
                f"the {tower} encoder must return a tensor [B, D], not {_describe(features)}"
            )
        self._feature_sizes[tower] = features.shape[1]
        if len(set(self._feature_sizes.values())) > 1:
            sizes = self._feature_sizes
            raise UserError(
                f"the image encoder returns features of {sizes['image']} numbers, the text encoder "
                f"of {sizes['text']}; both must have the same size: project one of them"
            )
        return features

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        tokens = self._tokenize_fn(prompts)
        if not isinstance(tokens, Mapping) or not tokens:
            raise UserError(
                f"tokenize must return a dict of tensors for the text encoder, not "
                f"{_describe(tokens)}"
            )
        for name, values in tokens.items():
            if not isinstance(values, Tensor) or values.ndim == 0 or len(values) != len(prompts):
                raise UserError(
                    f"tokenize must return tensors with one row per prompt; for {len(prompts)} "
                    f"prompts, {name} is {_describe(values)}"
                )
        return dict(tokens)

    @property
    def logit_scale(self) -> Tensor:
        return self.model.get_parameter("logit_scale").exp()

    @property
    def logit_bias(self) -> Tensor | None:
        return self.model._parameters["logit_bias"]

    def save(self, folder: str | Path) -> None:
        save_weights(self.model, Path(folder) / "model.safetensors")


def _number(name: str, value: float, above: float = -inf) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = nan
    if not isfinite(number) or number <= above:
        bound = "" if above == -inf else f" above {above:g}"
        raise UserError(f"DualEncoder: {name} must be a number{bound}, not {value!r:.80}")
    return number


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    return f"a {type(value).__name__}"
