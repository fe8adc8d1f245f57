"""All that is known of a run: its results, its classes, and how its weights changed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retouch.errors import UserError
from retouch.evaluate.per_class import PerClass
from retouch.evaluate.results import FILE, Results
from retouch.report.run_names import name_by_folder
from retouch.sparse import ChangeStats, read_change_stats
from retouch.train.run_folder.read import delta_file, is_run


@dataclass(frozen=True)
class RunSummary:
    """A run as the page shows it; everything but the results may be missing."""

    results: Results
    """What was measured."""
    folder: Path | None = None
    """The run's folder, if it has one."""
    classes: PerClass | None = None
    """The comparison by class, if there is one."""
    change_stats: Sequence[ChangeStats] = ()
    """How far each tensor moved, over all tasks."""
    problem: str = ""
    """Why it is not known how far weights moved, if files that should say it cannot be read."""

    @property
    def deltas(self) -> list[str]:
        """The delta of each task, in order, as paths in the run's folder."""
        files = [delta_file(Path(), number) for number in range(self.results.done)]
        if self.folder is not None and not all((self.folder / file).is_file() for file in files):
            return []
        return [file.as_posix() for file in files]


Run = Results | RunSummary | str | Path
"""What can be reported: a run's folder, its summary, or its results alone."""


def read_run_summary(folder: str | Path) -> RunSummary:
    """Read what a run's folder holds; neither the model nor the images are needed.

    Args:
        folder: The run's folder.
    """
    folder = Path(folder)
    results = _read_results(folder)
    summary = RunSummary(results, folder, PerClass.read(folder))
    try:
        change_stats = read_change_stats(folder / file for file in summary.deltas)
    except UserError as error:
        return RunSummary(results, folder, summary.classes, problem=str(error))
    return RunSummary(results, folder, summary.classes, change_stats)


def run_summaries(folder: Path, runs: Sequence[Run]) -> list[RunSummary]:
    """The summaries of runs; results that belong to `folder` are read with what it holds."""
    if not runs:
        raise UserError("there is no run to report; name at least one")
    return [_summary(folder, run) for run in runs]


def named_results(summaries: Sequence[RunSummary]) -> list[Results]:
    """The results of each run, named by its folder if the methods do not tell them apart.

    Args:
        summaries: The runs, as `read_run_summary` returns them.
    """
    results = [summary.results for summary in summaries]
    return name_by_folder(results, [summary.folder for summary in summaries])


def report_folder(summaries: Sequence[RunSummary], requested: Path | None = None) -> Path:
    """Where the page belongs: with its run; for several runs, in their common parent folder.

    The page of a run is never replaced by one about others.

    Args:
        summaries: The runs, as `read_run_summary` returns them.
        requested: A folder to use instead.
    """
    folders = [summary.folder.resolve() for summary in summaries if summary.folder]
    folder = requested or _default_folder(summaries, folders)
    if is_run(folder) and [folder.resolve()] != folders:
        raise UserError(f"{folder} is a run with a page of its own; choose another folder")
    if requested is None and str(folder) == folder.anchor:
        raise UserError(f"these runs have only {folder} in common; choose a folder to write to")
    return folder


def _default_folder(summaries: Sequence[RunSummary], folders: Sequence[Path]) -> Path:
    if len(summaries) == 1:
        return summaries[0].folder or Path()
    return _common_parent(folders)


def _common_parent(folders: Sequence[Path]) -> Path:
    parent = Path(os.path.commonpath(folders))
    here = Path.cwd()
    return parent.relative_to(here) if parent.is_relative_to(here) else parent


def _summary(folder: Path, run: Run) -> RunSummary:
    if isinstance(run, RunSummary):
        return run
    if not isinstance(run, Results):
        return read_run_summary(run)
    return read_run_summary(folder) if _belongs_to(run, folder) else RunSummary(run)


def _belongs_to(run: Results, folder: Path) -> bool:
    """Whether these results are of the run in this folder."""
    if not is_run(folder) or not (folder / FILE).is_file():
        return False
    stored = Results.read(folder)
    return (stored.method, stored.tasks, stored.rows) == (run.method, run.tasks, run.rows)


def _read_results(folder: Path) -> Results:
    """The results of a run, or an error that says what to name instead."""
    if folder.is_file():
        raise UserError(f"{folder} is a file; name the folder of a run")
    if not folder.exists():
        raise UserError(f"there is no folder {folder}; name the folder of a run")
    if not (folder / FILE).exists():
        runs = sorted(file.parent for file in folder.glob(f"*/{FILE}"))
        hint = f"; name the runs in it, such as {runs[0]}" if runs else ""
        raise UserError(f"{folder} holds no run: {FILE} is missing there{hint}")
    return Results.read(folder)
