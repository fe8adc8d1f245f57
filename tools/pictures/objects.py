"""Everyday objects as silhouettes, each a signed distance function (see `sdf`).

At twenty pixels a cup is recognized by its outline, so nothing else is drawn; color and texture
can vary.
"""

from tools.pictures.sdf import (
    Point,
    Shape,
    annulus,
    arc_points,
    box,
    difference,
    disc,
    intersection,
    mirrored,
    polygon,
    stroke,
    transformed,
    union,
)


def _butterfly() -> Shape:
    wing = union(
        transformed(disc(0, 0, 0.5), 0.52, -0.38), transformed(disc(0, 0, 0.38), 0.42, 0.42)
    )
    feeler = stroke([(0, -0.5), (0.22, -0.95)], 0.09)
    half = union(wing, feeler, box(0, 0, 0.1, 0.7, 0.08))
    return union(half, mirrored(half))


def _umbrella() -> Shape:
    scallops = [disc(x, 0.06, 0.3) for x in (-0.66, 0.0, 0.66)]
    dome = difference(intersection(disc(0, 0, 0.98), box(0, -0.5, 1.0, 0.56)), *scallops)
    hook = [(0.0, -0.3), (0.0, 0.75), *arc_points(0.17, 0.75, 0.17, 0.18, 180, 0)]
    return union(dome, stroke([(0, -1.0), (0, -0.9)], 0.1), stroke(hook, 0.14))


def _car() -> Shape:
    body = polygon([(-1, 0.35), (-0.98, 0), (-0.6, -0.08), (-0.38, -0.5), (0.35, -0.5),
                    (0.62, -0.08), (0.98, 0.02), (1, 0.35)])  # fmt: skip
    windows = union(
        polygon([(-0.42, -0.1), (-0.28, -0.37), (-0.04, -0.37), (-0.04, -0.1)]),
        polygon([(0.08, -0.1), (0.08, -0.37), (0.28, -0.37), (0.44, -0.1)]),
    )
    gaps = union(disc(-0.5, 0.36, 0.28), disc(0.52, 0.36, 0.28))
    wheels = union(disc(-0.5, 0.38, 0.21), disc(0.52, 0.38, 0.21))
    return union(difference(body, windows, gaps), wheels)


def _bird() -> Shape:
    body = polygon([(-1.0, 0.3), (-0.5, -0.02), (0.1, -0.2), (0.5, -0.3), (0.62, 0.1), (0.3, 0.5),
                    (-0.2, 0.56)])  # fmt: skip
    wing = polygon([(0.25, -0.1), (-0.55, -0.95), (-0.4, 0.1)])
    head = union(disc(0.52, -0.25, 0.27), polygon([(0.7, -0.4), (1.05, -0.18), (0.7, -0.1)]))
    legs = union(stroke([(0, 0.4), (0, 0.9)], 0.09), stroke([(0.25, 0.4), (0.25, 0.9)], 0.09))
    return difference(union(body, wing, head, legs), disc(0.6, -0.3, 0.07))


def _anchor() -> Shape:
    arms = stroke(arc_points(0, 0.2, 0.72, 0.68, 12, 168), 0.19)
    tips = union(
        polygon([(0.95, 0.45), (0.46, 0.34), (0.86, -0.05)]),
        polygon([(-0.95, 0.45), (-0.46, 0.34), (-0.86, -0.05)]),
    )
    stem = union(stroke([(0, -0.5), (0, 0.85)], 0.19), stroke([(-0.42, -0.3), (0.42, -0.3)], 0.17))
    return union(arms, tips, stem, annulus(0, -0.74, 0.17, 0.14))


def _crown() -> Shape:
    zigzag = [(-0.85, 0.7), (-0.98, -0.45), (-0.45, 0.05), (0, -0.72), (0.45, 0.05), (0.98, -0.45),
              (0.85, 0.7)]  # fmt: skip
    balls = union(disc(-0.96, -0.5, 0.13), disc(0, -0.76, 0.14), disc(0.96, -0.5, 0.13))
    return union(polygon(zigzag), balls)


def _person() -> Shape:
    legs = union(box(-0.17, 0.6, 0.13, 0.4, 0.06), box(0.17, 0.6, 0.13, 0.4, 0.06))
    arms = union(stroke([(-0.32, -0.32), (-0.5, 0.25)], 0.2),
                 stroke([(0.32, -0.32), (0.5, 0.25)], 0.2))  # fmt: skip
    return union(disc(0, -0.75, 0.25), box(0, -0.08, 0.34, 0.38, 0.12), arms, legs)


def _key() -> Shape:
    bow = annulus(-0.58, 0, 0.3, 0.22)
    blade = union(stroke([(-0.3, 0), (0.95, 0)], 0.2), box(0.55, 0.2, 0.08, 0.22))
    return union(bow, blade, box(0.86, 0.24, 0.1, 0.28))


def _apple() -> Shape:
    fruit = union(disc(-0.32, 0.18, 0.58), disc(0.32, 0.18, 0.58), disc(0, 0.5, 0.42))
    dented = difference(fruit, disc(0, -0.52, 0.22))
    leaf = intersection(disc(0.12, -0.55, 0.42), disc(0.48, -0.92, 0.42))
    return union(dented, leaf, stroke([(0, -0.25), (-0.08, -0.75)], 0.12))


