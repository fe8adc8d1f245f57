"""Deltas by path: those of a run, their model, several merged into one, and those of adapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import nn

from retouch.clip import load
from retouch.clip.loading.hub import adapter_folder, deltas_folder, on_hub
from retouch.clip.loading.user_model import refuse_code
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.files.write import atomic_folder
from retouch.sparse import (
    Delta,
    Digests,
    Header,
    MergeMode,
    in_order,
    join,
    merge,
    read_adapter,
    read_header,
    side_by_side,
)
from retouch.train.run_folder.read import OpenRun, delta_file, is_run, open_run
from retouch.trainer.causal_model import is_causal_folder, load_causal
from retouch.trainer.delta_chain import FOLDER


class AnyModel(Protocol):
    """A CLIP, or a language model."""

    name: str
    model: nn.Module

    def save(self, folder: str | Path) -> None:
        """Write it into a folder."""


def headers_in(paths: Sequence[str | Path]) -> list[Header]:
    """The headers of delta files, of runs, of deltas in other folders, or of `hf:OWNER/NAME`."""
    return [read_header(file) for path in paths for file in _files(Path(path))]


def model_at(name: str, weights: str | None = None) -> AnyModel:
    """The model of this name, to read its weights: a plain CLIP is loaded without its library.

    For a run, its model with these weights, or after the last task.
    """
    return model_and_tasks(name, weights, light=True)[0]


def model_and_tasks(
    name: str, weights: str | None = None, light: bool = False
) -> tuple[AnyModel, int]:
    """The same, and how many tasks of the run it has learned; 0 where it is not a run."""
    if is_causal_folder(name):
        return load_causal(name, weights), 0
    if not is_run(name):
        return load(name, light=light), 0
    run = open_run(name, light=light)
    fingerprints = _fingerprints(run)
    task = fingerprints.index(weights) if weights and weights in fingerprints else None
    clip = run.load_task(task)
    return clip, run.at


def model_to_undo(name: str, last: Header) -> AnyModel:
    """The model from which to undo deltas, the last of which is `last`.

    A run that has learned more since is refused: that must be undone first.
    """
    if not is_run(name):
        return model_and_tasks(name, last.after)[0]
    run = open_run(name)
    fingerprints = _fingerprints(run)
    if last.after in fingerprints and last.after != fingerprints[-1]:
        since = fingerprints.index(last.after)
        later = [delta_file(run.folder, n).name for n in range(since, run.results.done)]
        raise UserError(
            f"{name} learned more after {last.name}: undo {', '.join(later)} as well, by naming "
            "all of them; or give a model to which that delta was applied last"
        )
    return run.load_task()


def refuse_done(
    clip: AnyModel, steps: Sequence[Header], digests: Digests, *, undo: bool = False
) -> None:
    """Refuse to apply, or to undo, all these deltas a second time.

    Args:
        clip: The model.
        steps: The headers of the deltas, in order.
        digests: Of this model.
        undo: Whether they are to be undone.
    """
    before, after = steps[0].before, steps[-1].after
    goal = before if undo else after
    if before != after and digests(clip.model.state_dict(), ()) == goal:
        verb, moment = ("undo", "before") if undo else ("apply", "after")
        raise UserError(
            f"there is nothing to {verb}: the model has the weights {goal[:12]} already, those "
            f"{moment} {steps[0 if undo else -1].name}"
        )


def _fingerprints(run: OpenRun) -> list[str]:
    """The fingerprints of a run's weights before the first task and after each."""
    done = range(run.results.done)
    return [run.config["weights"], *(read_header(delta_file(run.folder, n)).after for n in done)]


def save_whole(clip: AnyModel, folder: Path) -> None:
    """Save a model into a new folder, whole or not at all."""
    with atomic_folder(folder) as part:
        clip.save(part)


@dataclass(frozen=True)
class ImportedAdapter:
    """An adapter of peft as a delta."""

    delta: Delta
    kind: str
    """The method that made it."""
    model: str
    """The model that the delta belongs to."""
    names: str | None
    """The model that the adapter says it belongs to."""


