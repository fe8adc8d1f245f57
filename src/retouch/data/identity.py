"""Which images a run learns from and is judged by, in a few numbers that outlive a move or a copy.

A run that goes on must see the images that it began with. Their paths and times change when data is
copied to another machine, and to read a hundred thousand of them again would take too long: names
and sizes of all are compared, the bytes of some, and all that is in memory.
"""

import hashlib
import json
from contextlib import suppress
from typing import Any

import numpy as np

from retouch.data.image_store import ImageStore
from retouch.data.images import Images
from retouch.data.pairs import Pairs

SAMPLE = 64
"""So many pictures, spread evenly over the set, are also compared by their bytes."""
_MOST = 2**20  # bytes read of each

SETS = {
    "train": "training images",
    "test": "test images",
    "control": "a control set",
    "reference": "reference pairs",
}


def images_identity(images: Images) -> dict[str, Any]:
    """Of labelled images: the pictures, and what is said of them."""
    said = hashlib.sha256(json.dumps(images.classes).encode() + images.labels.tobytes())
    if images.captions is not None:
        said.update(images.captions.raw)
    return {
        "images": len(images),
        "classes": len(images.classes),
        "files": _files(images.store),
        "labels": said.hexdigest(),
    }


def pairs_identity(pairs: Pairs) -> dict[str, Any]:
    """Of images with captions."""
    said = hashlib.sha256(pairs.captions.raw).hexdigest()
    return {"images": len(pairs), "files": _files(pairs.store), "labels": said}


def _files(pictures: ImageStore) -> str:
    everything = np.arange(len(pictures))
    digest = hashlib.sha256()
    for mark in pictures.identifiers(everything):
        digest.update(len(mark).to_bytes(4, "little") + mark)
    some = np.linspace(0, len(pictures) - 1, min(SAMPLE, len(pictures))).astype(np.int64)
    for index in np.unique(some):
        with suppress(OSError):  # what cannot be read has a mark, and is told of later
            digest.update(hashlib.sha256(pictures.leading_bytes(int(index), _MOST)).digest())
    return digest.hexdigest()


def difference(kind: str, then: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    """In what a set differs from the one a run began with, in words; empty where it does not."""
    if then == now:
        return ""
    what = SETS[kind]
    if then is None or now is None:
        return f"without {what}" if then is None else f"with {what}, and there is none now"
    counts = [
        f"{then[key]:,} {key} then, {now[key]:,} now"
        for key in ("images", "classes")
        if then.get(key) != now.get(key)
    ]
    if counts:
        why = counts[0]
    elif then["files"] != now["files"]:
        why = "as many as now, but not the same"
    else:
        why = "the same images, but with other labels or names"
    return f"with other {what.removeprefix('a ')} ({why})"
