"""Teach a CLIP a stream of tasks: `teach`, and `preview` to see what it would change."""

import importlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from retouch.train.cpu_speed import eager_optimizers, faster_on_cpu
from retouch.train.environment import deterministic_algorithms
from retouch.train.extend_stream import EarlierRun
from retouch.train.hardware import check_shard
from retouch.train.loop import task_context, train, trained_parameters
from retouch.train.plan import Plan, plan_stream
from retouch.train.run_folder.finish import finish
from retouch.train.run_folder.lock import with_run_lock
from retouch.train.run_folder.new_results import new_results
from retouch.train.run_folder.record import RunRecord
from retouch.train.run_folder.write import open_record, remove_if_refused
from retouch.train.signals import graceful_interrupt

COMPILER = "inductor"


@check_arguments(**REMEDIES)
@with_run_lock
def teach(
    clip: Clip | Plan,
    stream: Stream | None = None,
    method: str | Method = DEFAULT_METHOD,
    *,
    settings: Settings | Mapping[str, Any] | None = None,
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
        clip: The plan of the run, from `retouch.plan`; or the model to teach, from `retouch.load`,
            with the arguments that follow. The model is changed in place.
        stream: The classes to learn, split into tasks, from `Stream.split` or `Stream.join`.
        method: The name of a recipe (see `available_methods`), or a `Method` of your own.
        settings: Epochs, batch size, learning rate and so on: those that you want, by name, and the
            others are chosen to suit model, data and machine; or all of them, as `Settings`.
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
    given: dict[str, Any] = {"settings": settings, "control": control, "reference": reference}
    given["earlier"] = earlier
    if isinstance(clip, Plan):
        _refuse_besides_plan({"stream": stream, **given})
        planned = clip
    else:
        planned = _plan(clip, stream, method, **given)
    if planned.earlier is not None and out is None:
        raise UserError("a run that continues another needs a folder of its own", argument="out=…")
    folder = None if out is None else Path(out)
    if store_images is not None:
        planned = planned.with_storage(store_images)
    if folder is not None and not overwrite:
        planned = planned.resuming(folder)
    started = start_method(replace(planned, command=command))
    callback = callback if callback and collectives.is_rank0() else Callback()
    return _teach(
        started,
        folder,
        callback,
        overwrite=overwrite,
        checkpoint_seconds=checkpoint_seconds,
        per_class=per_class,
        evaluate_each_task=evaluate_each_task,
    )


def _plan(clip: Clip, stream: Stream | None, method: str | Method, **given: Any) -> Plan:
    """The plan of a run whose model and tasks are given."""
    if stream is None:
        raise UserError(f"there is no stream, and so nothing to learn; {REMEDIES['stream']}")
    configured = recipe(method) if isinstance(method, str) else method
    return plan_stream(clip, stream, configured, **given)


def _refuse_besides_plan(arguments: Mapping[str, object]) -> None:
    """A plan has these already."""
    for name, value in arguments.items():
        if value is not None:
            raise UserError(f"the plan has its own {name}; give it to retouch.plan instead")


def _teach(
    plan: Plan,
    folder: Path | None,
    callback: Callback,
    *,
    overwrite: bool,
    checkpoint_seconds: float,
    per_class: bool,
    evaluate_each_task: bool,
) -> Results:
    """Carry out a plan whose method has seen the model."""
    clip, stream, method, settings = plan.clip, plan.stream, plan.method, plan.settings
    if folder is None:
        record, is_new = RunRecord(clip, new_results(plan), callback, method), False
    else:
        record, is_new = open_record(
            plan, callback, folder, overwrite=overwrite, checkpoint_seconds=checkpoint_seconds
        )
    add_image_notes(record.results, (stream.train, stream.test, plan.control))
    trained = trained_parameters(clip, method, settings)
    texts = trained_parameters(clip, method, settings, texts=True)
    reuse = reuse_frozen(clip, trained, cache_folder(), trained_texts=texts)
    with faster_on_cpu(clip, settings), reuse:
        with _running(plan, record, folder, is_new):
            warn_about_plain_sigmoid(clip, method)
            part = plan.control_part
            evaluator = Evaluator(stream, plan.control, evaluate_each_task, callback.progress, part)
            train(clip, stream, method, settings, evaluator, record)
        if folder is not None:
            run = folder, clip, stream, record.results, plan.control
            stores = plan.store_images if method.store_images else False
            evaluated = evaluator.predicted, callback.progress
            finish(*run, *evaluated, store_images=stores, per_class=per_class)
    return record.results


def start_method(plan: Plan) -> Plan:
    """Check that the method can learn the stream, prepare the model, and let the method see it.

    Args:
        plan: With a method that has not seen the model.
    """
    clip, stream, method, settings = plan.clip, plan.stream, plan.method, plan.settings
    check_shard(method, settings)
    check_domain_rates(stream, settings)
    method.check_needs(plan.control is not None, plan.reference is not None)
    buffer = method.replay.buffer(stream, settings.seed)
    buffer.check_size(len(stream.tasks), len(stream.classes))
    collectives.broadcast(clip.model.state_dict().values())
    clip.model.eval()  # no dropout, no changing batch-norm statistics: only the update may change
    clip.bf16 = settings.precision == "bf16"
    with deterministic_algorithms(clip.device), clip.truncated_prompts.collecting():
        started = method.start(clip, settings, plan.reference)
    if plan.earlier is not None:
        plan.earlier.check(started)
    return replace(plan, method=started)


@contextmanager
def _running(plan: Plan, record: RunRecord, folder: Path | None, is_new: bool) -> Iterator[None]:
    """Everything around the loop: clean-up, notes, determinism, Ctrl-C, progress, compilation."""
    clip, settings = plan.clip, plan.settings
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
    settings: Settings | Mapping[str, Any] | None = None,
    reference: Pairs | None = None,
) -> Selection:
    """Select what may move while the first task is learned, and change nothing.

    Printed, the selection is a table.

    Args:
        clip: The model that would learn.
        stream: The stream whose first task is looked at.
        method: The name of a recipe (see `available_methods`), or a `Method` of your own.
        settings: Epochs, batch size, learning rate and so on, as in `teach`.
        reference: Images with captions, for methods that keep old knowledge with them (`zscl`,
            `lora-ewc`).
    """
    planned = _plan(clip, stream, method, settings=settings, reference=reference)
    with preview_update(clip, stream, planned.method, planned.settings, reference) as update:
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
    with started.begin(context) as update:
        yield update


