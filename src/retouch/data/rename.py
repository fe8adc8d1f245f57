"""Call classes by other names than those of their folders."""

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from retouch.data.images import Images, refuse_duplicate_classes
from retouch.data.text_files import read_cells, read_json
from retouch.errors import UserError

_CODE = re.compile(r"n\d{8}|[\W\d_]+|[0-9a-f]{16,}")
"""Names that say nothing to a text tower: numbers, WordNet ids, checksums."""


def read_names(file: Path) -> dict[str, str]:
    """What a class is called in the data, and what it shall be called.

    A CSV of two columns, or a JSON object (`*.json`).
    """
    if file.suffix.lower() == ".json":
        return _read_json(file)
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


def _read_json(file: Path) -> dict[str, str]:
    pairs = read_json(file, pairs=True)
    example = '{"n02099601": "golden retriever"}'
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise UserError(f"--names {file} is no object of FOLDER and NAME; write {example}")
    if not pairs:
        raise UserError(f"--names {file} is empty; write {example}")
    names: dict[str, str] = {}
    for folder, name in pairs:
        if not isinstance(name, str) or not name.strip() or not folder.strip():
            raise UserError(f"--names {file}: {folder!r} is called {name!r}; write {example}")
        if folder.strip() in names:
            raise UserError(f"--names {file}: {folder!r} stands there twice; leave one out")
        names[folder.strip()] = name.strip()
    return names


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
    refuse_duplicate_classes(images.name, classes)
    return replace(images, classes=classes)


def uninformative_names(classes: list[str]) -> list[str]:
    """Those whose names are codes: a model that reads them cannot know what they mean."""
    return [name for name in classes if _CODE.fullmatch(name)]
