"""Built-in pictures of one shape each, with the box that the shape fills."""

from retouch.analysis.annotations import AnnotatedImages, Scene
from retouch.builtin.archive import read_index
from retouch.builtin.images import first_pictures
from retouch.data.stores.array import ArrayStore


def boxed_pictures(count: int) -> AnnotatedImages:
    """Pictures of one shape each, whose class is its description, such as "a red star".

    Args:
        count: How many, up to 200; the first ones.
    """
    pixels = first_pictures("boxes", count, "pictures with boxes")
    height, width = pixels.shape[1:3]
    scenes = [
        Scene(str(number), (width, height), {shape.description: (shape.box,)})
        for number, shape in enumerate(read_index().boxes[:count])
    ]
    return AnnotatedImages("built-in shapes", scenes, ArrayStore(pixels, "built-in shapes"))
