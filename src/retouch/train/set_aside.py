"""Replace a run by a new one; the old run comes back if the new one cannot start.

Until the new run has learned its first task, the old one lies next to it, in a hidden folder.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from retouch.errors import UserError
from retouch.evaluate import results as results_file
from retouch.evaluate.results import Results
from retouch.train.checkpoint_file import CHECKPOINT
from retouch.train.extend_stream import COPY
from retouch.train.run_folder import CONFIG, is_run, read_config


def check_replaceable(folder: Path, sources: Mapping[str, str | Path | None]) -> None:
    """Refuse to overwrite anything but a run, or a run that the new one needs.

    Args:
        folder: What would be overwritten.
        sources: The paths that the new run reads, by what the caller calls them.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        read_config(folder)
    except UserError:
        raise UserError(
            f"{folder} cannot be overwritten: it holds no run (its {CONFIG} is missing, or was not "
            "written by retouch); choose another folder"
        ) from None
    others = [path.name for path in folder.iterdir() if is_run(path) and path.name != COPY]
    if others:
        raise UserError(
            f"{folder} cannot be overwritten: it holds another run, {min(others)}, which would be "
            "lost; move that, or choose another folder"
        )
    for name, source in sources.items():
        path = None if source is None else Path(source)
        if path and path.exists() and path.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"{folder} cannot be overwritten: {name} {source} lies in it; choose another folder"
            )


def learned_nothing(folder: Path) -> bool:
    """Whether a run has trained nothing yet that could be lost."""
    return not learned_a_task(folder) and not (folder / CHECKPOINT).exists()


def learned_a_task(folder: Path) -> bool:
    """Whether a run has learned a task of its own, after those of the run that it continues."""
    before = read_config(folder).get("learned before", 0)
    done = Results.read(folder).done if (folder / results_file.FILE).exists() else 0
    return bool(done > before)


def is_replaceable(folder: Path) -> bool:
    """Whether a run may be replaced without `overwrite`: nothing is lost with it.

    A run that continues another may hold the only copy of that one.
    """
    return learned_nothing(folder) and not (folder / COPY).exists()


def set_aside(folder: Path) -> None:
    """Move a run out of the way; `restore` moves it back, `discard_aside` deletes it.

    Where another run is set aside already, the run that replaced it was interrupted. It is kept
    instead of the other if it has learned a task, and deleted otherwise.
    """
    if is_set_aside(folder) and not learned_a_task(folder):
        shutil.rmtree(folder)
        return
    discard_aside(folder)
    folder.rename(aside_of(folder))


def is_set_aside(folder: Path) -> bool:
    """Whether a run of this folder was set aside and still exists."""
    return aside_of(folder).exists()


def restore(folder: Path) -> None:
    """Delete a run that could not start; the one that it replaced comes back."""
    if is_run(folder):
        shutil.rmtree(folder, ignore_errors=True)
    if (aside := aside_of(folder)).exists():
        aside.rename(folder)


def discard_aside(folder: Path) -> None:
    """Delete the run that was set aside."""
    shutil.rmtree(aside_of(folder), ignore_errors=True)


def aside_of(folder: Path) -> Path:
    """Where the run of a folder lies while it is set aside."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.replaced")
