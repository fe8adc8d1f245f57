"""The loop over a stream of tasks. It reads like the paper and never asks which method it runs."""

from functools import partial

from torch import Tensor

from retouch.clip import Batch, Clip, Features
from retouch.clip.contrast import go_back, pair_loss
from retouch.data.ahead import fetch
from retouch.data.stream import Stream, Task
from retouch.learn.checkpoint import Record
from retouch.learn.divergence import (
    check_finite,
    diverged_if_not_finite,
    finite_loss,
    refused_if_not_finite,
)
from retouch.learn.evaluate import Judge
from retouch.methods import Keeps, Lesson, Method, Settings


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
    judge.begin(clip)
    with refused_if_not_finite(clip):
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
                loss = partial(finite_loss, fetch(found), settings, task.number, step)
                record.stepped(step, step // lesson.per_epoch, loss, settings.lr * factor)
            record.tell_last()
            with diverged_if_not_finite(task.number, settings):
                update.end()
                check_finite(update)
                method.settles.end(lesson, update)
                method.keeps.end(lesson)
                update.agree()
                check_finite(update, method)
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
