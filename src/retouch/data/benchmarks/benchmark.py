"""A published benchmark: how it is found and read from disk."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from retouch.data.benchmarks.dataset_facts import LEFT_OUT, DatasetFacts, read_facts
from retouch.data.formats import webdataset
from retouch.data.formats.text_files import read_lines
from retouch.data.images import Images
from retouch.data.splits import Splits
from retouch.errors import UserError
from retouch.text.plural import count


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by its name: how it is read, and which file its class names come from."""

    name: str
    reader: Callable[[Path, DatasetFacts], Splits]
    marker_paths: tuple[str, ...]
    """Files or folders; one of them exists in a folder that holds this benchmark."""
    variant_of: str | None = None
    """Another benchmark that differs only in its class names."""
    split: str = ""
    """One of the splits in its facts; "" for the default."""

    @property
    def facts(self) -> DatasetFacts:
        return read_facts(self.variant_of or self.name, self.name, self.split)

    def with_split(self, split: str) -> "Benchmark":
        """The same with another split; an error if it does not have such a split."""
        benchmark = replace(self, split=split)
        _ = benchmark.facts
        return benchmark

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
            if self.split:
                raise UserError(
                    f"{folder} has shards, which are split already; the split {self.split!r} "
                    f"needs the official files of {self.facts.title}, and {self.name} alone reads "
                    "the shards"
                )
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
    """CLIP_benchmark's shards, with the classes of `facts` in their order, and their own split."""
    file = folder / webdataset.CLASSES_FILE
    names = read_lines(file)
    labels = np.array(facts.match_names(names, str(file)), np.int64)
    splits = webdataset.read_with_classes(
        folder, names, prompt=facts.prompt, templates=facts.templates
    )
    if facts.splits:
        note = f"{facts.title}: the split is that of the shards in {folder}"
        splits = splits.map(lambda images: replace(images, notes=[*images.notes, note]))
    return splits.map(lambda images: _relabeled(images, labels, list(facts.classes.values())))


def _relabeled(images: Images, labels: np.ndarray, classes: list[str]) -> Images:
    """Images whose label i becomes `labels[i]`, without those that are left out."""
    used = np.flatnonzero(labels[images.labels] != LEFT_OUT)
    notes = images.notes
    if len(used) < len(images):
        left_out = " and ".join(images.classes[i] for i in np.flatnonzero(labels == LEFT_OUT))
        number = count(len(images) - len(used), "image")
        notes = [*notes, f"{images.name}: left out {number} of {left_out}"]
        images = images.subset(used)
    return replace(images, labels=labels[images.labels], classes=classes, notes=notes)
