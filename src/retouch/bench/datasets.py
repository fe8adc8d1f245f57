"""What the cells of a suite are run on: models, streams and control sets, each opened once."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from retouch.bench.cell import Cell
from retouch.bench.joined import joined_stream
from retouch.builtin import source as builtin
from retouch.clip import Clip, load
from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Pairs, Splits, Stream, read_control, read_data, read_pairs
from retouch.data.cache.images import decoded
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.registry import data_set_names, find_benchmark, packaged_source
from retouch.train.plan import Plan, plan_stream

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
                few = packaged_source(source) if self.small else None
                splits = few.read_few(source) if few else self._open(source)
                splits = splits.map(self._prepared)
                # A published split is what it is; its duplicates are no note on a cell.
                published = (splits.train, splits.test) if splits.train and splits.test else None
                self._splits[source] = published or splits.train_and_test()
        if cell.datasets:
            names = data_set_names(cell.datasets)
            sets = {n: self._splits[s] for n, s in zip(names, cell.datasets, strict=True)}
            return joined_stream(sets, cell.stream, cell.tasks, cell.seed)
        train, test = self._splits[cell.dataset]
        return Stream.split(train, test, tasks=cell.tasks, order=cell.seed)

    def _open(self, source: str) -> Splits:
        return read_data(source, self.data_root)

    def control(self, name: str | None) -> Images | None:
        if name is None:
            return None
        if name not in self._controls:
            self._controls[name] = (
                builtin.demo_control(self.small)
                if packaged_source(name)
                else self._prepared(read_control(name, self.data_root))
            )
        return self._controls[name]

    @cached_property
    def pairs(self) -> Pairs | None:
        """Images with captions, like those of the pre-training."""
        if self.reference is None:
            return None
        few = self.small and packaged_source(self.reference)
        return builtin.few_pairs() if few else read_pairs(self.reference)

    def plan(self, cell: Cell, clip: Clip | None = None) -> Plan:
        """The plan of a cell, with a model of its own unless one is given."""
        return plan_stream(
            clip or self.make_model(),
            self.stream(cell),
            cell.recipe,
            settings=cell.training,
            control=self.control(cell.control),
            reference=self.pairs if cell.recipe.needs_reference else None,
            store_images=False,  # a cell is compared with others, never continued
        )

    def prepare(self, cells: Sequence[Cell]) -> None:
        """Find what is missing before anything is run, and decode images once for all cells.

        Built-in pictures are made where they are used.
        """
        if not cells:
            return
        _ = self.preprocess  # fails if there is no such model
        for cell in {(cell.dataset, cell.tasks): cell for cell in cells}.values():
            if not all(map(packaged_source, cell.sources)):
                self.stream(cell)
        for name in {cell.control for cell in cells}:
            if name is not None and not packaged_source(name):
                self.control(name)
        needed = any(cell.recipe.needs_reference for cell in cells)
        if needed and self.reference is not None and not packaged_source(self.reference):
            _ = self.pairs

    def has_all_images(self, dataset: str) -> bool:
        """Whether the whole data set is used; its size is known only for benchmarks."""
        if packaged_source(dataset):
            return not self.small
        if not (benchmark := find_benchmark(dataset)):
            return True
        train, test = self._splits[dataset]
        counts = benchmark.facts.images
        return (len(train), len(test)) == (counts.get("train"), counts.get("test"))

    def _prepared(self, images: Images) -> Images:
        prepared = decoded(
            images,
            self.preprocess,
            self.cache,
            use_cache=self.use_cache,
            skip_bad=self.skip_bad,
            progress=self.progress,
        )
        for note in prepared.notes[len(images.notes) :]:
            log.warning("%s", note)
        return prepared


def model_maker(name: str, device: str) -> Callable[[], Clip]:
    """Loads a new model for every cell, so that no cell starts from another's."""
    return partial(load, name, device=device, light=True)
