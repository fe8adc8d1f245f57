"""What is exported: a model, and what is known about how it was trained."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retouch.clip import Clip, load
from retouch.clip.class_vectors import ClassVectors
from retouch.clip.loading.hub import SEPARATOR
from retouch.errors import UserError
from retouch.evaluate.choices import ClassChoices, PromptedClass
from retouch.evaluate.class_features import ClassFeatures
from retouch.evaluate.per_class import PerClass
from retouch.evaluate.results import Results
from retouch.train.run_folder.read import delta_file, is_run, open_run


@dataclass(frozen=True)
class ExportModel:
    """A model to export. What it says about itself names no path of this machine."""

    clip: Clip
    """The model."""
    base: str
    """The model that training started from, for people."""
    hub: str | None = None
    """The base's id on the hub, if it has one."""
    run: Results | None = None
    """The results up to this task; None for a model that is only converted."""
    config: dict[str, Any] = field(default_factory=dict)
    """The run's configuration."""
    by_class: PerClass | None = None
    """The comparison by class, if the run has one."""
    deltas: Sequence[Path] = ()
    """The files of the deltas that lead from the base to the model, in order."""

    @property
    def choices(self) -> ClassChoices | None:
        """Which classes the run classified an image among, if a run has learned any."""
        learned = self.run and self.run.done and self.config
        return ClassChoices.of_config(self.config["data"]) if learned else None

    @property
    def classes(self) -> list[PromptedClass]:
        """The classes learned so far, in order, with the prompts that the run tested them with."""
        if self.run is None or self.choices is None:
            return []
        return [self.choices.prompted(name) for name in self.choices.seen(self.run.done)]

    @property
    def class_vectors(self) -> ClassVectors | None:
        """A vector for each of these classes, in their order; None if they answer by prompt.

        A class that was learned before its run added class vectors has the feature of its prompts.
        """
        if self.clip.class_vectors is None or self.run is None or self.choices is None:
            return None
        names = self.choices.seen(self.run.done)
        return ClassFeatures(self.clip, names, self.choices.groups)(self.clip).as_vectors(names)


def of_run(folder: str | Path, *, model: str | None = None, task: int | None = None) -> ExportModel:
    """The model of a run.

    Args:
        folder: The run's folder.
        model: The model that the run began with, if it has moved since.
        task: How many tasks are learned in it: 0 is the model before the first. Default: all of
            them.
    """
    if not is_run(folder):
        raise UserError(f"{folder} does not hold a run: it has no config.yaml")
    run = open_run(folder, model=model)
    if task is None and not run.results.done:
        raise UserError(
            f"{folder} has not learned a task yet, so there is nothing new to export; let it "
            "finish (the same `retouch learn` continues it), or export task 0, the model it began "
            "with",
            argument="task=0",
        )
    clip = run.load_task(task)
    name = model or str(run.config["places"]["model"])
    is_last = run.at == run.results.done
    return ExportModel(
        clip,
        base=display_name(name),
        hub=hub_id(name),
        run=_results_until(run.results, run.at),
        config=run.config,
        by_class=PerClass.read(folder) if is_last else None,
        deltas=[delta_file(run.folder, number) for number in range(run.at)],
    )


def of_model(name: str) -> ExportModel:
    """Any model that `retouch.load` knows: it changes its library, nothing else.

    Args:
        name: As in `retouch.load`.
    """
    return ExportModel(load(name), base=display_name(name), hub=hub_id(name))


def display_name(name: str) -> str:
    """A model's name without the folders that lead to it."""
    base, at, repo = name.rpartition(SEPARATOR)
    if at:
        return f"{display_name(base)}{SEPARATOR}{repo}"
    if name == "builtin":
        return "the small CLIP that comes with retouch"
    if name.startswith("open_clip:"):
        model, at, file = name.partition("@")
        return f"{model}@{Path(file).name}" if at else model
    return hub_id(name) or Path(name).resolve().name


def hub_id(name: str) -> str | None:
    """The name itself if it can only be one on the hub."""
    is_id = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith((".", "open_clip:"))
    return name if is_id and not Path(name).exists() else None


def _results_until(results: Results, tasks: int) -> Results:
    """The results as they were after this many tasks."""
    per_task = ("trained", "seconds", "steps", "fraction_kept")
    changes: dict[str, Any] = {name: getattr(results, name)[:tasks] for name in per_task}
    # Before the first task of this run, the model is one of the earlier run.
    learned_before = results.learned_before if tasks > results.learned_before else 0
    changes |= {"rows": results.rows[: tasks + 1], "learned_before": learned_before}
    return results.model_copy(update=changes)
