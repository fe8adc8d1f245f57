"""The built-in pictures as labeled images: classes to learn, and what must not be forgotten."""

from typing import Literal

import numpy as np

from retouch.builtin.archive import check_request, read_index, read_sheets
from retouch.clip.preprocess import Uint8
from retouch.data import Images, Pairs, in_memory
from retouch.data.stores.array import ArrayStore
from retouch.data.stores.string_array import StringArray

TEMPLATES = ("a photo of {}", "a picture of {}", "an image of {}", "a photo showing {}")

Split = Literal["train", "test"]
Naming = Literal["description", "name"]


def sign_images(split: Split, per_class: int, naming: Naming = "description") -> Images:
    """Pictures of the 25 traffic signs. Train and test have no picture in common.

    Args:
        split: `train` or `test`.
        per_class: How many per sign: up to 40 to train, 16 to test.
        naming: Classes are called by a `description`, as in CLIP's own prompts for signs, or by
            `name` ("a yield sign"), which says next to nothing to a model that never met the word.
    """
    classes = [getattr(sign, naming) for sign in read_index().signs]
    return _images(f"built-in signs, {split}", f"signs-{split}", classes, per_class)


def control_images(per_class: int) -> Images:
    """Pictures of the control classes: combinations that were held out from the pre-training.

    Args:
        per_class: How many per class, up to 8.
    """
    return _images("built-in world", "control", read_index().control, per_class)


def world_pairs(count: int) -> Pairs:
    """Pictures of the world with captions, like those that the built-in model was trained on.

    Args:
        count: How many, up to 512.
    """
    pixels = first_pictures("pairs", count, "pictures with captions")
    captions = StringArray(read_index().captions[:count])
    return Pairs("built-in world", captions, ArrayStore(pixels, "built-in world"))


def first_pictures(name: str, count: int, what: str) -> Uint8:
    """The first pictures of a set, [count, height, width, 3]; an error calls them `what`."""
    stored = read_index().sets[name]
    check_request(count, stored.sheets * stored.rows, what)
    sheets = read_sheets(name, -(-count // stored.rows))
    return sheets.reshape(-1, *sheets.shape[2:])[:count]


def _images(name: str, picture_set: str, classes: list[str], per_class: int) -> Images:
    """Class after class; sheet n holds picture n of every class."""
    shipped = read_index().sets[picture_set].sheets
    check_request(per_class, shipped, f"pictures per class ({name})")
    sheets = read_sheets(picture_set, per_class)
    labels = np.repeat(np.arange(len(classes)), per_class)
    pixels = sheets.swapaxes(0, 1).reshape(-1, *sheets.shape[2:])
    images = in_memory(name, list(classes), labels, pixels)
    images.templates = TEMPLATES
    return images
