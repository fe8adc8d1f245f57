"""Load the model that a command is about: a run before and after its tasks, or a model alone."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from retouch.cli.options import Device, OptionGroup, Precision, RunModel
from retouch.errors import UserError
from retouch.text.plural import count

if TYPE_CHECKING:
    from retouch.clip import Preprocess
    from retouch.evaluate.compare import ModelAt
    from retouch.train import OpenRun


class ModelOptions(OptionGroup):
    """The model or run that a command is about, and how to compute with it."""

    panel: ClassVar[str] = "Model"

    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|RUN",
            help="A run's folder; or a model's folder, a hub id, open_clip:NAME/TAG or 'builtin'.",
        ),
    ]
    model: RunModel = None
    task: Annotated[
        int | None, typer.Option(help="The run after this many tasks. [default: all]", min=0)
    ] = None
    device: Device = "auto"
    precision: Precision = "auto"

    def load(self, *, device: str | None = None, light: bool = False) -> "LoadedModel":
        """Load it, on another device than `--device` if one is given."""
        return load_models(
            self.source,
            model=self.model,
            task=self.task,
            device=device or self.device,
            precision=self.precision,
            light=light,
        )


@dataclass
class LoadedModel:
    """A model, and the one it is compared with, if any."""

    name: str
    preprocess: "Preprocess"
    now: "ModelAt"
    before: "ModelAt | None" = None
    headings: tuple[str, str] = ("before", "now")
    run: "OpenRun | None" = None
    tasks: int = 0
    """How many tasks of the run the model has learned."""
    notes: list[str] = field(default_factory=list)


def load_models(
    source: str,
    *,
    model: str | None = None,
    task: int | None = None,
    device: str = "cpu",
    precision: str = "auto",
    light: bool = False,
) -> LoadedModel:
    """The model of a run before its first task and after a later one, or a model alone.

    Args:
        source: A run's folder, or a model.
        model: The model that the run started from, if it was moved.
        task: Take the run after this many tasks; all by default.
        device: Where to compute.
        precision: "fp32", "bf16", or "auto": that of the run, or what suits the machine.
        light: As in `retouch.load`: for a command that encodes a few images and ends.
    """
    from retouch.clip import load
    from retouch.train import is_run, open_run
    from retouch.train.hardware import hardware

    if is_run(source):
        run = open_run(source, model=model, device=device, light=light)
        return _of_run(run, task, precision)
    for option, value in (("--model", model), ("--task", task)):
        if value is not None:
            raise UserError(
                f"{option} {value} is for a run, and {source} is not a run's folder; leave "
                f"{option} out, or give a run"
            )
    clip = load(source, device=device, light=light)
    clip.bf16 = hardware(clip.device, clip.size, precision).precision == "bf16"
    return LoadedModel(source, clip.preprocess, lambda: clip)


def compared_with(
    loaded: LoadedModel, other: str, *, device: str = "cpu", precision: str = "auto"
) -> LoadedModel:
    """The same model, compared with another one, which is loaded only when it is needed."""
    names = [_short(name) for name in (other, loaded.name)]
    loaded.headings = (names[0], names[1]) if names[0] != names[1] else ("other", "this")
    loaded.before = lambda: load_models(other, device=device, precision=precision).now()
    return loaded


def _short(name: str, length: int = 16) -> str:
    """The end of a path or hub id, short enough for a column heading."""
    last = Path(name).name or name
    return last if len(last) <= length else f"{last[: length - 1]}…"


def _of_run(run: "OpenRun", task: int | None, precision: str) -> LoadedModel:
    from retouch.train.hardware import hardware

    done, planned = run.results.done, len(run.results.tasks)
    tasks = done if task is None else task
    if tasks > done:
        raise UserError(
            f"--task {tasks}: {run.folder} has learned {done} of {count(planned, 'task')}; choose "
            f"0 to {done}"
        )
    if precision == "auto":
        precision = run.config["settings"]["precision"]
    run.clip.bf16 = hardware(run.clip.device, run.clip.size, precision).precision == "bf16"
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
