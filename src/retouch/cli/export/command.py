"""`retouch export`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retouch.cli.options import Json, RunModel
from retouch.cli.terminal.console import out, print_json, print_line, user_errors
from retouch.files.output_paths import check_new_file
from retouch.text.plural import count

if TYPE_CHECKING:
    from retouch.export import Exported, ExportModel


class Target(StrEnum):
    """The library that will load the model."""

    hf = "hf"
    open_clip = "open_clip"
    onnx = "onnx"
    peft = "peft"
    deltas = "deltas"


_LIBRARIES = {
    "hf": "transformers",
    "open_clip": "open_clip",
    "onnx": "onnxruntime",
    "peft": "peft",
    "deltas": "retouch",
}


def export(
    run: Annotated[
        str,
        typer.Argument(
            help="A run's folder, any model to convert, or a language model's folder.",
            metavar="RUN",
        ),
    ],
    to: Annotated[
        Target,
        typer.Option(
            help="For transformers, for open_clip, as two ONNX encoders, or only what the "
            "run changed: as an adapter for peft, or as deltas for retouch."
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", "-o", help="A new folder.", metavar="FOLDER")],
    task: Annotated[
        int | None,
        typer.Option(
            help="The run after this many tasks; 0: before the first. [default: all]", min=0
        ),
    ] = None,
    model: RunModel = None,
    json: Json = False,
) -> None:
    """Write a plain model that its library loads without retouch, with a model card.

    The model is loaded again with that library and compared before the folder appears.

    With `--to peft`, the folder holds an adapter for the model that the run began with, and one for
    each task. It is exact for linear layers, which is all that `spu` moves; a run that moved
    anything else, as full fine-tuning does, is refused. Merging it gives the learned weights to the
    bit; unmerging is rounded, unlike `retouch delta undo`.

    The folder of a language model that was trained with `retouch.trainer` is exported to hf, or,
    if it has deltas, to peft.

    Example: `retouch export runs/march --to hf -o models/march`
    """
    with user_errors():
        check_new_file(folder)
        from retouch.export import export as write_export
        from retouch.export.causal import export_causal
        from retouch.trainer.causal_model import is_causal_folder

        if is_causal_folder(run):
            _refuse_options(run, model, task)
            exported = export_causal(run, to.value, folder)
            if json:
                print_json(_facts(exported))
            else:
                _show_causal(exported, run)
            return
        source = load_source(run, model, task)
        exported = write_export(source, to.value, folder)
        if json:
            print_json(_as_json(exported, source))
        else:
            _show(exported, source)


def load_source(run: str, model: str | None, task: int | None) -> "ExportModel":
    """The run or model to export or push."""
    from retouch.export import of_model, of_run
    from retouch.train.run_folder.read import is_run

    if is_run(run):
        return of_run(run, model=model, task=task)
    _refuse_options(run, model, task)
    return of_model(run)


def _refuse_options(run: str, model: str | None, task: int | None) -> None:
    from retouch.errors import UserError

    if task is not None or model is not None:
        option = "--task" if task is not None else "--model"
        raise UserError(f"{option} is for a run, and {run} holds none (it has no config.yaml)")


def _show(exported: "Exported", source: "ExportModel") -> None:
    from retouch.plotting.formatting import file_size

    tasks = source.run.done if source.run else 0
    model = source.base
    if tasks:
        classes = count(len(source.classes), "new class")
        model = f"the model after {count(tasks, 'task')}, {classes}"
    comparison = "the features are the same"
    if exported.to == "deltas":
        comparison = "undone and applied again, the weights are the same"
    if exported.max_difference:
        allowed = f"{exported.tolerance:.0e} is allowed"
        comparison = f"the features differ by at most {exported.max_difference:.1e} ({allowed})"
    if exported.to in ("peft", "deltas"):
        what = "an adapter" if exported.to == "peft" else "deltas"
        model = f"{what} of {model.removeprefix('the model after ')}"
    library, size = _LIBRARIES[exported.to], file_size(exported.size)
    print_line(out, f"{exported.folder}: {model}, for {library} ({size})")
    print_line(out, f"Loaded again with {library} and compared: {comparison}.")
    undo = ", how to load it and how to undo it" if tasks else " and how to load it"
    print_line(out, f"Its README.md says what it is{undo}.")


def _show_causal(exported: "Exported", name: str) -> None:
    from retouch.plotting.formatting import file_size

    what = "an adapter of what was learned" if exported.to == "peft" else f"the model {name}"
    library, size = _LIBRARIES[exported.to], file_size(exported.size)
    print_line(out, f"{exported.folder}: {what}, for {library} ({size})")
    print_line(out, f"Loaded again with {library} and compared: the weights are the same.")
    print_line(out, "Its README.md says what it is and how to load it.")


def _as_json(exported: "Exported", source: "ExportModel") -> dict[str, Any]:
    return {
        **_facts(exported),
        "tasks": source.run.done if source.run else None,
        "classes": [each.name for each in source.classes],
    }


def _facts(exported: "Exported") -> dict[str, Any]:
    return {
        "written": str(exported.folder),
        "to": exported.to,
        "max_difference": exported.max_difference,
        "tolerance": exported.tolerance,
        "bytes": exported.size,
        "files": exported.files,
    }
