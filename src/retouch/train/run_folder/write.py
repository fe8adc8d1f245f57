"""Open the folder that a run writes to: a new one, or that of the same run to resume."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.evaluate import results as results_file
from retouch.evaluate.results import Results
from retouch.files import checksummed
from retouch.methods.method_config import method_config
from retouch.sparse import fingerprint
from retouch.train.callbacks.callback import Callback
from retouch.train.extend_stream import EarlierRun
from retouch.train.plan import Plan
from retouch.train.run_folder.checkpoint import read_state
from retouch.train.run_folder.config import run_config, why_not_resumable
from retouch.train.run_folder.files import is_unused
from retouch.train.run_folder.new_results import new_results
from retouch.train.run_folder.read import CONFIG, DELTAS, is_run, read_config
from retouch.train.run_folder.record import RunRecord
from retouch.train.run_folder.record_on_disk import RunOnDisk
from retouch.train.run_folder.set_aside import (
    check_replaceable,
    create_run,
    discard_aside,
    is_replaceable,
    is_set_aside,
    learned_a_task,
    learned_nothing,
    restore,
    set_aside,
)

_PARTIAL_FILES = (
    ".results.json.part",
    ".metrics.jsonl.part",
    ".classes.json.part",
    ".checkpoint.safetensors.part",
    ".state-*.safetensors.part",
    "deltas/.task-*.safetensors.part",
    "class-vectors/.task-*.safetensors.part",
)
"""Files that a run leaves behind if it is killed while it writes."""


def open_record(
    plan: Plan,
    callback: Callback,
    folder: Path,
    *,
    overwrite: bool = False,
    checkpoint_seconds: float = 60.0,
) -> tuple[RunRecord, bool]:
    """The record of a run in a folder, and whether the run is new. Call it on every rank.

    Only rank 0 has the folder and knows whether the run is new.
    """
    clip, method, stream = plan.clip, plan.method, plan.stream
    weights, new, is_new = fingerprint(clip.model), new_results(plan), False

    def open_or_create() -> str:
        nonlocal is_new
        config = run_config(plan, weights)
        results = _open_folder(folder, config, new, plan.earlier, overwrite)
        is_new = results is new
        results.check_replay(folder, len(stream.train))
        return results.to_json()

    results = Results.model_validate_json(collectives.broadcast_str(open_or_create))
    if not collectives.is_rank0():
        return RunRecord(clip, results, callback, method), False
    metadata = {
        "model": clip.name,
        "method": method_config(method),
        "prompt": stream.train.prompt,
    }
    record = RunOnDisk(
        clip,
        results,
        callback,
        method,
        folder=folder,
        weights=weights,
        metadata=metadata,
        checkpoint_seconds=checkpoint_seconds,
    )
    return record, is_new


def find_resumable(plan: Plan, folder: Path) -> Results | None:
    """The results of the run in the folder that `teach` would resume; nothing is changed.

    None if that run would be replaced, because it has learned nothing. One that `teach` would
    refuse is refused. Call it on every rank; rank 0 reads.
    """
    weights, new = fingerprint(plan.clip.model), new_results(plan)

    def read() -> str:
        results = _resumable_results(folder, run_config(plan, weights), new)
        if results is None:
            return ""
        results.check_replay(folder, len(plan.stream.train))
        return results.to_json()

    text = collectives.broadcast_str(read)
    return Results.model_validate_json(text) if text else None


def _open_folder(
    folder: Path,
    config: dict[str, Any],
    new: Results,
    earlier: EarlierRun | None,
    overwrite: bool,
) -> Results:
    """Create a run in a new or empty folder, or resume the one that is there.

    A run with another config is replaced if it has learned nothing, or with `overwrite`.
    """
    for partial in [path for pattern in _PARTIAL_FILES for path in folder.glob(pattern)]:
        partial.unlink()
    if is_run(folder):
        if not overwrite and (results := _resumable_results(folder, config, new)):
            return results
        if not overwrite and is_set_aside(folder):
            restore(folder)  # the run that was to replace it has learned nothing
            return _open_folder(folder, config, new, earlier, overwrite)
        check_replaceable(folder, _sources(config, earlier))
        set_aside(folder)
    elif not is_unused(folder):
        raise UserError(f"{folder} is not empty and holds no run; choose another folder")
    try:
        _create_folder(folder, config, new, earlier)
    except BaseException:
        restore(folder)
        raise
    return new


def _sources(config: dict[str, Any], earlier: EarlierRun | None) -> dict[str, Any]:
    """The paths that a run reads."""
    return {**config["places"], "earlier": earlier and earlier.folder}


def _resumable_results(folder: Path, config: dict[str, Any], new: Results) -> Results | None:
    """The results of the run in the folder, if it is the one with this config.

    Another run is refused, unless it has learned nothing, and the folder holds nothing else.
    """
    reason = why_not_resumable(read_config(folder), config)
    if not reason:
        return Results.read(folder) if (folder / results_file.FILE).exists() else new
    if not is_replaceable(folder):
        raise UserError(
            f"{folder} holds a run {reason}; use what that run was started with, choose "
            "another folder, or overwrite that run",
            argument="overwrite=True",
        )
    check_replaceable(folder, config["places"])
    return None


def _create_folder(
    folder: Path, config: dict[str, Any], new: Results, earlier: EarlierRun | None
) -> None:
    """Create a run with its config, and with what it continues."""
    if earlier is not None:
        read_state(earlier.folder, earlier.results)  # refused here, where the message names it

    def write(part: Path) -> None:
        (part / DELTAS).mkdir()
        if earlier is not None:
            earlier.copy_to(part, images=config["method"]["store_images"])
            new.write(part)
        checksummed.write_yaml(part / CONFIG, config)

    create_run(folder, write)


@contextmanager
def remove_if_refused(folder: Path, is_new: bool, record: RunRecord) -> Iterator[None]:
    """Remove a new run that is refused before it trains; what it replaced comes back.

    A run that fails later, before it has learned a task, stays (its losses tell why), unless it
    replaced another run. A checkpoint stays if the run was interrupted: then the other run is still
    set aside, and is deleted once the new one has learned a task.
    """
    try:
        yield
    except BaseException as why:
        if is_new and _is_removable(folder, record, refused=isinstance(why, UserError)):
            restore(folder)
        raise
    finally:
        if is_run(folder) and learned_a_task(folder):
            discard_aside(folder)


def _is_removable(folder: Path, record: RunRecord, *, refused: bool) -> bool:
    """Whether a new run that has ended early can be deleted: nothing in it is of use."""
    if not is_set_aside(folder):
        return refused and not record.training and learned_nothing(folder)
    return not learned_a_task(folder) if refused else learned_nothing(folder)
