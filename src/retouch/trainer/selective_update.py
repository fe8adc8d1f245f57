"""Selective Parameter Update (SPU, Zhang et al. 2024) inside transformers' `Trainer`.

The trainer keeps its loop, its loss, its schedule and its checkpoints. It gets another optimizer:
before the first step all candidate weights are scored on some of the training batches, the best are
selected, everything else is frozen, and `SparseAdamW` trains what is left.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from retouch.arguments import check_arguments
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.files.output_paths import refuse_existing
from retouch.files.write import atomic_folder
from retouch.sparse import (
    SCORERS,
    Delta,
    Digests,
    Selection,
    Snapshot,
    SparseAdamW,
    linear_layers,
    read_header,
    read_selection,
    trainable_only,
)
from retouch.sparse.delta.write_adapter import changed_weights, import_peft, write_adapters
from retouch.sparse.select import Unit
from retouch.text.plural import count
from retouch.trainer.checks import check_batch, check_trainer, trainable_of
from retouch.trainer.delta_chain import FOLDER, DeltaChain
from retouch.trainer.replay import ReplayBuffer
from retouch.trainer.scoring import ScoringBatches, select_by

log = logging.getLogger("retouch")
CHECKPOINT_FILE = "retouch_delta.safetensors"
"""In a checkpoint's folder: what training has changed so far, and what it may change."""


@runtime_checkable
class Bound(Protocol):
    """A callback that may take back a part of what was trained."""

    def bound(self, move_to: Callable[[float], None]) -> float:
        """Keep less of it, if it must be; return the fraction that is kept."""

    def lost(self) -> dict[str, Any]:
        """What the model lost, for the delta's header."""


