"""`retouch eval`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retouch.cli.console import out, print_json, progress, user_errors, with_ranks
from retouch.cli.images import decode, find_control, find_images
from retouch.cli.load_models import AtTask, Base, LoadedModel, Where, compared, load_models
from retouch.cli.options import NAMES_HELP, Cache, Device, Json, NoCache, Precision, Root, SkipBad
from retouch.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from retouch.data import Images
    from retouch.evaluate.compare import EvalSet
    from retouch.evaluate.per_class import ClassRow, JointChange, PerClass
    from retouch.evaluate.row import Joint


def evaluate(
    where: Where,
    data: Annotated[
        str | None,
        typer.Option(
            help="Images to judge by: as `retouch learn` takes them. A run may have some."
        ),
    ] = None,
    control: Annotated[
        str | None, typer.Option(help="Images of what the model could do before: as --data.")
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(help=NAMES_HELP, metavar="FILE"),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL|RUN", help="Compare with this model, not the one before."),
    ] = None,
    model: Base = None,
    task: AtTask = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every class.")] = False,
    as_json: Json = False,
    data_root: Root = None,
    cache: Cache = None,
    no_cache: NoCache = False,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """What does it recognise? By class, with what it mistakes for what.

    Of a run, the model before and the model now are shown side by side. Of DATA the test part
    counts where there is one, else all of it. With --control, "among all" is how many are right
    where every image may be called any class of both sets.

    Example: `retouch eval runs/march --data photos --control imagenet`
    """
    with user_errors(), with_ranks(device) as device:
        from retouch.evaluate.compare import compare

        subject = load_models(where, model=model, task=task, device=device, precision=precision)
        if against:
            subject = compared(subject, against, device=device, precision=precision)

        decoded = partial(
            decode, preprocess=subject.pixels, cache=cache, no_cache=no_cache, skip_bad=skip_bad
        )
        exams = _exams(subject, data, names, control, data_root, decoded)
        found = compare(exams, subject.before, subject.now, progress)
        if as_json:
            print_json(_as_json(subject, against, exams, found))
        else:
            _show(subject, exams, found, everything)


def _exams(
    subject: LoadedModel,
    data: str | None,
    names: Path | None,
    control: str | None,
    root: Path | None,
    decoded: "Callable[[Images], Images]",
) -> "list[EvalSet]":
    """What to judge by: the images that were named, or those that the run kept."""
    from retouch.data.class_names import read_class_names, rename_classes
    from retouch.evaluate.compare import EvalSet
    from retouch.train.replay_store import has_stored_images, read_stored_images

    exams = []
    run = subject.run
    if data:
        splits = find_images(data, root)
        images = decoded(splits.evaluation_images())
        images = rename_classes(images, read_class_names(names)) if names else images
        exams.append(_exam(subject, images, divided=splits.test is not None))
    elif run and has_stored_images(run.folder):
        kept = read_stored_images(run.folder).test
        exams.append(_exam(subject, kept, divided=True))
        exams[0].notes.insert(0, f"judged by the {len(kept):,} images that the run kept for this")
    elif not control:
        lacking = "keeps no images to judge by" if run else "is no run that keeps images"
        raise UserError(f"{subject.name} {lacking}; name some with --data")
    if control:
        exams.append(EvalSet(decoded(find_control(control, root)), learned=False))
    return exams


def _exam(subject: LoadedModel, images: "Images", divided: bool) -> "EvalSet":
    from retouch.evaluate.compare import EvalSet
    from retouch.train.compare_run import eval_set_of_run

    run = subject.run
    if run is None:
        return EvalSet(images)
    exam = eval_set_of_run(run, images, subject.tasks)
    if not len(exam.images):
        raise UserError(
            f"{images.name} has no image of a class that {run.folder} has learned by then; give "
            "other images, or another --task"
        )
    if not divided and set(images.classes) & set(run.classes):
        exam.notes.append(_maybe_learned_from(images, run.config["places"]["train"]))
    return exam


def _maybe_learned_from(images: "Images", learned_from: str) -> str:
    """All images count where a source has no test part, and some may be no news to the model."""
    same = Path(images.name).resolve() == Path(learned_from).resolve()
    return (
        f"{images.name} has no test part, so all its images count, and the run "
        f"{'learned' if same else 'may have learned'} from some of them: the numbers "
        f"{'are' if same else 'may be'} better than with images it never saw"
    )


def _part(exam: "EvalSet") -> str:
    return "data" if exam.learned else "control"


def _parts(found: "PerClass") -> "list[tuple[str, list[ClassRow]]]":
    """The new classes, and those of the control set, as far as there are any."""
    learned = [row for row in found.classes if row.learned]
    others = [row for row in found.classes if not row.learned]
    return [(name, rows) for name, rows in (("data", learned), ("control", others)) if rows]


def _as_json(
    subject: LoadedModel, against: str | None, exams: "Sequence[EvalSet]", found: "PerClass"
) -> dict[str, Any]:
    from retouch.evaluate.per_class import accuracy

    totals: dict[str, Any] = {"data": None, "control": None}
    places = {_part(exam): exam for exam in exams}
    for part, rows in _parts(found):
        before, after = accuracy(rows)
        exam = places[part]
        totals[part] = {
            "name": exam.images.name,
            "images": len(exam.images),
            "choices": len(exam.choices or exam.images.classes),
            "before": before,
            "after": after,
        }
    learned = _learned(subject)
    marked = [
        {**row.model_dump(), "set": _set(row), "learned": row.name in learned}
        for row in found.classes
    ]
    return {
        "model": subject.name,
        "against": against,
        "tasks": subject.tasks if subject.run else None,
        "notes": _notes(subject, exams),
        **totals,
        **found.model_dump(exclude={"examples"}),
        "classes": marked,
    }


def _learned(subject: LoadedModel) -> set[str]:
    """The names of the classes that the run has taught this model; none without a run."""
    if subject.run is None:
        return set()
    tasks = subject.run.results.tasks[: subject.tasks]
    return {name for task in tasks for name in task.classes}


def _set(row: "ClassRow") -> str:
    return "data" if row.learned else "control"


def _notes(subject: LoadedModel, exams: "Sequence[EvalSet]") -> list[str]:
    told = [note for exam in exams for note in [*exam.notes, *exam.images.notes]]
    return [*subject.notes, *told]


def _show(
    subject: LoadedModel, exams: "Sequence[EvalSet]", found: "PerClass", everything: bool
) -> None:
    from retouch.cli.tables import FEW, classes_tables, confusions_table, plain

    for note in _notes(subject, exams):
        plain(out, f"Note: {note}.")
    called = {_part(exam): _called(subject, exam) for exam in exams}
    parts = [(called[part], rows) for part, rows in _parts(found)]
    out.print(_totals(parts, subject.headings, found.joint))
    for what, rows in parts:
        for shown in classes_tables(rows, subject.headings, what, everything):
            out.print(shown)
    if found.confusions:
        out.print(confusions_table(found.confusions))
    if not everything and any(len(rows) > FEW for _, rows in parts):
        out.print("Every class: --all, or --json for scripts.", highlight=False)


def _called(subject: LoadedModel, exam: "EvalSet") -> str:
    if not exam.learned:
        return "Control set"
    return "New classes" if exam.choices else "All classes"


def _totals(
    parts: "Sequence[tuple[str, list[ClassRow]]]",
    headings: tuple[str, str],
    joint: "JointChange | None",
) -> "Table":
    from retouch.cli.tables import add, change, table
    from retouch.evaluate.per_class import accuracy
    from retouch.report.phrasing import number

    numbers = [accuracy(rows) for _, rows in parts]
    single = numbers[0][0] is None
    columns = ["right %"] if single else [f"{headings[0]} %", f"{headings[1]} %", "change"]
    made = table("", "classes", "images", *columns)

    def line(what: str, classes: int, images: int, before: float | None, after: float) -> None:
        values = [] if before is None else [number(before)]
        values += [number(after)] + ([] if before is None else [change(before, after)])
        add(made, what, f"{classes:,}", f"{images:,}", *values)

    images = [sum(row.images for row in rows) for _, rows in parts]
    for (what, rows), count, (before, after) in zip(parts, images, numbers, strict=True):
        line(what, len(rows), count, before, after)
    if joint is None:
        return made
    made.add_section()
    was, now = joint.before, joint.after
    first = "New classes" if parts[0][0] == "New classes" else "Data"
    names = [f"{first}, among all", "Control set, among all", "Both, among all"]
    every = zip(names, [*images, sum(images)], _accuracies(was), _accuracies(now), strict=True)
    for what, count, then, after in every:
        line(what, now.classes, count, None if was is None else then, after)
    return made


def _accuracies(joint: "Joint | None") -> list[float]:
    return [0.0] * 3 if joint is None else [joint.new, joint.control, joint.overall]
