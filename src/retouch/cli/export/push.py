"""`retouch push`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from retouch.cli.export.command import Target, load_source
from retouch.cli.options import Json, RunModel
from retouch.cli.terminal.console import err, out, print_json, print_line, status, user_errors
from retouch.text.plural import count

if TYPE_CHECKING:
    from retouch.export import ExportModel, Pushed


def push(
    run: Annotated[
        str, typer.Argument(help="A run's folder, or any model to convert.", metavar="RUN")
    ],
    repo: Annotated[str, typer.Argument(help="The name on the hub.", metavar="OWNER/NAME")],
    to: Annotated[
        Target,
        typer.Option(help="The run's deltas, an adapter for peft, or a whole model, as `export`."),
    ] = Target.deltas,
    private: Annotated[bool, typer.Option("--private", help="Only you can see it.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what this name has on the hub.")
    ] = False,
    task: Annotated[
        int | None, typer.Option(help="The run after this many tasks. [default: all]", min=0)
    ] = None,
    model: RunModel = None,
    json: Json = False,
) -> None:
    """Push what a run learned to the Hugging Face hub, with a model card.

    Log in first: `hf auth login`. Images, paths of this machine and other files of the run are not
    pushed, but names of classes are. Without `--private`, everyone can see it.

    Example: `retouch push runs/march alice/birds`

    To read it back: `retouch delta apply BASE hf:alice/birds -o birds`, or `BASE@hf:alice/birds`
    wherever a command takes a model.
    """
    with user_errors():
        from retouch.export import push as push_to_hub

        source = load_source(run, model, task)
        with status(f"Pushing to {repo} …"):
            pushed = push_to_hub(source, repo, to=to.value, private=private, overwrite=overwrite)
        if json:
            print_json(_as_json(pushed, source))
        else:
            _show(pushed, source)


def _show(pushed: "Pushed", source: "ExportModel") -> None:
    from retouch.plotting.formatting import file_size

    files = count(len(pushed.exported.files), "file")
    visibility = "private" if pushed.private else "public"
    size = file_size(pushed.exported.size)
    print_line(out, f"{pushed.repo} on the hub is {visibility} and has {files} ({size}).")
    if how := _how_to_load(pushed, source):
        print_line(out, f"To use it: {how}")
    print_line(out, pushed.url)
    if not source.hub and pushed.exported.to in ("deltas", "peft"):
        note = "the base model has no name on the hub; others need a copy of it"
        print_line(err, f"note: {note} ({source.base})")


def _how_to_load(pushed: "Pushed", source: "ExportModel") -> str:
    base = source.hub or "BASE"
    return {
        "deltas": f"--model {base}@hf:{pushed.repo}",
        "hf": f"--model {pushed.repo}",
        "peft": f'PeftModel.from_pretrained(base, "{pushed.repo}")',
        "open_clip": f'open_clip.create_model_and_transforms("hf-hub:{pushed.repo}")',
    }.get(pushed.exported.to, "")


def _as_json(pushed: "Pushed", source: "ExportModel") -> dict[str, Any]:
    return {
        "repo": pushed.repo,
        "url": pushed.url,
        "revision": pushed.revision,
        "private": pushed.private,
        "to": pushed.exported.to,
        "tasks": source.run.done if source.run else None,
        "classes": [each.name for each in source.classes],
        "bytes": pushed.exported.size,
        "files": pushed.exported.files,
    }
