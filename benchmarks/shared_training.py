"""A bench that trains once for rows that differ only in what happens to the weights at the end.

Full fine-tuning with WiSE-FT trains as if nothing were interpolated. So where the same cell without
it was run before in this process, that cell's weights are interpolated and evaluated, which takes a
second or two. Where a method selects weights for each task, those outside the selection stay
interpolated during the task, so such cells are trained on their own.
"""

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from stored_cells import StoredCells
from torch import Tensor

from retouch.bench import Bench
from retouch.bench.cell import Cell
from retouch.bench.cell_runner import CellRunner
from retouch.bench.engines.events import CellResult
from retouch.clip import Clip
from retouch.evaluate import Results
from retouch.evaluate.evaluator import Evaluator
from retouch.methods import AfterTask
from retouch.methods.after_task.merging import Interpolate
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.train import Callback

Trained = dict[Hashable, tuple[Results, dict[str, Tensor]]]
"""Results and final weights of cells that merge nothing, by what they were trained with."""


class SharedModel:
    """The same model for every cell, with its pre-trained weights."""

    def __init__(self, clip: Clip) -> None:
        self.clip = clip
        self._weights = {name: t.clone() for name, t in clip.model.state_dict().items()}

    def __call__(self) -> Clip:
        self.clip.model.load_state_dict(self._weights)
        self.clip.model.requires_grad_(True)
        self.clip.class_vectors = None
        return self.clip


@dataclass
class SharedTrainingRunner(CellRunner):
    """Runs cells on a `SharedModel`, one after the other in this process."""

    trained: Trained = field(default_factory=dict)
    stored: StoredCells = field(default_factory=StoredCells)

    def finished(self, cell: Cell) -> CellResult | None:
        return super().finished(cell) or self.stored.find(cell)

    def run(self, cell: Cell, callback: Callback | None = None) -> None:
        if not isinstance(cell.recipe.update, FullFinetune):
            super().run(cell, callback)
            return
        after_task, key = cell.recipe.after_task, _training(cell)
        if isinstance(after_task, Interpolate) and key in self.trained:
            self._interpolate(cell, *self.trained[key], after_task.alpha)
            return
        super().run(cell, callback)
        if type(after_task) is AfterTask:
            weights = self.data.make_model.clip.model.state_dict()
            results = Results.read(cell.run(self.out))
            self.trained[key] = results, {n: t.to("cpu", copy=True) for n, t in weights.items()}

    def _interpolate(
        self, cell: Cell, results: Results, weights: dict[str, Tensor], alpha: float
    ) -> None:
        began, clip, stream = time.monotonic(), self.data.make_model(), self.data.stream(cell)
        evaluator = Evaluator(stream, self.data.control(cell.control))
        clip.model.eval()
        clip.bf16 = cell.training.precision == "bf16"
        evaluator.begin(clip)
        with torch.no_grad():
            for name, tensor in clip.model.state_dict().items():
                if tensor.is_floating_point():
                    tensor.lerp_(weights[name].to(tensor.device), alpha)
        method, rows = cell.recipe, [*results.rows[:-1], evaluator(clip, len(stream.tasks))]
        names = {"method": method.name, "summary": method.summary}
        folder = cell.begin(self.out)
        folder.mkdir(exist_ok=True)
        results.model_copy(update={**names, "rows": rows}).write(folder)
        cell.end(self.out, self.record(cell, began))


def _training(cell: Cell) -> Hashable:
    """What a cell is trained with, whatever happens to its weights at the end."""
    method = cell.recipe
    parts = method.update, method.replay, method.regularizer, method.schedule
    objective = method.loss, method.objective, method.drop_last
    return (*map(repr, parts), *objective, cell.dataset, cell.tasks, repr(cell.training))


@dataclass
class SharedTrainingBench(Bench):
    """A bench on a `SharedModel`. If evaluated after every task, cells share no training."""

    trained: Trained = field(default_factory=dict)
    stored: StoredCells = field(default_factory=StoredCells)

    @property
    def cell_runner(self) -> CellRunner:
        flags = {"checkpoints": False, "evaluate_each_task": self.evaluate_each_task}
        if self.evaluate_each_task:
            return CellRunner(self.data, self.out, **flags)
        known = {"trained": self.trained, "stored": self.stored}
        return SharedTrainingRunner(self.data, self.out, **flags, **known)
