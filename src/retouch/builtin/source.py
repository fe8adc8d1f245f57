"""The built-in pictures as a source of data, under the name `builtin`; `data.registry` reads it."""

from dataclasses import replace

from retouch.builtin.demo_settings import demo_settings
from retouch.builtin.domains import domain_images
from retouch.builtin.images import control_images, world_pairs
from retouch.data import Images, Pairs
from retouch.data.registry import PackagedSource
from retouch.data.splits import Splits

WORLD = "builtin:world"
"""What the built-in model was trained on: its control set."""
_CONTROL_PER_CLASS, _PAIRS = 8, 512
_FEW_TRAIN, _FEW_TEST, _FEW_CONTROL, _FEW_CONTROL_CLASSES, _FEW_PAIRS = 6, 2, 1, 20, 64


def read(name: str) -> Splits:
    """`builtin` (the signs), `builtin:signs`, `builtin:shapes`, `builtin:letters` or the world."""
    if name == WORLD:
        return Splits(test=control_images(_CONTROL_PER_CLASS))
    pictures = demo_settings().pictures
    return _splits(name, pictures.train, pictures.test)


def read_few(name: str) -> Splits:
    """The same with few pictures of each class, for a quick look."""
    if name == WORLD:
        return Splits(test=control_images(_FEW_CONTROL))
    return _splits(name, _FEW_TRAIN, _FEW_TEST)


def demo_control(few: bool = False) -> Images:
    """The control set of the demo and of `retouch bench`; `few` pictures of it for a quick look."""
    if not few:
        return control_images(demo_settings().pictures.control)
    images = control_images(_FEW_CONTROL)
    subset = images.subset(images.of_classes(range(_FEW_CONTROL_CLASSES)))
    classes = images.classes[:_FEW_CONTROL_CLASSES]
    return replace(subset, classes=classes, templates=images.templates[:1])


def few_pairs() -> Pairs:
    """Some of the pictures with captions, for a quick look."""
    return world_pairs(_FEW_PAIRS)


def _splits(name: str, train: int, test: int) -> Splits:
    domain = name.partition(":")[2] or "signs"
    return Splits(domain_images(domain, "train", train), domain_images(domain, "test", test))


SOURCE = PackagedSource(read, read_few, control=WORLD, read_pairs=lambda: world_pairs(_PAIRS))
