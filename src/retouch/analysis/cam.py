"""What do neurons look at? gScoreCAM on the first MLP layer of a visual block (Fig. 3).

A neuron of that layer has a value at every patch of an image, so it is a map. Of all neurons, the
share whose gradients are largest is taken. Each map hides a part of the image, and what is left is
scored by its similarity with a text. The better the score, the more that map counts in the heat
map. After P. Chen et al., "gScoreCAM: What objects is CLIP looking at?" (2022), and H. Wang et al.,
"Score-CAM" (2020), and with these choices where they leave some:

- A neuron's value is what the layer gives, before the activation function.
- Its gradient is that of the scaled similarity, as a signed mean over all patches.
- Where a map is 0, the image shows the mean colour; where it is 1, the image itself.
- Maps are brought to 0 … 1 before they are added up, since values may be negative; their weights
  are the softmax over the scaled similarities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from retouch.analysis.full_length_text import encode_full_text
from retouch.analysis.neurons import NeuronLayer, Neurons, layer_of, select_neurons
from retouch.analysis.token_regions import Grid
from retouch.clip import Clip

SHARE = 0.1
Heat = NDArray[np.float32]
Pixel = tuple[int, int]
"""Row and column."""
Told = Callable[[int, int], object]
"""Is told of so many more masked images that were scored, and of how many there are."""


@dataclass(frozen=True)
class Cam:
    """Where some neurons look for a text in one image."""

    text: str
    heat: Heat
    """From 0 to 1, for every pixel of the image as the model sees it [H, W]."""
    similarity: float
    """Cosine of the whole image and the text."""
    neurons: list[int]
    """Whose maps were used, ascending."""
    weights: list[float]
    """How much the map of each counts; they add up to 1."""
    width: int
    """So many neurons the layer has."""
    grid: Grid
    block: int
    """From 1."""

    @property
    def peak(self) -> Pixel:
        """Where it is hottest; of equals the first."""
        row, column = np.unravel_index(int(self.heat.argmax()), self.heat.shape)
        return int(row), int(column)

    @property
    def patches(self) -> Heat:
        """The mean heat of each patch [rows, columns]."""
        rows, columns = (
            np.array_split(np.arange(n), g) for n, g in zip(self.heat.shape, self.grid, strict=True)
        )
        means = [[self.heat[np.ix_(r, c)].mean() for c in columns] for r in rows]
        return np.array(means, np.float32)


def cam(
    clip: Clip,
    image: Tensor,
    text: str,
    *,
    block: int | None = None,
    share: float = SHARE,
    neurons: Neurons | Sequence[int] = "gradient",
    seed: int = 0,
    told: Told | None = None,
) -> Cam:
    """The heat map of an image [H, W, 3] of 8 bits, prepared for this model, and a text.

    `block` counts from 1; by default it lies at three quarters of the tower's depth. `neurons` are
    those with the largest gradients, as many at random, or any that are named.
    """
    layer = layer_of(clip, block)
    words = encode_full_text(clip, text)
    normalized = clip.preprocess.normalize(image[None].to(clip.device))
    values, gradients, similarity = _neurons_at_work(clip, layer, normalized, words)
    used = select_neurons(gradients.mean(dim=0), neurons, share, seed)
    maps = masks(values[:, used].T.unflatten(1, layer.grid), clip.preprocess.size)
    scores = _scores(clip, normalized, maps, words, told)
    weights = scores.softmax(dim=0)
    heat = stretched((weights[:, None, None] * maps).sum(dim=0, keepdim=True))[0]
    return Cam(
        text=text,
        heat=heat.cpu().numpy(),
        similarity=similarity,
        neurons=used.tolist(),
        weights=weights.tolist(),
        width=values.shape[1],
        grid=layer.grid,
        block=layer.block,
    )


def masks(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps over patches [N, rows, columns] as masks over pixels [N, H, W], each from 0 to 1."""
    large = interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)
    return stretched(large[:, 0])


def stretched(maps: Tensor) -> Tensor:
    """Each map [N, H, W] from 0 to 1; 0 everywhere if it is the same everywhere."""
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    width = high - low
    return ((maps - low) / width.where(width > 0, torch.ones_like(width))).clamp(0, 1)


def _neurons_at_work(
    clip: Clip, layer: NeuronLayer, pixels: Tensor, words: Tensor
) -> tuple[Tensor, Tensor, float]:
    """The layer's values at the patches [P, N], their gradients, and the similarity itself."""
    kept: list[Tensor] = []

    def keep(_module: object, _given: object, output: Tensor) -> Tensor:
        # What lies before it needs no gradient, so the graph begins here.
        kept.append(output.detach().requires_grad_())
        return kept[-1]

    hook = layer.module.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            similarity = _similarities(clip, pixels, words)[0]
            (gradient,) = torch.autograd.grad(clip.logit_scale.detach() * similarity, kept[-1])
    finally:
        hook.remove()
    patches = [layer.at_patches(tensor.float()) for tensor in (kept[-1].detach(), gradient)]
    return patches[0], patches[1], float(similarity.detach())


@torch.no_grad()
def _scores(clip: Clip, pixels: Tensor, maps: Tensor, words: Tensor, told: Told | None) -> Tensor:
    """The scaled similarity of the text with what each mask leaves of the image [N]."""
    found = []
    for part in maps.split(64 if clip.device.type == "cpu" else 256):
        found.append(clip.logit_scale * _similarities(clip, pixels * part[:, None], words))
        if told:
            told(len(part), len(maps))
    return torch.cat(found)


def _similarities(clip: Clip, pixels: Tensor, words: Tensor) -> Tensor:
    """Of normalized pixels with the features of a text [B]."""
    with clip.precision():
        features = clip.encode_images(pixels)
    return normalize(features.float(), dim=-1) @ words
