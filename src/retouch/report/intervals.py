"""How far an accuracy can be trusted: the confidence interval for its number of images."""

import math

from retouch.plotting.formatting import number
from retouch.text.plural import count

ENOUGH_IMAGES = 1000
"""From here on an accuracy is known to within about three points, and no interval is shown."""
_Z = 1.959964  # 97.5 % quantile of the normal distribution


def wilson_interval(accuracy: float, images: int) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of an accuracy over this many images; all in percent.

    Unlike the normal approximation it stays between 0 and 100, and is right for 0 and 100 as well.
    """
    if images < 1:
        return 0.0, 100.0
    share, z = accuracy / 100, _Z**2 / images
    middle = (share + z / 2) / (1 + z)
    half = _Z * math.sqrt(share * (1 - share) / images + z / (4 * images)) / (1 + z)
    return max(0.0, 100 * (middle - half)), min(100.0, 100 * (middle + half))


def interval_text(accuracy: float, images: int) -> str:
    """The interval as text, "71.7–98.9"; "" with enough images."""
    if not 0 < images < ENOUGH_IMAGES:
        return ""
    low, high = wilson_interval(accuracy, images)
    return f"{number(low)}–{number(high)}"


def interval_sentence(accuracy: float, images: int, kind: str) -> str:
    """A sentence about the interval, from this number of images; "" if there are enough."""
    interval = interval_text(accuracy, images)
    return f"95 % interval {interval} %, from {count(images, f'{kind} image')}." if interval else ""
