"""Pictures of the built-in world in which it is known where the object is."""

import numpy as np

from retouch.analysis.objects import AnnotatedImages, Box, Scene
from retouch.builtin.pictures.backgrounds import paint_background
from retouch.builtin.pictures.captions import with_article
from retouch.builtin.pictures.draw import SIZE, Pixels, finish
from retouch.builtin.pictures.effects import photograph
from retouch.builtin.pictures.render import any_tilt, draw_thing, placed
from retouch.builtin.pictures.scenes import bare_scene, with_background
from retouch.data.image_store import ArrayStore

_SEED = 5  # other pictures than all the others that are built in
_VISIBLE = 0.05  # a pixel that changes by so much is the object's


def boxed_pictures(count: int, seed: int = 0) -> AnnotatedImages:
    """So many pictures of one shape each, called by its colour and its name."""
    drawn = [_picture(np.random.default_rng([_SEED, seed, number])) for number in range(count)]
    scenes = [
        Scene(str(number), (SIZE, SIZE), {name: (box,)})
        for number, (_, name, box) in enumerate(drawn)
    ]
    pictures = ArrayStore(np.stack([pixels for pixels, _, _ in drawn]), "built-in shapes")
    return AnnotatedImages("built-in shapes", scenes, pictures)


def _picture(rng: np.random.Generator) -> tuple[Pixels, str, Box]:
    """A shape somewhere in front of a background, what it is called, and its box."""
    scene = with_background(bare_scene("shape", rng), rng)
    thing = scene.things[0]
    canvas = paint_background(scene.background, scene.background_colour, rng)
    before = canvas.copy()
    stray = 0.0 if thing.size == "large" else 14.0
    middle = SIZE / 2
    place = placed(thing, rng, "single", middle, middle, stray, any_tilt(rng))
    draw_thing(canvas, thing, place, rng)
    box = _extent(np.abs(canvas - before).max(axis=0) > _VISIBLE)
    photograph(canvas, rng)
    return finish(canvas), with_article(f"{thing.colour} {thing.name}"), box


def _extent(there: np.ndarray) -> Box:
    """The smallest box around all that is there."""
    rows, columns = (np.flatnonzero(there.any(axis=axis)) for axis in (1, 0))
    left, top = float(columns[0]), float(rows[0])
    return left, top, float(columns[-1]) + 1 - left, float(rows[-1]) + 1 - top
