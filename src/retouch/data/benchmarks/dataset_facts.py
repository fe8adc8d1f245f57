"""What is known about a published benchmark: `facts/NAME.yaml`."""

import re
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel

from retouch.data.images import Images
from retouch.data.splits import Splits
from retouch.data.stores.composite import SubsetStore
from retouch.data.stores.image_store import ImageStore
from retouch.errors import UserError

SplitImages = tuple[ImageStore, Sequence[str]]
"""The images of a split, and each one's class as the files on disk spell it."""
ImageCounts = dict[Literal["train", "test"], int]
LEFT_OUT = -1
"""In place of a label: images of this class are not used."""
_UNKNOWN = -2


class SplitFacts(BaseModel, extra="forbid", frozen=True):
    """One of several ways to split a benchmark into training and test images."""

    images: ImageCounts
    """How many images each part has."""
    without: tuple[str, ...] = ()
    """The classes that it does not have, as the files on disk spell them."""


class DatasetFacts(BaseModel, extra="forbid", frozen=True):
    """Where a benchmark comes from, what it contains, and what its classes are called."""

    title: str
    url: str
    """The page to download it from."""
    folders: tuple[str, ...]
    """The names that its folder may have."""
    images: ImageCounts
    """How many images each split has."""
    alternate_images: ImageCounts = {}
    """How many images another official version has."""
    splits: dict[str, SplitFacts] = {}
    """The splits to choose from, by name; the first is the default. Empty if there is one only."""
    split: str = ""
    """Which of `splits` this is; "" if there is no choice."""
    buffer_size: int | None = None
    """How many images the paper replays."""
    prompt: str
    templates: tuple[str, ...]
    classes: dict[str, str]
    """From a class as the files on disk spell it to its name in prompts, in the official order."""
    left_out: tuple[str, ...] = ()
    """Folders that look like classes but are not, and what shards call them."""
    aliases: dict[str, str] = {}
    """Other names that shards give to classes, and the class as the files on disk spell it."""

    @cached_property
    def _labels(self) -> dict[str, int]:
        return {_normalized(key): label for label, key in enumerate(self.classes)}

    def label_of(self, key: str) -> int:
        """The label of a class; capitals, spaces and punctuation make no difference."""
        try:
            return self._labels[_normalized(key)]
        except KeyError:
            raise UserError(
                f"{key!r} is not a class of {self.title}; is this really that data set?"
            ) from None

    def match_names(self, names: Sequence[str], source: str) -> list[int]:
        """The label of each class that shards list, or `LEFT_OUT`.

        They are matched by name if all of them are known, and otherwise by their order.
        """
        known = self._labels | {
            _normalized(name): label for label, name in enumerate(self.classes.values())
        }
        known |= {_normalized(name): self.label_of(key) for name, key in self.aliases.items()}
        known |= {_normalized(name): LEFT_OUT for name in self.left_out}
        labels = [known.get(_normalized(name), _UNKNOWN) for name in names]
        in_order = list(range(len(self.classes)))
        if sorted(label for label in labels if label != LEFT_OUT) == in_order:
            return labels
        if len(names) != len(self.classes):
            raise UserError(
                f"{source} has {len(names)} classes; {self.title} has {len(self.classes)}"
            )
        matched = [(i, label) for i, label in enumerate(labels) if label >= 0]
        if 2 * sum(i != label for i, label in matched) > len(matched):
            unmatched = names[labels.index(_UNKNOWN)] if _UNKNOWN in labels else names[0]
            raise UserError(
                f"{source} lists its classes in another order than {self.title} has them, and "
                f"{unmatched!r} cannot be matched by its name; is this really that data set?"
            )
        return in_order

    def make_splits(
        self, train: SplitImages | None, test: SplitImages | None, notes: Sequence[str] = ()
    ) -> Splits:
        """Labelled images from what a reader read; only the classes that every split has."""
        parts = {"train": train, "test": test}
        labels = {
            split: np.array([self.label_of(key) for key in part[1]], np.int64)
            for split, part in parts.items()
            if part is not None
        }
        common = sorted(set.intersection(*(set(split.tolist()) for split in labels.values())))
        dropped = sorted(set().union(*(split.tolist() for split in labels.values())) - set(common))
        names = list(self.classes.values())
        notes = [
            *notes,
            *(f"{self.title}: {names[i]!r} has no image in one split" for i in dropped),
        ]
        if len(common) < len(names):
            notes.append(f"{self.title}: {len(common)} of {len(names)} classes found")
        images = {}
        for split, split_labels in labels.items():
            part = parts[split]
            assert part is not None
            usable = np.flatnonzero(np.isin(split_labels, common))
            images[split] = Images(
                f"{self.title} {split}",
                [names[i] for i in common],
                np.searchsorted(common, split_labels[usable]),
                part[0] if len(usable) == len(split_labels) else SubsetStore(part[0], usable),
                self.prompt,
                self.templates,
                notes=notes,
            )
        return Splits(**images)


@cache
def read_facts(name: str, classes: str, split: str) -> DatasetFacts:
    """The facts in `NAME.yaml`, with the classes of `CLASSES.yaml`, for one of its splits.

    With "" for `split`, the default.
    """
    content = _read_yaml(name) | {"classes": _read_yaml(classes)["classes"]}
    if "splits" not in content:
        if split:
            raise UserError(f"{content['title']} has a single split; write {name}")
        return DatasetFacts(**content)
    splits: dict[str, Any] = content["splits"]
    chosen = split or next(iter(splits))
    if chosen not in splits:
        raise UserError(
            f"{name} has no split {chosen!r}; choose one of "
            + ", ".join(f"{name}:{other}" for other in splits)
        )
    for key in splits[chosen].get("without", ()):
        del content["classes"][key]
    title = content["title"] + (f" ({split})" if split else "")
    images = splits[chosen]["images"]
    return DatasetFacts(**(content | {"split": chosen, "images": images, "title": title}))


def _read_yaml(name: str) -> dict[str, Any]:
    text = (files("retouch.data.benchmarks") / "facts" / f"{name}.yaml").read_text("utf-8")
    content: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content


def _normalized(key: str) -> str:
    return re.sub(r"[^a-z0-9]", "", key.lower())
