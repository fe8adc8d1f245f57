"""From a picture to the numbers that a CLIP's visual tower takes.

Two steps, because the first is slow and done once, the second is quick and done on the device:
`prepare` resizes and crops to 8-bit pixels, `normalize` scales those to the model's range.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from retouch.errors import UserError

OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)

Uint8 = NDArray[np.uint8]


Scale = Callable[[Tensor, Tensor, Tensor], Tensor]


def scaled(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """In place: a new tensor for each step would take twice the time."""
    floats = pixels.permute(0, 3, 1, 2).to(torch.float32, copy=True)
    return floats.div_(255).sub_(mean).div_(std)


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """How a model wants its images. The result equals the model's own library up to rounding."""

    size: tuple[int, int]
    """Height and width that the model sees."""
    shortest: int | None = None
    """Resize the shorter side to this and crop the middle; None squashes to `size`."""
    mean: tuple[float, float, float] = OPENAI_MEAN
    """Mean of each color channel, for values from 0 to 1."""
    std: tuple[float, float, float] = OPENAI_STD
    """Standard deviation of each color channel, for values from 0 to 1."""
    resample: Image.Resampling = Image.Resampling.BICUBIC
    """The filter that resizes."""
    odd_pixel: Literal["floor", "round"] = "floor"
    """Of an odd number of pixels to crop, transformers floors the half, torchvision rounds it."""

    def __post_init__(self) -> None:
        for name, right, wanted in (
            ("size", _are(_is_count, self.size, 2), "a height and a width in pixels"),
            ("shortest", self.shortest is None or _is_count(self.shortest), "pixels, or None"),
            ("mean", _are(_is_finite, self.mean, 3), "three numbers"),
            ("std", _are(_is_finite, self.std, 3) and all(self.std), "three numbers other than 0"),
            ("resample", isinstance(self.resample, Image.Resampling), "an Image.Resampling"),
            ("odd_pixel", self.odd_pixel in ("floor", "round"), "'floor' or 'round'"),
        ):
            if not right:
                value = getattr(self, name)
                raise UserError(f"pixels with {name}={value!r} cannot be made; give {wanted}")

    @property
    def transform(self) -> str:
        """What `prepare` does, in a word that can be part of a file's name."""
        how = "squash" if self.shortest is None else f"short{self.shortest}-{self.odd_pixel}"
        return f"{self.size[0]}x{self.size[1]}-{how}-{self.resample.name.lower()}"

    def prepare(self, picture: Image.Image) -> Uint8:
        """Resize and crop a picture to [height, width, 3].

        Args:
            picture: An RGB picture of any size.
        """
        if picture.mode != "RGB":
            picture = picture.convert("RGB")
        if self.shortest is None:
            if picture.size != self.size[::-1]:
                picture = picture.resize(self.size[::-1], self.resample)
            return np.asarray(picture)
        short = min(picture.size)
        wide, high = (int(self.shortest * side / short) for side in picture.size)
        if (wide, high) != picture.size:
            picture = picture.resize((wide, high), self.resample)
        return self._middle(np.asarray(picture))

    def _middle(self, picture: Uint8) -> Uint8:
        spare = [have - want for have, want in zip(picture.shape, self.size, strict=False)]
        if min(spare) < 0:
            raise UserError(
                f"a picture resized to {picture.shape[1]}×{picture.shape[0]} is smaller than the "
                f"{self.size[1]}×{self.size[0]} that the model crops; its settings clash"
            )
        top, left = (round(s / 2) if self.odd_pixel == "round" else s // 2 for s in spare)
        return picture[top : top + self.size[0], left : left + self.size[1]]

    def normalize(self, pixels: Tensor, scale: Scale = scaled) -> Tensor:
        """Normalize pixels: [B, height, width, 3] of 8 bits to [B, 3, height, width] of floats.

        Args:
            pixels: 8-bit pixels [B, H, W, 3].
            scale: Computes the normalization from pixels, mean and standard deviation. Compiled
                towers bring their own.
        """
        mean, std = (_there(numbers, pixels.device) for numbers in (self.mean, self.std))
        return scale(pixels, mean, std)

    @classmethod
    def from_processor(cls, settings: Mapping[str, Any], image_size: int) -> "Preprocess":
        """Read the settings that transformers stores as preprocessor_config.json.

        Args:
            settings: The settings by name.
            image_size: The size that the model expects, where the settings say none.
        """
        if not isinstance(settings, Mapping):
            raise UserError(f"preprocessor settings are names and values, not {settings!r:.60}")
        size = settings.get("size", image_size)
        size = {"shortest_edge": size} if isinstance(size, int) else size
        crop = settings.get("crop_size", image_size)
        crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
        common: dict[str, Any] = {
            "mean": tuple(settings.get("image_mean", OPENAI_MEAN)),
            "std": tuple(settings.get("image_std", OPENAI_STD)),
            "resample": Image.Resampling(settings.get("resample", Image.Resampling.BICUBIC)),
        }
        if not isinstance(size, Mapping) or not isinstance(crop, Mapping):
            raise UserError(
                f"size {size!r} and crop_size {crop!r} must each be a number of pixels, or numbers "
                "by the names shortest_edge, height and width"
            )
        if "shortest_edge" in size and settings.get("do_center_crop", True):
            target = (crop["height"], crop["width"])
            return cls(size=target, shortest=size["shortest_edge"], **common)
        if "height" in size:
            return cls(size=(size["height"], size["width"]), **common)
        raise UserError(
            f"preprocessor settings with size {size} and no centre crop give pictures of varying "
            "size; set do_center_crop, or size to a height and a width"
        )


def _are(right: Callable[[object], bool], values: object, count: int) -> bool:
    return isinstance(values, tuple) and len(values) == count and all(map(right, values))


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


@cache
def _there(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Sent once: a GPU would wait for it every time."""
    return torch.tensor(numbers, device=device).view(3, 1, 1)
