"""What is exported: a model, and what is known of how it came about."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retouch.clip import Clip, load
from retouch.errors import UserError
from retouch.evaluate.per_class import PerClass
from retouch.evaluate.results import Results
from retouch.train.run_folder import is_run, open_run

TEMPLATE = "a photo of {}"


@dataclass(frozen=True)
class ExportModel:
    """A model to export. What it says about itself names no path of this machine."""

    clip: Clip
    """The model."""
    base: str
    """The model it began as, for people."""
    hub: str | None = None
    """The base's id on the hub, where it has one."""
    run: Results | None = None
    """What is known of the run at this moment of it; None for a model that just changes library."""
    config: dict[str, Any] = field(default_factory=dict)
    """What the run began with."""
    by_class: PerClass | None = None
    """The comparison by class, if the run has one."""

    @property
    def classes(self) -> list[str]:
        """What was learned by now, in order."""
        tasks = self.run.tasks[: self.run.done] if self.run else []
        return list(dict.fromkeys(name for task in tasks for name in task.classes))

    @property
    def templates(self) -> list[str]:
        """The prompts by which the run was judged."""
        found = self.config.get("data", {}).get("templates")
        return [str(template) for template in found] if found else [TEMPLATE]


def of_run(folder: str | Path, *, model: str | None = None, task: int | None = None) -> ExportModel:
    """The model of a run.

    Args:
        folder: The run's folder.
        model: The model that the run began with, if it has moved since.
        task: How many tasks are learned in it: 0 is the model before the first. Default: all of
            them.
    """
    if not is_run(folder):
        raise UserError(f"{folder} holds no run: config.yaml is missing there")
    opened = open_run(folder, model=model)
    if task is None and not opened.results.done:
        raise UserError(
            f"{folder} has learned no task yet, so there is nothing new to export; let it finish "
            "(the same `retouch learn` goes on), or say --task 0 for the model it began with"
        )
    clip = opened.load_task(task)
    name = model or str(opened.config["places"]["model"])
    last = opened.at == opened.results.done
    return ExportModel(
        clip,
        base=shown(name),
        hub=hub_id(name),
        run=_until(opened.results, opened.at),
        config=opened.config,
        by_class=PerClass.read(folder) if last else None,
    )


def of_model(name: str) -> ExportModel:
    """Any model that `retouch.load` knows: it changes its library, nothing else.

    Args:
        name: As in `retouch.load`.
    """
    return ExportModel(load(name), base=shown(name), hub=hub_id(name))


def shown(name: str) -> str:
    """A model's name without the folders that lead to it."""
    if name == "builtin":
        return "the small CLIP that comes with retouch"
    if name.startswith("open_clip:"):
        model, at, file = name.partition("@")
        return f"{model}@{Path(file).name}" if at else model
    return hub_id(name) or Path(name).resolve().name


def hub_id(name: str) -> str | None:
    """The name itself if it can only be one on the hub."""
    like = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith((".", "open_clip:"))
    return name if like and not Path(name).exists() else None


def _until(results: Results, tasks: int) -> Results:
    """The results as they were when so many tasks were learned."""
    each = {
        name: getattr(results, name)[:tasks] for name in ("trained", "seconds", "fraction_kept")
    }
    # Before this run's own first task, the model is one of the earlier run's.
    start = results.learned_before if tasks > results.learned_before else 0
    changes = {"rows": results.rows[: tasks + 1], "learned_before": start, **each}
    return results.model_copy(update=changes)
