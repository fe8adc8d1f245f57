"""Score and select by the losses that a trainer computes on its own training batches."""

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retouch.errors import UserError
from retouch.random_streams import RandomStream
from retouch.sparse import SCORERS, Selection, SparseIndex, neuron_axis, select, trainable_only
from retouch.sparse.gradients import BatchedLosses, Losses
from retouch.sparse.select import Unit

MIN_SCORE_BYTES = 2**28
"""Scores that are held at a time, however little memory is free."""
SEPARATE_SCORES, JOINT_SCORES = ("random", "magnitude"), ("mask", "piggyback")
"""Scores of a parameter alone, and those that are learned for all parameters together."""
IGNORED = -100
"""The label of a token that is not to be learned."""
_RUNNING_METRICS = ("_metrics", "_total_train_tokens")
"""What TRL's trainers collect while a loss is computed, for the next line of the log."""


class ScoringBatches:
    """The first batches of a trainer's training data, and the loss on each.

    Args:
        trainer: The trainer, before its first step.
        share: The share of an epoch's batches.
        batches: The number of batches, instead of a share.
    """

    def __init__(self, trainer: Any, share: float, batches: int | None) -> None:
        self._trainer = trainer
        self._loader = trainer.get_train_dataloader()
        self._loaders = trainer.accelerator._dataloaders
        self._loaders[:] = [loader for loader in self._loaders if loader is not self._loader]
        self.count = batches or self._share_of_an_epoch(share)

    def _share_of_an_epoch(self, share: float) -> int:
        try:
            length = len(self._loader)
        except TypeError:
            raise UserError(
                "the training data has no length, so there is no share of it to score on; say how "
                "many batches to take",
                argument="batches=…",
            ) from None
        return max(1, ceil(share * length))

    def losses(self) -> BatchedLosses:
        """The loss on each batch; their sum is the mean."""
        batches = [partial(self._losses, number, number + 1) for number in range(self.count)]
        return BatchedLosses(partial(self._losses, 0, self.count), batches)

    def first(self) -> Any:
        """The first batch."""
        with _as_if_never_called(self._trainer):
            for samples, _ in self._batches(0, 1):
                return samples
        raise UserError(
            "the training data gives no batch; give the trainer at least one example, and with "
            "dataloader_drop_last one whole batch"
        )

    def _losses(self, start: int, stop: int) -> Iterator[Tensor]:
        trainer, count = self._trainer, stop - start
        with _as_if_never_called(trainer):
            trainer.model.train()
            trainer.current_gradient_accumulation_steps = 1
            for samples, num_items in self._batches(start, stop):
                inputs = trainer._prepare_inputs(samples)
                with trainer.compute_loss_context_manager():
                    loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=num_items)
                yield loss / count

    def _batches(self, start: int, stop: int) -> Iterator[tuple[Any, Any]]:
        """Batches with their number of labels, in the order in which training begins."""
        loader, device = self._loader, self._trainer.args.device
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(0)
        iterator = iter(loader)
        try:
            for _ in islice(iterator, start):
                pass
            for _ in range(start, stop):
                samples, num_items = self._trainer.get_batch_samples(iterator, 1, device)
                if not samples:
                    break
                yield samples[0], num_items
        finally:
            if hasattr(loader, "end"):  # accelerate keeps a list of loaders that are in use
                loader.end()


def select_by(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    losses: Losses,
    *,
    score: str,
    rate: float,
    unit: Unit,
    seed: int,
    max_bytes: int | None = None,
) -> Selection:
    """Score these parameters by losses, and select. Positions are on the CPU.

    A parameter that no loss depends on, such as those of a vision tower where no example has an
    image, is left out.

    Args:
        model: The model, which computes the losses.
        parameters: What entries are selected from, by name.
        losses: What to score by; called once for each group of parameters that are scored together.
        score: One of `SCORERS`.
        rate: The share of each parameter to select.
        unit: Single weights, or whole neurons.
        seed: For scores that are random.
        max_bytes: How much memory the scores may take; with little, some layers are scored after
            the others, in another pass over the losses. Default: half of what is free.
    """
    entries: dict[str, SparseIndex] = {}
    for number, names in enumerate(_groups(parameters, score, max_bytes)):
        group = {name: parameters[name] for name in names}
        seeds = np.random.SeedSequence([seed, RandomStream.SCORING, number])
        with trainable_only(model, group):
            scores = SCORERS[score](group, losses, int(seeds.generate_state(1)[0]))
        used = {name: each for name, each in scores.items() if bool(each.any())}
        del scores
        axes = {name: neuron_axis(model, name) for name in used}
        for name, index in select(used, rate, unit, axes=axes).items():
            assert index.index is not None
            entries[name] = SparseIndex(index.shape, index.index.cpu())
        del used
    if not entries:
        raise UserError(
            "the loss depends on none of the layers that weights are selected from; look at the "
            "labels, and at what is frozen"
        )
    return Selection(entries, sum(p.numel() for p in model.parameters()))


def _groups(
    parameters: Mapping[str, nn.Parameter], score: str, max_bytes: int | None
) -> Iterator[list[str]]:
    """Names of parameters whose scores are held together, at 4 bytes per entry."""
    if score in JOINT_SCORES:
        yield list(parameters)
        return
    limit = _free_bytes(parameters) if max_bytes is None else max_bytes
    names: list[str] = []
    size = 0
    for name, parameter in parameters.items():
        if names and (score in SEPARATE_SCORES or size + 4 * parameter.numel() > limit):
            yield names
            names, size = [], 0
        names.append(name)
        size += 4 * parameter.numel()
    if names:
        yield names


def _free_bytes(parameters: Mapping[str, nn.Parameter]) -> int:
    """Half of what is free on a GPU. On a CPU, the parameters themselves are no smaller."""
    device = next(iter(parameters.values())).device
    if device.type != "cuda":
        return sum(4 * p.numel() for p in parameters.values())
    free = torch.cuda.mem_get_info(device)[0]
    return max(MIN_SCORE_BYTES, free // 2)


@contextmanager
def _as_if_never_called(trainer: Any) -> Iterator[None]:
    """Random states and running metrics are afterwards as they were before.

    So training sees the same batches in the same order, whether it was scored, or resumed from a
    checkpoint and not scored.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    metrics = {
        name: copy.deepcopy(vars(trainer)[name])
        for name in _RUNNING_METRICS
        if name in vars(trainer)
    }
    training = trainer.model.training
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if on_gpu:
            torch.cuda.set_rng_state_all(on_gpu)
        vars(trainer).update(metrics)
        trainer.model.train(training)
