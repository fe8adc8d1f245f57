"""Deltas where they lie: the files of a run, the model they begin at, several merged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retouch.clip import Clip, load
from retouch.clip.user_model import refuse_code
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.files import atomic_folder
from retouch.sparse import (
    Delta,
    Header,
    MergeMode,
    in_order,
    join,
    merge,
    read_header,
    side_by_side,
)
from retouch.train.run_folder import OpenRun, delta_file, is_run, open_run


def headers_in(paths: Sequence[str | Path]) -> list[Header]:
    """What deltas say of themselves: of files, of runs (all they learned), of other folders."""
    return [read_header(file) for path in paths for file in _files(Path(path))]


def model_at(name: str, weights: str | None = None) -> Clip:
    """The model of this name; of a run, the moment with these weights, else after its last task."""
    return model_and_tasks(name, weights)[0]


def model_and_tasks(name: str, weights: str | None = None) -> tuple[Clip, int]:
    """The same, and how many tasks of the run it has learned by then: 0 where it is no run."""
    if not is_run(name):
        return load(name), 0
    run = open_run(name)
    moments = _moments(run)
    goal = moments.index(weights) if weights and weights in moments else None
    clip = run.load_task(goal)
    return clip, run.at


def model_to_undo(name: str, last: Header) -> Clip:
    """The model of this name, or a run's after its last task, to undo a chain of deltas from.

    Refused where the run has learned more since: that must be undone first.
    """
    if not is_run(name):
        return load(name)
    run = open_run(name)
    moments = _moments(run)
    if last.after in moments and last.after != moments[-1]:
        since = moments.index(last.after)
        later = [delta_file(run.folder, n).name for n in range(since, run.results.done)]
        raise UserError(
            f"{name} learned more after {last.name}: undo {', '.join(later)} as well, by naming "
            "all of them; or give a model in which that delta is the last"
        )
    return run.load_task()


def _moments(run: OpenRun) -> list[str]:
    """Fingerprints of a run's weights: before the first task, and after each."""
    done = range(run.results.done)
    return [run.config["weights"], *(read_header(delta_file(run.folder, n)).after for n in done)]


def save_whole(clip: Clip, folder: Path) -> None:
    """Save a model into a new folder, which takes its name when everything is in it."""
    with atomic_folder(folder) as part:
        clip.save(part)


@dataclass(frozen=True)
class Merged:
    """One delta of several, and how it came about."""

    delta: Delta
    parts: int
    chain: bool
    """They followed each other; otherwise they began at the same weights."""
    shared: int
    """With so many deltas all of them began; those are not part of it."""


def merge_files(
    paths: Sequence[str | Path], how: MergeMode = "sum", base: str | None = None
) -> Merged:
    """Make one delta of several, where a run is one among others, or alone the tasks it learned.

    Runs that went on from the same one share their first deltas: these are not merged, or they
    would count twice. Where numbers are needed, `base` is the model that all begin at; without it,
    the run that is at hand, or the model that the deltas name.
    """
    parts = [headers_in([path]) for path in paths]
    if len(parts) == 1:
        parts = [[step] for step in parts[0]]
    shared = _shared(parts)
    parts = [part[shared:] for part in parts]
    if len(parts) < 2 or not all(parts):
        raise _nothing_to_merge(paths, parts)
    deltas = [join([Delta.load(step.name) for step in part]) for part in parts]
    chain = not side_by_side(deltas)
    if how == "sum" and chain and base is None:
        return Merged(join(deltas), len(deltas), chain, shared)
    deltas = in_order(deltas) if chain else deltas
    clip = _base(deltas[0], paths, base)
    return Merged(merge(clip.model, deltas, how), len(deltas), chain, shared)


def _nothing_to_merge(paths: Sequence[str | Path], own: Sequence[Sequence[Header]]) -> UserError:
    """Why not; `own` are the deltas of each path that not all of them hold."""
    if len(paths) < 2:
        return UserError(
            f"{paths[0]} holds one delta, so there is nothing to merge; give two deltas or more"
        )
    rest = list(zip(paths, own, strict=True))
    first = next(path for path, deltas in rest if not deltas)
    longer = [path for path, deltas in rest if deltas]
    if not longer:
        return UserError(
            f"there is nothing to merge: {', '.join(map(str, paths))} hold the same deltas; give "
            "each of them once"
        )
    return UserError(
        f"there is nothing to merge: {longer[0]} goes on from {first} and holds all of its deltas. "
        f"`retouch delta merge {longer[0]}` makes one delta of all that it learned"
    )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if is_run(path):
        found = [delta_file(path, number) for number in range(Results.read(path).done)]
    else:
        found = sorted(path.glob("*.safetensors"))
    if not found:
        raise UserError(f"{path} holds no delta; give a delta's file, or a run that has learned")
    return found


def _shared(parts: Sequence[Sequence[Header]]) -> int:
    """How many deltas all of these have in common at their beginning."""
    count = 0
    for steps in zip(*parts, strict=False):
        if len(parts) == 1 or len({(step.before, step.after) for step in steps}) > 1:
            break
        count += 1
    return count


def _base(first: Delta, paths: Sequence[str | Path], named: str | None) -> Clip:
    """The model that all begin at: the one that is given, a run's, or the one they name."""
    runs = [str(path) for path in paths if is_run(path)]
    name = named or (runs[0] if runs else first.metadata.get("model"))
    if name is None:
        raise UserError(
            f"{first.name} does not say which model it begins at, and its weights are needed to "
            "merge; name the model with --base"
        )
    if not named and not runs:
        refuse_code(name, first.name, "base")
    try:
        return model_at(name, first.before)
    except UserError as why:
        if named:
            raise
        raise UserError(
            f"the weights that {first.name} begins at are needed to merge, and the model it names "
            f"cannot be loaded: {why}. Say where it is with --base"
        ) from None
