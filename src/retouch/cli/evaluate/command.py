"""`retouch eval`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from retouch.cli.evaluate.config import EvaluateConfig
from retouch.cli.evaluate.sets import eval_sets
from retouch.cli.load_models import LoadedModel, compared_with
from retouch.cli.options import command
from retouch.cli.terminal.console import (
    out,
    print_json,
    print_line,
    progress,
    user_errors,
    with_ranks,
)

if TYPE_CHECKING:
    from rich.table import Table

    from retouch.evaluate.compare import EvalSet
    from retouch.evaluate.per_class import ClassRow, JointChange, PerClass
    from retouch.evaluate.row import Joint


@command(EvaluateConfig)
def evaluate(config: EvaluateConfig) -> None:
    """What does it recognize? By class, with what it mistakes for what.

    For a run, the model before and the model now are shown side by side. If DATA has a test part,
    only that counts. With --control, "among all" is the accuracy if every image may be called any
    class of both sets.

    Example: `retouch eval runs/march --data photos --control imagenet`
    """
    with user_errors(), with_ranks(config.model.device) as device:
        from retouch.evaluate.compare import compare

        loaded = config.model.load(device=device, light=True)
        against = config.output.against
        if against:
            precision = config.model.precision
            loaded = compared_with(loaded, against, device=device, precision=precision)
        sets = eval_sets(loaded, config.data)
        results = compare(sets, loaded.before, loaded.now, progress)
        if config.output.as_json:
            print_json(_as_json(loaded, against, sets, results))
        else:
            _show(loaded, sets, results, config.output.show_all)


def _set_name(learned: bool) -> str:
    return "data" if learned else "control"


def _rows_by_set(results: "PerClass") -> "list[tuple[str, list[ClassRow]]]":
    """The new classes and those of the control set, if there are any."""
    sets = [
        (_set_name(learned), [row for row in results.classes if row.learned is learned])
        for learned in (True, False)
    ]
    return [(name, rows) for name, rows in sets if rows]


def _as_json(
    loaded: LoadedModel, against: str | None, sets: "Sequence[EvalSet]", results: "PerClass"
) -> dict[str, Any]:
    from retouch.evaluate.per_class import accuracy

    totals: dict[str, Any] = {"data": None, "control": None}
    for name, rows in _rows_by_set(results):
        parts = [_set_as_json(each, rows) for each in sets if _set_name(each.learned) == name]
        before, after = accuracy(rows)
        several = len(parts) > 1
        totals[name] = {
            "name": ", ".join(part["name"] for part in parts),
            "images": sum(part["images"] for part in parts),
            "choices": None if several else parts[0]["choices"],
            "before": before,
            "after": after,
            "domains": parts if several else [],
        }
    learned = _learned_classes(loaded)
    classes = [
        {**row.model_dump(), "set": _set_name(row.learned), "learned": row.name in learned}
        for row in results.classes
    ]
    return {
        "model": loaded.name,
        "against": against,
        "tasks": loaded.tasks if loaded.run else None,
        "notes": _notes(loaded, sets),
        **totals,
        **results.model_dump(exclude={"examples"}),
        "classes": classes,
    }


def _set_as_json(eval_set: "EvalSet", rows: "Sequence[ClassRow]") -> dict[str, Any]:
    """One data set, and how many classes its images are classified among."""
    from retouch.evaluate.per_class import accuracy

    before, after = accuracy(_rows_of(eval_set, rows))
    return {
        "name": eval_set.images.name,
        "images": len(eval_set.images),
        "choices": len(eval_set.choices or eval_set.images.classes),
        "before": before,
        "after": after,
    }


def _rows_of(eval_set: "EvalSet", rows: "Sequence[ClassRow]") -> "list[ClassRow]":
    """The rows of a set's classes, which no other set with new classes has."""
    own = set(eval_set.images.classes)
    return [row for row in rows if row.name in own]


def _learned_classes(loaded: LoadedModel) -> set[str]:
    """The names of the classes that the run has taught this model; none without a run."""
    if loaded.run is None:
        return set()
    tasks = loaded.run.results.tasks[: loaded.tasks]
    return {name for task in tasks for name in task.classes}


def _notes(loaded: LoadedModel, sets: "Sequence[EvalSet]") -> list[str]:
    notes = [note for eval_set in sets for note in [*eval_set.notes, *eval_set.images.notes]]
    return [*loaded.notes, *notes]


def _show(
    loaded: LoadedModel, sets: "Sequence[EvalSet]", results: "PerClass", show_all: bool
) -> None:
    from retouch.cli.terminal.tables import MAX_CLASSES, class_tables, confusion_table, fit

    for note in _notes(loaded, sets):
        print_line(out, f"Note: {note}.")
    headings = {_set_name(eval_set.learned): _heading(eval_set) for eval_set in sets}
    parts = [(headings[name], rows) for name, rows in _rows_by_set(results)]
    learned = [each for each in sets if each.learned]
    domains = [(each.images.name, _rows_of(each, parts[0][1])) for each in learned]
    totals = _totals_table(parts, loaded.headings, results.joint, domains[1:] and domains)
    out.print(fit(totals, out.width))
    for heading, rows in parts:
        for table in class_tables(rows, loaded.headings, heading, show_all):
            out.print(fit(table, out.width))
    if results.confusions:
        out.print(fit(confusion_table(results.confusions), out.width))
    if not show_all and any(len(rows) > MAX_CLASSES for _, rows in parts):
        out.print("For every class, use --all, or --json for scripts.", highlight=False)


def _heading(eval_set: "EvalSet") -> str:
    if not eval_set.learned:
        return "Control set"
    return "New classes" if eval_set.choices else "All classes"


def _totals_table(
    parts: "Sequence[tuple[str, list[ClassRow]]]",
    headings: tuple[str, str],
    joint: "JointChange | None",
    domains: "Sequence[tuple[str, list[ClassRow]]]" = (),
) -> "Table":
    """How much of each part is right; where there are several data sets, of each of them, too."""
    from retouch.cli.terminal.tables import add_row, change_cell, make_table
    from retouch.evaluate.per_class import accuracy
    from retouch.plotting.formatting import number

    accuracies = [accuracy(rows) for _, rows in parts]
    single = accuracies[0][0] is None
    columns = ["right %"] if single else [f"{headings[0]} %", f"{headings[1]} %", "change"]
    table = make_table("", "classes", "images", *columns)

    def add(name: str, classes: int, images: int, before: float | None, after: float) -> None:
        values = [] if before is None else [number(before)]
        values += [number(after)] + ([] if before is None else [change_cell(before, after)])
        add_row(table, name, f"{classes:,}", f"{images:,}", *values)

    images = [sum(row.images for row in rows) for _, rows in parts]
    for (heading, rows), count, (before, after) in zip(parts, images, accuracies, strict=True):
        add(heading, len(rows), count, before, after)
    if domains:
        table.add_section()
    for name, rows in domains:
        add(name, len(rows), sum(row.images for row in rows), *accuracy(rows))
    if joint is None:
        return table
    table.add_section()
    first = "New classes" if parts[0][0] == "New classes" else "Data"
    names = [f"{first}, among all", "Control set, among all", "Both, among all"]
    counts = [*images, sum(images)]
    before_all, after_all = _joint_accuracies(joint.before), _joint_accuracies(joint.after)
    for name, count, old, new in zip(names, counts, before_all, after_all, strict=True):
        add(name, joint.after.classes, count, None if joint.before is None else old, new)
    return table


def _joint_accuracies(joint: "Joint | None") -> list[float]:
    return [0.0] * 3 if joint is None else [joint.new, joint.control, joint.overall]