def import_adapter(folder: str | Path, model: str | None = None) -> ImportedAdapter:
    """Turn a Super-Tuning or SHiRA adapter of peft into a delta.

    Args:
        folder: The adapter's folder, or `hf:OWNER/NAME`.
        model: The model that it was made for, or a run; by default the one that it names. An
            adapter does not say which weights it was made for: any model with such layers fits.
    """
    adapter = read_adapter(adapter_folder(folder) if on_hub(folder) else folder)
    name = model or adapter.base
    if name is None:
        raise UserError(
            f"{folder} does not say which model it was made for; name the model",
            argument="model=…",
        )
    if not model:
        refuse_code(name, folder)
    clip = model_at(name)
    delta = adapter.delta(clip.model, {"model": clip.name, "method": f"{adapter.kind} (peft)"})
    if not delta.changes:
        raise UserError(f"{folder} changes nothing: all of its numbers are zero")
    return ImportedAdapter(delta, adapter.kind, name, adapter.base)


def _files(path: Path) -> list[Path]:
    if on_hub(path):
        path = deltas_folder(path)
    if is_causal_folder(path):
        path = path / FOLDER
    if not path.is_dir():
        return [path]
    if is_run(path):
        files = [delta_file(path, number) for number in range(Results.read(path).done)]
    else:
        files = sorted(path.glob("*.safetensors"))
    if not files:
        raise UserError(f"{path} holds no delta; give a delta file, or a run that has learned")
    return files


@dataclass(frozen=True)
class Merged:
    """Several deltas merged into one."""

    delta: Delta
    parts: int
    """How many were merged."""
    chain: bool
    """Whether each starts where the one before ends; otherwise all start at the same weights."""
    shared: int
    """How many deltas all of them had in common at the beginning; these are not merged."""


def merge_files(
    paths: Sequence[str | Path], how: MergeMode = "sum", base: str | None = None
) -> Merged:
    """Merge several deltas into one.

    Args:
        paths: Delta files and runs. A run counts as one delta among others; a run alone as the
            deltas of its tasks.
        how: Add the changes, average them, or take the largest change of each weight.
        base: The model that all begin at, where its weights are needed; by default that of the
            first run, or the model that the deltas name.

    Runs that continue the same run share their first deltas. These are not merged, or they would
    count twice.
    """
    chains = [headers_in([path]) for path in paths]
    if len(chains) == 1:
        chains = [[header] for header in chains[0]]
    shared = _shared(chains)
    chains = [chain[shared:] for chain in chains]
    if len(chains) < 2 or not all(chains):
        raise _nothing_to_merge(paths, chains)
    deltas = [join([Delta.load(header.name) for header in chain]) for chain in chains]
    consecutive = not side_by_side(deltas)
    if how == "sum" and consecutive and base is None:
        return Merged(join(deltas), len(deltas), consecutive, shared)
    deltas = in_order(deltas) if consecutive else deltas
    clip = _base_model(deltas[0], paths, base)
    return Merged(merge(clip.model, deltas, how), len(deltas), consecutive, shared)


def _nothing_to_merge(
    paths: Sequence[str | Path], remaining: Sequence[Sequence[Header]]
) -> UserError:
    """Why not. `remaining` are the deltas of each path that the others do not share."""
    if len(paths) < 2:
        return UserError(
            f"{paths[0]} holds one delta, so there is nothing to merge; give two deltas or more"
        )
    pairs = list(zip(paths, remaining, strict=True))
    first = next(path for path, headers in pairs if not headers)
    longer = [path for path, headers in pairs if headers]
    if not longer:
        return UserError(
            f"there is nothing to merge: {', '.join(map(str, paths))} hold the same deltas; give "
            "each of them once"
        )
    return UserError(
        f"there is nothing to merge: {longer[0]} continues {first} and holds all of its deltas; "
        f"give {longer[0]} alone to merge all that it learned"
    )


def _shared(chains: Sequence[Sequence[Header]]) -> int:
    """How many deltas all of these have in common at the beginning."""
    count = 0
    for headers in zip(*chains, strict=False):
        if len(chains) == 1 or len({(header.before, header.after) for header in headers}) > 1:
            break
        count += 1
    return count


def _base_model(first: Delta, paths: Sequence[str | Path], base: str | None) -> AnyModel:
    """The model that all deltas start from: `base`, that of the first run, or the one they name."""
    runs = [str(path) for path in paths if is_run(path)]
    name = base or (runs[0] if runs else first.metadata.get("model"))
    if name is None:
        raise UserError(
            f"{first.name} does not say which model it begins at, and its weights are needed to "
            "merge; name the model",
            argument="base=…",
        )
    if not base and not runs:
        refuse_code(name, first.name, "base")
    try:
        return model_at(name, first.before)
    except UserError as why:
        if base:
            raise
        raise UserError(
            f"the weights that {first.name} begins at are needed to merge, and the model it names "
            f"cannot be loaded: {why}. Say where that model is",
            argument="base=…",
        ) from None
