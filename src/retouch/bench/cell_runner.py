"""Running a single cell: what a worker process needs of a bench, and nothing else."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from retouch.bench.cell import Cell, CellRecord, ExtraNeeds
from retouch.bench.datasets import BenchData
from retouch.bench.engines.events import CellResult
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.train import Callback, teach


@dataclass
class CellRunner:
    """Runs cells into a folder. It is pickled and sent to worker processes."""

    data: BenchData
    out: Path
    keep_deltas: bool = False
    checkpoints: bool = True
    evaluate_each_task: bool = True

    def run(self, cell: Cell, callback: Callback | None = None) -> None:
        """Run a cell to its end, in this process."""
        plan = self.data.plan(cell)
        clip = plan.clip
        cuda = clip.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(clip.device)
        began = time.monotonic()
        folder = cell.begin(self.out) if collectives.is_rank0() else cell.run(self.out)
        results = teach(
            plan,
            out=folder if self.checkpoints else None,
            callback=callback,
            per_class=False,
            evaluate_each_task=self.evaluate_each_task,
        )
        if collectives.is_rank0():
            if not self.checkpoints:
                folder.mkdir(exist_ok=True)
                results.write(folder)
            peak = torch.cuda.max_memory_allocated(clip.device) if cuda else None
            cell.end(self.out, self.record(cell, began, peak))
            if not self.keep_deltas:
                cell.drop_weights(self.out)

    def record(self, cell: Cell, began: float, peak_memory: int | None = None) -> CellRecord:
        """What a cell took that began at this time, by the monotonic clock."""
        method = cell.recipe
        needs = ExtraNeeds(reference_data=method.needs_reference, copies_of_weights=method.copies)
        return CellRecord(
            seconds=round(time.monotonic() - began, 1),
            peak_memory_bytes=peak_memory,
            extra=needs,
            all_images=self._has_all_images(cell),
        )

    def _has_all_images(self, cell: Cell) -> bool:
        bounded = cell.stream.get("test_images") is not None
        return not bounded and all(map(self.data.has_all_images, cell.sources))

    def finished(self, cell: Cell) -> CellResult | None:
        """The results of a cell, if it was run to its end."""
        results = cell.finished(self.out)
        if results is None:
            return None
        if self.keep_deltas and not (cell.run(self.out) / "deltas").is_dir():
            raise UserError(
                f"{cell.folder(self.out)} was finished without keep_deltas, so its deltas are not "
                "there; delete it to run it again, choose another output folder, or leave "
                "keep_deltas out"
            )
        return CellResult(cell, results, cell.record(self.out).all_images)
