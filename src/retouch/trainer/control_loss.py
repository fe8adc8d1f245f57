"""What was lost, measured while training: bits per byte on texts that are not trained on."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

from transformers import TrainerCallback

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.sparse.largest_fraction import largest_fraction
from retouch.trainer.document_bits import (
    BitsPerByte,
    EncodedTexts,
    bits_of,
    encode_for,
    read_texts,
)
from retouch.trainer.selective_update import SelectiveUpdate

log = logging.getLogger("retouch")

Texts = str | Path | Sequence[str]


class ControlLoss(TrainerCallback):  # type: ignore[misc]
    """Log how well the model still predicts control texts: before, during and after training.

    In the trainer's logs, and so in TensorBoard or W&B, `control_bpb` is bits per byte,
    `control_bpb_low` and `control_bpb_high` the interval over documents, and `control_increase`
    (with `_low` and `_high`) what was lost since before training. Several sets are logged by name:
    `control_english_bpb`.

    Args:
        texts: A file (JSON lines with `text`, or plain text), documents, or several sets by name.
        max_increase: The largest increase of bits per byte that training may cost, on any of the
            sets. A larger one is scaled back in the end, to the largest fraction of the change that
            is within the bound. It takes a `SelectiveUpdate` on the same trainer.
        every: Measure after this many steps as well. Default: whenever the trainer evaluates.
        max_length: Tokens of a document that are read at a time. Default: what the model has room
            for, and at most 1,024.
        tries: How many fractions to try, if the change is scaled back.
    """

    @check_arguments()
    def __init__(
        self,
        texts: Texts | Mapping[str, Texts],
        max_increase: float | None = None,
        *,
        every: int | None = None,
        max_length: int | None = None,
        tries: int = 6,
    ) -> None:
        if max_increase is not None and not max_increase >= 0:
            raise UserError(f"max_increase={max_increase} is below 0; choose 0 or more, as 0.01")
        for name, value in {"every": every, "tries": tries}.items():
            if value is not None and value < 1:
                raise UserError(f"{name}={value} is not possible; choose 1 or more")
        sets = texts if isinstance(texts, Mapping) else {"": texts}
        if not sets:
            raise UserError("there is no control set; give at least one")
        self._texts = {
            name: read_texts(f"the control set {name}".strip(), each) for name, each in sets.items()
        }
        self.max_increase, self.every, self.tries = max_increase, every, tries
        self._max_length = max_length
        self._trainer: Any = None
        self._encoded: dict[str, EncodedTexts] = {}
        self.before: dict[str, BitsPerByte] = {}
        """Before training, by the name of the set."""
        self.after: dict[str, BitsPerByte] = {}
        """After training, by the name of the set."""
        self._last_step = -1

    @check_arguments()
    def attach(self, trainer: Any) -> Self:
        """Measure while a trainer trains.

        Args:
            trainer: A `transformers.Trainer`, or one that derives from it.
        """
        tokenizer = getattr(trainer, "processing_class", None)
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if not callable(tokenizer):
            raise UserError(
                "the trainer has no tokenizer to read the control texts with; give it one",
                argument="processing_class=…",
            )
        self._encoded = {
            name: encode_for(trainer.model, tokenizer, texts, self._max_length, trainer.args.device)
            for name, texts in self._texts.items()
        }
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        return self

    def measure(self) -> dict[str, BitsPerByte]:
        """Bits per byte of the model as it is, by the name of the set."""
        trainer = self._trainer
        return {
            name: bits_of(trainer.model, texts, trainer.compute_loss_context_manager())
            for name, texts in self._encoded.items()
        }

    def increase(self) -> float:
        """The largest increase over all sets, of the model as it is."""
        now = self.measure()
        return max(now[name].increase(before) for name, before in self.before.items())

    # What the trainer and a SelectiveUpdate call

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure before training."""
        if self._trainer is None:
            raise UserError(
                "a ControlLoss does not know its trainer; call control.attach(trainer) instead of "
                "passing it in `callbacks`"
            )
        if self.max_increase is not None and self._update() is None:
            raise UserError(
                "max_increase needs to know the weights before training; attach a SelectiveUpdate "
                "to the same trainer, or leave it out"
            )
        self._last_step, self.after = -1, {}
        self.before = self._measure_start()
        if state.global_step == 0:
            self._log(self.before, state)

    def _measure_start(self) -> dict[str, BitsPerByte]:
        """Before training: a resumed one looks at the weights that it once began with."""
        update = self._update()
        with update.at_start() if update else nullcontext():
            return self.measure()

    def _update(self) -> SelectiveUpdate | None:
        """The selective update of the same trainer, if there is one."""
        callbacks = self._trainer.callback_handler.callbacks
        return next((each for each in callbacks if isinstance(each, SelectiveUpdate)), None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure after every so many steps."""
        if self.every is not None and state.global_step % self.every == 0:
            self._log(self.measure(), state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure whenever the trainer evaluates."""
        if self.every is None and self.before:
            self._log(self.measure(), state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log how it is after training, and after the change was scaled."""
        self._last_step = -1
        self.after = self.after or self.measure()
        self._log(self.after, state)

    def bound(self, move_to: Callable[[float], None]) -> float:
        """Scale the change back until it is within the bound; return the fraction that is kept.

        Args:
            move_to: Keeps a fraction of what was trained.
        """
        if self.max_increase is None:
            return 1.0
        full = self.increase()
        if full <= self.max_increase:
            return 1.0
        fraction, increase = largest_fraction(self.increase, move_to, self.max_increase, self.tries)
        move_to(fraction)
        log.warning(
            f"{100 * fraction:.0f} % of what was trained was kept: all of it would have cost "
            f"{full:.4f} bits per byte on the control texts, more than the {self.max_increase:g} "
            f"allowed; it costs {increase:.4f}"
        )
        return fraction

    def lost(self) -> dict[str, dict[str, float]]:
        """Bits per byte before and after training, by the name of the set."""
        self.after = self.measure()
        return {
            name or "control": {"before": before.value, "after": self.after[name].value}
            for name, before in self.before.items()
        }

    def _log(self, measured: Mapping[str, BitsPerByte], state: Any) -> None:
        if state.global_step == self._last_step:
            return
        self._last_step = state.global_step
        values: dict[str, float] = {}
        for name, bits in measured.items():
            prefix = f"control_{name}_" if name else "control_"
            before = self.before[name]
            values[f"{prefix}bpb"] = bits.value
            values[f"{prefix}bpb_low"], values[f"{prefix}bpb_high"] = bits.interval
            if bits is not before:
                values[f"{prefix}increase"] = bits.increase(before)
                low, high = bits.increase_interval(before)
                values[f"{prefix}increase_low"], values[f"{prefix}increase_high"] = low, high
        self._trainer.log(values)
