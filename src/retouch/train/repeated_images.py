"""Images of a continued run that the earlier run had already, on the other side of its split."""

from collections.abc import Collection, Iterator

from retouch.clip.preprocess import Preprocess
from retouch.data.cache.images import chunks
from retouch.data.images import Images
from retouch.plural import count
from retouch.train.run_folder.images import StoredImages

MAX_COMPARED = 20_000
"""Of more images of known classes, none are compared: that would take too long."""


def repeated_images_note(
    stored: StoredImages, train: Images, test: Images, preprocess: Preprocess
) -> str | None:
    """What to say if an image is both learned from and tested on, in either of the two runs.

    Only classes that both runs have are compared, by their pixels.

    Args:
        stored: The images that the earlier run stored: some of those that it had.
        train: The new images to learn from.
        test: The new images to evaluate on.
        preprocess: How the model takes images, which is how they are stored.
    """
    now_tested = _matches(stored.replay, test, preprocess)
    now_learned = _matches(stored.test, train, preprocess)
    parts = [
        f"tests on {count(now_tested, 'image')} that the earlier run learned from",
        f"learns from {count(now_learned, 'image')} that the earlier run tested on",
    ]
    found = [part for part, number in zip(parts, (now_tested, now_learned), strict=True) if number]
    if not found:
        return None
    return (
        f"{train.name}: this run {' and '.join(found)}, so its accuracy looks better than it is. "
        "There may be more, for only some images of a run are stored. Give only new images"
    )


def _matches(earlier: Images, new: Images, preprocess: Preprocess) -> int:
    """How many of the new images equal an earlier one, among the classes that both have."""
    common = set(earlier.classes) & set(new.classes)
    earlier, new = _of_classes(earlier, common), _of_classes(new, common)
    if not 0 < len(new) <= MAX_COMPARED:
        return 0
    seen = set(_pixel_hashes(earlier, preprocess))
    return sum(pixels in seen for pixels in _pixel_hashes(new, preprocess))


def _of_classes(images: Images, names: Collection[str]) -> Images:
    labels = [label for label, name in enumerate(images.classes) if name in names]
    return images.subset(images.of_classes(labels))


def _pixel_hashes(images: Images, preprocess: Preprocess) -> Iterator[int]:
    for chunk in chunks(len(images)):
        yield from (hash(pixels.tobytes()) for pixels in images.read(chunk, preprocess))
