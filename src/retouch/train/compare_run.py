"""Compare the model of a run before its first task with the model after its last."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from retouch.data.image_store import Indices
from retouch.data.images import Images
from retouch.data.join_images import domain_images
from retouch.data.progress import Progress
from retouch.distributed import collectives
from retouch.evaluate.compare import EvalSet, Predictions, predict_both
from retouch.evaluate.examples import FILES, write_examples
from retouch.evaluate.per_class import EXAMPLES, FILE, PerClass
from retouch.evaluate.predict import PredictedClasses
from retouch.evaluate.row import Joint
from retouch.files import delete_folder
from retouch.plural import count
from retouch.train.run_folder import OpenRun


def eval_set_of_run(run: OpenRun, images: Images, tasks: int | None = None) -> EvalSet:
    """Evaluate the classes that a run has learned on these images.

    The model chooses among all classes that it has learned (after `tasks` tasks, by default all),
    with the run's own prompts. Images of later tasks do not count. Where some classes of the images
    are unknown to the run, it chooses among the classes of the images instead.
    """
    learned = _class_names(run, tasks) if tasks else run.classes
    planned = {name for task in run.results.tasks for name in task.classes}
    unknown = [name for name in images.classes if name not in planned]
    if unknown or not learned:
        notes = [_other_choices(images, unknown, learned)] if learned else []
        return EvalSet(images, notes=notes)
    classes = list(dict.fromkeys([*images.classes, *learned]))
    labels = [label for label, name in enumerate(classes) if name in learned]
    data = run.config["data"]
    domains = tuple(run.domains)
    extended = replace(images, classes=classes, templates=tuple(data["templates"]), domains=domains)
    return EvalSet(
        extended.subset(extended.of_classes(labels)),
        choices=[classes.index(name) for name in learned],
        notes=_coverage(images, learned),
    )


def _class_names(run: OpenRun, tasks: int) -> list[str]:
    """The classes of the first `tasks` tasks, in order."""
    learned = run.results.tasks[:tasks]
    return list(dict.fromkeys(name for task in learned for name in task.classes))


def _coverage(images: Images, learned: Sequence[str]) -> list[str]:
    """Which classes of the images do not count, and which learned classes have no images."""
    present = set(images.classes)
    notes = []
    if later := len(present - set(learned)):
        are, do = ("is", "does") if later == 1 else ("are", "do")
        notes.append(f"{count(later, 'class')} that {are} not learned yet {do} not count")
    if missing := len(set(learned) - present):
        notes.append(f"{missing} of the {count(len(learned), 'learned class')} have no images here")
    return notes


def _other_choices(images: Images, unknown: Sequence[str], learned: Sequence[str]) -> str:
    """Why the model chose among the classes of the images."""
    total = len(images.classes)
    more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    which = "learned none" if len(unknown) == total else f"did not learn {unknown[0]!r}{more}"
    return (
        f"{images.name} has {count(total, 'class')}, of which the run {which}: the model chose "
        f"among these {total}, not among the {len(learned)} that the run learned"
    )


def _learned_sets(run: OpenRun, test: Images) -> list[EvalSet]:
    """What to compare on: the learned classes, or those of each data set by themselves."""
    if run.config["data"].get("choices") != "domain":
        return [eval_set_of_run(run, test)]
    return [EvalSet(domain_images(test, domain)) for domain in test.domains]


def _known(
    sets: Sequence[EvalSet], test: Images, predicted: PredictedClasses | None, joint: Joint | None
) -> Predictions | None:
    """What an evaluation predicted, for the sets of a comparison; None if it lacks some images."""
    if predicted is None:
        return None
    classes = [
        _of_set(each, test, predicted.test) if each.learned else predicted.control for each in sets
    ]
    if any(len(each.images) != len(own) for each, own in zip(sets, classes, strict=True)):
        return None
    single = sum(each.learned for each in sets) == 1
    return Predictions(classes, joint if single else None)


def _of_set(eval_set: EvalSet, test: Images, predicted: Indices) -> Indices:
    """The predictions for those test images that are in a set, as indices into its classes."""
    label_of = {name: label for label, name in enumerate(eval_set.images.classes)}
    choices = eval_set.choices or list(label_of.values())
    labels = np.array([label_of.get(name, -1) for name in test.classes], np.int64)
    positions = test.of_classes(np.flatnonzero(np.isin(labels, choices)).tolist())
    evaluated = predicted[positions]
    return labels[evaluated[evaluated >= 0]]


def compare_run(
    run: OpenRun,
    test: Images,
    control: Images | None = None,
    *,
    predicted: Mapping[int, PredictedClasses] | None = None,
    examples: bool = True,
    progress: Progress | None = None,
) -> PerClass:
    """Compare the model before the first task with that after the last; store it in the folder.

    Only images of learned classes count, and both models choose among all of those, so that their
    numbers can be compared. What evaluations of the run have `predicted`, by the number of tasks
    learned, is not computed again. Without `examples` no image is stored. Call it on every rank;
    rank 0 writes.
    """
    run.clip.bf16 = run.config["settings"]["precision"] == "bf16"
    sets = _learned_sets(run, test)
    sets += [EvalSet(control, learned=False)] if control is not None else []
    before, after = (
        _known(sets, test, (predicted or {}).get(number), run.results.rows[number].joint)
        for number in (0, run.results.done)
    )
    comparison = predict_both(
        sets, before or (lambda: run.load_task(0)), after or run.load_task, progress
    )
    classes = comparison.per_class()
    run.load_task()
    if not collectives.is_rank0():
        return classes
    # The file that names the examples is deleted first, so that it never names other images.
    (run.folder / FILE).unlink(missing_ok=True)
    if examples:
        classes.examples = write_examples(run.folder, comparison.images())
    else:
        delete_folder(run.folder / EXAMPLES, FILES)
    classes.write(run.folder)
    return classes
