"""Compare the model of a run before its first task with the model after its last."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from retouch.data.images import Images
from retouch.data.loading.progress import Progress
from retouch.data.registry import data_set_name
from retouch.data.stores.image_store import Indices
from retouch.distributed import collectives
from retouch.evaluate.choices import ClassChoices
from retouch.evaluate.compare import EvalSet, Predictions, predict_both
from retouch.evaluate.examples import FILES, write_examples
from retouch.evaluate.per_class import EXAMPLES, FILE, PerClass
from retouch.evaluate.predict import PredictedClasses
from retouch.evaluate.row import Joint
from retouch.files.write import delete_folder
from retouch.text.plural import count
from retouch.train.run_folder.read import OpenRun


def eval_sets_of_run(run: OpenRun, images: Images, tasks: int | None = None) -> list[EvalSet]:
    """Evaluate the classes that a run has learned on these images, as the run did.

    An image is classified among the classes that the run chose among (after `tasks` tasks, by
    default all), with the run's own prompts: if that was within its data set, there is a set for
    each data set. Images of later tasks do not count. Where some classes of the images are unknown
    to the run, the model chooses among the classes of the images instead.
    """
    choices, learned = run.choices, tasks or run.results.done
    named = _as_in_stream(choices, images)
    unknown = [name for name in named.classes if name not in choices.seen(0)]
    seen = choices.seen(learned) if learned else []
    if unknown or not seen:
        return [EvalSet(images, notes=[_other_choices(images, unknown, seen)] if seen else [])]
    among = dict.fromkeys(choices.of_class(name, learned) for name in seen)
    sets = [_eval_set(choices, named, each, seen) for each in among]
    present = [each for each in sets if len(each.images)] or sets[:1]
    present[0].notes.extend(_coverage(named, seen))
    if len(among) > 1:
        present[0].notes.append(
            "an image is classified among the classes of its own data set, as in the run"
        )
    return present


def _eval_set(
    choices: ClassChoices, images: Images, among: Sequence[str], seen: Sequence[str]
) -> EvalSet:
    """The images of the seen ones of these classes, which are classified among these classes."""
    groups = [group for group in choices.groups if not group.classes.keys().isdisjoint(among)]
    classes = list(dict.fromkeys([*(name for name in images.classes if name in among), *among]))
    label_of = {name: label for label, name in enumerate(classes)}
    labels = np.array([label_of.get(name, -1) for name in images.classes], np.int64)
    counted = [label for label, name in enumerate(images.classes) if name in {*among} & {*seen}]
    part = images.subset(images.of_classes(counted))
    several = len(choices.groups) > 1
    extended = replace(
        part,
        name=groups[0].name if several and len(groups) == 1 else images.name,
        classes=classes,
        labels=labels[part.labels],
        templates=tuple(groups[0].templates),
        domains=tuple(groups) if several else (),
    )
    ids = choices.ids(classes) if choices.twins == "merge" else None
    return EvalSet(extended, [label_of[name] for name in among], ids=ids)


def _as_in_stream(choices: ClassChoices, images: Images) -> Images:
    """The images with the classes' names in the stream, if they are of one of its data sets.

    A class that two data sets have is called after its data set there.
    """
    known = choices.seen(0)
    if all(name in known for name in images.classes):
        return images
    by_name = {
        group.name: {in_prompts: name for name, in_prompts in group.classes.items()}
        for group in choices.groups
    }
    fitting = [each for each, names in by_name.items() if names.keys() >= set(images.classes)]
    own = data_set_name(images.name)
    if not fitting:
        return images
    names = by_name[own if own in fitting else fitting[0]]
    return replace(images, classes=[names[name] for name in images.classes])


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

    Only images of learned classes count, and both models choose among the same classes, so that
    their numbers can be compared. What evaluations of the run have `predicted`, by the number of
    tasks learned, is not computed again. Without `examples` no image is stored. Call it on every
    rank; rank 0 writes.
    """
    run.clip.bf16 = run.config["settings"]["precision"] == "bf16"
    sets = eval_sets_of_run(run, test)
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
