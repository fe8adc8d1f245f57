"""The twenty-five traffic signs, as layers of flat color.

Each sign is a list of (color, shape), back to front; the first shape is the plate itself.
The description says what a sign looks like, in words of the world's captions (all but a handful),
so that a model can be asked about signs that it was never shown.
"""

from functools import cache

import numpy as np

from tools.pictures import pictograms
from tools.pictures.canvas import distance_field
from tools.pictures.sdf import (
    Array,
    Shape,
    box,
    disc,
    intersection,
    polygon,
    stroke,
    transformed,
    union,
)

Layer = tuple[str, Shape]


def _prohibitory(*layers: Layer) -> list[Layer]:
    """A white disc with a red border."""
    return [("red", disc(0, 0, 1.0)), ("white", disc(0, 0, 0.76)), *layers]


def _mandatory(symbol: Shape) -> list[Layer]:
    """A blue disc with a thin white rim and a white symbol."""
    return [("white", disc(0, 0, 1.0)), ("blue", disc(0, 0, 0.93)), ("white", symbol)]


def _warning(*layers: Layer) -> list[Layer]:
    """A white triangle with a red border."""
    plate, white = pictograms.warning_plate(), pictograms.warning_plate(0.2)
    return [("red", plate), ("white", white), *layers]


def _informational(*layers: Layer) -> list[Layer]:
    """A blue square with a thin white rim."""
    return [("white", box(0, 0, 0.92, 0.92, 0.14)), ("blue", box(0, 0, 0.85, 0.85, 0.1)), *layers]


def _speed_limit(number: str) -> list[Layer]:
    """A speed limit."""
    wide = len(number) > 2
    text = pictograms.lettering(number, 0.54, 0.36 if wide else 0.42, 0.14 if wide else 0.17)
    return _prohibitory(("black", text))


def _traffic_signals() -> list[Layer]:
    lamps = [(color, disc(0, y, 0.155))
             for color, y in (("red", -0.12), ("yellow", 0.22), ("green", 0.56))]  # fmt: skip
    return _warning(("black", box(0, 0.22, 0.23, 0.56, 0.1)), *lamps)


def _no_parking() -> list[Layer]:
    bar = intersection(stroke([(-0.8, -0.8), (0.8, 0.8)], 0.21), disc(0, 0, 0.9))
    return [("red", disc(0, 0, 1.0)), ("blue", disc(0, 0, 0.78)), ("red", bar)]


def _crossing() -> list[Layer]:
    triangle = polygon([(0, -0.72), (0.76, 0.64), (-0.76, 0.64)])
    return _informational(
        ("white", triangle), ("black", transformed(pictograms.walker(), 0.0, 0.12, 0.54))
    )


def _no_overtaking() -> list[Layer]:
    car = pictograms.car_from_behind()
    left, right = transformed(car, -0.35, 0.02, 0.37), transformed(car, 0.37, 0.02, 0.37)
    return _prohibitory(("red", left), ("black", right))


def _slippery() -> list[Layer]:
    car = transformed(pictograms.car_from_behind(), 0.0, -0.02, 0.3, 14)
    return _warning(("black", union(car, pictograms.skid_marks())))


def _yield() -> list[Layer]:
    plate = transformed(pictograms.warning_plate(), turn=180)
    return [("red", plate), ("white", transformed(pictograms.warning_plate(0.26), turn=180))]


def _priority() -> list[Layer]:
    square = [(0.0, -1.0), (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)]
    return [("black", transformed(polygon(square), scale=1.04)), ("white", polygon(square)),
            ("yellow", transformed(polygon(square), scale=0.7))]  # fmt: skip


def _stop() -> list[Layer]:
    text = pictograms.lettering("stop", 0.7, 0.32, 0.13)
    return [("white", pictograms.octagon(1.04)), ("red", pictograms.octagon(0.96)), ("white", text)]


# Name, description, layers.
SIGNS: list[tuple[str, str, list[Layer]]] = [
    ("a stop sign", "a red octagon with the white word stop", _stop()),
    ("a yield sign", "an upside down white triangle with a red border", _yield()),
    (
        "a no entry sign",
        "a white rectangle on a red circle",
        [("white", disc(0, 0, 1.0)), ("red", disc(0, 0, 0.94)), ("white", box(0, 0, 0.7, 0.18))],
    ),
    (
        "a speed limit 30 sign",
        "a black number 30 inside a red ring",
        _speed_limit("30"),
    ),
    (
        "a speed limit 50 sign",
        "a black number 50 inside a red ring",
        _speed_limit("50"),
    ),
    (
        "a speed limit 80 sign",
        "a black number 80 inside a red ring",
        _speed_limit("80"),
    ),
    (
        "a speed limit 120 sign",
        "a black number 120 inside a red ring",
        _speed_limit("120"),
    ),
    (
        "a no overtaking sign",
        "a red car left of a black car inside a red ring",
        _no_overtaking(),
    ),
    ("a priority road sign", "a yellow diamond with a white border", _priority()),
    (
        "an ahead only sign",
        "a white arrow pointing up on a blue circle",
        _mandatory(pictograms.arrow(0)),
    ),
    (
        "a turn left sign",
        "a white arrow pointing left on a blue circle",
        _mandatory(pictograms.bent_arrow()),
    ),
    (
        "a keep right sign",
        "a white arrow pointing bottom right on a blue circle",
        _mandatory(pictograms.arrow(135)),
    ),
    (
        "a roundabout sign",
        "a ring of three white arrows on a blue circle",
        _mandatory(pictograms.circling_arrows()),
    ),
    (
        "a pedestrian crossing sign",
        "a black person on a white triangle on a blue square",
        _crossing(),
    ),
    (
        "a children crossing sign",
        "two black people inside a red triangle",
        _warning(("black", pictograms.children())),
    ),
    (
        "a road works sign",
        "a black person and a black semicircle inside a red triangle",
        _warning(("black", pictograms.digger())),
    ),
    (
        "a traffic signals sign",
        "a red, a yellow and a green circle inside a red triangle",
        _traffic_signals(),
    ),
    (
        "a slippery road sign",
        "a black car on black stripes inside a red triangle",
        _slippery(),
    ),
    (
        "a double bend sign",
        "a black bolt pointing up inside a red triangle",
        _warning(("black", pictograms.double_bend())),
    ),
    (
        "a wild animals sign",
        "a black deer inside a red triangle",
        _warning(("black", pictograms.deer())),
    ),
    (
        "a bumpy road sign",
        "two black semicircles inside a red triangle",
        _warning(("black", pictograms.bumps())),
    ),
    (
        "a no parking sign",
        "a tilted red rectangle on a blue circle with a red border",
        _no_parking(),
    ),
    (
        "a parking sign",
        "a white letter p on a blue square",
        _informational(("white", transformed(pictograms.lettering("p", 0.5, 0.56, 0.24), 0.06))),
    ),
    (
        "a bicycle path sign",
        "a white bicycle on a blue circle",
        _mandatory(pictograms.bicycle()),
    ),
    (
        "a level crossing sign",
        "a tilted white cross with a red border",
        [("red", pictograms.crossbuck(1.12, 0.2)), ("white", pictograms.crossbuck(0.74, 0.13))],
    ),
]


@cache
def face_field(index: int) -> tuple[Array, tuple[str, ...]]:
    """The distance fields of a sign's layers (last axis: layer), and their colors."""
    layers = SIGNS[index][2]
    grid = np.stack([distance_field(shape) for _, shape in layers], axis=-1)
    return grid, tuple(color for color, _ in layers)
