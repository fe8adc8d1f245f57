"""Look at two moments of a model closely: class by class, and image by image."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from retouch.clip import Clip
from retouch.data.cache import Progress
from retouch.data.image_store import Indices
from retouch.data.images import Images
from retouch.distributed import collectives
from retouch.evaluate.examples import write_examples
from retouch.evaluate.joint_accuracy import joint_accuracy
from retouch.evaluate.per_class import (
    EXAMPLES,
    FILE,
    JointChange,
    PerClass,
    merge_per_class,
    per_class,
)
from retouch.evaluate.predict import encode, nearest_classes
from retouch.evaluate.results import Joint
from retouch.plural import count
from retouch.train.run_folder import OpenRun

ModelAt = Callable[[], Clip]
"""Gives the model as it was then; what another moment gave before may be changed by that."""


@dataclass(frozen=True)
class EvalSet:
    """Images to judge by, and the classes to choose among, if not all of theirs."""

    images: Images
    choices: list[int] | None = None
    learned: bool = True
    """Whether these are new classes; else the control set."""
    notes: list[str] = field(default_factory=list)
    """What was left out, and what the model chose among."""


def eval_set_of_run(run: OpenRun, images: Images, tasks: int | None = None) -> EvalSet:
    """Judge the classes that a run has learned by these images.

    The model chooses among all classes that it has learned (after so many tasks, or all), in the
    run's own words. Images of tasks that come later do not count. Where there are classes that the
    run never heard of, it chooses among the classes of the images instead.
    """
    infos = run.results.tasks
    learned = _names(run, tasks) if tasks else run.classes
    planned = {name for task in infos for name in task.classes}
    there, foreign = set(images.classes), [n for n in images.classes if n not in planned]
    if foreign or not learned:
        return EvalSet(images, notes=[_among_theirs(images, foreign, learned)] if learned else [])
    classes = list(dict.fromkeys([*images.classes, *learned]))
    known = [label for label, name in enumerate(classes) if name in learned]
    own = replace(images, classes=classes, templates=tuple(run.config["data"]["templates"]))
    later = len(there - set(learned))
    are, do = ("is", "does") if later == 1 else ("are", "do")
    notes = [f"{count(later, 'class')} that {are} not learned yet {do} not count"] if later else []
    if missing := len(set(learned) - there):
        notes.append(f"{missing} of the {count(len(learned), 'learned class')} have no images here")
    choices = [classes.index(name) for name in learned]
    return EvalSet(own.subset(own.of_classes(known)), choices, notes=notes)


def _names(run: OpenRun, tasks: int) -> list[str]:
    learned = run.results.tasks[:tasks]
    return list(dict.fromkeys(name for task in learned for name in task.classes))


def _among_theirs(images: Images, foreign: Sequence[str], learned: Sequence[str]) -> str:
    some, total = len(foreign), len(images.classes)
    more = f" and {some - 1} more" if some > 1 else ""
    which = "learned none" if some == total else f"did not learn {foreign[0]!r}{more}"
    return (
        f"{images.name} has {count(total, 'class')}, of which the run {which}: the model chose "
        f"among these {total}, not among the {len(learned)} that the run learned"
    )


class Predictions(NamedTuple):
    """What one model called the images of each exam, and its accuracy over all exams at once."""

    answers: list[Indices]
    joint: Joint | None


def predict_both(
    exams: Sequence[EvalSet], before: ModelAt | None, now: ModelAt, progress: Progress | None = None
) -> tuple[Predictions | None, Predictions]:
    """Judge the model at both moments.

    A moment is gone to once, and all images are seen there: to walk through a run takes time. The
    present comes first: where a file of the run is damaged, that is known at once.
    """
    after = _judged(exams, now(), progress, "now" if before else "")
    return (before and _judged(exams, before(), progress, "before")), after


def _judged(
    exams: Sequence[EvalSet], clip: Clip, progress: Progress | None, when: str
) -> Predictions:
    shown = progress and _saying(progress, when)
    parts = [
        encode(clip, exam.images, exam.choices, shown) if len(exam.images) else None
        for exam in exams
    ]
    answers = [np.empty(0, np.int64) if part is None else nearest_classes(part) for part in parts]
    new, control = (
        next((p for p, e in zip(parts, exams, strict=True) if p and e.learned is learned), None)
        for learned in (True, False)
    )
    return Predictions(answers, joint_accuracy(new, control) if new and control else None)


def _saying(progress: Progress, when: str) -> Progress:
    """The same, with the moment in its words."""

    def shown(todo: Iterable[Indices], what: str, total: int) -> Iterable[Indices]:
        return progress(todo, f"{what}, {when}" if when else what, total)

    return shown


def compare(
    exams: Sequence[EvalSet], before: ModelAt | None, now: ModelAt, progress: Progress | None = None
) -> PerClass:
    """Class by class, what a model could do before and what it can do now."""
    return _by_class(exams, *predict_both(exams, before, now, progress))


def _by_class(exams: Sequence[EvalSet], before: Predictions | None, after: Predictions) -> PerClass:
    parts = [
        per_class(exam.images, was, now, exam.learned, exam.choices)
        for exam, was, now in _answers(exams, before, after)
    ]
    found = merge_per_class(*parts)
    if after.joint is not None:
        found.joint = JointChange(before=before and before.joint, after=after.joint)
    return found


def _answers(
    exams: Sequence[EvalSet], before: Predictions | None, after: Predictions
) -> list[tuple[EvalSet, Indices | None, Indices]]:
    was: Sequence[Indices | None] = before.answers if before else [None] * len(exams)
    return list(zip(exams, was, after.answers, strict=True))


def compare_run(
    run: OpenRun,
    test: Images,
    control: Images | None = None,
    *,
    examples: bool = True,
    progress: Progress | None = None,
) -> PerClass:
    """Compare the model before the first task with that after the last, and store it in the folder.

    Only images of classes that are learned count, and both models choose among all of those, so
    that their numbers can be compared. Without `examples` no image is stored. Of several processes
    all judge, and the first stores.
    """
    run.clip.bf16 = run.config["settings"]["precision"] == "bf16"
    exams = [eval_set_of_run(run, test)]
    exams += [EvalSet(control, learned=False)] if control is not None else []
    before, after = predict_both(exams, lambda: run.load_task(0), run.load_task, progress)
    found = _by_class(exams, before, after)
    run.load_task()
    if not collectives.is_rank0():
        return found
    # What names examples goes first, so that it never names those of another time.
    (run.folder / FILE).unlink(missing_ok=True)
    if examples:
        every = _answers(exams, before, after)
        groups = [(e.images, was, now, e.learned) for e, was, now in every if was is not None]
        found.examples = write_examples(run.folder, groups)
    else:
        shutil.rmtree(run.folder / EXAMPLES, ignore_errors=True)
    found.write(run.folder)
    return found