class SelectiveUpdate(TrainerCallback):  # type: ignore[misc]
    """Train the weights that matter most for the data, and leave all others as they are.

    `attach` it to a trainer. After `trainer.train()`, `delta` is what was learned: a small file
    that can be undone to the bit. It is also written to `deltas/` in the trainer's `output_dir`,
    after the deltas of the model that training started from.

    Args:
        rate: The share of each matrix that is selected. A higher rate learns more and forgets more.
        unit: `"weight"` ranks single weights; `"neuron"` ranks whole rows by the sum of their
            scores, which trains faster and takes less memory.
        share: The share of an epoch's batches to compute the scores on.
        half_step: Take back half of what training changed, in the end. It costs little of what was
            learned and saves much of what was known before.
        score: How weights are ranked: gradient, magnitude, random, mask or piggyback.
        where: Which matrices weights are selected from, as in `retouch.sparse.locate`.
        batches: The number of batches to compute the scores on, instead of a share.
        replay: A buffer of earlier examples, which are trained on together with the new ones.
        deltas: The folder to write the delta to, instead of `deltas/` in the `output_dir`.
    """

    @check_arguments()
    def __init__(
        self,
        rate: float = 0.10,
        unit: Unit = "weight",
        share: float = 0.25,
        half_step: bool = False,
        *,
        score: str = "gradient",
        where: str | Sequence[str] = "first-mlp",
        batches: int | None = None,
        replay: ReplayBuffer | None = None,
        deltas: str | Path | None = None,
    ) -> None:
        for name, value in {"rate": rate, "share": share}.items():
            if not 0 < value <= 1:
                raise UserError(f"{name}={value} is not a share; choose one above 0 and up to 1")
        if score not in SCORERS:
            raise UserError(f"score={score!r} is unknown; choose from {', '.join(SCORERS)}")
        if batches is not None and batches < 1:
            raise UserError(f"batches={batches} is too few to score on; choose 1 or more")
        self.rate, self.unit, self.share, self.half_step = rate, unit, share, half_step
        self.score, self.where, self.batches, self.replay = score, where, batches, replay
        self._folder = None if deltas is None else Path(deltas)
        self._trainer: Any = None
        self._task: _Task | None = None
        self._delta: Delta | None = None
        self._checkpoint: Path | None = None
        self._stack = ExitStack()

    @check_arguments()
    def attach(self, trainer: Any) -> Self:
        """Let a trainer train selectively. What cannot be trained so is refused here.

        Args:
            trainer: A `transformers.Trainer`, or one that derives from it.
        """
        if self._trainer is not None:
            raise UserError("this update is attached to a trainer already; make another one")
        check_trainer(trainer)
        trainable_of(trainer.model, self.where)
        if self.replay is not None:
            trainer.train_dataset = self.replay.mix(trainer.train_dataset, trainer.args.seed)
        self._trainer = trainer
        callbacks = trainer.callback_handler.callbacks
        # The first: whatever else looks at the model after training sees it as it will stay.
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        trainer.create_optimizer = self._create_optimizer
        trainer.train = self._around(trainer.train)
        return self

    @property
    def selection(self) -> Selection:
        """The weights that were selected; printed, it is a table."""
        if self._task is None:
            raise UserError("nothing is selected before training; call trainer.train() first")
        return self._task.selection

    @property
    def delta(self) -> Delta:
        """What the last training changed."""
        if self._delta is None:
            raise UserError("there is no delta before training has ended; call trainer.train()")
        return self._delta

    @contextmanager
    def at_start(self) -> Iterator[None]:
        """Inside this context, the model has the weights that training began with."""
        assert self._task is not None
        task = self._task
        now = task.selection.gather(task.tensors)
        task.selection.scatter(task.tensors, task.snapshot.entries)
        try:
            yield
        finally:
            task.selection.scatter(task.tensors, now)

    @check_arguments()
    def save_adapter(self, folder: str | Path) -> None:
        """Write what the last training changed as an adapter for peft (Super-Tuning).

        Args:
            folder: A new folder.
        """
        model, delta, folder = self._trainer.model, self.delta, Path(folder)
        refuse_existing(folder)
        import_peft()
        instead = "Use the delta, or select from linear layers only"
        names = changed_weights(model, [delta], "this training", instead)
        delta.undo(model)
        with atomic_folder(folder) as part:
            write_adapters(model, [delta], names, part, str(delta.metadata["model"]))

    # What the trainer calls

    def _around(self, train: Any) -> Any:
        """The trainer's `train`, after which the model is as trainable as before."""

        @wraps(train)
        def trained(
            resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
        ) -> Any:
            trainer = self._trainer
            folder = resume_from_checkpoint
            if folder is True:
                folder = get_last_checkpoint(trainer.args.output_dir)
            self._checkpoint = Path(folder) if folder else None
            self._task = self._delta = None
            check_trainer(trainer)
            if trainer.args.world_size > 1:
                collectives.begin(trainer.args.device)
                self._stack.callback(collectives.end)
            try:
                return train(resume_from_checkpoint, *args, **kwargs)
            finally:
                self._stack.close()
                trainer.optimizer = None
                if self._task is not None:
                    self._task.optimizer = self._task.gradients = None

        return trained

    def _create_optimizer(self, model: Any = None) -> SparseAdamW:
        """Select, freeze the rest, and return the optimizer. In place of the trainer's own."""
        trainer, args = self._trainer, self._trainer.args
        if self._task is not None:  # a second attempt, with smaller batches
            self._task.restart()
            self._task = None
        collectives.broadcast(trainer.model.state_dict().values())
        folder = self._folder or Path(args.output_dir) / FOLDER
        task = self._task = _Task(self, trainer, folder, self._checkpoint_file())
        parameters = dict(trainer.model.named_parameters())
        decayed = set(trainer.get_decay_parameter_names(trainer.model))
        with ExitStack() as stack:  # unfreezes the model if anything fails
            stack.enter_context(trainable_only(trainer.model, task.selection))
            rows = linear_layers(trainer.model, task.selection) if self.unit == "neuron" else None
            task.optimizer = SparseAdamW(
                parameters,
                task.selection,
                lr=args.learning_rate,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
                weight_decay=args.weight_decay,
                no_decay=parameters.keys() - decayed,
                layers=rows,
                compact=True,
                fused=args.device.type == "cuda",
            )
            stack.callback(task.optimizer.close)
            task.gradients = _SparseGradients(trainer.accelerator, task.optimizer)
            stack.enter_context(task.gradients)
            task.training = stack.pop_all()
        self._stack.enter_context(task.training)
        trainer.optimizer = task.optimizer
        return task.optimizer

    def _checkpoint_file(self) -> Path | None:
        """What a resumed training needs to know."""
        if self._checkpoint is None:
            return None
        file = self._checkpoint / CHECKPOINT_FILE
        if not file.is_file():
            raise UserError(
                f"{self._checkpoint} was not written by a selective update: it has no "
                f"{CHECKPOINT_FILE}. Resume from another checkpoint, or train anew"
            )
        return file

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse to train without a trainer."""
        if self._trainer is None:
            raise UserError(
                "a SelectiveUpdate does not know its trainer; call update.attach(trainer) instead "
                "of passing it in `callbacks`"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer drops the gradients of the model's parameters; these are other tensors."""
        assert self._task is not None
        assert self._task.gradients is not None
        self._task.gradients.drop()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what a resumed training needs to know into the checkpoint."""
        assert self._task is not None
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._task.delta({"step": state.global_step}).save(folder / CHECKPOINT_FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Scale the change back, if it should be, and write the delta."""
        task = self._task
        assert task is not None
        assert task.training is not None
        task.training.close()
        metadata: dict[str, Any] = {}
        task.end = task.selection.gather(task.tensors)
        if self.half_step:
            task.move_to(0.5)
            metadata["half_step"] = True
            task.end = task.selection.gather(task.tensors)
        bounds = [b for b in self._trainer.callback_handler.callbacks if isinstance(b, Bound)]
        for callback in bounds:
            fraction = callback.bound(task.move_to)
            if fraction < 1:
                metadata["fraction_kept"] = metadata.get("fraction_kept", 1.0) * fraction
                task.end = task.selection.gather(task.tensors)
        for callback in bounds:
            metadata.setdefault("control", {}).update(callback.lost())
        task.end = {}
        collectives.broadcast(task.tensors[name] for name in task.selection)
        self._delta = task.delta(metadata)
        if state.is_world_process_zero:
            file = task.chain.write(self._delta)
            log.info(f"{count(task.selection.count, 'weight')} could move; written to {file}")
            if self.replay is not None:
                self.replay.save(Path(args.output_dir))
        self._trainer.accelerator.wait_for_everyone()


