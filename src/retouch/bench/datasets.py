"""What the cells of a suite are run on: models, streams, control sets, each read once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from retouch.bench.cell import Cell
from retouch.builtin.images import control_images, sign_images, world_pairs
from retouch.clip import Clip, load
from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Pairs, Splits, Stream, cached, read_data, read_pairs
from retouch.data.cache import Progress, drop_unreadable, no_progress
from retouch.data.registry import BENCHMARKS


@dataclass
class BenchData:
    """Opens data sets by name; `builtin` are the pictures that come with the package."""

    make_model: Callable[[], Clip]
    data_root: Path | None = None
    cache: Path | None = None
    reference: str | None = None
    use_cache: bool = True
    skip_bad: bool = False
    small: bool = False
    """Few pictures of each class, for a quick look."""
    progress: Progress = no_progress
    _splits: dict[str, tuple[Images, Images]] = field(default_factory=dict)
    _controls: dict[str, Images] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: it opens models and data itself."""
        own = {"_splits": {}, "_controls": {}, "progress": no_progress}
        opened = ("pixels", "pairs")
        return {key: value for key, value in (vars(self) | own).items() if key not in opened}

    @cached_property
    def pixels(self) -> Preprocess:
        return self.make_model().preprocess

    def stream(self, cell: Cell) -> Stream:
        """The data set in tasks; the seed also decides the order of the classes."""
        if cell.dataset not in self._splits:
            self._splits[cell.dataset] = self._open(cell.dataset).map(self._ready).train_and_test()
        train, test = self._splits[cell.dataset]
        return Stream.split(train, test, tasks=cell.tasks, order=cell.seed)

    def control(self, name: str | None) -> Images | None:
        if name is None:
            return None
        if name not in self._controls:
            if name == "builtin":
                self._controls[name] = _few(control_images(1)) if self.small else control_images(4)
            else:
                self._controls[name] = self._ready(
                    read_data(name, self.data_root).evaluation_images()
                )
        return self._controls[name]

    @cached_property
    def pairs(self) -> Pairs | None:
        """Images with captions of what the model knew."""
        if self.reference == "builtin":
            return world_pairs(64 if self.small else 512)
        return None if self.reference is None else read_pairs(self.reference)

    def prepare(self, cells: Sequence[Cell]) -> None:
        """Find what is missing before anything is run, and decode images once, for all cells.

        What comes with the package is read where it is needed.
        """
        if not cells:
            return
        _ = self.pixels  # no such model?
        for cell in {(cell.dataset, cell.tasks): cell for cell in cells}.values():
            if cell.dataset != "builtin":
                self.stream(cell)
        for name in {cell.control for cell in cells} - {"builtin"}:
            self.control(name)
        if self.reference != "builtin" and any(cell.recipe.needs_reference for cell in cells):
            _ = self.pairs

    def is_whole(self, dataset: str) -> bool:
        """Whether all images are used; how many there should be is known of benchmarks alone."""
        if dataset == "builtin":
            return not self.small
        if dataset not in BENCHMARKS:
            return True
        train, test = self._splits[dataset]
        wanted = BENCHMARKS[dataset].facts.images
        return (len(train), len(test)) == (wanted.get("train"), wanted.get("test"))

    def _open(self, dataset: str) -> Splits:
        if dataset == "builtin":
            each = (6, 2) if self.small else (40, 16)
            return Splits(sign_images("train", each[0]), sign_images("test", each[1]))
        return read_data(dataset, self.data_root)

    def _ready(self, images: Images) -> Images:
        if not self.use_cache:
            return drop_unreadable(images, self.pixels, self.progress) if self.skip_bad else images
        return cached(
            images, self.pixels, self.cache, skip_bad=self.skip_bad, progress=self.progress
        )


def _few(images: Images, classes: int = 20) -> Images:
    """The first classes alone, with a single template."""
    kept = images.subset(images.of_classes(range(classes)))
    return replace(kept, classes=images.classes[:classes], templates=images.templates[:1])


def model_maker(name: str, device: str) -> Callable[[], Clip]:
    """Loads a model anew for every cell, so that none learns from another."""
    return partial(load, name, device=device)
