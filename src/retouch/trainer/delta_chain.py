"""The deltas of one training after the other: a folder of files that form a chain."""

import logging
import shutil
from pathlib import Path

from retouch.errors import UserError
from retouch.sparse import Delta, Header, in_order, read_header

log = logging.getLogger("retouch")
FOLDER = "deltas"
"""The folder of the deltas, inside of a model's folder."""


def chain_in(folder: Path) -> list[Header]:
    """The headers of the deltas in a folder, in the order in which they were learned.

    Args:
        folder: The folder; it need not exist.
    """
    files = sorted(folder.glob("*.safetensors"))
    return in_order([read_header(file) for file in files]) if files else []


class DeltaChain:
    """Where the delta of a training will be written, and what it follows.

    Args:
        folder: The folder to write to. Deltas that are there already lead to `before`.
        before: The fingerprint of the weights that this training starts from.
        model: The name of the model. If it is a folder with deltas that lead to `before`, they
            are copied, so that the chain is whole.
        resumed: Whether the training goes on from a checkpoint: its delta may be there already.
    """

    def __init__(self, folder: Path, before: str, model: str, resumed: bool) -> None:
        self.folder = folder
        self._earlier: list[Path] = []
        self._number = 1
        steps = chain_in(folder)
        if resumed and steps and steps[-1].before == before:
            steps.pop()
        if not steps:
            self._earlier = _deltas_of(model, before)
            self._number += len(self._earlier)
            return
        if steps[-1].after != before:
            raise UserError(
                f"the deltas in {folder} lead to the weights {steps[-1].after[:12]}, and the "
                f"model's are {before[:12]}; to go on from them, load the model they lead to, or "
                "choose another output_dir to begin anew"
            )
        self._number += len(steps)

    def write(self, delta: Delta) -> Path:
        """Write the delta of this training, after those that it follows.

        Args:
            delta: What was learned.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, file in enumerate(self._earlier, 1):
            shutil.copyfile(file, self.folder / f"task-{number:02}.safetensors")
        file = self.folder / f"task-{self._number:02}.safetensors"
        delta.save(file)
        return file


def _deltas_of(model: str, before: str) -> list[Path]:
    """The deltas in the folder that a model was loaded from, if they lead to its weights."""
    folder = Path(model) / FOLDER
    steps = chain_in(folder) if model and folder.is_dir() else []
    if steps and steps[-1].after != before:
        log.warning(
            f"the deltas in {folder} lead to other weights than those that training starts from, "
            f"{before[:12]}, so a new chain begins; was the model loaded in another precision?"
        )
        return []
    return [Path(step.name) for step in steps]
