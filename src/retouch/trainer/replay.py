"""Examples of earlier trainings, stored to be trained on again."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.files.write import write_atomically
from retouch.random_streams import RandomStream
from retouch.text.plural import count

log = logging.getLogger("retouch")
FILE = "replay.jsonl"
"""The buffer, inside of a model's folder."""


class ReplayBuffer:
    """Stores some examples of every training, as the trainer prepared them (token ids, labels).

    Each training so far has the same number of examples. The buffer is written to the trainer's
    `output_dir` when training ends; give that folder as `source` to the next one.

    Args:
        size: How many examples are stored in total.
        source: The folder of an earlier training, or its `replay.jsonl`; None to begin anew.
        ratio: How many stored examples are trained on for each new one. None is repeated before
            all were used.
    """

    @check_arguments()
    def __init__(self, size: int, source: str | Path | None = None, ratio: float = 1.0) -> None:
        if size < 1:
            raise UserError(f"a replay buffer cannot have {size} examples; choose 1 or more")
        if not 0 < ratio < float("inf"):
            raise UserError(f"ratio={ratio} is not possible; choose a number above 0, such as 1")
        self.size, self.ratio = size, ratio
        self._tasks: list[list[dict[str, Any]]] = [] if source is None else _read(Path(source))
        self._new: Any = None
        self._seed = 0

    @property
    def examples(self) -> list[dict[str, Any]]:
        """All stored examples."""
        return [example for task in self._tasks for example in task]

    def mix(self, new: Any, seed: int) -> Any:
        """The training data, together with stored examples.

        Args:
            new: A data set of the trainer, with a length.
            seed: Determines which stored examples come more often than others, and which new ones
                are stored.
        """
        if new is None or not hasattr(new, "__len__") or not hasattr(new, "__getitem__"):
            raise UserError(
                "examples of a data set that is streamed cannot be stored; give the trainer one "
                "with a length, or mix old examples into the stream yourself"
            )
        self._new, self._seed = new, seed
        stored = self.examples
        if not stored:
            return new
        rng = np.random.default_rng([seed, RandomStream.REPLAY, len(self._tasks)])
        number = max(1, round(self.ratio * len(new)))
        rounds = -(-number // len(stored))
        order = np.concatenate([rng.permutation(len(stored)) for _ in range(rounds)])[:number]
        log.info(f"{count(number, 'stored example')} will be replayed, of {len(stored)}")
        return _joined(new, stored, order.tolist())

    def save(self, folder: Path) -> None:
        """Add some of the new examples, and write the buffer.

        Args:
            folder: The folder to write `replay.jsonl` to.
        """
        rng = np.random.default_rng([self._seed, RandomStream.REPLAY, len(self._tasks), 1])
        share = max(1, self.size // (len(self._tasks) + 1))
        chosen = sorted(rng.permutation(len(self._new))[:share].tolist())
        tasks = [*self._tasks, [_plain(self._new[number]) for number in chosen]]
        lines = [
            json.dumps({"task": number, "example": example}, ensure_ascii=False)
            for number, task in enumerate(tasks, 1)
            for example in task[:share]
        ]
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, ("\n".join(lines) + "\n").encode())


def _read(source: Path) -> list[list[dict[str, Any]]]:
    """The stored examples of each training."""
    file = source / FILE if source.is_dir() else source
    if not file.is_file():
        raise UserError(
            f"there is no {file}; give the output_dir of a training with a replay buffer"
        )
    tasks: dict[int, list[dict[str, Any]]] = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            tasks.setdefault(int(row["task"]), []).append(dict(row["example"]))
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"line {number} of {file} is no stored example; take another copy of it"
            ) from None
    return [tasks[task] for task in sorted(tasks)]


def _plain(example: Mapping[str, Any]) -> dict[str, Any]:
    """An example as JSON holds it: arrays and tensors as lists."""
    plain = {}
    for name, value in example.items():
        plain[name] = value.tolist() if hasattr(value, "tolist") else value
        try:
            json.dumps(plain[name])
        except (TypeError, ValueError):
            raise UserError(
                f"an example's {name} is {type(value).__name__}, and a replay buffer holds numbers "
                "and text only; mix old examples into the data set yourself"
            ) from None
    return plain


def _joined(new: Any, stored: list[dict[str, Any]], order: list[int]) -> Any:
    """One data set of the kind that the new one is."""
    features = getattr(new, "features", None)
    if features is None:
        return ConcatDataset([new, Subset(stored, order)])  # type: ignore[arg-type]
    from datasets import Dataset, concatenate_datasets

    if set(features) != set(stored[0]):
        raise UserError(
            f"stored examples have {', '.join(sorted(stored[0]))}, and the new ones "
            f"{', '.join(sorted(features))}; prepare both in the same way"
        )
    try:
        old = Dataset.from_list(stored, features=features).select(order)
    except (ValueError, TypeError) as why:
        raise UserError(f"stored examples do not fit the new ones: {why}") from None
    return concatenate_datasets([new, old])
