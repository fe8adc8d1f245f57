"""Let a new run take the place of another one, which comes back if the new one cannot start."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from retouch.errors import UserError
from retouch.evaluate import results as stored
from retouch.evaluate.results import Results
from retouch.train.checkpoint import CHECKPOINT
from retouch.train.extend_stream import COPY
from retouch.train.run_folder import CONFIG, is_run, read_config


def check_replaceable(folder: Path, sources: Mapping[str, str | Path | None]) -> None:
    """Refuse to overwrite anything but a run, or one that the new run needs.

    `sources` are what the new run reads, by the option that names them.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        read_config(folder)
    except UserError:
        raise UserError(
            f"--overwrite: {folder} is no run (its {CONFIG} is missing, or not of retouch's); only "
            "a run is overwritten. Choose another folder"
        ) from None
    others = [each.name for each in folder.iterdir() if is_run(each) and each.name != COPY]
    if others:
        raise UserError(
            f"--overwrite: {folder} holds another run, {min(others)}, which would be lost; move "
            "it, or choose another folder"
        )
    for option, source in sources.items():
        place = None if source is None else Path(source)
        if place and place.exists() and place.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"--overwrite would delete {folder}, but {option} {source} lies in it; choose "
                "another folder"
            )


def learned_nothing(folder: Path) -> bool:
    """Whether a run has not trained anything yet that could be lost."""
    before = read_config(folder).get("learned before", 0)
    done = Results.read(folder).done if (folder / stored.FILE).exists() else 0
    return done <= before and not (folder / CHECKPOINT).exists()


def is_replaceable(folder: Path) -> bool:
    """Whether another run may take its place unasked: nothing is lost with it.

    One that goes on from an earlier run may hold the only copy of that.
    """
    return learned_nothing(folder) and not (folder / COPY).exists()


def set_aside(folder: Path) -> None:
    """Make room for a new run; `restore` takes it back, `forget` deletes what was there.

    Where another run is set aside already, the one in the folder was killed before it could say
    which of the two is wanted: the one that has learned something.
    """
    if is_set_aside(folder) and learned_nothing(folder):
        shutil.rmtree(folder)
        return
    discard_aside(folder)
    folder.rename(_aside(folder))


def is_set_aside(folder: Path) -> bool:
    """Whether a run in this folder was replaced, and can still come back."""
    return _aside(folder).exists()


def restore(folder: Path) -> None:
    """Take away a run that could not start; what it replaced comes back."""
    if is_run(folder):
        shutil.rmtree(folder, ignore_errors=True)
    if (aside := _aside(folder)).exists():
        aside.rename(folder)


def discard_aside(folder: Path) -> None:
    """The new run has learned something: what it replaced is deleted."""
    shutil.rmtree(_aside(folder), ignore_errors=True)


def _aside(folder: Path) -> Path:
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.replaced")
