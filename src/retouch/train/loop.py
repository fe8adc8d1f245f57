"""The loop over a stream of tasks. It reads like the paper and never asks which method it runs."""

from collections.abc import Collection
from functools import partial

from torch import Tensor

from retouch.clip import Batch, Clip, Features
from retouch.clip.finite import refused_if_not_finite
from retouch.clip.frozen.reuse import release_if_trained
from retouch.clip.losses import backward_terms, pair_loss
from retouch.data.loading.prefetch import read_later
from retouch.data.stream import Stream, Task
from retouch.evaluate.evaluator import Evaluator
from retouch.methods import Method, Regularizer, Settings, TaskContext
from retouch.methods.micro_batch import MicroBatch
from retouch.methods.task_update import TaskUpdate
from retouch.train.divergence import check_finite, diverged_if_not_finite, finite_loss
from retouch.train.run_folder.record import RunRecord


def train(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    evaluator: Evaluator,
    record: RunRecord,
) -> None:
    """Learn the tasks that `record` does not hold yet, one after the other."""
    buffer = method.replay.buffer(stream, settings.seed)
    evaluator.begin(clip)
    with refused_if_not_finite(clip):
        evaluate = partial(evaluator, clip, all_control=True)
        record.begin(buffer, evaluate, partial(evaluator.complete, clip))
    stream.wait(record.callback.progress)
    micro_batch = MicroBatch(clip, settings)
    for task in stream.tasks[record.done :]:
        context = task_context(clip, stream, task, method, settings)
        context.micro_batch, context.progress = micro_batch, record.callback.progress
        context.control_drop = record.control_drop(partial(evaluator.control, clip))
        context.stored_images = buffer.positions
        context.accuracy = partial(evaluator.accuracy, clip, task.number + 1)
        record.prepare_task()
        with micro_batch.fit(partial(method.begin, context)) as update:
            release_if_trained(clip, update.selection)
            steps = context.steps if update.optimizer else 0
            record.begin_task(task, update, steps)
            method.after_task.begin(context, update)
            method.regularizer.begin(context)
            taken = record.resume(update)
            replay = partial(method.replay.draw, context, buffer)
            for step, batch in context.batches(range(taken, steps), replay):
                if method.after_task.is_learned:
                    break
                step_loss = partial(backward, context, batch, method.regularizer)
                loss = micro_batch.fit(step_loss, reset=update.zero_grad)
                factor = method.schedule.factor(step, steps, context.epochs, len(stream.tasks))
                update.step(factor)
                checked = partial(finite_loss, read_later(loss), settings, task.number, step)
                method.after_task.after_step(context, update, step, checked)
                record.on_step(step, step // context.steps_per_epoch, checked, update.lr)
                taken = step + 1
            record.report_last_step()
            with diverged_if_not_finite(task.number, settings):
                update.end()
                check_finite(update)
                end_task(method, context, update)
                update.broadcast()
                check_finite(update, method)
                buffer.add(task.number, task.train, stream.train.labels[task.train])
                evaluate = partial(evaluator, clip, task.number + 1)
                record.end_task(update, evaluate, method.after_task.fraction_kept, taken)


def end_task(method: Method, context: TaskContext, update: TaskUpdate) -> None:
    """The regularizer sees the weights that the next task starts from."""
    if method.after_task.keeps_trained_weights:
        method.regularizer.end(context)
    method.after_task.end(context, update)
    if not method.after_task.keeps_trained_weights:
        method.regularizer.end(context)


def backward(context: TaskContext, batch: Batch, regularizer: Regularizer) -> Tensor:
    """The backward pass of a batch. Returns its loss, or this rank's share of it."""

    def loss(features: Features) -> Tensor:
        penalty = regularizer.loss(features)
        return context.loss(features) if penalty is None else context.loss(features) + penalty

    return backward_terms(context.losses(batch, loss))


def task_context(
    clip: Clip, stream: Stream, task: Task, method: Method, settings: Settings
) -> TaskContext:
    """The context of a task, with the method's loss and the settings of the task's data set."""
    settings = settings.of_domain(stream.domain_of(task))
    loss = partial(
        pair_loss,
        loss=method.loss,
        objective=method.objective,
        smoothing=settings.label_smoothing,
    )
    context = TaskContext(clip, stream, task, settings, loss, method.drop_last)
    if method.loss == "cross-entropy":
        context.add_task_prompts()
    return context


def trained_parameters(
    clip: Clip, method: Method, settings: Settings, *, texts: bool = False
) -> Collection[str] | None:
    """Names of the parameters that a run may change, for `reuse_frozen`; None where all count.

    Where weights are sharded, all ranks must run the same blocks, whichever images they know. On a
    GPU, blocks are reused for the prompts of evaluations only (`texts`), unless they are compiled.
    """
    reuse = settings.reuse_frozen
    if reuse is None:
        reuse = clip.device.type == "cpu" or (texts and not settings.compile)
    return method.trained_parameters(clip) if reuse and not settings.shard else None
