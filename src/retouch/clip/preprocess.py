"""From an image to the tensor that a CLIP's visual tower takes.

There are two steps, because the first is slow and done once (its result is cached), while the
second is fast and done on the device: `prepare` resizes and crops to 8-bit pixels, `normalize`
scales those to the model's range.
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

from retouch.clip.resize import resize_and_crop
from retouch.errors import UserError

OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)

Uint8 = NDArray[np.uint8]

NormalizeFn = Callable[[Tensor, Tensor, Tensor], Tensor]


def normalize_pixels(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Scale 8-bit pixels [B, H, W, 3] to floats [B, 3, H, W].

    Works in place: a new tensor for each operation would double the time.
    """
    floats = pixels.permute(0, 3, 1, 2).to(torch.float32, copy=True)
    return floats.div_(255).sub_(mean).div_(std)


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """How a model's images are prepared; equal to its own library's result up to rounding."""

    size: tuple[int, int]
    """Height and width of the model's input."""
    shortest: int | None = None
    """Resize the shorter side to this and crop the center; None resizes to `size` directly."""
    mean: tuple[float, float, float] = OPENAI_MEAN
    """Mean of each color channel, for values from 0 to 1."""
    std: tuple[float, float, float] = OPENAI_STD
    """Standard deviation of each color channel, for values from 0 to 1."""
    resample: Image.Resampling = Image.Resampling.BICUBIC
    """The filter used for resizing."""
    odd_pixel: Literal["floor", "round"] = "floor"
    """How half of an odd margin is cropped: transformers floors it, torchvision rounds it."""

    def __post_init__(self) -> None:
        for name, valid, expected in (
            ("size", _are(_is_count, self.size, 2), "a height and a width in pixels"),
            ("shortest", self.shortest is None or _is_count(self.shortest), "pixels, or None"),
            ("mean", _are(_is_finite, self.mean, 3), "three numbers"),
            ("std", _are(_is_finite, self.std, 3) and all(self.std), "three numbers other than 0"),
            ("resample", isinstance(self.resample, Image.Resampling), "an Image.Resampling"),
            ("odd_pixel", self.odd_pixel in ("floor", "round"), "'floor' or 'round'"),
        ):
            if not valid:
                value = getattr(self, name)
                raise UserError(f"invalid preprocessing: {name}={value!r}; give {expected}")

    @property
    def transform(self) -> str:
        """What `prepare` does, as a short string that can be part of a file name."""
        mode = "squash" if self.shortest is None else f"short{self.shortest}-{self.odd_pixel}"
        return f"{self.size[0]}x{self.size[1]}-{mode}-{self.resample.name.lower()}"

    def prepare(self, image: Image.Image) -> Uint8:
        """Resize and crop an image to [height, width, 3].

        Args:
            image: An image of any size and mode.
        """
        return resize_and_crop(image, **self.resizing)

    @property
    def resizing(self) -> dict[str, Any]:
        """The fields that decide what `prepare` does."""
        names = ("size", "shortest", "resample", "odd_pixel")
        return {name: getattr(self, name) for name in names}

    def normalize(self, pixels: Tensor, normalize_fn: NormalizeFn = normalize_pixels) -> Tensor:
        """Scale 8-bit pixels [B, height, width, 3] to floats [B, 3, height, width].

        Args:
            pixels: 8-bit pixels [B, height, width, 3].
            normalize_fn: Computes the result from pixels, mean and standard deviation; compiled
                towers pass a compiled version.
        """
        mean, std = (_on_device(values, pixels.device) for values in (self.mean, self.std))
        return normalize_fn(pixels, mean, std)

    @classmethod
    def from_processor(cls, settings: Mapping[str, Any], image_size: int) -> "Preprocess":
        """Read the settings that transformers stores as preprocessor_config.json.

        Args:
            settings: The settings by name.
            image_size: The size that the model expects, used where the settings give none.
        """
        if not isinstance(settings, Mapping):
            raise UserError(f"preprocessor settings must be a JSON object, not {settings!r:.60}")
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
                f"size {size!r} and crop_size {crop!r} must each be a number of pixels, or an "
                "object with shortest_edge, or with height and width"
            )
        if "shortest_edge" in size and settings.get("do_center_crop", True):
            target = (crop["height"], crop["width"])
            return cls(size=target, shortest=size["shortest_edge"], **common)
        if "height" in size:
            return cls(size=(size["height"], size["width"]), **common)
        raise UserError(
            f"preprocessor settings with size {size} and no center crop give images of varying "
            "size; set do_center_crop, or set size to a height and a width"
        )


def _are(is_valid: Callable[[object], bool], values: object, count: int) -> bool:
    return isinstance(values, tuple) and len(values) == count and all(map(is_valid, values))


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


@cache
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Copied to the device once: a GPU would synchronize on every copy."""
    return torch.tensor(values, device=device).view(3, 1, 1)
