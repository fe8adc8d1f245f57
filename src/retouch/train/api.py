"""Teach a CLIP a stream of tasks: the whole of `retouch` in one function."""

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.utils import deterministic

from retouch import checksummed
from retouch.clip import Clip
from retouch.data.cache import cache_folder
from retouch.data.identity import (
    SET_DESCRIPTIONS,
    describe_difference,
    images_identity,
    pairs_identity,
)
from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.data.stream import Stream
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.evaluate import results as stored
from retouch.evaluate.evaluator import Evaluator
from retouch.evaluate.results import DataInfo, Results, TaskInfo
from retouch.files import atomic_folder
from retouch.methods import Method, Settings, TaskUpdate, recipe
from retouch.sparse import Selection, fingerprint
from retouch.train.arguments import check_arguments
from retouch.train.callbacks import Callback
from retouch.train.checkpoint import RunOnDisk, RunRecord
from retouch.train.extend_stream import EarlierRun
from retouch.train.finish import finish
from retouch.train.hardware import check_shard
from retouch.train.loop import task_context, train
from retouch.train.run_folder import CONFIG, is_run, read_config
from retouch.train.run_lock import with_run_lock
from retouch.train.set_aside import (
    discard_aside,
    is_replaceable,
    is_set_aside,
    learned_nothing,
    restore,
    set_aside,
)
from retouch.train.signals import graceful_interrupt
from retouch.version import VERSION

COMPILER = "inductor"
HALVES = (
    ".results.json.part",
    ".metrics.jsonl.part",
    ".classes.json.part",
    ".checkpoint.safetensors.part",
    ".state-*.safetensors.part",
    "deltas/.task-*.safetensors.part",
)
"""What a run leaves behind that was killed while it wrote."""


@with_run_lock
def teach(
    clip: Clip,
    stream: Stream,
    method: str | Method = "spu",
    *,
    settings: Settings | None = None,
    control: Images | None = None,
    reference: Pairs | None = None,
    out: str | Path | None = None,
    callback: Callback | None = None,
    checkpoint_seconds: float = 60.0,
    earlier: EarlierRun | None = None,
    overwrite: bool = False,
    store_images: bool = True,
    per_class: bool = True,
    command: str = "",
) -> Results:
    """Learn the stream's tasks in order; after each, evaluate what was learned and what was lost.

    The model is changed in place. Call this on every rank (see `distributed.rendezvous`); rank 0
    writes.

    Args:
        clip: The model to teach, from `retouch.load`. It is changed in place.
        stream: The classes to learn, split into tasks, from `Stream.split`.
        method: The name of a recipe (see `available_methods`), or a `Method` of your own.
        settings: Epochs, batch size, learning rate and so on. Default: the paper's, `Settings()`.
        control: Images of what the model could do before and must not forget. Without it,
            forgetting of old knowledge is not measured, and `spu-bounded` is refused.
        reference: Images with captions, for methods that keep old knowledge with them (`zscl`,
            `lora-ewc`).
        out: A folder to write settings, results, losses and one delta per task into. If it holds
            the same run unfinished, that run is resumed. Without it, nothing is written and the run
            cannot be resumed or continued.
        callback: A callback that is told of each step and each evaluation, for progress bars and
            trackers.
        checkpoint_seconds: How often a checkpoint is written within a task. Lower it where runs are
            often killed; 0 writes one after every step.
        earlier: The run that this one continues. `continue_run` sets it.
        overwrite: Replace another run in `out`. It is deleted once the new run has learned
            something, and restored if the new run cannot start. Otherwise another run is refused,
            unless it has learned nothing yet.
        store_images: Store the images that a continued run replays and evaluates. Needs `out`; turn
            it off if no image may be kept.
        per_class: Compare the model before and after class by class when all tasks are learned.
            Needs `out` and takes one more evaluation.
        command: The command line that started the run, for the report.
    """
    given = {"settings": settings, "control": control, "reference": reference}
    check_arguments(clip, stream, method, **given, out=out, callback=callback)
    settings = settings or Settings()
    chosen = recipe(method) if isinstance(method, str) else method
    check_shard(chosen, settings)
    chosen.check_needs(control is not None, reference is not None)
    buffer = chosen.replay.buffer(len(stream.train) + stream.missing_images, settings.seed)
    buffer.check_size(len(stream.tasks), len(stream.classes))
    collectives.broadcast(clip.model.state_dict().values())
    clip.model.eval()  # no dropout, and no batch norm that drifts: only what trains may change
    clip.bf16 = settings.precision == "bf16"
    with deterministic_algorithms(clip.device):
        chosen = chosen.start(clip, settings, reference)
    results = _new_results(clip, stream, chosen, settings, control, command)
    if earlier is not None:
        if out is None:
            raise UserError("a run that goes on from another needs a folder of its own: name `out`")
        earlier.check(chosen)
        _begin_with(results, earlier, control)
    seen = callback if callback and collectives.is_rank0() else Callback()
    created = False
    if out is not None:
        weights, fresh = fingerprint(clip.model), results

        def opened() -> str:
            nonlocal created
            config = {"weights": weights, **_config(clip, stream, control, chosen, settings)}
            if chosen.needs_reference and reference is not None:
                config["reference"] = pairs_identity(reference)
                config["places"]["reference"] = reference.name
            if earlier is not None:
                config["learned before"] = earlier.results.done
            found = _open_folder(Path(out), config, fresh, earlier, overwrite)
            created = found is fresh
            found.check_replay(out, len(stream.train))
            return found.to_json()

        results = Results.model_validate_json(collectives.broadcast_str(opened))
    record = RunRecord(clip, results, seen, chosen)
    if out is not None and collectives.is_rank0():
        about = {
            "model": clip.name,
            "method": chosen.model_dump(mode="json"),
            "prompt": stream.train.prompt,
        }
        record = RunOnDisk(
            clip, results, seen, Path(out), weights, about, checkpoint_seconds, chosen
        )
    for images in (stream.train, stream.test, control):
        results.notes += [n for n in (images.notes if images else []) if n not in results.notes]
    if settings.compile:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    fast = clip.fast(COMPILER if settings.compile else None)
    stopping = graceful_interrupt(record, out is not None)
    starting = (
        _starting(Path(out), created, record) if out and collectives.is_rank0() else nullcontext()
    )
    noting, truncated = _noting(results), clip.truncated_prompts.collecting()
    with (
        starting,
        noting,
        truncated,
        deterministic_algorithms(clip.device),
        stopping,
        record.callback,
        fast as took,
    ):
        train(clip, stream, chosen, settings, Evaluator(stream, control), record)
        if took.seconds >= 1:
            record.add_environment({"compiling": f"{took.seconds:.0f} s"})
    if out is not None:
        add = {"store_images": store_images, "per_class": per_class}
        finish(Path(out), clip, stream, record.results, control, progress=seen.progress, **add)
    return record.results


