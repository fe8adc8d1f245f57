"""A list of images in a CSV, TSV or JSONL file: a path and a label a line, relative to the file.

Optional columns: `caption`, what the image is called while training; `split`, `train` or `test`.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retouch.data.images import Images
from retouch.data.names import Names
from retouch.data.pictures import Files
from retouch.data.splits import Splits
from retouch.errors import UserError

ENDINGS = {".csv", ".tsv", ".jsonl"}
# The first of these names that a file has is its column.
PATH = ("path", "filepath", "file", "filename", "file_name", "image")
LABEL = ("label", "class", "class_name")
CAPTION = ("caption", "title", "text")
SPLITS = {"train": "train", "test": "test", "val": "test", "valid": "test", "validation": "test"}


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
    train, test = (_part(images, splits == split) for split in ("train", "test"))
    return Splits(train, test)


def _images(file: Path) -> Images:
    names, captions, said = Names(), Names(), Names()
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
    pictures = Files(file.parent, names)
    return Images(
        str(file), classes.tolist(), labels, pictures, captions=captions if some else None
    )


def _part(images: Images, chosen: np.ndarray) -> Images | None:
    return images.some(np.flatnonzero(chosen)) if chosen.any() else None


def rows(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Path, label, caption and split of each line, "" where it has none."""
    for number, row in _lines(file):
        path, label, caption = (_column(row, names) for names in (PATH, LABEL, CAPTION))
        split = str(row.get("split") or "").strip().lower()
        if not path:
            raise UserError(
                f"{file}, line {number}: no image is named; the file needs a column `{PATH[0]}`"
            )
        if split and split not in SPLITS:
            raise UserError(f"{file}, line {number}: the split {split!r} is neither train nor test")
        yield path, label, caption, SPLITS.get(split, "")


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with file.open(encoding="utf-8-sig", newline="") as text:
        if file.suffix.lower() == ".jsonl":
            for number, line in enumerate(text, 1):
                if line.strip():
                    yield number, _json(file, number, line)
        else:
            tabs = file.suffix.lower() == ".tsv"
            reader = csv.DictReader(text, delimiter="\t" if tabs else ",")
            yield from ((reader.line_num, row) for row in reader)


def _json(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as why:
        raise UserError(f"{file}, line {number} is no JSON ({why})") from None
    if not isinstance(row, dict):
        raise UserError(f'{file}, line {number}: write {{"path": …, "label": …}}')
    return row


def _column(row: dict[str, Any], names: tuple[str, ...]) -> str:
    found = next((row[name] for name in names if row.get(name) not in (None, "")), "")
    return str(found).strip()
