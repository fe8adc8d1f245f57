"""A CLIP made of two torch modules, whatever they are."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from retouch.clip.model import Clip
from retouch.clip.preprocess import Preprocess
from retouch.clip.savable_state import savable_state
from retouch.clip.tokens import Tokens


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
        self.name = name
        self.model = nn.ModuleDict({"images": image_encoder, "texts": text_encoder}).eval()
        log_scale = torch.tensor(float(logit_scale)).log()
        self.model.register_parameter("logit_scale", nn.Parameter(log_scale))
        bias = None if logit_bias is None else nn.Parameter(torch.tensor(float(logit_bias)))
        self.model.register_parameter("logit_bias", bias)
        self.preprocess = preprocess
        self._tokenize_fn = tokenize

    def encode_images(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.model.get_submodule("images")(pixels)
        return features

    def encode_texts(self, tokens: Tokens) -> Tensor:
        features: Tensor = self.model.get_submodule("texts")(**tokens)
        return features

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        return dict(self._tokenize_fn(prompts))

    @property
    def logit_scale(self) -> Tensor:
        return self.model.get_parameter("logit_scale").exp()

    @property
    def logit_bias(self) -> Tensor | None:
        return self.model._parameters["logit_bias"]

    def save(self, folder: str | Path) -> None:
        from safetensors.torch import save_file

        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file(savable_state(self.model), Path(folder) / "model.safetensors")
