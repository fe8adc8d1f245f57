"""A published benchmark: its metadata (`facts/NAME.yaml`), and how it is read from disk."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import yaml
from pydantic import BaseModel

from retouch.data.composite_stores import SubsetStore
from retouch.data.image_store import ImageStore
from retouch.data.images import Images
from retouch.data.sources import webdataset
from retouch.data.splits import Splits
from retouch.data.text_files import read_lines
from retouch.errors import UserError

Part = tuple[ImageStore, Sequence[str]]
"""The images of a split, and each one's class as the files on disk spell it."""


class DatasetFacts(BaseModel, extra="forbid", frozen=True):
    """Where a benchmark comes from, what it contains, and what its classes are called."""

    title: str
    url: str
    """The page to download it from."""
    folders: tuple[str, ...]
    """The names that its folder may have."""
    images: dict[Literal["train", "test"], int]
    """How many images each split has."""
    alternate_images: dict[Literal["train", "test"], int] = {}
    """How many images another official version has."""
    buffer_size: int | None = None
    """How many images the paper replays."""
    prompt: str
    templates: tuple[str, ...]
    classes: dict[str, str]
    """From a class as the files on disk spell it to its name in prompts, in the official order."""

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

    def make_splits(
        self, train: Part | None, test: Part | None, notes: Sequence[str] = ()
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


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by its name: how it is read, and which file its class names come from."""

    name: str
    reader: Callable[[Path, DatasetFacts], Splits]
    marker_paths: tuple[str, ...]
    """Files or folders; one of them exists in a folder that holds this benchmark."""
    variant_of: str | None = None
    """Another benchmark that differs only in its class names."""

    @property
    def facts(self) -> DatasetFacts:
        return _read_facts(self.variant_of or self.name, self.name)

    def candidate_folders(self, root: Path) -> list[Path]:
        """Where to look for it."""
        return [*(root / folder for folder in self.facts.folders), root]

    def find(self, root: Path) -> Path | None:
        """Its folder, if it exists, in the official layout or as CLIP_benchmark's shards."""
        for folder in self.candidate_folders(root):
            if folder.is_dir() and (
                webdataset.matches(folder)
                or any((folder / marker).exists() for marker in self.marker_paths)
            ):
                return folder
        return None

    def read(self, root: Path) -> Splits:
        folder = self.find(root) or self.raise_not_found(root)
        if webdataset.matches(folder):
            return _read_shards(folder, self.facts)
        try:
            return self.reader(folder, self.facts)
        except (KeyError, IndexError, AttributeError, TypeError, ValueError, OverflowError) as why:
            if isinstance(why, UserError):
                raise
            raise UserError(
                f"the files in {folder} are not consistent with each other as those of "
                f"{self.facts.title} are ({type(why).__name__}: {why}); download it again from "
                f"{self.facts.url}"
            ) from None

    def raise_not_found(self, root: Path) -> NoReturn:
        folders = ", ".join(map(str, self.candidate_folders(root)))
        raise UserError(
            f"{self.facts.title} was not found (looked for {' or '.join(self.marker_paths)} in "
            f"{folders}); download it from {self.facts.url}, and set RETOUCH_DATA to the folder "
            "that holds it"
        )


def _read_shards(folder: Path, facts: DatasetFacts) -> Splits:
    """CLIP_benchmark's shards: classes in the official order, with the names in `facts`."""
    count = len(read_lines(folder / webdataset.CLASSES_FILE))
    if count != len(facts.classes):
        raise UserError(f"{folder} has {count} classes; {facts.title} has {len(facts.classes)}")
    return webdataset.read_with_classes(
        folder, list(facts.classes.values()), prompt=facts.prompt, templates=facts.templates
    )


@cache
def _read_facts(name: str, classes: str) -> DatasetFacts:
    return DatasetFacts(**(_read_yaml(name) | {"classes": _read_yaml(classes)["classes"]}))


def _read_yaml(name: str) -> dict[str, Any]:
    text = (files("retouch.data") / "facts" / f"{name}.yaml").read_text("utf-8")
    content: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content


def _normalized(key: str) -> str:
    return re.sub(r"[^a-z0-9]", "", key.lower())
