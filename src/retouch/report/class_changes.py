"""What happened to each class: which gained most and lost most, with some of their images."""

import base64
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from retouch.errors import UserError
from retouch.evaluate.per_class import FILE, ClassRow, ConfusionMatrix, Example, PerClass
from retouch.report.intervals import spread_of
from retouch.report.phrasing import NONE, number

MOST, FEWER = 4, 3
"""So many classes are shown that gained most; and that lost most, of the new ones and the old."""
EACH = 3
"""So many images are shown of each."""
LARGEST = 64 * 1024
"""No thumbnail has so many bytes: a file that has is none."""
CONFUSED = 8
"""So many confusions are shown at once; the others can be unfolded."""


class Shown(NamedTuple):
    """An image, and what the model said it was."""

    example: Example
    picture: str
    """A data URI; empty where the file is gone."""


class Changed(NamedTuple):
    """A class that gained or lost, in percent right."""

    row: ClassRow
    shown: list[Shown]


class Group(NamedTuple):
    """Classes that changed most in one direction, the farthest first."""

    title: str
    none: str
    """What to say where there is no such class."""
    classes: list[Changed]


def class_by_class(found: PerClass, folder: Path | None) -> dict[str, Any]:
    """All that the page says about classes."""
    return {
        "groups": _groups(found, folder),
        "tables": _tables(found.classes),
        "confusions": found.confusions[:CONFUSED],
        "more_confusions": found.confusions[CONFUSED:],
        "matrices": [_matrix(matrix) for matrix in found.matrices],
    }


def _groups(found: PerClass, folder: Path | None) -> list[list[Group]]:
    """Two columns: what gained, what lost. None where it is not known what was right before."""
    new = [row for row in found.classes if row.learned and row.before is not None]
    old = [row for row in found.classes if not row.learned and row.before is not None]

    def group(title: str, none: str, rows: Sequence[ClassRow], way: int, most: int) -> Group:
        changed = [row for row in rows if way * _rise(row) > 0]
        return Group(title, none, _most(changed, found.examples, folder)[:most])

    gained = [group("New classes that gained most", "No new class gained.", new, 1, MOST)]
    lost = [group("New classes that lost most", "No new class lost.", new, -1, FEWER)]
    if old:
        none = "No control class lost."
        lost.append(group("Control classes that lost most", none, old, -1, FEWER))
    return [gained if new else [], lost if new else lost[1:]] if new or old else []


def _most(
    rows: Sequence[ClassRow], examples: Sequence[Example], folder: Path | None
) -> list[Changed]:
    """The farthest first, and of those that changed alike, those with images."""
    pictured = {example.name for example in examples}
    order = sorted(rows, key=lambda row: (-abs(_rise(row)), row.name not in pictured))
    return [_changed(row, examples, folder) for row in order[:MOST]]


def _rise(row: ClassRow) -> float:
    """Points gained; 0 where it is not known what was right before."""
    return 0.0 if row.before is None else row.after - row.before


def summary(found: PerClass | None, learned: bool) -> str:
    """How many classes gained and lost, of the new ones or of the old, where both is known."""
    rows = found.classes if found else []
    rises = [_rise(row) for row in rows if row.learned is learned and row.before is not None]
    up, down = sum(rise > 0 for rise in rises), sum(rise < 0 for rise in rises)
    if not rises:
        return ""
    same = f", {len(rises) - up - down} stayed as they were" if len(rises) > up + down else ""
    kind = "new classes" if learned else "control classes"
    return f"Of {len(rises)} {kind}, {up} gained and {down} lost{same}."


def _changed(row: ClassRow, examples: Sequence[Example], folder: Path | None) -> Changed:
    own = [one for one in examples if (one.name, one.learned) == (row.name, row.learned)]
    first = _telling(own, gained=_rise(row) > 0)[:EACH]
    return Changed(row, [Shown(one, _inline(folder, one)) for one in first])


def _telling(examples: Sequence[Example], gained: bool) -> list[Example]:
    """The most telling first: two that changed as the class did, one that is wrong, the rest."""

    def kind(one: Example) -> int:
        was, now = one.before == one.name, one.after == one.name
        return 0 if was != now and now == gained else 2 if now else 1

    kinds: list[list[Example]] = [[], [], []]
    for one in examples:
        kinds[kind(one)].append(one)
    with_class, wrong, right = kinds
    return with_class[:2] + wrong[:1] + with_class[2:] + right + wrong[1:]


def _inline(folder: Path | None, example: Example) -> str:
    """A thumbnail as a part of the page. Only what lies in the run's own folder is read."""
    if folder is None:
        return ""
    name = example.file
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{folder / FILE} is damaged: {name!r} lies outside; delete it")
    if not file.is_file():  # whoever may not keep images deletes them
        return ""
    data = file.read_bytes() if file.stat().st_size < LARGEST else b""
    if not data.startswith(b"\xff\xd8\xff"):
        raise UserError(f"{file} is no small JPEG; delete it, or judge again")
    if example.sha256 not in ("", sha256(data).hexdigest()):
        raise UserError(f"{file} is damaged or was changed; delete it, or judge again")
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def _tables(rows: Sequence[ClassRow]) -> list[dict[str, Any]]:
    """The new classes and the control classes, each from the largest gain to the largest loss.

    Numbers are as text, since some may be missing.
    """
    found = []
    for learned, title in ((True, "New classes"), (False, "Control classes")):
        part = sorted((row for row in rows if row.learned is learned), key=_rise, reverse=True)
        if part:
            found.append({"title": title, "rows": [_cells(row) for row in part]})
    return found


def _cells(row: ClassRow) -> dict[str, str]:
    known = row.before is not None
    change = number(_rise(row))
    return {
        "name": row.name,
        "images": f"{row.images:,}",
        "before": NONE if row.before is None else number(row.before),
        "now": number(row.after),
        "range": spread_of(row.after, row.images) or NONE,
        "change": (f"+{change}" if round(_rise(row), 1) > 0 else change) if known else NONE,
    }


class Cell(NamedTuple):
    """A cell of a confusion matrix."""

    images: int
    share: int
    """Percent of the images of its row."""


def _matrix(found: ConfusionMatrix) -> dict[str, Any]:
    """A confusion matrix, row by row; a class without images is empty."""
    rows = [
        {
            "name": name,
            "cells": [Cell(count, round(100 * count / max(1, sum(counts)))) for count in counts],
        }
        for name, counts in zip(found.classes, found.counts, strict=True)
    ]
    title = "New classes" if found.learned else "Control classes"
    return {"title": title, "classes": found.classes, "rows": rows}
