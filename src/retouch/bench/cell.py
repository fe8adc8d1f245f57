"""A cell of a table: one row, data set and seed, run into a folder of its own."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.files import checksummed
from retouch.files.checksummed import Count, Document
from retouch.methods import Method, Settings, recipe
from retouch.train.run_folder.files import delete_weights

MOST_NAMED = 6
"""With more seeds than this, a text does not name each."""
FILE, DONE = "cell.json", "done.json"
REMEDY = "delete the cell's folder, and the same command runs it again"


class AnyDocument(BaseModel):
    """A document that is only compared with another."""

    model_config = ConfigDict(extra="allow")


class ExtraNeeds(Document):
    """What a method needs besides the images of its tasks."""

    reference_data: bool
    """Images with captions."""
    copies_of_weights: Count
    """Of the whole model, in memory."""


class CellRecord(Document):
    """What a finished cell took."""

    seconds: Annotated[float, Field(ge=0)]
    peak_memory_bytes: Count | None
    """Of a GPU."""
    extra: ExtraNeeds
    all_images: bool
    """Whether its data sets had all images that they should have."""


@dataclass(frozen=True)
class Cell:
    """What is run for one cell."""

    row: str
    method: str
    dataset: str
    seed: int
    model: str
    tasks: int
    control: str | None
    change: dict[str, Any]
    settings: dict[str, Any]
    datasets: tuple[str, ...] = ()
    """The data sets of a stream of several, which is called `dataset`."""
    stream: dict[str, Any] = field(default_factory=dict)
    """How they are joined: fields of `StreamOptions`."""
    differs: list[str] = field(default_factory=list, compare=False)
    """How this differs from the paper's setting."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The data sets that it needs."""
        return self.datasets or (self.dataset,)

    @property
    def total_tasks(self) -> int:
        """The number of tasks of its stream."""
        return self.tasks * len(self.sources)

    @property
    def recipe(self) -> Method:
        return recipe(self.method, self.change)

    @property
    def training(self) -> Settings:
        """Its settings. All control images are checked after each task, as numbers are compared."""
        return Settings(**{"control_part": "all", **self.settings, "seed": self.seed})

    @property
    def title(self) -> str:
        """A name that is unique in a suite."""
        return f"{self.row}, {self.dataset}, seed {self.seed}"

    def folder(self, out: Path) -> Path:
        lr = f" lr={self.settings['lr']:g}" if "@" in self.row else ""
        names = self.row.split("@")[0] + lr, self.dataset
        row, data = (re.sub(r"[^A-Za-z0-9.+=-]+", "-", name).strip("-") for name in names)
        return out / "cells" / row / data / f"seed-{self.seed}"

    def run(self, out: Path) -> Path:
        """The folder of its training run."""
        return self.folder(out) / "run"

    def begin(self, out: Path) -> Path:
        """Write what will be run, and return the folder of the training run."""
        folder = self.folder(out)
        folder.mkdir(parents=True, exist_ok=True)
        checksummed.write_json(folder / FILE, self._description())
        return self.run(out)

    def finished(self, out: Path) -> Results | None:
        """The results, if exactly this cell was run to its end before."""
        folder = self.folder(out)
        if not (folder / FILE).is_file():
            return None
        stored = checksummed.read(folder / FILE, AnyDocument, REMEDY)
        if stored.model_extra != json.loads(json.dumps(self._description())):
            raise UserError(
                f"{folder} holds a cell with other settings; delete it, or choose another "
                "output folder",
                argument="out=…",
            )
        if not (folder / DONE).is_file():
            return None
        results = Results.read(self.run(out))
        return results if results.finished else None

    def end(self, out: Path, record: CellRecord) -> None:
        """Mark it as finished, with a record of what it took."""
        checksummed.write_json(self.folder(out) / DONE, record.model_dump())

    def record(self, out: Path) -> CellRecord:
        """The record of a finished cell."""
        return checksummed.read(self.folder(out) / DONE, CellRecord, REMEDY)

    def drop_weights(self, out: Path) -> None:
        """Delete deltas and checkpoints of a finished run; its results stay."""
        delete_weights(self.run(out))

    def _description(self) -> dict[str, Any]:
        description = asdict(self)
        left_out = {"differs"} if self.datasets else {"differs", "datasets", "stream"}
        return {key: value for key, value in description.items() if key not in left_out}


def seeds_text(seeds: Sequence[int]) -> str:
    """Such as "seed 0", "seeds 1, 2, 3" or "seeds 0 to 9"."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    first, last = min(seeds), max(seeds)
    if len(seeds) > MOST_NAMED and last - first + 1 == len(set(seeds)):
        return f"seeds {first} to {last}"
    return f"seeds {', '.join(map(str, seeds))}"