class _Task:
    """What one training may change, and how it began.

    Args:
        update: The settings.
        trainer: The trainer, before its first step.
        folder: Where the delta will be written.
        checkpoint: The file of a checkpoint to go on from; its weights are loaded already.
    """

    def __init__(
        self, update: SelectiveUpdate, trainer: Any, folder: Path, checkpoint: Path | None
    ) -> None:
        self.model = trainer.model
        self.tensors: dict[str, Tensor] = dict(self.model.state_dict())
        self.digests = Digests()
        self.metadata: dict[str, Any] = {
            "model": _name(self.model),
            "method": "selective update",
            **{name: getattr(update, name) for name in ("rate", "unit", "score", "where")},
        }
        self.optimizer: SparseAdamW | None = None
        self.gradients: _SparseGradients | None = None
        self.training: ExitStack | None = None
        self.end: Mapping[str, Tensor] = {}
        if checkpoint is None:
            before = self.digests(self.tensors, ())
            self.chain = DeltaChain(folder, before, _name(self.model), resumed=False)
            self.selection = _selected(update, trainer)
            self.snapshot = self._take_snapshot(before)
        else:
            before = read_header(checkpoint).before
            self.chain = DeltaChain(folder, before, _name(self.model), resumed=True)
            self.selection = _in_order_of(self.model, read_selection(checkpoint))
            self._go_on_from(checkpoint)

    def _take_snapshot(self, before: str) -> Snapshot:
        return Snapshot(self.model, self.selection, before, self.tensors, device="cpu")

    def _go_on_from(self, checkpoint: Path) -> None:
        """Look at the weights before training, which the checkpoint's delta leads back to."""
        so_far = Delta.load(checkpoint)
        if self.digests(self.tensors, ()) != so_far.after:
            raise UserError(
                f"{checkpoint} belongs to other weights than those of the checkpoint; resume from "
                "another one, or train anew"
            )
        so_far.undo(self.model, self.digests)
        self.snapshot = self._take_snapshot(so_far.before)
        so_far.apply(self.model, self.digests)

    def restart(self) -> None:
        """Undo what was trained, and make the model as trainable as before."""
        if self.training is not None:
            self.training.close()
        self.selection.scatter(self.tensors, self.snapshot.entries)

    def move_to(self, fraction: float) -> None:
        """Keep a fraction of what was trained."""
        start = {n: old.to(self.tensors[n].device) for n, old in self.snapshot.entries.items()}
        self.selection.interpolate(self.tensors, start, self.end, fraction)

    def delta(self, metadata: Mapping[str, Any]) -> Delta:
        """What has changed since the beginning."""
        digest = self.digests(self.tensors, self.selection)
        return self.snapshot.delta({**self.metadata, **metadata}, self.tensors, digest)


