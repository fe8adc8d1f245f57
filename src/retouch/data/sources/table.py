"""A list of images in a CSV, TSV or JSONL file: a path and a label a line, relative to the file.

Optional columns: `caption`, what the image is called while training; `split`, `train` or `test`.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from retouch.data.image_store import FileStore
from retouch.data.images import Images
from retouch.data.split_names import NAMES, SplitParts, choose_parts, role_of
from retouch.data.splits import Splits
from retouch.data.string_array import StringArray
from retouch.data.text_files import is_text, iterate_lines, parse_json, read_rows
from retouch.errors import UserError

ENDINGS = {".csv", ".tsv", ".jsonl"}
# The first of these names that a file has is its column.
PATH = ("path", "filepath", "file", "filename", "file_name", "image")
LABEL = ("label", "class", "class_name")
CAPTION = ("caption", "title", "text")
SPLIT = ("split",)


def recognises(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in ENDINGS


def read(file: Path) -> Splits:
    """Labelled images, divided where the file has a column `split`."""
    splits = np.array([split for *_, split in rows(file)])
    images = _images(file)
    if not splits.any():
        return Splits(train=images)
    if not splits.all():
        raise UserError(f"{file}: a line has no split; say train or test in each, or in none")
    parts = choose_parts(str(file), np.unique(splits).tolist())
    if not parts.plain:
        images = replace(images, notes=[parts.note(str(file))])
    return _divided(images, splits, parts)


def _divided(images: Images, splits: np.ndarray, parts: SplitParts) -> Splits:
    train, test = (
        images.subset(np.flatnonzero(splits == part)) if part else None
        for part in (parts.train, parts.test)
    )
    return Splits(train, test)


def _images(file: Path) -> Images:
    names, captions, said = StringArray(), StringArray(), StringArray()
    for path, label, caption, _ in rows(file):
        if not label:
            raise UserError(f"{file}: {path} has no label; give each image a `{LABEL[0]}`")
        names.append(path)
        said.append(label)
        captions.append(caption)
    classes, labels = np.unique(list(said) or [""], return_inverse=True)
    if not len(names):
        raise UserError(f"{file} lists no image")
    some = any(captions)
    pictures = FileStore(file.parent, names)
    return Images(
        str(file), classes.tolist(), labels, pictures, captions=captions if some else None
    )


def rows(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Path, label, caption and split of each line, "" where it has none.

    The split is the role that its name stands for: `train`, `val` or `test`.
    """
    for number, row in _lines(file):
        where = f"{file}, line {number}"
        path, label, caption, split = (
            _value(where, row, names) for names in (PATH, LABEL, CAPTION, SPLIT)
        )
        if not path:
            raise UserError(
                f"{where}: no image is named; the file needs a column `{PATH[0]}` and has "
                f"{', '.join(map(repr, row)) or 'none'}"
            )
        if split and not role_of(split):
            raise UserError(
                f"{where}: the split {split!r} is neither train nor test (known are {NAMES})"
            )
        yield path, label, caption, role_of(split) or ""


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if file.suffix.lower() != ".jsonl":
        yield from read_rows(file, "\t" if file.suffix.lower() == ".tsv" else ",")
        return
    for number, line in enumerate(iterate_lines(file), 1):
        if line.strip():
            row = parse_json(line, f"{file}, line {number}")
            if not isinstance(row, dict):
                raise UserError(f'{file}, line {number}: write {{"path": …, "label": …}}')
            yield number, row


def _value(where: str, row: dict[str, Any], names: tuple[str, ...]) -> str:
    """What the first of these columns says that is there, without the spaces around it."""
    name = next((name for name in names if row.get(name) not in (None, "")), None)
    if name is None:
        return ""
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: `{name}` is {_short(value)}; write text or a number")
    text = str(value).strip()
    if not is_text(text):
        raise UserError(f"{where}: `{name}` is {_short(value)}, which is no text in UTF-8")
    return text


def _short(value: object) -> str:
    said = repr(value)
    return said if len(said) < 60 else f"{said[:60]}…"
