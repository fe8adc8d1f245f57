"""Images listed in a CSV, TSV or JSONL file, one per line; paths are relative to the file.

A line has a path and a label. Optional columns: `caption`, the text that describes the image in
training; `split`, such as `train` or `test`.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from retouch.data.formats.text_files import is_text, iterate_lines, parse_json, read_rows
from retouch.data.images import Images
from retouch.data.splits import KNOWN_NAMES, Splits, assign_splits, role_of
from retouch.data.stores.file import FileStore
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError

TABLE_EXTENSIONS = {".csv", ".tsv", ".jsonl"}
# The accepted names of each column; the first one with a value counts.
PATH_COLUMNS = ("path", "filepath", "file", "filename", "file_name", "image")
LABEL_COLUMNS = ("label", "class", "class_name")
CAPTION_COLUMNS = ("caption", "title", "text")
SPLIT_COLUMNS = ("split",)


def matches(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in TABLE_EXTENSIONS


def read(file: Path) -> Splits:
    """Labelled images, split if the file has a column `split`."""
    splits = np.array([split for *_, split in rows(file)])
    images = _read_images(file)
    if not splits.any():
        return Splits(train=images)
    if not splits.all():
        raise UserError(
            f"{file}: a line has no split; write train or test in every line, or in none"
        )
    assignment = assign_splits(str(file), np.unique(splits).tolist())
    if not assignment.is_standard:
        images = replace(images, notes=[assignment.note(str(file))])
    train, test = (
        images.subset(np.flatnonzero(splits == split)) if split else None
        for split in (assignment.train, assignment.test)
    )
    return Splits(train, test)


def _read_images(file: Path) -> Images:
    paths, captions, label_names = StringArray(), StringArray(), StringArray()
    for path, label, caption, _ in rows(file):
        if not label:
            raise UserError(_why_no_label(file, path))
        paths.append(path)
        label_names.append(label)
        captions.append(caption)
    if not len(paths):
        raise UserError(f"{file} lists no images")
    classes, labels = np.unique(list(label_names), return_inverse=True)
    return Images(
        str(file),
        classes.tolist(),
        labels,
        FileStore(file.parent, paths),
        captions=captions if any(captions) else None,
    )


def _why_no_label(file: Path, path: str) -> str:
    columns = list(next(row for _, row in _numbered_rows(file)))
    if set(columns).isdisjoint(LABEL_COLUMNS):
        listed = ", ".join(f"`{column}`" for column in columns)
        return f"{file} has no column `{LABEL_COLUMNS[0]}`; it has {listed}. Rename or add one"
    return f"{file}: {path} has no label; give each image a `{LABEL_COLUMNS[0]}`"


def rows(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Path, label, caption and split of each line, "" where it has none.

    The split is the role that its name stands for: `train`, `val` or `test`.
    """
    for number, row in _numbered_rows(file):
        where = f"{file}, line {number}"
        path, label, caption, split = (
            _value(where, row, columns)
            for columns in (PATH_COLUMNS, LABEL_COLUMNS, CAPTION_COLUMNS, SPLIT_COLUMNS)
        )
        if not path:
            raise UserError(
                f"{where}: has no path of an image; the file needs a column `{PATH_COLUMNS[0]}` "
                f"and has {', '.join(map(repr, row)) or 'none'}"
            )
        if split and not role_of(split):
            raise UserError(
                f"{where}: the split {split!r} is neither train nor test (known: {KNOWN_NAMES})"
            )
        yield path, label, caption, role_of(split) or ""


def _numbered_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if file.suffix.lower() != ".jsonl":
        yield from read_rows(file, "\t" if file.suffix.lower() == ".tsv" else ",")
        return
    for number, line in enumerate(iterate_lines(file), 1):
        if line.strip():
            row = parse_json(line, f"{file}, line {number}")
            if not isinstance(row, dict):
                raise UserError(f'{file}, line {number}: write {{"path": …, "label": …}}')
            yield number, row


def _value(where: str, row: dict[str, Any], columns: tuple[str, ...]) -> str:
    """The value of the first of these columns that has one, without surrounding spaces."""
    column = next((column for column in columns if row.get(column) not in (None, "")), None)
    if column is None:
        return ""
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: `{column}` is {_shortened(value)}; write text or a number")
    text = str(value).strip()
    if not is_text(text):
        raise UserError(f"{where}: `{column}` is {_shortened(value)}, which is not valid UTF-8")
    return text


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}…"