class _SparseGradients(AbstractContextManager[None]):
    """Inside this context, accelerate sees the gradients of the selected entries only.

    The trainer clips the gradients of `model.parameters()`, which have none: they were gathered and
    freed. And it would wrap the model for DDP, which averages whole gradients over the ranks; here
    each rank averages those of the selected entries.
    """

    def __init__(self, accelerator: Any, optimizer: SparseAdamW) -> None:
        self._accelerator = accelerator
        self._optimizer = optimizer
        self._reduced = False

    def __enter__(self) -> None:
        accelerator = self._accelerator
        clip, prepare = accelerator.clip_grad_norm_, accelerator.prepare_model

        def clip_entries(parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
            self._reduce()
            return clip(self._entries(), max_norm, norm_type)

        def prepare_without_ddp(model: Any, *args: Any, **kwargs: Any) -> Any:
            return prepare(model, *args, **{**kwargs, "evaluation_mode": True})

        accelerator.clip_grad_norm_ = clip_entries
        accelerator.prepare_model = prepare_without_ddp
        self._hook = self._optimizer.register_step_pre_hook(lambda *_: self._reduce())

    def __exit__(self, *error: object) -> None:
        del self._accelerator.clip_grad_norm_, self._accelerator.prepare_model
        self._hook.remove()

    def drop(self) -> None:
        """Drop the gradients of a step that was taken, or skipped as too large for 16 bits."""
        self._optimizer.zero_grad()
        self._reduced = False

    def _entries(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _reduce(self) -> None:
        """Average the gradients over all ranks, once per step."""
        if collectives.world_size() == 1 or self._reduced:
            return
        gradients = [p.grad for p in self._entries() if p.grad is not None]
        collectives.all_reduce(gradients)
        for gradient in gradients:
            gradient /= collectives.world_size()
        self._reduced = True


def _selected(update: SelectiveUpdate, trainer: Any) -> Selection:
    """Localize, score and select."""
    parameters = trainable_of(trainer.model, update.where)
    narrow = {p.dtype for p in parameters.values()} & {torch.bfloat16, torch.float16}
    if narrow:
        log.warning(
            f"the weights are {str(narrow.pop()).removeprefix('torch.')}, which rounds small "
            "changes away; where memory allows, load the model with dtype=torch.float32 and train "
            "with bf16=True"
        )
    batches = ScoringBatches(trainer, update.share, update.batches)
    check_batch(trainer, batches.first())
    return select_by(
        trainer.model,
        parameters,
        batches.losses(),
        score=update.score,
        rate=update.rate,
        unit=update.unit,
        seed=trainer.args.seed,
    )


def _in_order_of(model: torch.nn.Module, selection: Selection) -> Selection:
    """The same selection in the order of the model's parameters, as it was made."""
    names = [name for name, _ in model.named_parameters() if name in selection]
    return Selection({name: selection[name] for name in names}, selection.model_size)


def _name(model: Any) -> str:
    """The folder or hub id that a model was loaded from."""
    return str(getattr(model, "name_or_path", "") or type(model).__name__)
