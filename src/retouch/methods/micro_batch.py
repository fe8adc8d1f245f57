"""How many images and prompts are encoded at a time; fewer where memory does not suffice."""

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from torch import Tensor

from retouch.clip import Batch, Clip, Features
from retouch.clip.losses import losses
from retouch.clip.memory import until_it_fits
from retouch.clip.text.tokens import num_prompts
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.settings import Settings
from retouch.text.plural import count

T = TypeVar("T")
log = logging.getLogger("retouch")


class MicroBatch:
    """The size of a micro-batch over a run: what the settings say, halved when memory runs out.

    A smaller one gives the same gradients (see `clip.losses`), so training simply goes on.

    Args:
        clip: The model.
        settings: The training settings.
    """

    def __init__(self, clip: Clip, settings: Settings) -> None:
        self.size = settings.micro_batch
        """Images at a time, and prompts at a time; None: all of a batch."""
        self._clip = clip
        self._largest = 2 * settings.batch  # new images and as many replayed ones, or prompts

    def losses(self, batch: Batch, loss: Callable[[Features], Tensor]) -> Iterator[Tensor]:
        """The loss of a batch, as terms that add up to it (see `clip.losses`).

        Args:
            batch: The batch.
            loss: Its loss, from its features.
        """
        self._largest = max(self._largest, len(batch.prompt), num_prompts(batch.tokens))
        return losses(self._clip, batch, loss, self.size)

    def fit(self, run: Callable[[], T], reset: Callable[[], None] = lambda: None) -> T:
        """Call a function, and call it again with half the micro-batch while memory runs out.

        Several ranks would have to fail at the same point, so they are only told what to do.

        Args:
            run: The function; it must have no effect if it raises, or `reset` must undo it.
            reset: Called before each further attempt.
        """
        return until_it_fits(self._clip, run, self._halve, reset)

    def _halve(self, reason: str) -> int:
        size = self.size or self._largest
        amount = f"{count(size, 'image')} and {count(size, 'prompt')}"
        if collectives.world_size() > 1 or size == 1:
            smaller = "a smaller batch" if size == 1 else f"micro_batch={max(1, size // 2)}"
            raise UserError(
                f"the memory of {self._clip.device} does not suffice for {amount} at a time "
                f"({reason}); choose {smaller}, or another device"
            )
        self.size = size // 2
        log.warning(
            "the memory of %s does not suffice for %s at a time; training goes on with %d of each "
            "at a time, which is slower and gives the same gradients",
            self._clip.device,
            amount,
            self.size,
        )
        return self.size