log = logging.getLogger("retouch")


def add_image_notes(results: Results, sets: Iterable[Images | None]) -> None:
    """Add what was noticed when these images were read, such as skipped files."""
    for images in sets:
        results.notes += [n for n in (images.notes if images else []) if n not in results.notes]


@contextmanager
def warnings_as_notes(results: Results) -> Iterator[None]:
    """Inside, whatever is logged as a warning becomes a note in the results."""
    handler, log = _NotesHandler(results), logging.getLogger("retouch")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _NotesHandler(logging.Handler):
    def __init__(self, results: Results) -> None:
        super().__init__(logging.WARNING)
        self._results = results

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self._results.notes:
            self._results.notes.append(line)


def warn_about_plain_sigmoid(clip: Clip, method: Method) -> None:
    """In a batch with k images of a class, the plain sigmoid loss pulls their match to 1/k.

    Each image has its prompt as a match once and as a mismatch k − 1 times. A softmax adds up what
    equal prompts get, so that CLIP does not have this problem.
    """
    if clip.logit_bias is not None and method.loss == "contrastive" and not method.trains_nothing:
        log.warning(
            "%s has a sigmoid loss, whose plain form takes images of one class for mismatches of "
            "each other's prompt and so lowers its probabilities; with loss=label-aware they match",
            clip.name,
        )
