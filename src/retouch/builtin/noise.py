"""The noise of the built-in pictures, drawn again from its seed.

Every value of a picture has uniform noise, as a camera's sensor adds it, which no codec compresses.
So the archive stores pictures less this noise, and where in the random numbers of the picture the
noise began. Light that fades across a picture is subtracted too, as a plane for each color, which
leaves a surface of one color with one value. Only raw words of PCG64 and integer arithmetic are
used, which are the same on every platform and in every version of numpy: what was subtracted is
what is added.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retouch.clip.preprocess import Uint8

ONE = 256
"""Widths and offsets are in steps of 1/256 of a pixel value."""
STEEP = 1 << 14
"""Slopes are in steps of 1/16384 of a pixel value per pixel."""

NoiseTable = NDArray[np.int16]
"""A row per picture: draws, buffered, width, wraps; offset, slope to the right and slope downwards
for red; the same for green and for blue.

Draws is how many 64-bit numbers were drawn before the noise. Numpy makes two 32-bit numbers of one;
buffered is 1 if the noise began with such a second half. That half is not known any more, so the
first value of the picture is stored with its noise. Width is from the least to the largest noise.
The offset, in the middle of the picture, and the slopes are added to the noise before it is rounded
down. Values beyond black and white become black and white; or, if wraps is 1, they are taken modulo
256.
"""


def rounded_noise(seed: Sequence[int], entry: NoiseTable, size: int) -> NDArray[np.int32]:
    """The noise and the plane of a picture in whole pixel values, [3, height, width].

    Args:
        seed: The seed of the picture.
        entry: Its row of the noise table.
        size: Height and width of the picture.
    """
    draws, buffered, width, _, *planes = entry.tolist()
    generator = np.random.PCG64(seed)
    generator.advance(draws)
    noise = np.zeros(3 * size * size, np.int32)
    # The upper halves of the 32-bit words, of which the lower one of a 64-bit word comes first.
    words = generator.random_raw(len(noise) // 2).astype("<u8", copy=False).view("<u2")[1::2]
    noise[buffered:] = words[: len(noise) - buffered]
    noise[buffered:] -= 1 << 15
    noise *= width
    noise >>= 8  # in steps of 1/65536, as are the planes
    offset, right, down = np.array(planes, np.int32).reshape(3, 3).T[..., None, None]
    place = np.arange(size, dtype=np.int32) - size // 2
    values = noise.reshape(3, size, size)
    values += (offset << 8) + (right << 2) * place
    values += (down << 2) * place[:, None]
    values >>= 16
    return values


def add_noise(picture: Uint8, seed: Sequence[int], entry: NoiseTable) -> Uint8:
    """A picture of the archive with its noise, [height, width, 3]."""
    values = rounded_noise(seed, entry, len(picture))
    values += picture.transpose(2, 0, 1)
    wraps = entry[3]
    if not wraps:
        np.clip(values, 0, 255, out=values)
    return values.astype(np.uint8).transpose(1, 2, 0)
