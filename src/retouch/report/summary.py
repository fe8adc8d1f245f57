"""All that is known of a run: its results, what they say class by class, and what moved."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retouch.errors import UserError
from retouch.evaluate.per_class import PerClass
from retouch.evaluate.results import FILE, Results
from retouch.report.run_names import named
from retouch.sparse import ChangeStats, read_change_stats
from retouch.train.run_folder import delta_file, is_run


@dataclass(frozen=True)
class RunSummary:
    """A run as the page tells it. Results alone will do."""

    results: Results
    """What was measured."""
    folder: Path | None = None
    """The run's folder, if it has one."""
    classes: PerClass | None = None
    """The comparison by class, if there is one."""
    change_stats: Sequence[ChangeStats] = ()
    """How far each tensor moved, over all tasks."""
    trouble: str = ""
    """Why it is not known how far weights moved, if files that should say it cannot be read."""

    @property
    def deltas(self) -> list[str]:
        """The change that each task made, the first first, as paths in the run's folder."""
        files = [delta_file(Path(), number) for number in range(self.results.done)]
        if self.folder is not None and not all((self.folder / file).is_file() for file in files):
            return []
        return [file.as_posix() for file in files]


Run = Results | RunSummary | str | Path
"""What can be reported: a run's folder, what was read of it, or its results alone."""


def read_run_summary(folder: str | Path) -> RunSummary:
    """Read what a run's folder holds, except the model and the images that it learned from.

    Args:
        folder: The run's folder.
    """
    folder = Path(folder)
    results = _read_results(folder)
    story = RunSummary(results, folder, PerClass.read(folder))
    try:
        moved = read_change_stats(folder / file for file in story.deltas)
    except UserError as why:
        return RunSummary(results, folder, story.classes, trouble=str(why))
    return RunSummary(results, folder, story.classes, moved)


def run_summaries(folder: Path, runs: Sequence[Run]) -> list[RunSummary]:
    """The runs as stories. Results whose own folder this is are told with what lies in it."""
    if not runs:
        raise UserError("there is no run to report; name at least one")
    return [_story(folder, run) for run in runs]


def named_results(told: Sequence[RunSummary]) -> list[Results]:
    """The results of each run, named by its folder where the methods do not tell them apart.

    Args:
        told: The runs, as `read_run_summary` returns them.
    """
    return named([story.results for story in told], [story.folder for story in told])


def place_for(told: Sequence[RunSummary], wanted: Path | None = None) -> Path:
    """Where the page belongs: with its run; of several, in the folder that holds them all.

    The page of a run is never replaced by one about others.

    Args:
        told: The runs, as `read_run_summary` returns them.
        wanted: A folder to use instead.
    """
    folders = [story.folder.resolve() for story in told if story.folder]
    found = wanted or (told[0].folder if len(told) == 1 else _common(folders)) or Path()
    if is_run(found) and [found.resolve()] != folders:
        raise UserError(f"{found} is a run with a page of its own; choose another folder with -o")
    if wanted is None and str(found) == found.anchor:
        raise UserError(f"these runs have only {found} in common; say where to write with -o")
    return found


def _common(folders: Sequence[Path]) -> Path:
    found = Path(os.path.commonpath(folders))
    here = Path.cwd()
    return found.relative_to(here) if found.is_relative_to(here) else found


def _story(folder: Path, run: Run) -> RunSummary:
    if isinstance(run, RunSummary):
        return run
    if not isinstance(run, Results):
        return read_run_summary(run)
    return read_run_summary(folder) if _holds(folder, run) else RunSummary(run)


def _holds(folder: Path, run: Results) -> bool:
    """Whether these results are of the run in this folder."""
    if not is_run(folder) or not (folder / FILE).is_file():
        return False
    there = Results.read(folder)
    return (there.method, there.tasks, there.rows) == (run.method, run.tasks, run.rows)


def _read_results(folder: Path) -> Results:
    """The results, or what to name instead where this is another folder than a run's."""
    if folder.is_file():
        raise UserError(f"{folder} is a file; name the folder of a run")
    if not folder.exists():
        raise UserError(f"there is no folder {folder}; name the folder of a run")
    if not (folder / FILE).exists():
        inside = sorted(file.parent for file in folder.glob(f"*/{FILE}"))
        hint = f"; name the runs in it, such as {inside[0]}" if inside else ""
        raise UserError(f"{folder} holds no run: {FILE} is missing there{hint}")
    return Results.read(folder)
