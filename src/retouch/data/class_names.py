"""Give classes other names than those of their folders."""

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from retouch.data.formats.text_files import read_cells, read_json
from retouch.data.images import Images, refuse_duplicate_classes
from retouch.errors import UserError

_CODE = re.compile(r"n\d{8}|[\W\d_]+|[0-9a-f]{16,}")
"""Names that mean nothing to a text tower: numbers, WordNet ids, checksums."""
_JSON_EXAMPLE = '{"n02099601": "golden retriever"}'


def read_class_names(file: Path) -> dict[str, str]:
    """From the name of a class in the data to its new name.

    The file is a CSV with two columns, or a JSON object (`*.json`).
    """
    if file.suffix.lower() == ".json":
        return _read_json_names(file)
    rows = read_cells(file)
    if rows and [cell.lower() for cell in rows[0]] in (["folder", "name"], ["class", "name"]):
        rows = rows[1:]
    invalid = next((row for row in rows if len(row) != 2 or not all(row)), None)
    if invalid is not None or not rows:
        problem = f"{','.join(invalid)!r} is not FOLDER,NAME" if invalid else "it is empty"
        raise UserError(
            f"{file} cannot be read as class names: {problem}; write FOLDER,NAME in each line, "
            "such as n02099601,golden retriever"
        )
    return dict(rows)


def _read_json_names(file: Path) -> dict[str, str]:
    pairs = read_json(file, pairs=True)
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise UserError(f"{file} is not an object of FOLDER and NAME; write {_JSON_EXAMPLE}")
    if not pairs:
        raise UserError(f"{file} is empty; write {_JSON_EXAMPLE}")
    names: dict[str, str] = {}
    for folder, name in pairs:
        if not isinstance(name, str) or not name.strip() or not folder.strip():
            raise UserError(f"{file}: {folder!r} has the name {name!r}; write {_JSON_EXAMPLE}")
        if folder.strip() in names:
            raise UserError(f"{file}: {folder!r} is listed twice; remove one of them")
        names[folder.strip()] = name.strip()
    return names


def rename_classes(images: Images, names: Mapping[str, str]) -> Images:
    """The same images with new names for these classes; other classes keep their names."""
    new_names = {name.replace("_", " "): new for name, new in names.items()}
    unknown = next((name for name in new_names if name not in images.classes), None)
    if unknown is not None:
        close = get_close_matches(unknown, images.classes, 1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"its classes are {', '.join(images.classes[:5])}"
            + (" and others" if len(images.classes) > 5 else "")
        )
        raise UserError(f"there is no class {unknown!r} in {images.name}; {hint}")
    classes = [new_names.get(name, name) for name in images.classes]
    refuse_duplicate_classes(images.name, classes)
    return replace(images, classes=classes)


def uninformative_names(classes: list[str]) -> list[str]:
    """The names that are codes, from which a model cannot know what the class is."""
    return [name for name in classes if _CODE.fullmatch(name)]
