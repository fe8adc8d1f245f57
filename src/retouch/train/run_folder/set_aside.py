"""Replace a run with a new one; the old run comes back if the new one cannot start.

Until the new run has learned its first task, the old one lies in a hidden folder inside the run's
own. All moves are inside that folder, which itself stays where it is: it may be a link or the root
of a disk, and its parent may be read-only.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from retouch.errors import UserError
from retouch.evaluate import results as results_file
from retouch.evaluate.results import Results
from retouch.files.output_paths import foreign_file
from retouch.files.write import written_whole
from retouch.train.run_folder.checkpoint import CHECKPOINT
from retouch.train.run_folder.files import (
    COPY,
    DELETED,
    NEW,
    REPLACED,
    check_page_folder,
    delete_rest,
    delete_run,
    delete_run_folder,
    is_unused,
    move_run,
    refuse_foreign,
)
from retouch.train.run_folder.read import CONFIG, is_run, read_config


def check_replaceable(folder: Path, sources: Mapping[str, str | Path | None]) -> None:
    """Refuse to overwrite anything but a run, or a run that the new one needs.

    Args:
        folder: What would be overwritten.
        sources: The paths that the new run reads, by what the caller calls them.
    """
    if is_unused(folder):
        return
    if not _is_ours(folder):
        raise UserError(
            f"{folder} cannot be overwritten: it holds no run (its {CONFIG} is missing, or was not "
            "written by retouch); choose another folder"
        )
    refuse_foreign(folder)
    check_page_folder(folder)
    for name, source in sources.items():
        if source is not None and _is_inside(source, folder):
            raise UserError(
                f"{folder} cannot be overwritten: {name} {source} lies in it; choose another folder"
            )


def _is_ours(folder: Path) -> bool:
    """Whether a folder holds a run, even if one of its documents is damaged."""
    for read in (read_config, Results.read):
        with suppress(UserError, OSError):
            read(folder)
            return is_run(folder)
    return False


def _is_inside(source: str | Path, folder: Path) -> bool:
    with suppress(OSError, ValueError):  # the name of a model need not be a path
        path = Path(source)
        return path.exists() and path.resolve().is_relative_to(folder.resolve())
    return False


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


def create_run(folder: Path, write: Callable[[Path], None]) -> None:
    """Create a run in a folder that holds none, whole or not at all.

    Args:
        folder: The folder.
        write: Writes the files into the folder that it is given, the config among them.
    """
    new = folder / NEW
    new.mkdir(parents=True)
    try:
        with written_whole(new, folder):
            write(new)
        move_run(new, folder)
        new.rmdir()
    except BaseException:
        (folder / DELETED).mkdir(exist_ok=True)
        (new / CONFIG).unlink(missing_ok=True)
        delete_rest(folder)
        raise


def recover(folder: Path) -> None:
    """Finish what a killed process began: the folder holds a whole run, or none.

    Whether there is a config tells how far it was (see `move_run`).
    """
    new, deleted, aside = folder / NEW, folder / DELETED, aside_of(folder)
    if is_run(new) and not is_run(folder):
        move_run(new, folder)
    if not is_run(folder) and (deleted.exists() or is_run(aside)):
        delete_rest(folder)
    delete_run_folder(new)
    delete_run_folder(deleted)
    if aside.exists() and not (is_run(aside) and is_run(folder)):
        _move_back(folder)


def set_aside(folder: Path) -> None:
    """Move a run out of the way; `restore` moves it back, `discard_aside` deletes it.

    Where another run is set aside already, the run that replaced it was interrupted. It is kept
    instead of the other if it has learned a task, and deleted otherwise.
    """
    if is_set_aside(folder) and not learned_a_task(folder):
        delete_run(folder)
        return
    discard_aside(folder)
    if is_set_aside(folder):
        raise foreign_file(folder / DELETED)
    move_run(folder, aside_of(folder))


def is_set_aside(folder: Path) -> bool:
    """Whether a run of this folder was set aside and still exists."""
    return is_run(aside_of(folder))


def restore(folder: Path) -> None:
    """Delete a run that could not start; the one that it replaced comes back."""
    if is_run(folder):
        delete_run(folder)
    if is_set_aside(folder):
        _move_back(folder)


def _move_back(folder: Path) -> None:
    move_run(aside_of(folder), folder, config_first=True)
    with suppress(OSError):
        aside_of(folder).rmdir()


def discard_aside(folder: Path) -> None:
    """Delete the run that was set aside."""
    with suppress(OSError):  # someone has put a file of their own there
        if is_set_aside(folder):
            aside_of(folder).rename(folder / DELETED)  # half a run must not look like a whole one
    delete_run_folder(folder / DELETED)


def aside_of(folder: Path) -> Path:
    """Where the run of a folder lies while it is set aside."""
    return folder / REPLACED
