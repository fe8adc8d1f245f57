"""Several deltas, by path, merged into one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retouch.clip import Clip
from retouch.clip.user_model import refuse_code
from retouch.errors import UserError
from retouch.sparse import Delta, Header, MergeMode, in_order, join, merge, side_by_side
from retouch.train.deltas import headers_in, model_at
from retouch.train.run_folder import is_run


@dataclass(frozen=True)
class Merged:
    """Several deltas merged into one."""

    delta: Delta
    parts: int
    """How many were merged."""
    chain: bool
    """Whether each began where the one before ended; otherwise all began at the same weights."""
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


def _base_model(first: Delta, paths: Sequence[str | Path], base: str | None) -> Clip:
    """The model that all deltas begin at: `base`, that of the first run, or the one they name."""
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
