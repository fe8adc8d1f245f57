"""Resize and crop an image. Imports no torch, so that processes that decode are soon ready."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retouch.errors import UserError


def resize_and_crop(
    image: Image.Image,
    size: tuple[int, int],
    shortest: int | None,
    resample: Image.Resampling,
    odd_pixel: Literal["floor", "round"],
) -> NDArray[np.uint8]:
    """The pixels of an image, [height, width, 3].

    Args:
        image: An image of any size and mode.
        size: Height and width of the result.
        shortest: Resize the shorter side to this and crop the center; None resizes to `size`.
        resample: The filter used for resizing.
        odd_pixel: Whether half of an odd margin is floored or rounded.
    """
    if image.mode != "RGB":
        image = image.convert("RGB")
    if shortest is None:
        if image.size != size[::-1]:
            image = image.resize(size[::-1], resample)
        return np.asarray(image)
    short = min(image.size)
    width, height = (int(shortest * side / short) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), resample)
    return _center_crop(np.asarray(image), size, odd_pixel)


def _center_crop(
    image: NDArray[np.uint8], size: tuple[int, int], odd_pixel: str
) -> NDArray[np.uint8]:
    margins = [have - want for have, want in zip(image.shape, size, strict=False)]
    if min(margins) < 0:
        raise UserError(
            f"an image resized to {image.shape[1]}×{image.shape[0]} is smaller than the "
            f"{size[1]}×{size[0]} that the model crops; check the model's preprocessing settings"
        )
    top, left = (round(m / 2) if odd_pixel == "round" else m // 2 for m in margins)
    return image[top : top + size[0], left : left + size[1]]
