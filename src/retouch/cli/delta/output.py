"""What `retouch delta` writes, and what it prints about it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retouch.cli.terminal.console import out, print_json, print_line
from retouch.text.plural import count

if TYPE_CHECKING:
    from retouch.sparse import Delta, Header
    from retouch.train.run_folder.deltas import AnyModel


def write_model(
    clip: "AnyModel",
    folder: Path,
    steps: "Sequence[Header]",
    verb: str,
    as_json: bool,
    base: str = "",
    tasks: int | None = None,
) -> None:
    """Save a model that deltas were applied to or undone from, and print what was done.

    Args:
        clip: The model.
        folder: A new folder for it.
        steps: The deltas.
        verb: What was done with them, such as "Applied".
        as_json: Print JSON.
        base: The run or model that the deltas were applied to.
        tasks: How many tasks of the run `base` the model had learned before; None if not a run.
    """
    from retouch.cli.delta.show import class_vectors_of
    from retouch.plotting.formatting import file_size
    from retouch.sparse import fingerprint
    from retouch.train.run_folder.deltas import save_whole
    from retouch.trainer.causal_model import is_causal_folder

    save_whole(clip, folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    name, weights = _model_name(clip, folder), fingerprint(clip.model)
    if as_json:
        facts = {"written": str(folder), "model": name, "bytes": size}
        facts |= {"tasks_before": tasks or 0} if base else {}
        print_json({**facts, "weights": weights, "deltas": [step.name for step in steps]})
        return
    deltas = count(len(steps), "delta")
    if tasks == 0:
        deltas += f" to the model before the first task of {base}"
    elif tasks:
        deltas += f" to {base} after its first {'task' if tasks == 1 else f'{tasks} tasks'}"
    print_line(out, f"{verb} {deltas}; the weights are now {weights[:12]}.")
    use = "load it with transformers" if is_causal_folder(folder) else f"--model {name}"
    print_line(out, f"Written to {folder} ({file_size(size)}). To use it: {use}")
    if vectors := class_vectors_of(steps[-1]):
        print_line(out, f"It does not have the class vectors of the run: those are in {vectors}.")


def _model_name(clip: "AnyModel", folder: Path) -> str:
    """The `--model` that loads what was saved."""
    if not clip.name.startswith("open_clip:"):
        return str(folder)
    architecture = clip.name.partition("@")[0].partition("/")[0]
    return f"{architecture}@{folder / 'open_clip_model.safetensors'}"


def save_delta(delta: "Delta", file: Path) -> None:
    """Save a delta, and create its folder if necessary."""
    file.parent.mkdir(parents=True, exist_ok=True)
    delta.save(file)


def delta_facts(delta: "Delta", file: Path) -> dict[str, Any]:
    """What `--json` tells about a delta that was saved."""
    return {
        "bytes": file.stat().st_size if delta.changes else 0,
        "before": delta.before,
        "after": delta.after,
        "tensors": len(delta.changes),
        "moved": sum(int((change.xor != 0).sum()) for change in delta.changes.values()),
        "model_size": delta.model_size,
    }


def show_written(delta: "Delta", file: Path) -> None:
    """Print what a delta that was saved changes."""
    from retouch.cli.delta.show import share_of
    from retouch.plotting.formatting import file_size

    facts = delta_facts(delta, file)
    share = share_of(facts["moved"], delta.model_size)
    of_model = f", {share} of the model" if share else ""
    entries, verb = count(facts["moved"], "entry", "entries"), "s" if facts["moved"] == 1 else ""
    tensors = count(facts["tensors"], "tensor")
    print_line(out, f"{entries} in {tensors} differ{verb}{of_model}.")
    print_line(out, f"It leads from the weights {delta.before[:12]} to {delta.after[:12]}.")
    print_line(out, f"Written to {file} ({file_size(facts['bytes'])}).")