def preview(
    clip: Clip,
    stream: Stream,
    method: str | Method = "spu",
    *,
    settings: Settings | None = None,
    reference: Pairs | None = None,
) -> Selection:
    """Select what may move while the first task is learned, and change nothing.

    Printed, the selection is a table.

    Args:
        clip: The model that would learn.
        stream: The stream whose first task is looked at.
        method: The name of a recipe (see `available_methods`), or a `Method` of your own.
        settings: Epochs, batch size, learning rate and so on. Default: the paper's, `Settings()`.
        reference: Images with captions, for methods that keep old knowledge with them (`zscl`,
            `lora-ewc`).
    """
    check_arguments(clip, stream, method, settings=settings, reference=reference)
    with preview_update(clip, stream, method, settings or Settings(), reference) as update:
        return update.selection


@contextmanager
def preview_update(
    clip: Clip,
    stream: Stream,
    method: str | Method,
    settings: Settings,
    reference: Pairs | None = None,
) -> Iterator[TaskUpdate]:
    """The model as it is when the first step of the first task could be taken."""
    chosen = recipe(method) if isinstance(method, str) else method
    chosen = chosen.start(clip, settings, reference)
    context = task_context(clip, stream, stream.tasks[0], chosen, settings)
    with chosen.update.begin(context) as update:
        yield update


def _new_results(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    control: Images | None,
    command: str,
) -> Results:
    return Results(
        method=method.name,
        summary=method.summary,
        model=clip.name,
        parameters=clip.size,
        tasks=[
            TaskInfo(classes=stream.names(t.classes), train=len(t.train), test=len(t.test))
            for t in stream.tasks
        ],
        command=command,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        data=_data_info(stream, control),
        settings=_knobs(settings),
        environment={
            "python": platform.python_version(),
            "retouch": VERSION,
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "device": _device_name(clip.device),
            "threads": str(torch.get_num_threads()),
            **(
                {"processes": str(collectives.world_size())} if collectives.world_size() > 1 else {}
            ),
            **({"frozen weights": "divided"} if settings.shard else {}),
        },
    )


def _data_info(stream: Stream, control: Images | None) -> dict[str, DataInfo]:
    sets = {"train": stream.train, "test": stream.test, "control": control}
    return {
        use: DataInfo(name=images.name, classes=len(images.classes), images=len(images))
        for use, images in sets.items()
        if images is not None
    }


def _knobs(settings: Settings) -> dict[str, Any]:
    """Those that the result depends on: a run may go on with other parts of the weights."""
    return settings.model_dump(mode="json", exclude={"shard"})


