"""Images of several data sets as one: every class keeps its own data set's prompts."""

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from retouch.data.domain import Domain
from retouch.data.images import DEFAULT_TEMPLATE, Images
from retouch.data.stores.composite import ConcatStore
from retouch.data.string_array import StringArray
from retouch.errors import UserError


def join_images(sets: Mapping[str, Images]) -> Images:
    """The images of all sets, one set after the other, and so are their labels.

    A class whose name is in several sets is called after its set too: "lotus (flowers102)". In
    prompts it keeps its name.

    Args:
        sets: The images by the name of their data set. None may be joined already.
    """
    twins = shared_classes(sets)
    domains = tuple(_domain(name, images, twins) for name, images in sets.items())
    classes = [name for domain in domains for name in domain.classes]
    if len(set(classes)) < len(classes):
        raise UserError(
            f"two classes of {', '.join(sets)} would have the same name; rename one of them"
        )
    starts = np.cumsum([0, *(len(images.classes) for images in sets.values())])[:-1]
    parts = list(sets.values())
    labels = [images.labels + start for images, start in zip(parts, starts, strict=True)]
    captioned = any(images.captions is not None for images in parts)
    prompt, templates = _shared_prompts(parts)
    return Images(
        name=", ".join(dict.fromkeys(images.name for images in parts)),
        classes=classes,
        labels=np.concatenate(labels),
        store=reduce(ConcatStore, [images.store for images in parts]),
        prompt=prompt,
        templates=templates,
        captions=_captions(parts) if captioned else None,
        notes=list(dict.fromkeys(note for images in parts for note in images.notes)),
        domains=domains,
    )


def shared_classes(sets: Mapping[str, Images]) -> dict[str, list[str]]:
    """The class names that several sets have, each with the names of these sets."""
    owners: dict[str, list[str]] = {}
    for name, images in sets.items():
        for class_name in images.classes:
            owners.setdefault(class_name, []).append(name)
    return {class_name: names for class_name, names in owners.items() if len(names) > 1}


def twins_note(sets: Mapping[str, Images], choices: str, twins: str) -> str:
    """What becomes of classes that two data sets have; "" if there are none."""
    shared = shared_classes(sets)
    if not shared:
        return ""
    (first, owners), *_ = shared.items()
    more = f" (and {len(shared) - 1} more)" if len(shared) > 1 else ""
    if choices == "domain":
        handled = "an image is classified among the classes of its own data set"
    elif twins == "merge":
        handled = "they count as one class in evaluation"
    else:
        handled = "they count as different classes, told apart by their prompts alone"
    return f"{first!r}{more} is a class of {' and of '.join(owners)}: {handled}"


def _domain(name: str, images: Images, twins: Mapping[str, Sequence[str]]) -> Domain:
    classes = {f"{each} ({name})" if each in twins else each: each for each in images.classes}
    return Domain(name, classes, images.prompt, tuple(images.templates))


def _captions(parts: Sequence[Images]) -> StringArray:
    return StringArray(text for images in parts for text in (images.captions or [""] * len(images)))


def _shared_prompts(parts: Sequence[Images]) -> tuple[str, tuple[str, ...]]:
    """Prompt and templates, if all sets have the same; else the default ones."""
    prompts = {(images.prompt, tuple(images.templates)) for images in parts}
    return prompts.pop() if len(prompts) == 1 else (DEFAULT_TEMPLATE, (DEFAULT_TEMPLATE,))
