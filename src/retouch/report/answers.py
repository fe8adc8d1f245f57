"""The first screen of a run's page: what it learned and what it forgot, with bars."""

from collections.abc import Sequence
from typing import NamedTuple

from retouch.evaluate.per_class import PerClass
from retouch.evaluate.results import Results
from retouch.plotting.formatting import percent
from retouch.plotting.label_layout import shorten
from retouch.report.class_changes import change_sentence
from retouch.report.intervals import ENOUGH_IMAGES, interval_sentence, wilson_interval
from retouch.report.run_metrics import continuation, is_continued, metrics, starting_accuracy
from retouch.report.sentences import (
    control_part_sentence,
    control_sentence,
    domain_sentence,
    drift_sentence,
    joint_sentence,
    learned_earlier_sentence,
    learned_sentence,
    total_sentence,
)


class Bar(NamedTuple):
    """An accuracy drawn as a bar."""

    name: str
    style: str
    """Its class in the style sheet: before, now or weak."""
    value: float
    before: float | None = None
    """Where to mark the accuracy before."""
    images: int = 0
    """The number of images it was measured on; 0 if unknown."""

    @property
    def text(self) -> str:
        return percent(self.value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval, if there are so few images that it matters."""
        if not 0 < self.images < ENOUGH_IMAGES:
            return None
        return wilson_interval(self.value, self.images)


class Answer(NamedTuple):
    """A question of the first screen: a sentence, bars and remarks."""

    heading: str
    sentence: str
    bars: list[Bar]
    remarks: list[str]


def answers(run: Results, per_class: PerClass | None = None) -> list[Answer]:
    """What one run learned, what it did to the control set, and how it does on both at once."""
    new, control = _new_bars(run), _control_bars(run)
    sentence = " ".join(filter(None, [learned_sentence(run), learned_earlier_sentence(run)]))
    new_remarks = [_interval_remark(new, "test"), total_sentence(run)]
    new_remarks.append(_changes_remark(run, per_class, learned=True))
    control_remarks = [
        control_part_sentence(run),
        _interval_remark(control, "control"),
        _changes_remark(run, per_class, learned=False),
        drift_sentence(run),
    ]
    answers = [
        Answer("What it learned", sentence, new, list(filter(None, new_remarks))),
        Answer(
            "What it could do before",
            control_sentence(run),
            control,
            list(filter(None, control_remarks)),
        ),
    ]
    if several := domain_sentence(run):
        answers.append(Answer("Data set by data set", several, _domain_bars(run), []))
    if joint := joint_sentence(run):
        answers.append(Answer("New and control classes at once", joint, _joint_bars(run), []))
    return answers


def _changes_remark(run: Results, per_class: PerClass | None, learned: bool) -> str:
    """How many classes gained and lost; of a continued run, since before the first task."""
    changes = change_sentence(per_class, learned=learned)
    if changes and is_continued(run):
        return f"Since before the first task: {changes[0].lower()}{changes[1:]}"
    return changes


def _interval_remark(bars: Sequence[Bar], kind: str) -> str:
    """The confidence interval of the last of these bars."""
    return interval_sentence(bars[-1].value, bars[-1].images, kind) if bars else ""


def _new_bars(run: Results) -> list[Bar]:
    """Accuracy on new classes before and now; for a continued run, on its own classes."""
    if is_continued(run):
        this_run, tasks = continuation(run), run.tasks[run.learned_before : run.done]
        start, now = this_run.before, this_run.now
    else:
        start, now = starting_accuracy(run), metrics(run).get("accuracy")
        tasks = run.tasks[: run.done]
    bars = []
    if start is not None and (run.finished or now is None):
        bars.append(Bar("before", "before", start))
    if now is not None:
        images = sum(task.test for task in tasks)
        bars.append(Bar("now", "now", now, start if run.finished else None, images))
    return bars


def _control_bars(run: Results) -> list[Bar]:
    """Control accuracy before and now; without a control set, the drift of everyday words."""
    start = run.rows[0].control if run.rows else None
    if is_continued(run):
        start = continuation(run).control_before
    info, values, bars = run.data.get("control"), metrics(run), []
    if start is not None:
        bars.append(Bar("before", "before", start))
    if "control" in values:
        checked = run.rows[-1].control_part or info
        bars.append(Bar("now", "now", values["control"], start, checked.images if checked else 0))
    if not bars and "drift_neighbours" in values:
        bars.append(Bar("words", "weak", values["drift_neighbours"]))
    return bars


def _domain_bars(run: Results) -> list[Bar]:
    """Accuracy on each data set at the end, with a mark where it began."""
    first, last = run.domain_matrix[0], run.domain_matrix[-1]
    return [
        Bar(shorten(name), "now", now, before)
        for name, now, before in zip(run.domains, last, first, strict=True)
        if now is not None
    ]


def _joint_bars(run: Results) -> list[Bar]:
    """Accuracy on new classes, control classes and both, choosing among all of them."""
    now, start = run.rows[-1].joint, run.rows[0].joint
    assert now is not None
    before = start if run.finished and run.done else None
    return [
        Bar(name, "now", getattr(now, part), getattr(before, part) if before else None)
        for name, part in (("new", "new"), ("control", "control"), ("both", "overall"))
    ]