def _config(
    clip: Clip,
    stream: Stream,
    control: Images | None,
    method: Method,
    settings: Settings,
) -> dict[str, Any]:
    """Everything that the result depends on."""
    return {
        "method": method.model_dump(mode="json"),
        "settings": _knobs(settings),
        "data": {
            "prompt": stream.train.prompt,
            "templates": list(stream.test.templates),
            "classes": list(stream.train.classes),  # by label: what a method remembers is by label
            "tasks": [stream.names(task.classes) for task in stream.tasks],
            "images": [len(task.train) for task in stream.tasks],
        },
        "train": images_identity(stream.train),
        "test": images_identity(stream.test),
        "control": control and images_identity(control),
        "places": {
            "model": clip.name,
            "train": stream.train.name,
            "test": stream.test.name,
            "control": control and control.name,
        },
    }


def _begin_with(results: Results, earlier: EarlierRun, control: Images | None) -> None:
    """Take over what an earlier run found out about the tasks that it learned."""
    before = earlier.results
    results.learned_before = before.done
    results.tasks[: before.done] = before.tasks
    results.trained, results.seconds = [*before.trained], [*before.seconds]
    results.fraction_kept, results.replay, results.state = (
        [*before.fraction_kept],
        before.replay,
        before.state,
    )
    results.notes = [*before.notes]
    results.rows = [row.model_copy(deep=True) for row in before.rows]
    if earlier.control != (control and images_identity(control)):
        for row in results.rows:
            row.control = row.joint = None


def _open_folder(
    folder: Path,
    config: dict[str, Any],
    fresh: Results,
    earlier: EarlierRun | None,
    overwrite: bool = False,
) -> Results:
    """Begin a run in a new or empty folder, or go on with the one that is there.

    A run with other settings gives way if it has learned nothing, or to `overwrite`.
    """
    for left in [path for half in HALVES for path in folder.glob(half)]:
        left.unlink()
    if (folder / CONFIG).exists():
        refusal = None if overwrite else _other_run(read_config(folder), config)
        if not refusal and not overwrite:
            return Results.read(folder) if (folder / stored.FILE).exists() else fresh
        if not overwrite and not is_replaceable(folder):
            raise UserError(f"{folder} holds a run {refusal}")
        set_aside(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and holds no run; choose another folder")
    try:
        _make_folder(folder, config, fresh, earlier)
    except BaseException:
        restore(folder)
        raise
    return fresh


def _make_folder(
    folder: Path, config: dict[str, Any], fresh: Results, earlier: EarlierRun | None
) -> None:
    with atomic_folder(folder) as part:
        (part / "deltas").mkdir()
        if earlier is not None:
            earlier.copy_to(part)
            fresh.write(part)
        checksummed.write_yaml(part / CONFIG, config)


@contextmanager
def _starting(folder: Path, created: bool, record: RunRecord) -> Iterator[None]:
    """A new run that is refused before it trains leaves its place as it found it.

    Where it fails later, before it has learned a task, it only gives way to a run that it replaced.
    """
    try:
        yield
    except UserError:
        refused = not record.training or is_set_aside(folder)
        if created and refused and learned_nothing(folder):
            restore(folder)
        raise
    finally:
        if is_run(folder) and not learned_nothing(folder):
            discard_aside(folder)


def _other_run(existing: dict[str, Any], config: dict[str, Any]) -> str | None:
    """Why an existing run cannot be resumed: it began with another model, images or settings.

    Where images and model lie does not count: a run may be moved, and so may its data.
    """
    existing, config = {**existing, "places": None}, {**config, "places": None}
    if existing["weights"] == config["weights"]:
        for (
            kind
        ) in SET_DESCRIPTIONS:  # before the settings, some of which are chosen to suit the images
            if words := describe_difference(kind, existing.get(kind), config.get(kind)):
                return (
                    f"that was begun {words}; give it what it was begun with, choose another "
                    "folder, or replace that run with --overwrite"
                )
    if existing == config:
        return None
    return (
        f"with other settings ({_difference(existing, config)}); choose another folder, or "
        "replace that run with --overwrite"
    )


def _difference(a: Any, b: Any, path: str = "") -> str:
    """The first one, in words."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *b]:
            if a.get(key) != b.get(key) and key != "places":
                return _difference(a.get(key), b.get(key), f"{path}.{key}".lstrip("."))
    return f"{path}: {str(a)[:60]} there, {str(b)[:60]} asked for"


class _Notes(logging.Handler):
    def __init__(self, results: Results) -> None:
        super().__init__(logging.WARNING)
        self._results = results

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self._results.notes:
            self._results.notes.append(line)


@contextmanager
def _noting(results: Results) -> Iterator[None]:
    """Whatever is logged as a warning meanwhile becomes a note in the results."""
    handler, log = _Notes(results), logging.getLogger("retouch")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextmanager
def deterministic_algorithms(device: torch.device) -> Iterator[None]:
    """The same seed on the same machine gives the same bits, on a GPU too."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    filling: Any = deterministic  # whether to fill new memory, which is read by nobody
    fill, filling.fill_uninitialized_memory = filling.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        filling.fill_uninitialized_memory = fill


def _device_name(device: torch.device) -> str:
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or "cpu"
    )
