"""Fingerprints of a run's images that stay the same when the data is moved or copied.

A resumed run must see the images that it started with. Paths and times change when data is copied
to another machine, and reading a hundred thousand images again would take too long. So names and
sizes of all files are compared, the bytes of a sample, and everything that is in memory.
"""

import hashlib
import json
from contextlib import suppress
from typing import Any

import numpy as np

from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.data.stores.image_store import ImageStore

SAMPLE_SIZE = 64
"""How many images, spread evenly over the set, are also compared by their bytes."""
_MAX_BYTES = 2**20  # of each of them

SET_DESCRIPTIONS = {
    "train": "training images",
    "test": "test images",
    "control": "a control set",
    "reference": "reference pairs",
}


def images_identity(images: Images) -> dict[str, Any]:
    """The fingerprint of labeled images."""
    labels = hashlib.sha256(json.dumps(images.classes).encode() + images.labels.tobytes())
    if images.captions is not None:
        labels.update(images.captions.raw)
    return {
        "images": len(images),
        "classes": len(images.classes),
        "files": _fingerprint(images.store),
        "labels": labels.hexdigest(),
    }


def pairs_identity(pairs: Pairs) -> dict[str, Any]:
    """The fingerprint of images with captions."""
    captions = hashlib.sha256(pairs.captions.raw).hexdigest()
    return {"images": len(pairs), "files": _fingerprint(pairs.store), "labels": captions}


def _fingerprint(store: ImageStore) -> str:
    digest = hashlib.sha256()
    for identifier in store.identifiers(np.arange(len(store))):
        digest.update(len(identifier).to_bytes(4, "little") + identifier)
    sample = np.linspace(0, len(store) - 1, min(SAMPLE_SIZE, len(store))).astype(np.int64)
    for index in np.unique(sample):
        with suppress(OSError):  # an unreadable file has an identifier, and is reported later
            digest.update(hashlib.sha256(store.leading_bytes(int(index), _MAX_BYTES)).digest())
    return digest.hexdigest()


def describe_difference(
    kind: str, before: dict[str, Any] | None, now: dict[str, Any] | None
) -> str:
    """How a set differs from the one that a run started with, in words; "" if it does not.

    The words follow "the run was started". `kind` is a key of `SET_DESCRIPTIONS`.
    """
    if before == now:
        return ""
    description = SET_DESCRIPTIONS[kind]
    if before is None or now is None:
        return (
            f"without {description}"
            if before is None
            else f"with {description}, and there is none now"
        )
    counts = [
        f"{before[key]:,} {key} then, {now[key]:,} now"
        for key in ("images", "classes")
        if before.get(key) != now.get(key)
    ]
    if counts:
        difference = counts[0]
    elif before["files"] != now["files"]:
        difference = "as many as now, but not the same"
    else:
        difference = "the same images, but with other labels or names"
    return f"with other {description.removeprefix('a ')} ({difference})"
