"""Teach a CLIP a stream of tasks: `teach`, and `preview` to see what it would change."""

import importlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from retouch.arguments import check_arguments
from retouch.clip import Clip
from retouch.clip.frozen.reuse import reuse_frozen
from retouch.data.cache.images import cache_folder
from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.data.stream import Stream
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.evaluate.evaluator import Evaluator
from retouch.evaluate.results import Results
from retouch.methods import DEFAULT_METHOD, Method, Settings, TaskUpdate, recipe
from retouch.sparse import Selection
from retouch.train.arguments import REMEDIES, check_domain_rates
from retouch.train.callbacks.callback import Callback
from retouch.train.control_part import control_part
from retouch.train.cpu_speed import faster_on_cpu
from retouch.train.defaults import default_settings
from retouch.train.eager_optim import eager_optimizers
from retouch.train.environment import deterministic_algorithms
from retouch.train.extend_stream import EarlierRun
from retouch.train.hardware import check_shard
from retouch.train.loop import task_context, train, trained_parameters
from retouch.train.notes import add_image_notes, warn_about_plain_sigmoid, warnings_as_notes
from retouch.train.run_folder.finish import finish
from retouch.train.run_folder.lock import with_run_lock
from retouch.train.run_folder.new_results import new_results
from retouch.train.run_folder.record import RunRecord
from retouch.train.run_folder.write import open_record, remove_if_refused
from retouch.train.run_inputs import RunInputs
from retouch.train.signals import graceful_interrupt

COMPILER = "inductor"


@check_arguments(**REMEDIES)
@with_run_lock
def teach(
    clip: Clip,
    stream: Stream,
    method: str | Method = DEFAULT_METHOD,
    *,
    settings: Settings | None = None,
    control: Images | None = None,
    reference: Pairs | None = None,
    out: str | Path | None = None,
    callback: Callback | None = None,
    checkpoint_seconds: float = 60.0,
    earlier: EarlierRun | None = None,
    overwrite: bool = False,
    store_images: bool | None = None,
    per_class: bool = True,
    evaluate_each_task: bool = True,
    command: str = "",
) -> Results:
    """Learn the stream's tasks in order; after each, evaluate what was learned and what was lost.

    The model is changed in place. Call this on every rank (see `distributed.rendezvous`); rank 0
    writes.

    Args:
        clip: The model to teach, from `retouch.load`. It is changed in place.
        stream: The classes to learn, split into tasks, from `Stream.split` or `Stream.join`.
        method: The name of a recipe (see `available_methods`), or a `Method` of your own.
        settings: Epochs, batch size, learning rate and so on. Default: the paper's, with the
            method's own learning rate.
        control: Images of what the model could do before and must not forget. Without it,
            forgetting of old knowledge is not measured, and `spu-bounded` is refused. Of a large
            one, a part is checked after each task and all at the end (`Settings.control_part`).
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
        overwrite: Replace another run in `out`. It is deleted once the new run has learned a task,
            and restored if the new run cannot start. Leave it out to resume the new run. Without
            it, another run is refused, unless it has learned nothing yet. A folder that also holds
            anything that no run wrote there is never replaced.
        store_images: Store the images that a continued run replays and evaluates, and examples for
            the page. Needs `out`; turn it off if no image may be kept. Default: as the method says
            (`Method.store_images`), and none if the run that is continued or resumed stores none.
        per_class: Compare the model before and after class by class when all tasks are learned.
            Needs `out`. It comes from the first evaluation and the last; a run that was resumed
            repeats the first.
        evaluate_each_task: Evaluate after every task. Turn it off to save time where only the end
            counts: then only the model before the first task and after the last is evaluated.
        command: The command line that started the run, for the report.
    """
    configured, settings = _configure(clip, method, settings)
    if earlier is not None and out is None:
        raise UserError("a run that continues another needs a folder of its own", argument="out=…")
    configured = _with_storage(configured, earlier, store_images)
    inputs = start_method(
        RunInputs(clip, stream, configured, settings, control, reference, earlier, command)
    )
    started = inputs.method
    callback = callback if callback and collectives.is_rank0() else Callback()
    folder = None if out is None else Path(out)
    if folder is None:
        record, is_new = RunRecord(clip, new_results(inputs), callback, started), False
    else:
        record, is_new = open_record(
            inputs, callback, folder, overwrite=overwrite, checkpoint_seconds=checkpoint_seconds
        )
    add_image_notes(record.results, (stream.train, stream.test, control))
    trained = trained_parameters(clip, started, settings)
    texts = trained_parameters(clip, started, settings, texts=True)
    reuse = reuse_frozen(clip, trained, cache_folder(), trained_texts=texts)
    with faster_on_cpu(clip, settings), reuse:
        with _running(inputs, record, folder, is_new):
            warn_about_plain_sigmoid(clip, started)
            part = control_part(stream, control, started, settings)
            evaluator = Evaluator(stream, control, evaluate_each_task, callback.progress, part)
            train(clip, stream, started, settings, evaluator, record)
        if folder is not None:
            run = folder, clip, stream, record.results, control
            stores = store_images if started.store_images else False
            evaluated = evaluator.predicted, callback.progress
            finish(*run, *evaluated, store_images=stores, per_class=per_class)
    return record.results


