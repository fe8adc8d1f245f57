"""`retouch delta`: look at what was learned, apply it, undo it, put several together."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from retouch.cli.console import out, print_json, user_errors
from retouch.cli.options import Json
from retouch.output_paths import check_new_file
from retouch.plural import count

if TYPE_CHECKING:
    from retouch.clip import Clip
    from retouch.sparse import Delta, Header

delta = typer.Typer(
    name="delta",
    help="Look at what was learned; apply it, undo it, put several together.",
    no_args_is_help=True,
)
Files = Annotated[
    list[Path], typer.Argument(help="Deltas, or a run: all that it learned.", metavar="FILE")
]
Folder = Annotated[
    Path, typer.Option("--out", "-o", help="Where to write the model: a new folder.")
]
UNLIMITED = 1000
"""Columns of a file or a pipe: nothing is cut there."""
File = Annotated[Path, typer.Option("--out", "-o", help="Where to write the delta: a new file.")]


@delta.command()
def show(
    files: Files,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="A line a tensor instead of a line a block.")
    ] = False,
    json: Json = False,
) -> None:
    """What a delta changes, which weights it belongs to, and how far it moved each layer.

    Neither the model nor the change itself is read, so it is fast. Of several deltas, or of a run,
    there is a line each and the sum by layer:

    `retouch delta show runs/march`
    """
    with user_errors():
        from retouch.cli import delta_show
        from retouch.train.deltas import headers_in

        headers = headers_in(files)
        if json:
            print_json({"deltas": [delta_show.as_json(header) for header in headers]})
            return
        width = out.width if out.is_terminal else None
        talk = out if width else Console(file=out.file, width=UNLIMITED)
        for part in delta_show.pages(headers, tensors, width):
            talk.print(part, highlight=False)


@delta.command()
def apply(
    base: Annotated[
        str, typer.Argument(help="A model as for --model, or the run's folder.", metavar="BASE")
    ],
    files: Files,
    folder: Folder,
    json: Json = False,
) -> None:
    """Write the model that deltas lead to.

    The files find their order by themselves; any other model than the one that they were made for
    is refused.

    `retouch delta apply openai/clip-vit-base-patch16 runs/march -o march`
    """
    with user_errors():
        from retouch.sparse import Delta, in_order
        from retouch.train.deltas import headers_in, model_and_tasks

        check_new_file(folder)
        steps = in_order(headers_in(files))
        clip, tasks = model_and_tasks(base, steps[0].before)
        for step in steps:
            Delta.load(step.name).apply(clip.model)
        _write(clip, folder, steps, "Applied", json, base, tasks)


@delta.command()
def undo(
    model: Annotated[
        str, typer.Argument(help="A model as for --model, or the run's folder.", metavar="MODEL")
    ],
    files: Files,
    folder: Folder,
    json: Json = False,
) -> None:
    """Write the model as it was before deltas were applied, to the bit.

    The files find their order by themselves. Of a run, what was learned last is undone first: an
    earlier task cannot be undone without all later ones.

    `retouch delta undo march runs/march/deltas/task-02.safetensors -o after-one`
    """
    with user_errors():
        from retouch.sparse import Delta, in_order
        from retouch.train.deltas import headers_in, model_to_undo

        check_new_file(folder)
        steps = in_order(headers_in(files))
        clip = model_to_undo(model, steps[-1])
        for step in reversed(steps):
            Delta.load(step.name).undo(clip.model)
        _write(clip, folder, steps, "Undid", json)


@delta.command()
def merge(
    files: Files,
    file: File,
    base: Annotated[
        str | None,
        typer.Option(
            help="The model that they begin at, as for --model, or a run; where it is not the one "
            "that they name themselves."
        ),
    ] = None,
    how: Annotated[
        Literal["sum", "mean", "magmax"],
        typer.Option(
            help="Add what each changed, average it, or take the largest change of every entry."
        ),
    ] = "sum",
    json: Json = False,
) -> None:
    """Make one delta of several.

    Those that follow each other become one step. Those that begin at the same weights, because two
    people taught one model different things, are put together by their numbers. A run counts as
    one delta among others; a run alone as the deltas of its tasks.

    `retouch delta merge runs/anna runs/ben --how mean -o both.safetensors`
    """
    with user_errors():
        from retouch.train.deltas import merge_files

        check_new_file(file)
        merged = merge_files(files, how, base)
        _save(merged.delta, file)
        if json:
            told = {"how": how, "deltas": merged.parts, "chain": merged.chain}
            print_json({"written": str(file), **told, **_facts(merged.delta, file)})
            return
        what = "that follow each other" if merged.chain else "that begin at the same weights"
        _say(f"Merged {count(merged.parts, 'delta')} {what}, by {how}.")
        if merged.shared:
            _say(f"The first {merged.shared} that they share are left out: apply those before it.")
        _say_written(merged.delta, file)


@delta.command()
def diff(
    model_a: Annotated[
        str, typer.Argument(help="A model as for --model, or a run.", metavar="MODEL_A")
    ],
    model_b: Annotated[
        str, typer.Argument(help="Another of the same architecture.", metavar="MODEL_B")
    ],
    file: File,
    json: Json = False,
) -> None:
    """Make a delta from any two checkpoints: what leads from the first to the second.

    Of a run it is the model after its last task. Where nothing differs, nothing is written.

    `retouch delta diff openai/clip-vit-base-patch16 ./fine-tuned -o change.safetensors`
    """
    with user_errors():
        from retouch.sparse import difference
        from retouch.train.deltas import model_at

        check_new_file(file)
        a, b = model_at(model_a), model_at(model_b)
        found = difference(a.model, b.model, {"model": a.name, "leads to": b.name})
        if found.changes:
            _save(found, file)
        if json:
            written = str(file) if found.changes else None
            print_json({"written": written, **_facts(found, file)})
        elif found.changes:
            _say_written(found, file)
        else:
            _say(f"Nothing differs: {model_a} and {model_b} have the same weights, to the bit.")


def _write(
    clip: "Clip",
    folder: Path,
    steps: "Sequence[Header]",
    verb: str,
    as_json: bool,
    base: str = "",
    tasks: int = 0,
) -> None:
    """Save a model that deltas were applied to or taken from, and say so.

    `tasks` is how many tasks of the run `base` the model had learned before.
    """
    from retouch.report.phrasing import file_size
    from retouch.sparse import fingerprint
    from retouch.train.deltas import save_whole

    save_whole(clip, folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    name = _loads_as(clip, folder)
    if as_json:
        told = {"written": str(folder), "model": name, "bytes": size}
        told |= {"tasks_before": tasks} if base else {}
        names = [step.name for step in steps]
        print_json({**told, "weights": fingerprint(clip.model), "deltas": names})
        return
    which = count(len(steps), "delta")
    if tasks:
        which += f" to {base} after its first {'task' if tasks == 1 else f'{tasks} tasks'}"
    _say(f"{verb} {which}; the weights are {fingerprint(clip.model)[:12]} now.")
    _say(f"Written to {folder} ({file_size(size)}). To use it: --model {name}")


def _loads_as(clip: "Clip", folder: Path) -> str:
    """What `--model` takes to load what was saved."""
    if not clip.name.startswith("open_clip:"):
        return str(folder)
    architecture = clip.name.partition("@")[0].partition("/")[0]
    return f"{architecture}@{folder / 'open_clip_model.safetensors'}"


def _save(found: "Delta", file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    found.save(file)


def _facts(found: "Delta", file: Path) -> dict[str, Any]:
    return {
        "bytes": file.stat().st_size if found.changes else 0,
        "before": found.before,
        "after": found.after,
        "tensors": len(found.changes),
        "moved": sum(int((change.xor != 0).sum()) for change in found.changes.values()),
        "model_size": found.model_size,
    }


def _say_written(found: "Delta", file: Path) -> None:
    from retouch.cli.delta_show import share_of
    from retouch.report.phrasing import file_size

    facts = _facts(found, file)
    share = share_of(facts["moved"], found.model_size)
    of_model = f", {share} of the model" if share else ""
    entries, verb = count(facts["moved"], "entry", "entries"), "s" if facts["moved"] == 1 else ""
    _say(f"{entries} of {count(facts['tensors'], 'tensor')} differ{verb}{of_model}.")
    _say(f"It leads from the weights {found.before[:12]} to {found.after[:12]}.")
    _say(f"Written to {file} ({file_size(facts['bytes'])}).")


def _say(line: str) -> None:
    out.print(line, highlight=False, soft_wrap=True, markup=False)
