"""What happened to each class: which gained and lost most, with some of their images."""

import base64
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from retouch.errors import UserError
from retouch.evaluate.per_class import FILE, ClassRow, ConfusionMatrix, Example, PerClass
from retouch.plotting.formatting import MISSING, number
from retouch.report.intervals import interval_text

MAX_GAINED, MAX_LOST = 4, 3
"""How many classes are shown that gained most, and that lost most (new ones and control ones)."""
MAX_EXAMPLES = 3
"""How many images are shown of each class."""
MAX_THUMBNAIL_BYTES = 64 * 1024
"""A thumbnail is smaller than this: a larger file is not one of ours."""
MAX_CONFUSIONS = 8
"""How many confusions are shown at first; the others can be unfolded."""


class ExampleImage(NamedTuple):
    """An image, and what the model said it was."""

    example: Example
    picture: str
    """A data URI; empty if the file was deleted."""


class ClassChange(NamedTuple):
    """A class whose accuracy changed, and some of its images."""

    row: ClassRow
    examples: list[ExampleImage]


class ChangeGroup(NamedTuple):
    """The classes that changed most in one direction, the largest change first."""

    title: str
    empty_text: str
    """Shown if there is no such class."""
    classes: list[ClassChange]


def class_sections(per_class: PerClass, folder: Path | None) -> dict[str, Any]:
    """All that the page shows about classes."""
    return {
        "groups": _groups(per_class, folder),
        "tables": _tables(per_class.classes),
        "confusions": per_class.confusions[:MAX_CONFUSIONS],
        "more_confusions": per_class.confusions[MAX_CONFUSIONS:],
        "matrices": [_confusion_matrix(matrix) for matrix in per_class.matrices],
    }


def _groups(per_class: PerClass, folder: Path | None) -> list[list[ChangeGroup]]:
    """Two columns, gained and lost; none if the accuracies before are not known."""
    known = [row for row in per_class.classes if row.before is not None]
    new = [row for row in known if row.learned]
    control = [row for row in known if not row.learned]

    def group(
        title: str, empty_text: str, rows: Sequence[ClassRow], sign: int, limit: int
    ) -> ChangeGroup:
        changed = [row for row in rows if sign * _gain(row) > 0]
        largest = _largest_changes(changed, per_class.examples, folder)
        return ChangeGroup(title, empty_text, largest[:limit])

    gained = [group("New classes that gained most", "No new class gained.", new, 1, MAX_GAINED)]
    lost = [group("New classes that lost most", "No new class lost.", new, -1, MAX_LOST)]
    if control:
        empty_text = "No control class lost."
        lost.append(group("Control classes that lost most", empty_text, control, -1, MAX_LOST))
    return [gained if new else [], lost if new else lost[1:]] if known else []


def _largest_changes(
    rows: Sequence[ClassRow], examples: Sequence[Example], folder: Path | None
) -> list[ClassChange]:
    """The largest change first; among equal changes, classes with images first."""
    pictured = {example.name for example in examples}
    order = sorted(rows, key=lambda row: (-abs(_gain(row)), row.name not in pictured))
    return [_class_change(row, examples, folder) for row in order[:MAX_GAINED]]


def _gain(row: ClassRow) -> float:
    """Points gained; 0 if the accuracy before is not known."""
    return 0.0 if row.before is None else row.after - row.before


def change_sentence(per_class: PerClass | None, learned: bool) -> str:
    """How many of the new classes, or of the control classes, gained and lost."""
    rows = per_class.classes if per_class else []
    gains = [_gain(row) for row in rows if row.learned is learned and row.before is not None]
    up, down = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    if not gains:
        return ""
    same = f", {len(gains) - up - down} stayed the same" if len(gains) > up + down else ""
    kind = "new classes" if learned else "control classes"
    return f"Of {len(gains)} {kind}, {up} gained and {down} lost{same}."


def _class_change(row: ClassRow, examples: Sequence[Example], folder: Path | None) -> ClassChange:
    of_class = [e for e in examples if (e.name, e.learned) == (row.name, row.learned)]
    shown = _sort_examples(of_class, gained=_gain(row) > 0)[:MAX_EXAMPLES]
    return ClassChange(row, [ExampleImage(e, _data_uri(folder, e)) for e in shown])


def _sort_examples(examples: Sequence[Example], gained: bool) -> list[Example]:
    """First two that changed as the class did and one that is wrong, then the rest."""
    changed: list[Example] = []
    wrong: list[Example] = []
    right: list[Example] = []
    for example in examples:
        was_right, is_right = example.before == example.name, example.after == example.name
        if was_right != is_right and is_right == gained:
            changed.append(example)
        else:
            (right if is_right else wrong).append(example)
    return changed[:2] + wrong[:1] + changed[2:] + right + wrong[1:]


def _data_uri(folder: Path | None, example: Example) -> str:
    """A thumbnail for embedding in the page. Only files inside the run's folder are read."""
    if folder is None:
        return ""
    file = folder / example.file
    if not file.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{folder / FILE} is damaged: {example.file!r} lies outside; delete it")
    if not file.is_file():  # whoever may not keep images deletes them
        return ""
    data = file.read_bytes() if file.stat().st_size < MAX_THUMBNAIL_BYTES else b""
    if not data.startswith(b"\xff\xd8\xff"):
        raise UserError(f"{file} is not a small JPEG; delete it, or evaluate again")
    if example.sha256 not in ("", sha256(data).hexdigest()):
        raise UserError(f"{file} is damaged or was changed; delete it, or evaluate again")
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def _tables(rows: Sequence[ClassRow]) -> list[dict[str, Any]]:
    """The new classes and the control classes, each from the largest gain to the largest loss."""
    tables = []
    for learned, title in ((True, "New classes"), (False, "Control classes")):
        group = sorted((row for row in rows if row.learned is learned), key=_gain, reverse=True)
        if group:
            tables.append({"title": title, "rows": [_cells(row) for row in group]})
    return tables


def _cells(row: ClassRow) -> dict[str, str]:
    """A row of the table as text, since some numbers may be missing."""
    change = number(_gain(row))
    if round(_gain(row), 1) > 0:
        change = f"+{change}"
    return {
        "name": row.name,
        "images": f"{row.images:,}",
        "before": MISSING if row.before is None else number(row.before),
        "now": number(row.after),
        "range": interval_text(row.after, row.images) or MISSING,
        "change": MISSING if row.before is None else change,
    }


class Cell(NamedTuple):
    """A cell of a confusion matrix."""

    images: int
    share: int
    """Percent of the images in its row."""


def _confusion_matrix(matrix: ConfusionMatrix) -> dict[str, Any]:
    """A confusion matrix, row by row; the row of a class without images is all zero."""
    rows = [
        {
            "name": name,
            "cells": [Cell(count, round(100 * count / max(1, sum(counts)))) for count in counts],
        }
        for name, counts in zip(matrix.classes, matrix.counts, strict=True)
    ]
    title = "New classes" if matrix.learned else "Control classes"
    return {"title": title, "classes": matrix.classes, "rows": rows}