def _configure(
    clip: Clip, method: str | Method, settings: Settings | None
) -> tuple[Method, Settings]:
    """The method by its name, and its settings where none are given."""
    configured = recipe(method) if isinstance(method, str) else method
    return configured, settings or default_settings(clip, configured)


def _with_storage(method: Method, earlier: EarlierRun | None, store_images: bool | None) -> Method:
    """The method, with whether images are stored: as asked, or as it and the earlier run say."""
    if store_images is None:
        store_images = method.store_images and (earlier is None or earlier.method["store_images"])
    return method.with_change({"store_images": store_images})


def start_method(inputs: RunInputs) -> RunInputs:
    """Check that the method can learn the stream, prepare the model, and let the method see it.

    Args:
        inputs: With a method that has not seen the model.
    """
    clip, stream, method, settings = inputs.clip, inputs.stream, inputs.method, inputs.settings
    check_shard(method, settings)
    check_domain_rates(stream, settings)
    method.check_needs(inputs.control is not None, inputs.reference is not None)
    buffer = method.replay.buffer(stream, settings.seed)
    buffer.check_size(len(stream.tasks), len(stream.classes))
    collectives.broadcast(clip.model.state_dict().values())
    clip.model.eval()  # no dropout, no changing batch-norm statistics: only the update may change
    clip.bf16 = settings.precision == "bf16"
    with deterministic_algorithms(clip.device), clip.truncated_prompts.collecting():
        started = method.start(clip, settings, inputs.reference)
    if inputs.earlier is not None:
        inputs.earlier.check(started)
    return replace(inputs, method=started)


@contextmanager
def _running(
    inputs: RunInputs, record: RunRecord, folder: Path | None, is_new: bool
) -> Iterator[None]:
    """Everything around the loop: clean-up, notes, determinism, Ctrl-C, progress, compilation."""
    clip, settings = inputs.clip, inputs.settings
    if settings.compile:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
        importlib.import_module("torch._inductor.config")  # to be made deterministic
    cleanup: AbstractContextManager[None] = nullcontext()
    if folder is not None and collectives.is_rank0():
        cleanup = remove_if_refused(folder, is_new, record)
    with ExitStack() as stack:
        for context in (
            cleanup,
            warnings_as_notes(record.results),
            clip.truncated_prompts.collecting(),
            deterministic_algorithms(clip.device),
            graceful_interrupt(record, folder is not None),
            record.callback,
            nullcontext() if settings.compile else eager_optimizers(),
        ):
            stack.enter_context(context)
        backend = COMPILER if settings.compile else None
        compiling = stack.enter_context(clip.fast(backend, cuda_graphs=settings.cuda_graphs))
        compiling.listener = record.callback.on_compile
        yield
        if compiling.seconds >= 1:
            record.add_environment({"compiling": f"{compiling.seconds:.0f} s"})


@check_arguments(**REMEDIES)
def preview(
    clip: Clip,
    stream: Stream,
    method: str | Method = DEFAULT_METHOD,
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
        settings: Epochs, batch size, learning rate and so on. Default: the paper's, with the
            method's own learning rate.
        reference: Images with captions, for methods that keep old knowledge with them (`zscl`,
            `lora-ewc`).
    """
    configured, settings = _configure(clip, method, settings)
    with preview_update(clip, stream, configured, settings, reference) as update:
        return update.selection


@contextmanager
def preview_update(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    reference: Pairs | None = None,
) -> Iterator[TaskUpdate]:
    """The update of the first task, ready for its first step."""
    started = method.start(clip, settings, reference)
    context = task_context(clip, stream, stream.tasks[0], started, settings)
    with started.update.begin(context) as update:
        yield update
