"""The noise of the built-in pictures, drawn again from its seed.

Every value of a picture has uniform noise, as a camera's sensor adds it, which no codec compresses.
So the archive stores pictures less this noise, and where in the random numbers of the picture the
noise began. Only raw words of PCG64 and integer arithmetic are used, which are the same on every
platform and in every version of numpy: what was subtracted is what is added.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retouch.clip.preprocess import Uint8

ONE = 256
"""Widths and offsets are in steps of 1/256 of a pixel value."""

NoiseTable = NDArray[np.int16]
"""A row per picture: draws, buffered, width, wraps, and an offset for red, green and blue.

Draws is how many 64-bit numbers were drawn before the noise. Numpy makes two 32-bit numbers of one;
buffered is 1 if the noise began with such a second half. That half is not known any more, so the
first value of the picture is stored with its noise. Width is from the least to the largest noise.
Offsets are added to the noise before it is rounded down. Values beyond black and white become black
and white; or, if wraps is 1, they are taken modulo 256.
"""


def rounded_noise(seed: Sequence[int], entry: NoiseTable, size: int) -> NDArray[np.int32]:
    """The noise of a picture in whole pixel values, [3, height, width].

    Args:
        seed: The seed of the picture.
        entry: Its row of the noise table.
        size: Height and width of the picture.
    """
    draws, buffered, width, _, *offsets = entry.tolist()
    generator = np.random.PCG64(seed)
    generator.advance(draws)
    noise = np.zeros(3 * size * size, np.int32)
    # The upper halves of the 32-bit words, of which the lower one of a 64-bit word comes first.
    words = generator.random_raw(len(noise) // 2).astype("<u8", copy=False).view("<u2")[1::2]
    noise[buffered:] = words[: len(noise) - buffered]
    noise[buffered:] -= 1 << 15
    noise *= width
    planes = noise.reshape(3, size, size)
    planes += np.array(offsets, np.int32)[:, None, None] << 16
    planes >>= 24
    return planes


def add_noise(picture: Uint8, seed: Sequence[int], entry: NoiseTable) -> Uint8:
    """A picture of the archive with its noise, [height, width, 3]."""
    planes = rounded_noise(seed, entry, len(picture))
    planes += picture.transpose(2, 0, 1)
    wraps = entry[3]
    if not wraps:
        np.clip(planes, 0, 255, out=planes)
    return planes.astype(np.uint8).transpose(1, 2, 0)
