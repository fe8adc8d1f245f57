"""`retouch export`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retouch.cli.console import out, print_json, user_errors
from retouch.cli.options import Json
from retouch.output_paths import check_new_file

if TYPE_CHECKING:
    from retouch.export import Exported, ExportModel


class To(StrEnum):
    """A library that shall load the model."""

    hf = "hf"
    open_clip = "open_clip"
    onnx = "onnx"


_WHERE = {"hf": "transformers", "open_clip": "open_clip", "onnx": "onnxruntime"}


def export(
    run: Annotated[
        str,
        typer.Argument(help="A run's folder, or any model to convert.", metavar="RUN"),
    ],
    to: Annotated[To, typer.Option(help="transformers, open_clip, or two ONNX encoders.")],
    folder: Annotated[Path, typer.Option("--out", "-o", help="A new folder.", metavar="FOLDER")],
    task: Annotated[
        int | None,
        typer.Option(help="The model after so many tasks; 0: before the first.", min=0),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model that RUN began with, where it lies elsewhere now.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a plain model that its library loads without retouch, and a card that says what it is.

    Such as `retouch export runs/march --to hf -o models/march`. What was written is loaded again
    and compared with the run's own model before the folder appears.
    """
    with user_errors():
        check_new_file(folder)
        from retouch.export import export as write

        subject = _subject(run, model, task)
        done = write(subject, to.value, folder)
        if json:
            print_json(_facts(done, subject))
        else:
            _say(done, subject)


def _subject(run: str, model: str | None, task: int | None) -> "ExportModel":
    from retouch.errors import UserError
    from retouch.export import of_model, of_run
    from retouch.train.run_folder import is_run

    if is_run(run):
        return of_run(run, model=model, task=task)
    if task is not None or model is not None:
        what = "--task" if task is not None else "--model"
        raise UserError(f"{what} belongs to a run, and {run} holds none (no config.yaml there)")
    return of_model(run)


def _say(done: "Exported", subject: "ExportModel") -> None:
    from retouch.report.phrasing import file_size

    tasks = subject.run.done if subject.run else 0
    what = subject.base
    if tasks:
        what = f"the model after {_many(tasks, 'task')}, {_many(len(subject.classes), 'new class')}"
    near = "the features are the same"
    if done.max_difference:
        allowed = f"{done.tolerance:.0e} is allowed"
        near = f"the features differ by at most {done.max_difference:.1e} ({allowed})"
    lines = [
        f"{done.folder}: {what}, for {_WHERE[done.to]} ({file_size(done.size)})",
        f"Loaded again there and compared: {near}.",
        "README.md there says what it is, how to load it and, of a run, how to go back.",
    ]
    out.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


def _facts(done: "Exported", subject: "ExportModel") -> dict[str, Any]:
    return {
        "written": str(done.folder),
        "to": done.to,
        "tasks": subject.run.done if subject.run else None,
        "classes": subject.classes,
        "max_difference": done.max_difference,
        "tolerance": done.tolerance,
        "bytes": done.size,
        "files": done.files,
    }


def _many(count: int, thing: str) -> str:
    ending = "" if count == 1 else "es" if thing.endswith("s") else "s"
    return f"{count:,} {thing}{ending}"
