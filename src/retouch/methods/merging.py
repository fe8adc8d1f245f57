"""What happens to the weights when a task ends: they are mixed with earlier ones.

`Interpolate` and `MagMax` tell two sets of weights apart: those that are *trained*, from task to
task, as if nothing were mixed, and the mixed ones, which are judged, stored and handed out. A task
begins with the trained weights again. Both sets of entries are those that the task may move: where
a method selects others for each task, an entry outside the selection stays mixed while it learns.
"""

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PrivateAttr, SerializeAsAny
from torch import Tensor

from retouch.clip import Clip
from retouch.data.pairs import Pairs
from retouch.methods.method import AfterTask, Method, TaskUpdate
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.sparse import SparseIndex

log = logging.getLogger("retouch")


class WeightMixing(AfterTask):
    """What happens when a task ends? The weights are mixed with the pre-trained ones.

    Copies of weights lie in main memory: they are needed between tasks only.
    """

    copies: ClassVar[int] = 2
    """The pre-trained weights and the trained ones."""

    _base: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _trained: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        parameters = clip.model.named_parameters()
        self._base = {name: p.detach().to("cpu", copy=True) for name, p in parameters}

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        """Go on with the trained weights."""
        for name, chosen in update.selection.items():
            if name in self._trained:
                _put(chosen, update.tensors[name], _take(chosen, self._trained[name]))

    @torch.no_grad()
    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        for name, trained in update.float_snapshot().items():
            chosen, new = update.selection[name], trained.cpu()
            base = _take(chosen, self._base[name])
            self._lay_aside(self._trained, name, chosen, new)
            _put(chosen, update.tensors[name], self.mix(name, chosen, base, new))

    @abstractmethod
    def mix(self, name: str, chosen: SparseIndex, base: Tensor, trained: Tensor) -> Tensor:
        """The entries that are chosen of a tensor, from the pre-trained and the trained ones."""

    def state(self) -> dict[str, Tensor]:
        return {f"trained:{name}": tensor for name, tensor in self._trained.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._trained = _named(state, "trained:")

    def _lay_aside(
        self, where: dict[str, Tensor], name: str, chosen: SparseIndex, entries: Tensor
    ) -> None:
        """Remember entries of a tensor; those that were never chosen are as in the beginning."""
        if name not in where:
            where[name] = self._base[name].clone()
        _put(chosen, where[name], entries)


class Interpolate(WeightMixing):
    """What happens when a task ends? The weights go part of the way back to the pre-trained ones.

    WiSE-FT (Wortsman et al. 2022): (1 − α)·pre-trained + α·fine-tuned, with the α = 0.5 that it
    recommends where nothing is known. Its fine-tuning is of one task; here it goes on over tasks.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """1 keeps all that was learned, 0 nothing."""

    def mix(self, name: str, chosen: SparseIndex, base: Tensor, trained: Tensor) -> Tensor:
        return base.lerp(trained, self.alpha)


class MagMax(WeightMixing):
    """What happens when a task ends? Of each weight's changes over the tasks the largest counts.

    MagMax (Marczak et al. 2024): tasks are fine-tuned one after the other. After each the change
    against the pre-trained weights is taken; weight by weight the change of largest magnitude over
    all tasks so far is scaled and added to the pre-trained weights. Of equal ones the later counts.
    """

    copies: ClassVar[int] = 3
    """The pre-trained weights, the trained ones and the largest change."""

    scale: Annotated[float, Field(gt=0)] = 0.5
    """The λ that the authors use throughout."""
    _largest: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def mix(self, name: str, chosen: SparseIndex, base: Tensor, trained: Tensor) -> Tensor:
        if name not in self._largest:
            self._largest[name] = torch.zeros_like(self._base[name])
        change, known = trained - base, _take(chosen, self._largest[name])
        largest = torch.where(change.abs() >= known.abs(), change, known)
        _put(chosen, self._largest[name], largest)
        return base + self.scale * largest

    def state(self) -> dict[str, Tensor]:
        return super().state() | {f"largest:{name}": t for name, t in self._largest.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        super().restore(state)
        self._largest = _named(state, "largest:")


class BoundedDrop(AfterTask):
    """What happens when a task ends? If the control set fell too far, the task is scaled back.

    The task's change is shortened to a step between 0 and 1 that keeps the drop since before the
    first task within `max_drop`, found by halving: each step that is tried is measured, and the
    longest one that was seen to hold is taken. A drop does not grow evenly with the step, so a
    longer one may hold as well. Where none holds the task leaves the weights as it found them.
    Any method can be bounded: what settled its tasks before comes first.
    """

    needs_control: ClassVar[bool] = True

    max_drop: Annotated[float, Field(ge=0)] = 1.0
    """Points that the control set may fall in all, since before the first task."""
    tries: Annotated[int, Field(gt=0)] = 6
    """How often the control set is judged to find the step."""
    after: SerializeAsAny[AfterTask] = AfterTask()
    """What happens before the control set is looked at."""
    _start: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _kept: float = PrivateAttr(default=1.0)

    @property
    def fraction_kept(self) -> float:
        return self._kept

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        self.after.start(clip, settings, reference)

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        assert context.control_drop is not None
        self._start = update.snapshot()
        self.after.begin(context, update)

    def after_step(self, context: TaskContext, update: TaskUpdate, step: int) -> None:
        self.after.after_step(context, update, step)

    def state(self) -> dict[str, Tensor]:
        return self.after.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.after.restore(state)

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        self.after.end(context, update)  # which may train, as SLCA's alignment does
        self._scale_back(context, update)

    @torch.no_grad()
    def _scale_back(self, context: TaskContext, update: TaskUpdate) -> None:
        assert context.control_drop is not None
        self._kept = 1.0
        drop = context.control_drop()
        if drop <= self.max_drop:
            return
        whole, learned = context.accuracy(), update.snapshot()
        self._kept, cost = self._longest(context, update, learned)
        self._go(update, learned, self._kept)
        now = cost if self._kept else context.control_drop()
        log.warning(_told(context, self._kept, self.max_drop, drop, now, whole))

    def _longest(
        self, context: TaskContext, update: TaskUpdate, learned: Mapping[str, Tensor]
    ) -> tuple[float, float]:
        """The longest step that was seen to hold, and what it costs."""
        assert context.control_drop is not None
        low, high, cost = 0.0, 1.0, 0.0
        for _ in range(self.tries):
            step = (low + high) / 2
            self._go(update, learned, step)
            found = context.control_drop()
            if found <= self.max_drop:
                low, cost = step, found
            else:
                high = step
        return low, cost

    def _go(self, update: TaskUpdate, learned: Mapping[str, Tensor], step: float) -> None:
        """So far from where the task began to where it ended; 0 is its beginning to the bit.

        Whole numbers, such as how many tasks' prompts are learned, are those of one or the other.
        """
        if step == 0:
            update.restore(self._start)
            return
        for name, old in self._start.items():
            new = learned[name]
            update.restore({name: old.lerp(new, step) if new.is_floating_point() else new})


def with_max_drop(method: Method, max_drop: float) -> Method:
    """The same method, that may cost so many points of the control set and no more."""
    inside = (
        method.after_task.after if isinstance(method.after_task, BoundedDrop) else method.after_task
    )
    return method.with_change({"after_task": BoundedDrop(max_drop=max_drop, after=inside)})


def _told(
    context: TaskContext, kept: float, limit: float, drop: float, now: float, whole: float | None
) -> str:
    """What was done, why, and what it cost."""
    task = context.task.number + 1
    if kept:
        done = f"{kept:.0%} of what task {task} changed was kept"
        left = f"so it forgot {now:.1f}"
    else:
        done = f"nothing of task {task} was kept"
        left = "no shorter step that was tried stays within that"
    if now > limit:
        said = (
            f"{done}: of what the model could do before, {now:.1f} points were lost before this "
            f"task, more than the {limit:g} allowed in all. Allow more, or go on from where less "
            "was lost"
        )
    else:
        said = (
            f"{done}: all of it would have cost {drop:.1f} points of what the model could do "
            f"before, more than the {limit:g} allowed; {left}"
        )
    after = context.accuracy()
    if whole is None or after is None:
        return said
    return f"{said}. Of the classes so far it recognises {after:.1f} % instead of {whole:.1f} %"


def _take(chosen: SparseIndex, tensor: Tensor) -> Tensor:
    """The chosen entries of a tensor that lies in main memory."""
    return SparseIndex(chosen.shape, None if chosen.index is None else chosen.index.cpu()).gather(
        tensor
    )


def _put(chosen: SparseIndex, tensor: Tensor, entries: Tensor) -> None:
    """Write entries into a tensor, wherever it lies."""
    index = None if chosen.index is None else chosen.index.to(tensor.device)
    SparseIndex(chosen.shape, index).scatter(tensor, entries)


def _named(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t.clone() for n, t in state.items() if n.startswith(prefix)}
