"""A handful of images that show what changed, as small JPEGs in the run's folder."""

import hashlib
import io
import logging
import shutil
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from PIL import Image

from retouch.data.decode import DecodeError
from retouch.data.image_store import Indices
from retouch.data.images import Images
from retouch.evaluate.per_class import EXAMPLES, Example, accuracy_per_class
from retouch.files import write_atomically

log = logging.getLogger("retouch")

MOST = 24
"""So many images at most of the new classes, and as many of the control set."""
LONG_SIDE = 160
_GAINED = _LOST = 4  # so many classes of each
_A_CLASS = 6


def pick_examples(images: Images, before: Indices, after: Indices, most: int = MOST) -> Indices:
    """The positions of some images, of the classes that gained most and that lost most.

    Of a class that gained there are mostly images that are right now and were not before, of one
    that lost the reverse, and some that are still wrong. Where nothing changed, there are those.
    The same answers always give the same images.
    """
    gain = accuracy_per_class(images, after) - accuracy_per_class(images, before)
    gained = [label for label in np.argsort(-gain, kind="stable") if gain[label] > 0][:_GAINED]
    lost = [label for label in np.argsort(gain, kind="stable") if gain[label] < 0][:_LOST]
    rest = [] if gained or lost else _most_wrong(images, after)[: _GAINED + _LOST]
    classes = [*gained, *lost, *rest]
    each = min(_A_CLASS, most // max(1, len(classes)))
    chosen = [_of_class(images, before, after, label, label in lost, each) for label in classes]
    return np.array([position for own in chosen for position in own], np.int64)


def _most_wrong(images: Images, answers: Indices) -> list[int]:
    wrong = np.bincount(images.labels[answers != images.labels], minlength=len(images.classes))
    return [int(label) for label in np.argsort(-wrong, kind="stable") if wrong[label]]


def _of_class(
    images: Images, before: Indices, after: Indices, label: int, lost: bool, count: int
) -> list[int]:
    """Some images of one class: two that changed its way, one still wrong, one the other way …"""
    own = images.labels == label
    was, now = before == label, after == label
    mended, broken, still = own & now & ~was, own & was & ~now, own & ~was & ~now
    kinds = (broken, broken, still, mended) if lost else (mended, mended, still, broken)
    waiting = {id(kind): _spread(np.flatnonzero(kind), count) for kind in kinds}
    found: list[int] = []
    for kind in cycle(kinds):
        if len(found) == count or not any(waiting.values()):
            return found
        found += [waiting[id(kind)].pop(0)] if waiting[id(kind)] else []
    return found


def _spread(positions: Indices, count: int) -> list[int]:
    """So many of them from all over: neighbours are often pictures of the same thing."""
    places = np.linspace(0, len(positions) - 1, min(count, len(positions))).round().astype(int)
    return [int(position) for position in positions[places]]


def write_examples(
    folder: str | Path, groups: Sequence[tuple[Images, Indices, Indices, bool]]
) -> list[Example]:
    """Store the telling images of some sets in a run's folder; all at once, or none.

    A set is its images, what they were called before and after, and whether its classes were
    learned. What lay there before is gone.
    """
    place = Path(folder) / EXAMPLES
    part = place.with_name(f".{EXAMPLES}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    found: list[Example] = []
    try:
        for images, before, after, learned in groups:
            for position in pick_examples(images, before, after).tolist():
                name = f"{len(found) + 1:02}.jpg"
                if (small := _thumbnail(images, position)) is None:
                    continue
                write_atomically(part / name, small)
                called = [images.classes[answers[position]] for answers in (before, after)]
                found.append(
                    Example(
                        file=f"{EXAMPLES}/{name}",
                        sha256=hashlib.sha256(small).hexdigest(),
                        name=images.classes[images.labels[position]],
                        before=called[0],
                        after=called[1],
                        learned=learned,
                    )
                )
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return found


def _thumbnail(images: Images, position: int) -> bytes | None:
    """The picture as a person sees it, small, and without anything that its camera wrote."""
    try:
        picture = images.store.image(position)
    except DecodeError as why:  # it was decoded once, and is gone since
        log.warning("no example of %s: %s", images.store.location(position), why)
        return None
    picture.thumbnail((LONG_SIDE, LONG_SIDE), Image.Resampling.LANCZOS)
    picture.info.clear()
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=80, optimize=True)
    return data.getvalue()
