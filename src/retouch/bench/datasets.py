"""What the cells of a suite are run on: models, streams and control sets, each opened once."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from retouch.bench.cell import Cell
from retouch.bench.joined import joined_stream
from retouch.builtin.demo_settings import demo_settings
from retouch.builtin.domains import domain_images
from retouch.builtin.images import control_images, world_pairs
from retouch.clip import Clip, load
from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Pairs, Splits, Stream, cached, read_data, read_pairs
from retouch.data.cache.images import drop_unreadable
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.registry import BUILTIN, data_set_names, find_benchmark

log = logging.getLogger("retouch")


@dataclass
class BenchData:
    """Opens data sets by name; `builtin` are the pictures that come with the package.

    Args:
        make_model: Loads the model, a new one for every cell.
        data_root: Where benchmarks are stored.
        cache: Where decoded images are stored.
        reference: Images with captions, for methods that need them.
        use_cache: Decode images once, not every time they are used.
        skip_bad: Skip images that cannot be read.
        small: Few pictures of each class, for a quick look at `builtin`.
        progress: Shows the progress of decoding.
    """

    make_model: Callable[[], Clip]
    data_root: Path | None = None
    cache: Path | None = None
    reference: str | None = None
    use_cache: bool = True
    skip_bad: bool = False
    small: bool = False
    progress: Progress = no_progress
    _splits: dict[str, tuple[Images, Images]] = field(default_factory=dict)
    _controls: dict[str, Images] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: it opens models and data itself."""
        fresh = {"_splits": {}, "_controls": {}, "progress": no_progress}
        cached = ("preprocess", "pairs")
        return {key: value for key, value in (vars(self) | fresh).items() if key not in cached}

    @cached_property
    def preprocess(self) -> Preprocess:
        return self.make_model().preprocess

    def stream(self, cell: Cell) -> Stream:
        """The data set split into tasks; the seed also sets the order of the classes."""
        for source in cell.sources:
            if source not in self._splits:
                splits = self._open(source).map(self._prepared)
                # A published split is what it is; its duplicates are no note on a cell.
                published = (splits.train, splits.test) if splits.train and splits.test else None
                self._splits[source] = published or splits.train_and_test()
        if cell.datasets:
            names = data_set_names(cell.datasets)
            sets = {n: self._splits[s] for n, s in zip(names, cell.datasets, strict=True)}
            return joined_stream(sets, cell.stream, cell.tasks, cell.seed)
        train, test = self._splits[cell.dataset]
        return Stream.split(train, test, tasks=cell.tasks, order=cell.seed)

    def control(self, name: str | None) -> Images | None:
        if name is None:
            return None
        if name not in self._controls:
            if name == "builtin":
                self._controls[name] = self._builtin_control()
            else:
                images = read_data(name, self.data_root).evaluation_images()
                self._controls[name] = self._prepared(images)
        return self._controls[name]

    @cached_property
    def pairs(self) -> Pairs | None:
        """Images with captions, like those of the pre-training."""
        if self.reference == "builtin":
            return world_pairs(64 if self.small else 512)
        return None if self.reference is None else read_pairs(self.reference)

    def prepare(self, cells: Sequence[Cell]) -> None:
        """Find what is missing before anything is run, and decode images once for all cells.

        Built-in pictures are made where they are used.
        """
        if not cells:
            return
        _ = self.preprocess  # fails if there is no such model
        for cell in {(cell.dataset, cell.tasks): cell for cell in cells}.values():
            if not all(map(_is_builtin, cell.sources)):
                self.stream(cell)
        for name in {cell.control for cell in cells} - {"builtin"}:
            self.control(name)
        if self.reference != "builtin" and any(cell.recipe.needs_reference for cell in cells):
            _ = self.pairs

    def has_all_images(self, dataset: str) -> bool:
        """Whether the whole data set is used; its size is known only for benchmarks."""
        if _is_builtin(dataset):
            return not self.small
        if not (benchmark := find_benchmark(dataset)):
            return True
        train, test = self._splits[dataset]
        counts = benchmark.facts.images
        return (len(train), len(test)) == (counts.get("train"), counts.get("test"))

    def _open(self, dataset: str) -> Splits:
        if _is_builtin(dataset):
            name = dataset.removeprefix("builtin").removeprefix(":") or "signs"
            pictures = demo_settings().pictures
            train, test = (6, 2) if self.small else (pictures.train, pictures.test)
            return Splits(domain_images(name, "train", train), domain_images(name, "test", test))
        return read_data(dataset, self.data_root)

    def _builtin_control(self) -> Images:
        if not self.small:
            return control_images(demo_settings().pictures.control)
        images, classes = control_images(1), 20
        subset = images.subset(images.of_classes(range(classes)))
        return replace(subset, classes=images.classes[:classes], templates=images.templates[:1])

    def _prepared(self, images: Images) -> Images:
        if self.use_cache:
            prepared = cached(
                images, self.preprocess, self.cache, skip_bad=self.skip_bad, progress=self.progress
            )
        elif self.skip_bad:
            prepared = drop_unreadable(images, self.preprocess, self.progress)
        else:
            return images
        for note in prepared.notes[len(images.notes) :]:
            log.warning("%s", note)
        return prepared


def _is_builtin(dataset: str) -> bool:
    return dataset == "builtin" or dataset.startswith(BUILTIN)


def model_maker(name: str, device: str) -> Callable[[], Clip]:
    """Loads a new model for every cell, so that no cell starts from another's."""
    return partial(load, name, device=device, light=True)
