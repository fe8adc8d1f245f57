"""The loop over a stream of tasks. It reads like the paper and never asks which method it runs."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from retouch.clip import Batch, Clip, Features
from retouch.clip.contrast import go_back, pair_loss
from retouch.data.ahead import fetch
from retouch.data.stream import Stream, Task
from retouch.devices import ranks
from retouch.errors import Diverged, NotFinite, UserError
from retouch.learn.checkpoint import Record
from retouch.learn.evaluate import Judge
from retouch.methods import Keeps, Lesson, Method, Settings, Update
from retouch.sparse.finite import not_finite


def train(
    clip: Clip,
    stream: Stream,
    method: Method,
    settings: Settings,
    judge: Judge,
    record: Record,
) -> None:
    """Learn the tasks that `record` does not hold yet, one after the other."""
    buffer = method.replays.buffer(len(stream.train) + stream.gone, settings.seed)
    buffer.check(len(stream.tasks), len(stream.classes))
    judge.begin(clip)
    with _finite(f"{clip.name} gives", "take another copy of its weights", UserError):
        record.begin(buffer, lambda learned: judge(clip, learned))
    for task in stream.tasks[record.done :]:
        lesson = lesson_for(clip, stream, task, method, settings)
        lesson.control_drop = record.control_drop(lambda: judge.control(clip))
        lesson.accuracy = partial(judge.accuracy, clip, task.number + 1)
        with method.trains.begin(lesson) as update:
            steps = lesson.steps if update.optimiser else 0
            record.begin_task(task, update, steps)
            method.settles.begin(lesson, update)
            method.keeps.begin(lesson)
            left = range(record.resume(update), steps)
            replay = partial(method.replays.draw, lesson, buffer)
            for step, batch in lesson.batches(left, replay):
                found = backward(lesson, batch, method.keeps)
                factor = method.schedule.factor(step, steps, settings.epochs, len(stream.tasks))
                update.step(factor)
                method.settles.stepped(lesson, update, step)
                loss = partial(_loss, fetch(found), settings, task.number, step)
                record.stepped(step, step // lesson.per_epoch, loss, settings.lr * factor)
            record.tell_last()
            with _finite(f"task {task.number + 1} left", _advice(settings), Diverged):
                update.end()
                _check(update)
                method.settles.end(lesson, update)
                method.keeps.end(lesson)
                update.agree()
                _check(update, method)
                buffer.add(task.number, task.train, stream.train.labels[task.train])
                judged = partial(judge, clip, task.number + 1)
                record.end_task(update, judged, method.settles.kept)


def backward(lesson: Lesson, batch: Batch, keeps: Keeps) -> Tensor:
    """Leave the batch's gradients with the parameters; its loss, or this process's part of it."""

    def loss(features: Features) -> Tensor:
        kept = keeps.loss(features)
        return lesson.loss(features) if kept is None else lesson.loss(features) + kept

    return go_back(lesson.losses(batch, loss))


def lesson_for(
    clip: Clip, stream: Stream, task: Task, method: Method, settings: Settings
) -> Lesson:
    """A task, with the loss that the method says."""
    loss = partial(pair_loss, loss=method.loss, objective=method.objective)
    return Lesson(clip, stream, task, settings, loss, method.drop_last)


def _check(update: Update, method: Method | None = None) -> None:
    """Refuse weights, and what a method remembers, that are infinite or NaN."""
    weights = {name: update.tensors[name] for name in update.selection}
    if found := not_finite(weights):
        total = sum(tensor.numel() for tensor in weights.values())
        raise NotFinite(
            f"{sum(found.values()):,} of {total:,} weights infinite or NaN, the first in "
            f"{next(iter(found))}"
        )
    if method and (found := not_finite(method.state())):
        raise NotFinite(
            f"{sum(found.values()):,} infinite or NaN values in what {method.name} remembers, the "
            f"first in {next(iter(found))}"
        )


@contextmanager
def _finite(who: str, advice: str, error: type[UserError]) -> Iterator[None]:
    """Say whose the values are that are not finite, and what to do."""
    try:
        yield
    except NotFinite as why:
        raise error(f"{who} {why}; {advice}") from None


def _advice(settings: Settings) -> str:
    return (
        "nothing of this task counts, and a run's folder keeps the tasks before it. Start again in "
        f"another folder with a learning rate below {settings.lr:g}"
    )


def _loss(own: Callable[[], float], settings: Settings, task: int, step: int) -> float:
    """Of all processes together, once it is there."""
    loss = ranks.total(own())
    if not math.isfinite(loss):
        raise Diverged(
            f"the loss became {loss} in task {task + 1}, step {step + 1}; {_advice(settings)}"
        )
    return loss
