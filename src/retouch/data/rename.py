"""Call classes by other names than those of their folders."""

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from retouch.data.images import Images, refuse_twins
from retouch.data.text import read_cells
from retouch.errors import UserError

_CODE = re.compile(r"n\d{8}|[\W\d_]+|[0-9a-f]{16,}")
"""Names that say nothing to a text tower: numbers, WordNet ids, checksums."""


def read_names(file: Path) -> dict[str, str]:
    """A CSV of two columns: what a class is called in the data, and what it shall be called."""
    rows = read_cells(file)
    if rows and [cell.lower() for cell in rows[0]] in (["folder", "name"], ["class", "name"]):
        rows = rows[1:]
    odd = next((row for row in rows if len(row) != 2 or not all(row)), None)
    if odd is not None or not rows:
        raise UserError(
            f"--names {file}: {','.join(odd or []) or 'it is empty'!r}; write FOLDER,NAME a line, "
            "such as n02099601,golden retriever"
        )
    return dict(rows)


def rename(images: Images, names: Mapping[str, str]) -> Images:
    """The same images with other names for their classes; those that are not named keep theirs."""
    known = {name.replace("_", " "): new for name, new in names.items()}
    unknown = [name for name in known if name not in images.classes]
    if unknown:
        close = get_close_matches(unknown[0], images.classes, 1)
        raise UserError(
            f"there is no class {unknown[0]!r} in {images.name}"
            + (
                f"; did you mean {close[0]!r}?"
                if close
                else f", but {', '.join(images.classes[:5])}"
            )
        )
    classes = [known.get(name, name) for name in images.classes]
    refuse_twins(images.name, classes)
    return replace(images, classes=classes)


def say_nothing(classes: list[str]) -> list[str]:
    """Those whose names are codes: a model that reads them cannot know what they mean."""
    return [name for name in classes if _CODE.fullmatch(name)]
