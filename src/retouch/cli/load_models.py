"""What a command asks: a model, or the folder of a run, whose model has a before and a now."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retouch.errors import UserError
from retouch.plural import count

if TYPE_CHECKING:
    from retouch.clip import Preprocess
    from retouch.evaluate.compare import ModelAt
    from retouch.train import OpenRun

Where = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|RUN",
        help="A run's folder; or a model's folder, a hub id, open_clip:NAME/TAG or 'builtin'.",
    ),
]
Base = Annotated[
    str | None,
    typer.Option("--model", help="Where the model is that the run began with, if it was moved."),
]
AtTask = Annotated[
    int | None,
    typer.Option("--task", help="The run as it was after so many tasks. [default: all]", min=0),
]


@dataclass
class LoadedModel:
    """A model, and the one it is compared with, if any."""

    name: str
    pixels: "Preprocess"
    now: "ModelAt"
    before: "ModelAt | None" = None
    headings: tuple[str, str] = ("before", "now")
    run: "OpenRun | None" = None
    tasks: int = 0
    """So many tasks of the run are learned now."""
    notes: list[str] = field(default_factory=list)


def load_models(
    where: str,
    *,
    model: str | None = None,
    task: int | None = None,
    device: str = "cpu",
    precision: str = "auto",
    light: bool = False,
) -> LoadedModel:
    """The model of a run before its first task and after the last, or a model alone.

    `light` as in `retouch.load`: for a command that encodes some images and ends.
    """
    from retouch.clip import load
    from retouch.train import is_run, open_run
    from retouch.train.hardware import hardware

    if is_run(where):
        run = open_run(where, model=model, device=device, light=light)
        return _of_run(run, task, precision)
    for option, value in (("--model", model), ("--task", task)):
        if value is not None:
            raise UserError(
                f"{where} is no folder of a run, so {option} {value} says nothing about it; "
                f"leave {option} out, or give a run's folder"
            )
    clip = load(where, device=device, light=light)
    clip.bf16 = hardware(clip.device, clip.size, precision).precision == "bf16"
    return LoadedModel(where, clip.preprocess, lambda: clip)


def compared(
    subject: LoadedModel, against: str, *, device: str = "cpu", precision: str = "auto"
) -> LoadedModel:
    """The same model beside another one, which is loaded when its turn comes."""
    names = [_short(name) for name in (against, subject.name)]
    subject.headings = (names[0], names[1]) if names[0] != names[1] else ("other", "this")
    subject.before = lambda: load_models(against, device=device, precision=precision).now()
    return subject


def _short(name: str, most: int = 16) -> str:
    """The end of a path or of a hub id, fit for the head of a column."""
    last = Path(name).name or name
    return last if len(last) <= most else f"{last[: most - 1]}…"


def _of_run(run: "OpenRun", task: int | None, precision: str) -> LoadedModel:
    from retouch.train.hardware import hardware

    done, planned = run.results.done, len(run.results.tasks)
    tasks = done if task is None else task
    if tasks > done:
        raise UserError(
            f"{run.folder} has learned {done} of {count(planned, 'task')}; --task {tasks} asks for "
            f"more, choose 0 to {done}"
        )
    own = run.config["settings"]["precision"] if precision == "auto" else precision
    run.clip.bf16 = hardware(run.clip.device, run.clip.size, own).precision == "bf16"
    notes = []
    if tasks < planned:
        state = f"after {tasks} of {count(planned, 'task')}" if tasks else "before its first task"
        notes.append(f"this is {run.folder} {state}")
    return LoadedModel(
        str(run.folder),
        run.clip.preprocess,
        now=lambda: run.load_task(tasks),
        before=(lambda: run.load_task(0)) if tasks else None,
        run=run,
        tasks=tasks,
        notes=notes,
    )
