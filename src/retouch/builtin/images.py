"""The built-in pictures as labelled images: classes to learn, and what must not be forgotten."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from retouch.builtin.pictures import signs, world
from retouch.data import Images, Pairs, in_memory
from retouch.data.image_store import ArrayStore
from retouch.data.string_array import StringArray

TEMPLATES = ("a photo of {}", "a picture of {}", "an image of {}", "a photo showing {}")

Split = Literal["train", "test"]
Called = Literal["looks", "name"]
Draw = Callable[[int, np.random.Generator], np.ndarray]

# Which pictures a seed belongs to; the same number always gives the same picture.
_SEEDS = {"train": 1, "test": 2, "control": 3, "pairs": 4}


def sign_images(split: Split, each: int, called: Called = "looks") -> Images:
    """So many pictures of each of the 25 traffic signs; train and test differ in every picture.

    A sign is called by what it looks like, as CLIP's authors do with traffic signs: to a model that
    never met the word, its name ("a yield sign") says next to nothing.
    """
    names = [getattr(sign, called) for sign in signs.CLASSES]
    return _images(f"built-in signs, {split}", names, signs.picture, each, _SEEDS[split])


def control_images(each: int) -> Images:
    """So many pictures of each control class: combinations kept back from the pre-training."""
    names = [control.name for control in world.CONTROL]
    return _images("built-in world", names, world.control_picture, each, _SEEDS["control"])


def _images(name: str, classes: list[str], draw: Draw, each: int, seed: int) -> Images:
    labels = np.repeat(np.arange(len(classes)), each)
    pictures = [
        draw(label, np.random.default_rng([seed, label, number]))
        for label in range(len(classes))
        for number in range(each)
    ]
    images = in_memory(name, classes, labels, np.stack(pictures))
    images.templates = TEMPLATES
    return images


def world_pairs(count: int, seed: int = 0) -> Pairs:
    """Pictures of the world with captions, like those that the built-in model was trained on."""
    drawn = [world.sample(np.random.default_rng([_SEEDS["pairs"], seed, i])) for i in range(count)]
    pictures = ArrayStore(np.stack([picture for picture, _ in drawn]), "built-in world")
    return Pairs("built-in world", StringArray(caption for _, caption in drawn), pictures)
