"""Notes on problems in a data set that a user should know of before training."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from retouch.data.identical_images import MAX_IMAGES, IdenticalImages, find_duplicates
from retouch.data.images import Images
from retouch.data.splits import Splits
from retouch.plural import count


def add_dataset_notes(splits: Splits) -> Splits:
    """The same images, with notes on duplicates and on classes with a single image."""
    if splits.train is None:
        return splits
    notes = [
        *find_duplicates(splits.train, splits.test).notes(splits.train.name),
        *_single_image_note(splits.train),
    ]
    train = replace(splits.train, notes=[*splits.train.notes, *notes])
    return Splits(train, splits.test)


def add_control_note(control: Images, learned: Sequence[Images]) -> Images:
    """The same control set, with a note if some of its images are among those to learn from.

    Args:
        control: The control set.
        learned: The images to learn from.
    """
    if len(control) + sum(map(len, learned)) > MAX_IMAGES:
        return control
    shared = [
        group
        for group in IdenticalImages([control, *learned], across=True).groups()
        if group[0][0] is control and group[-1][0] is not control
    ]
    if not shared:
        return control
    (_, first), (images, index) = shared[0][0], shared[0][-1]
    pair = control.store.location(first), images.store.location(index)
    are = "is" if len(shared) == 1 else "are"
    note = (
        f"{control.name}: {count(len(shared), 'image')} {are} also learned from, such as {pair[0]} "
        f"and {pair[1]}, so what is forgotten of them does not show; remove them from the control "
        "set"
    )
    return replace(control, notes=[*control.notes, note])


def _single_image_note(images: Images) -> list[str]:
    """A note on classes that have only one image to learn from."""
    counts = np.bincount(images.labels, minlength=len(images.classes))
    single = np.flatnonzero(counts == 1)
    if not len(single):
        return []
    have = "1 class has" if len(single) == 1 else f"{len(single):,} classes have"
    example = images.classes[int(single[0])]
    return [f"{images.name}: {have} a single image to learn from, such as {example!r}"]
