"""A published benchmark: what is known of it (`facts/NAME.yaml`), and how it is read from disk."""

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

from retouch.data.image_store import ImageStore, SubsetStore
from retouch.data.images import Images
from retouch.data.sources import webdataset
from retouch.data.splits import Splits
from retouch.data.text_files import read_lines
from retouch.errors import UserError

Part = tuple[ImageStore, Sequence[str]]
"""Pictures, and the class of each as it is written on disk."""


class Facts(BaseModel, extra="forbid", frozen=True):
    """Where a benchmark comes from, what it holds, and what its classes are called."""

    title: str
    get: str
    """The page to get it from."""
    folders: tuple[str, ...]
    """What its folder may be called."""
    images: dict[Literal["train", "test"], int]
    also: dict[Literal["train", "test"], int] = {}
    """What another official version of it holds."""
    buffer: int | None = None
    """How many images the paper replays."""
    prompt: str
    templates: tuple[str, ...]
    classes: dict[str, str]
    """From a class as it is written on disk to its name in a prompt, in the official order."""

    @cached_property
    def _places(self) -> dict[str, int]:
        return {_letters(key): place for place, key in enumerate(self.classes)}

    def place(self, key: str) -> int:
        """The number of a class; capitals, spaces and punctuation make no difference."""
        try:
            return self._places[_letters(key)]
        except KeyError:
            raise UserError(
                f"{key!r} is no class of {self.title}; is this really that data set?"
            ) from None

    def arrange(self, train: Part | None, test: Part | None, notes: Sequence[str] = ()) -> Splits:
        """Labelled images from what a reader found; only classes that every part has."""
        parts = {"train": train, "test": test}
        places = {
            split: np.array([self.place(key) for key in part[1]], np.int64)
            for split, part in parts.items()
            if part is not None
        }
        common = sorted(set.intersection(*(set(p.tolist()) for p in places.values())))
        lost = sorted(set().union(*(p.tolist() for p in places.values())) - set(common))
        names = list(self.classes.values())
        said = [*notes, *(f"{self.title}: {names[i]!r} has no image in one part" for i in lost)]
        if len(common) < len(names):
            said.append(f"{self.title}: {len(common)} of {len(names)} classes are there")
        made = {}
        for split, found in places.items():
            part = parts[split]
            assert part is not None
            kept = np.flatnonzero(np.isin(found, common))
            made[split] = Images(
                f"{self.title} {split}",
                [names[i] for i in common],
                np.searchsorted(common, found[kept]),
                part[0] if len(kept) == len(found) else SubsetStore(part[0], kept),
                self.prompt,
                self.templates,
                notes=said,
            )
        return Splits(**made)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by its name: how it is read, and from which file its class names come."""

    name: str
    reader: Callable[[Path, Facts], Splits]
    marks: tuple[str, ...]
    """Files or folders, one of which is there if it is this benchmark."""
    like: str | None = None
    """Another benchmark that it differs from only by its class names."""

    @property
    def facts(self) -> Facts:
        return _facts(self.like or self.name, self.name)

    def places(self, root: Path) -> list[Path]:
        """Where it is looked for."""
        return [*(root / folder for folder in self.facts.folders), root]

    def find(self, root: Path) -> Path | None:
        """Its folder, if it is there: in its official form, or as CLIP_benchmark's shards."""
        for place in self.places(root):
            if place.is_dir() and (
                webdataset.recognises(place) or any((place / mark).exists() for mark in self.marks)
            ):
                return place
        return None

    def read(self, root: Path) -> Splits:
        folder = self.find(root) or self.refuse(root)
        if webdataset.recognises(folder):
            return _read_shards(folder, self.facts)
        try:
            return self.reader(folder, self.facts)
        except (KeyError, IndexError, AttributeError, TypeError, ValueError, OverflowError) as why:
            if isinstance(why, UserError):
                raise
            raise UserError(
                f"what lies in {folder} does not fit together as {self.facts.title} does "
                f"({type(why).__name__}: {why}); fetch it again from {self.facts.get}"
            ) from None

    def refuse(self, root: Path) -> NoReturn:
        """It is not there."""
        looked = ", ".join(map(str, self.places(root)))
        raise UserError(
            f"{self.facts.title} is not there (looked for {' or '.join(self.marks)} in {looked}); "
            f"get it from {self.facts.get} and say with --data-root where it lies"
        )


def _read_shards(folder: Path, facts: Facts) -> Splits:
    """As CLIP_benchmark packs it: classes in the official order, with the names in `facts`."""
    have = len(read_lines(folder / webdataset.CLASSES))
    if have != len(facts.classes):
        raise UserError(f"{folder} has {have} classes; {facts.title} has {len(facts.classes)}")
    return webdataset.read_as(
        folder, list(facts.classes.values()), prompt=facts.prompt, templates=facts.templates
    )


@cache
def _facts(name: str, classes: str) -> Facts:
    return Facts(**(_yaml(name) | {"classes": _yaml(classes)["classes"]}))


def _yaml(name: str) -> dict[str, Any]:
    text = (files("retouch.data") / "facts" / f"{name}.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


def _letters(key: str) -> str:
    return re.sub(r"[^a-z0-9]", "", key.lower())
