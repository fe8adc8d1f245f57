"""What do neurons look at? gScoreCAM on the first MLP layer of a visual block (Fig. 3).

A neuron of that layer has a value at every patch of an image, so it is a map. The neurons with the
largest gradients are used. Each map masks the image, and the masked image is scored by its
similarity to a text: the higher the score, the more the map contributes to the heat map. After P.
Chen et al., "gScoreCAM: What objects is CLIP looking at?" (2022), and H. Wang et al., "Score-CAM"
(2020), with these choices where the papers leave some open:

- A neuron's value is the layer's output, before the activation function.
- Its gradient is that of the scaled similarity, as a signed mean over all patches.
- Where a mask is 0, the image shows the mean color; where it is 1, the image itself.
- Maps are scaled to 0 … 1 before they are summed, since values may be negative; their weights are
  the softmax over the scaled similarities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from retouch.analysis.cam.neurons import NeuronChoice, NeuronLayer, neuron_layer, select_neurons
from retouch.analysis.token_regions import Grid
from retouch.clip import Clip
from retouch.errors import UserError

DEFAULT_SHARE = 0.1
HeatMap = NDArray[np.float32]
Pixel = tuple[int, int]
"""Row and column."""
ProgressCallback = Callable[[int, int], object]
"""Called with the number of masked images just scored, and the number of all of them."""


@dataclass(frozen=True)
class Cam:
    """Where some neurons look for a text in one image."""

    text: str
    heat: HeatMap
    """From 0 to 1, for every pixel of the model's input [H, W]."""
    similarity: float
    """Cosine of the whole image and the text."""
    neurons: list[int]
    """The neurons whose maps were used, ascending."""
    weights: list[float]
    """The weight of each neuron's map; they sum to 1."""
    layer_width: int
    """The number of neurons in the layer."""
    grid: Grid
    block: int
    """From 1."""

    @property
    def peak(self) -> Pixel:
        """The hottest pixel; the first one if there are several."""
        row, column = np.unravel_index(int(self.heat.argmax()), self.heat.shape)
        return int(row), int(column)

    @property
    def patch_means(self) -> HeatMap:
        """The mean heat of each patch [rows, columns]."""
        rows, columns = (
            np.array_split(np.arange(n), g) for n, g in zip(self.heat.shape, self.grid, strict=True)
        )
        means = [[self.heat[np.ix_(r, c)].mean() for c in columns] for r in rows]
        return np.array(means, np.float32)


def gscorecam(
    clip: Clip,
    image: Tensor,
    text: str,
    *,
    block: int | None = None,
    share: float = DEFAULT_SHARE,
    neurons: NeuronChoice | Sequence[int] = "gradient",
    seed: int = 0,
    on_progress: ProgressCallback | None = None,
) -> Cam:
    """The heat map for an image [H, W, 3] of 8 bits, preprocessed for this model, and a text.

    `block` counts from 1; the default is at three quarters of the tower's depth. `neurons` is
    "gradient" for the `share` with the largest gradients, "random" for as many drawn with `seed`,
    or the indices of the neurons to use.
    """
    layer = neuron_layer(clip, block)
    text_feature = encode_full_text(clip, text)
    pixels = clip.preprocess.normalize(image[None].to(clip.device))
    values, gradients, similarity = _values_and_gradients(clip, layer, pixels, text_feature)
    selection = select_neurons(gradients.mean(dim=0), neurons, share, seed)
    masks = upsample_masks(values[:, selection].T.unflatten(1, layer.grid), clip.preprocess.size)
    scores = _mask_scores(clip, pixels, masks, text_feature, on_progress)
    weights = scores.softmax(dim=0)
    heat = min_max_normalize((weights[:, None, None] * masks).sum(dim=0, keepdim=True))[0]
    return Cam(
        text=text,
        heat=heat.cpu().numpy(),
        similarity=similarity,
        neurons=selection.tolist(),
        weights=weights.tolist(),
        layer_width=values.shape[1],
        grid=layer.grid,
        block=layer.block,
    )


def upsample_masks(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps over patches [N, rows, columns] as masks over pixels [N, H, W], each from 0 to 1."""
    upsampled = interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)
    return min_max_normalize(upsampled[:, 0])


def min_max_normalize(maps: Tensor) -> Tensor:
    """Each map [N, H, W] scaled to 0 … 1; a constant map becomes 0 everywhere."""
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    width = high - low
    return ((maps - low) / width.where(width > 0, torch.ones_like(width))).clamp(0, 1)


def _values_and_gradients(
    clip: Clip, layer: NeuronLayer, pixels: Tensor, text_feature: Tensor
) -> tuple[Tensor, Tensor, float]:
    """The layer's values at the patches [P, N], their gradients, and the similarity."""
    outputs: list[Tensor] = []

    def record(_module: object, _inputs: object, output: Tensor) -> Tensor:
        # Earlier layers need no gradient, so the graph begins here.
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    hook = layer.module.register_forward_hook(record)
    try:
        with torch.enable_grad():
            similarity = _similarities(clip, pixels, text_feature)[0]
            (gradient,) = torch.autograd.grad(clip.logit_scale.detach() * similarity, outputs[-1])
    finally:
        hook.remove()
    values = layer.patch_values(outputs[-1].detach().float())
    return values, layer.patch_values(gradient.float()), float(similarity.detach())


@torch.no_grad()
def _mask_scores(
    clip: Clip,
    pixels: Tensor,
    masks: Tensor,
    text_feature: Tensor,
    on_progress: ProgressCallback | None,
) -> Tensor:
    """The scaled similarity of the text to the image under each mask [N]."""
    scores = []
    for batch in masks.split(64 if clip.device.type == "cpu" else 256):
        similarities = _similarities(clip, pixels * batch[:, None], text_feature)
        scores.append(clip.logit_scale * similarities)
        if on_progress:
            on_progress(len(batch), len(masks))
    return torch.cat(scores)


def _similarities(clip: Clip, pixels: Tensor, text_feature: Tensor) -> Tensor:
    """Cosine of each image in a batch of normalized pixels with the text's feature [B]."""
    with clip.precision():
        features = clip.encode_images(pixels)
    return normalize(features.float(), dim=-1) @ text_feature


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
