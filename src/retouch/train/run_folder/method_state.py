"""`state-NN.safetensors`: what a method's parts remember from task to task, after NN tasks."""

from pathlib import Path

import safetensors
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.files.write import write_atomically
from retouch.methods import Method
from retouch.sparse import digest
from retouch.train.run_folder.checkpoint import method_state

PATTERN = "state-*.safetensors"


def state_file(folder: Path, tasks: int) -> Path:
    """The file that holds the state after `tasks` tasks."""
    return folder / f"state-{tasks:02}.safetensors"


def write_state(folder: Path, results: Results, method: Method) -> None:
    """Write the state of the method, if it has any, and its checksum into the results."""
    state = method_state(method)
    results.state = digest(state) if state else ""
    if state:
        write_atomically(state_file(folder, results.done), to_bytes(state))


def read_state(folder: Path, results: Results) -> dict[str, Tensor]:
    """The state after the last learned task; a damaged file is refused."""
    if not results.state:
        return {}
    file = state_file(folder, results.done)
    try:
        state: dict[str, Tensor] = load_file(file)
    except (OSError, safetensors.SafetensorError) as why:
        raise _damaged(file, results, why) from None
    if digest(state) != results.state:
        raise _damaged(file, results, "it was changed")
    return state


def parts_with_state(folder: Path, results: Results) -> list[str]:
    """The parts that left a state, such as `regularizer`; the state itself is not read."""
    if not results.state:
        return []
    file = state_file(folder, results.done)
    try:
        with safe_open(file, "pt") as content:
            names = [name.partition(":")[0] for name in content.keys()]  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as why:
        raise _damaged(file, results, why) from None
    return list(dict.fromkeys(names))


def _damaged(file: Path, results: Results, why: object) -> UserError:
    return UserError(
        f"{file}, the state of {results.method} after earlier tasks, is damaged ({why}); take "
        "another copy of the run"
    )
