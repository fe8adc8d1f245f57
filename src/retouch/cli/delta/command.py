"""`retouch delta`: show what was learned, apply it, undo it, merge several, import an adapter."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from retouch.cli.delta.output import delta_facts, save_delta, show_written, write_model
from retouch.cli.options import Json
from retouch.cli.terminal.console import out, print_json, print_line, user_errors
from retouch.files.output_paths import check_new_file
from retouch.text.plural import count

delta = typer.Typer(
    name="delta",
    help="Show what was learned; apply it, undo it, merge several deltas, import adapters.",
    no_args_is_help=True,
)
Files = Annotated[
    list[Path],
    typer.Argument(
        help="Deltas, a run for all of its deltas, or hf:OWNER/NAME on the hub.", metavar="FILE"
    ),
]
Folder = Annotated[Path, typer.Option("--out", "-o", help="A new folder for the model.")]
File = Annotated[Path, typer.Option("--out", "-o", help="A new file for the delta.")]
MODEL_HELP = "A model as for `learn --model`, or a run's folder."
UNLIMITED = 1000
"""Columns when printing to a file or a pipe: nothing is cut there."""


@delta.command()
def show(
    files: Files,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="One line per tensor instead of one per block.")
    ] = False,
    json: Json = False,
) -> None:
    """What a delta changes, which weights it belongs to, and how far it moved each layer.

    Only the header is read, neither the model nor the change itself, so it is fast. Several deltas
    or a run get one line each, and the sum by layer:

    `retouch delta show runs/march`
    """
    with user_errors():
        from retouch.cli.delta.show import delta_json, delta_pages
        from retouch.train.run_folder.deltas import headers_in

        headers = headers_in(files)
        if json:
            print_json({"deltas": [delta_json(header) for header in headers]})
            return
        width = out.width if out.is_terminal else None
        console = out if width else Console(file=out.file, width=UNLIMITED)
        for part in delta_pages(headers, tensors, width):
            console.print(part, highlight=False)


@delta.command()
def apply(
    base: Annotated[str, typer.Argument(help=MODEL_HELP, metavar="BASE")],
    files: Files,
    folder: Folder,
    json: Json = False,
) -> None:
    """Apply deltas to a model, and write the result.

    The files may be given in any order. A model other than the one they were made for is refused.

    `retouch delta apply openai/clip-vit-base-patch16 runs/march -o march`

    `retouch delta apply openai/clip-vit-base-patch16 hf:OWNER/NAME -o march`
    """
    with user_errors():
        from retouch.sparse import Delta, Digests, in_order
        from retouch.train.run_folder.deltas import headers_in, model_and_tasks, refuse_done
        from retouch.train.run_folder.read import is_run

        check_new_file(folder)
        steps = in_order(headers_in(files))
        clip, tasks = model_and_tasks(base, steps[0].before)
        digests = Digests()
        refuse_done(clip, steps, digests)
        for step in steps:
            Delta.load(step.name).apply(clip.model, digests)
        write_model(clip, folder, steps, "Applied", json, base, tasks if is_run(base) else None)


@delta.command()
def undo(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, metavar="MODEL")],
    files: Files,
    folder: Folder,
    json: Json = False,
) -> None:
    """Write the model as it was before deltas were applied, bit for bit.

    The files may be given in any order. An earlier task of a run cannot be undone without all
    later ones.

    `retouch delta undo march runs/march/deltas/task-02.safetensors -o after-one`
    """
    with user_errors():
        from retouch.sparse import Delta, Digests, in_order
        from retouch.train.run_folder.deltas import headers_in, model_to_undo, refuse_done

        check_new_file(folder)
        steps = in_order(headers_in(files))
        clip = model_to_undo(model, steps[-1])
        digests = Digests()
        refuse_done(clip, steps, digests, undo=True)
        for step in reversed(steps):
            Delta.load(step.name).undo(clip.model, digests)
        write_model(clip, folder, steps, "Undid", json)


@delta.command()
def merge(
    files: Files,
    file: File,
    base: Annotated[
        str | None,
        typer.Option(
            help="The model that they belong to, as for `learn --model`, or a run. [default: the "
            "one that they name]"
        ),
    ] = None,
    how: Annotated[
        Literal["sum", "mean", "magmax"],
        typer.Option(
            help="Add the changes, average them, or take the largest change of every entry."
        ),
    ] = "sum",
    json: Json = False,
) -> None:
    """Merge several deltas into one.

    Deltas that follow each other become one step. Deltas that start from the same weights, because
    two people taught one model different things, are combined number by number. A run counts as
    one delta; a run alone counts as the deltas of its tasks.

    `retouch delta merge runs/anna runs/ben --how mean -o both.safetensors`
    """
    with user_errors():
        from retouch.train.run_folder.deltas import merge_files

        check_new_file(file)
        merged = merge_files(files, how, base)
        save_delta(merged.delta, file)
        if json:
            merging = {"how": how, "deltas": merged.parts, "chain": merged.chain}
            print_json({"written": str(file), **merging, **delta_facts(merged.delta, file)})
            return
        kind = "that follow each other" if merged.chain else "that start from the same weights"
        print_line(out, f"Merged {count(merged.parts, 'delta')} {kind}, by {how}.")
        if merged.shared:
            print_line(
                out,
                f"The first {merged.shared}, which they share, are left out: apply those first.",
            )
        show_written(merged.delta, file)


@delta.command()
def diff(
    model_a: Annotated[str, typer.Argument(help=MODEL_HELP, metavar="MODEL_A")],
    model_b: Annotated[
        str, typer.Argument(help="Another one of the same architecture.", metavar="MODEL_B")
    ],
    file: File,
    json: Json = False,
) -> None:
    """Make a delta from any two checkpoints: the change from the first to the second.

    A run stands for its model after the last task. If nothing differs, nothing is written.

    `retouch delta diff openai/clip-vit-base-patch16 ./fine-tuned -o change.safetensors`
    """
    with user_errors():
        from retouch.sparse import difference
        from retouch.train.run_folder.deltas import model_at

        check_new_file(file)
        a, b = model_at(model_a), model_at(model_b)
        change = difference(a.model, b.model, {"model": a.name, "leads to": b.name})
        if change.changes:
            save_delta(change, file)
        if json:
            written = str(file) if change.changes else None
            print_json({"written": written, **delta_facts(change, file)})
        elif change.changes:
            show_written(change, file)
        else:
            same = "have the same weights, bit for bit"
            print_line(out, f"Nothing differs: {model_a} and {model_b} {same}.")


@delta.command("import")
def import_(
    folder: Annotated[
        Path, typer.Argument(help="An adapter's folder, or hf:OWNER/NAME.", metavar="FOLDER")
    ],
    file: File,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that it was made for, as for `learn --model`, or a run. [default: the "
            "one that it names]"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make a delta from an adapter of peft that changes single weights: Super-Tuning or SHiRA.

    It leads to the weights that peft's `merge_and_unload` gives, to the bit, and can be undone. An
    adapter does not know which weights it was made for, so be sure to give the right model.

    `retouch delta import adapter --model openai/clip-vit-base-patch16 -o change.safetensors`
    """
    with user_errors():
        from retouch.train.run_folder.deltas import import_adapter

        check_new_file(file)
        imported = import_adapter(folder, model)
        save_delta(imported.delta, file)
        facts = {"adapter": imported.kind, "model": imported.model, "named": imported.names}
        if json:
            print_json({"written": str(file), **facts, **delta_facts(imported.delta, file)})
            return
        print_line(out, f"A {imported.kind} adapter, as a delta for {imported.model}.")
        if imported.names not in (None, imported.model):
            print_line(out, f"It says that it was made for {imported.names}.")
        show_written(imported.delta, file)