def _bell() -> Shape:
    top = arc_points(0, -0.3, 0.5, 0.5, 180, 360)
    body = polygon([(-0.9, 0.58), (-0.62, 0.3), (-0.55, -0.3), *top,
                    (0.55, -0.3), (0.62, 0.3), (0.9, 0.58)])  # fmt: skip
    return union(body, disc(0, 0.76, 0.2), disc(0, -0.84, 0.13))


def _tree() -> Shape:
    crown = union(disc(0, -0.5, 0.48), disc(-0.4, -0.12, 0.42), disc(0.4, -0.12, 0.42))
    return union(crown, polygon([(-0.14, 0.1), (0.14, 0.1), (0.22, 1.0), (-0.22, 1.0)]))


def _cup() -> Shape:
    body = polygon([(-0.8, -0.65), (0.5, -0.65), (0.38, 0.7), (-0.68, 0.7)])
    return union(body, difference(annulus(0.5, -0.02, 0.36, 0.18), box(0, 0, 0.4, 0.9)))


def _fish() -> Shape:
    body = intersection(disc(0.2, 0.5, 0.98), disc(0.2, -0.5, 0.98))
    tail = polygon([(-0.45, 0), (-1.0, -0.5), (-0.85, 0), (-1.0, 0.5)])
    return difference(union(body, tail), disc(0.62, -0.12, 0.1))


def _boat() -> Shape:
    hull = polygon([(-1, 0.35), (1, 0.35), (0.62, 0.85), (-0.62, 0.85)])
    sails = union(polygon([(0.1, -0.95), (0.1, 0.16), (0.82, 0.16)]),
                  polygon([(-0.14, -0.6), (-0.14, 0.16), (-0.7, 0.16)]))  # fmt: skip
    return union(hull, sails, stroke([(0, -0.95), (0, 0.4)], 0.1))


def _leaf() -> Shape:
    blade = intersection(disc(0.5, 0, 0.95), disc(-0.5, 0, 0.95))
    vein = stroke([(0, -0.35), (0, 0.9)], 0.07)
    return transformed(
        union(difference(blade, vein), stroke([(0, 0.7), (0, 1.0)], 0.12)), 0, -0.05, 1.05, 35
    )


def _mushroom() -> Shape:
    cap = intersection(disc(0, 0, 0.92), box(0, -0.5, 1.0, 0.55))
    return transformed(union(cap, box(0, 0.4, 0.27, 0.5, 0.1)), 0, 0.05)


def _house() -> Shape:
    walls = polygon([(-0.98, -0.1), (0, -0.95), (0.98, -0.1), (0.74, -0.1), (0.74, 0.85),
                     (-0.74, 0.85), (-0.74, -0.1)])  # fmt: skip
    return difference(walls, box(0, 0.55, 0.18, 0.34))


def _cloud() -> Shape:
    puffs = union(disc(-0.56, 0.14, 0.4), disc(-0.08, -0.16, 0.5), disc(0.54, 0.1, 0.44))
    return transformed(union(puffs, box(0, 0.14, 0.6, 0.4)), 0, 0.05)


def _sun() -> Shape:
    ray: list[Point] = [(-0.17, -0.66), (0.17, -0.66), (0.0, -1.05)]
    return union(disc(0, 0, 0.52), *[transformed(polygon(ray), turn=45 * k) for k in range(8)])


def _bottle() -> Shape:
    shoulder = polygon([(-0.4, -0.1), (-0.16, -0.45), (0.16, -0.45), (0.4, -0.1)])
    return union(box(0, 0.32, 0.42, 0.66, 0.16), box(0, -0.6, 0.17, 0.4, 0.05), shoulder)


def _flag() -> Shape:
    cloth = polygon([(-0.6, -0.9), (0.85, -0.75), (0.6, -0.35), (0.85, 0.1), (-0.6, 0.1)])
    return union(stroke([(-0.62, -0.9), (-0.62, 0.95)], 0.16), cloth)


def _hourglass() -> Shape:
    bulb = polygon([(-0.66, -0.85), (0.66, -0.85), (0.66, -0.7), (0.07, 0), (-0.07, 0),
                    (-0.66, -0.7)])  # fmt: skip
    half = union(bulb, box(0, -0.88, 0.76, 0.12))
    return union(half, transformed(half, turn=180), box(0, 0, 0.07, 0.1))


def _hammer() -> Shape:
    head = union(
        box(0.02, -0.58, 0.62, 0.26, 0.06), polygon([(0.5, -0.84), (0.98, -0.6), (0.5, -0.4)])
    )
    return union(head, box(0, 0.3, 0.13, 0.7, 0.05))


OBJECTS: dict[str, Shape] = {
    "house": _house(),
    "tree": _tree(),
    "cloud": _cloud(),
    "fish": _fish(),
    "cup": _cup(),
    "umbrella": _umbrella(),
    "car": _car(),
    "person": _person(),
    "key": _key(),
    "mushroom": _mushroom(),
    "boat": _boat(),
    "leaf": _leaf(),
    "bell": _bell(),
    "apple": _apple(),
    "bottle": _bottle(),
    "crown": _crown(),
    "flag": _flag(),
    "sun": _sun(),
    "hourglass": _hourglass(),
    "butterfly": _butterfly(),
    "anchor": _anchor(),
    "hammer": _hammer(),
    "bird": _bird(),
}
