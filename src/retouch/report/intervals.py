"""How far an accuracy can be trusted: the interval that its number of images allows."""

import math

from retouch.report.phrasing import number

SMALL = 1000
"""With so many images an accuracy is known to within three points, and no interval is shown."""
_Z = 1.959964  # of the normal distribution, for 95 %


def wilson(accuracy: float, images: int) -> tuple[float, float]:
    """The 95 % interval (Wilson's) of an accuracy in percent over so many images, in percent.

    Unlike the usual ± it stays between 0 and 100, and is right for 0 and 100 as well.
    """
    if images < 1:
        return 0.0, 100.0
    share, z = accuracy / 100, _Z**2 / images
    middle = (share + z / 2) / (1 + z)
    half = _Z * math.sqrt(share * (1 - share) / images + z / (4 * images)) / (1 + z)
    return max(0.0, 100 * (middle - half)), min(100.0, 100 * (middle + half))


def spread_of(accuracy: float, images: int) -> str:
    """The interval as text, "71.7–98.9"; "" where there are images enough."""
    if not 0 < images < SMALL:
        return ""
    low, high = wilson(accuracy, images)
    return f"{number(low)}–{number(high)}"


def caution(accuracy: float, images: int, what: str = "") -> str:
    """A sentence about the interval; "" where there are images enough."""
    found = spread_of(accuracy, images)
    of = f"{images:,} {what} image{'' if images == 1 else 's'}".replace("  ", " ")
    return f"95 % interval {found} %, from {of}." if found else ""
