"""The projections into CLIP's joint space, separated from their towers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, linear

from retouch.clip import Clip
from retouch.data.stores.image_store import Indices
from retouch.errors import UserError
from retouch.methods.task_context import TaskContext


class Projection:
    """One tower's projection as a function; the identity for a tower that has none."""

    def __init__(self, clip: Clip, tower: str) -> None:
        name = clip.projections.get(tower)
        self.weight = None if name is None else clip.model.get_parameter(name)
        parent, _, self._attribute = (name or "").rpartition(".")
        self._parent: Any = clip.model.get_submodule(parent)
        self._linear = isinstance(self._parent, nn.Linear)

    def __call__(self, features: Tensor) -> Tensor:
        if self.weight is None:
            return features
        if self._linear:
            bias = self._parent.bias
            return linear(features, self.weight, None if bias is None else bias.detach())
        return features @ self.weight

    @contextmanager
    def bypassed(self) -> Iterator[None]:
        """Within the context the projection is the identity: the tower returns its input."""
        if self.weight is None:
            yield
            return
        parameters = self._parent._parameters
        width = self.weight.shape[1 if self._linear else 0]
        originals = dict(parameters)
        parameters[self._attribute] = nn.Parameter(torch.eye(width).to(self.weight))
        if self._linear:
            parameters["bias"] = None
        try:
            yield
        finally:
            parameters.update(originals)


def unprojected_features(context: TaskContext, positions: Indices) -> Tensor:
    """Visual features before the projection, on the CPU."""
    return context.encode(positions, partial(unprojected_images, context.clip))


@torch.no_grad()
def unprojected_images(clip: Clip, pixels: Tensor) -> Tensor:
    if not len(pixels):
        return unprojected_images(clip, pixels.new_zeros((1, *pixels.shape[1:])))[:0]
    normalized = clip.preprocess.normalize(pixels.to(clip.device))
    with Projection(clip, "image").bypassed(), clip.precision():
        return clip.encode_images(normalized).float()


@torch.no_grad()
def unprojected_texts(clip: Clip, prompts: Sequence[str]) -> Tensor:
    tokens = {key: value.to(clip.device) for key, value in clip.tokenize(prompts).items()}
    with Projection(clip, "text").bypassed(), clip.precision():
        return clip.encode_texts(tokens).float()


def check_has_projections(clip: Clip) -> None:
    if not clip.projections:
        raise UserError(
            f"SLCA trains the projections into the joint space, and {clip.name} has none that "
            "retouch knows; choose a model that has, or another method"
        )


@torch.no_grad()
def check_projection_is_last(clip: Clip) -> None:
    """Raise if the projection is not the last operation of a tower."""
    blank = torch.zeros((1, *clip.preprocess.size, 3), dtype=torch.uint8)
    prompts = ["a photo of a cat"]
    images = (
        Projection(clip, "image")(unprojected_images(clip, blank)),
        clip.image_features(blank),
    )
    texts = (
        Projection(clip, "text")(unprojected_texts(clip, prompts)),
        clip.text_features(clip.tokenize(prompts)),
    )
    for tower, (separate, whole) in {"image": images, "text": texts}.items():
        if separate.shape != whole.shape or cosine_similarity(separate, whole).item() < 0.99:
            raise UserError(
                f"the {tower} tower of {clip.name} does not end with its projection "
                f"({clip.projections.get(tower)}), so SLCA cannot train it separately"
            )
