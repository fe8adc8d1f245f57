"""Tar shards in CLIP_benchmark's layout: `train/0.tar` with `000.webp` and `000.cls`."""

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from retouch.clip.text.zero_shot import fill_template
from retouch.data.formats.tar_shards import list_shards, scan_shards
from retouch.data.formats.text_files import read_lines, read_text
from retouch.data.images import DEFAULT_TEMPLATE, Images
from retouch.data.splits import Splits, assign_splits, role_of
from retouch.errors import UserError

CLASSES_FILE, TEMPLATES_FILE = "classnames.txt", "zeroshot_classification_templates.txt"


def matches(folder: Path) -> bool:
    return (folder / CLASSES_FILE).is_file() and bool(_split_folders(folder))


def read(folder: Path) -> Splits:
    """`classnames.txt` names the classes; a sample's `.cls` is the index of its class."""
    classes = read_lines(folder / CLASSES_FILE)
    if not classes:
        raise UserError(f"{folder / CLASSES_FILE} is empty; write one class name per line")
    return read_with_classes(folder, classes, templates=_read_templates(folder / TEMPLATES_FILE))


def read_with_classes(folder: Path, classes: list[str], **image_options: Any) -> Splits:
    """The same with these class names; `image_options` are arguments of `Images`."""
    assignment = assign_splits(str(folder), _split_folders(folder))
    notes = [] if assignment.is_standard else [assignment.note(str(folder), "/")]
    train, test = (
        _read_split(folder / split, classes, {**image_options, "notes": [*notes]})
        if split
        else None
        for split in (assignment.train, assignment.test)
    )
    return Splits(train, test)


def _read_templates(file: Path) -> list[str]:
    if not file.is_file():
        return [DEFAULT_TEMPLATE]
    templates = [line.replace("{c}", "{}") for line in read_lines(file)]
    if not templates:
        raise UserError(f"{file} is empty; write one template per line, or delete it")
    for template in templates:
        fill_template(template, [])
    return templates


def _split_folders(folder: Path) -> list[str]:
    """The folders with shards whose names stand for a split."""
    return sorted(p.name for p in folder.iterdir() if role_of(p.name) and list_shards(p))


def _read_split(folder: Path, classes: list[str], image_options: dict[str, Any]) -> Images:
    shards = list_shards(folder)
    _check_shard_count(folder / "nshards.txt", len(shards))
    store, texts = scan_shards(shards, "cls")
    labels = array("q")
    for index, text in enumerate(texts):
        label = _parse_number(text.strip())
        if label is None or label >= len(classes):
            sample = store.location(index).rpartition(".")[0]
            raise UserError(
                f"{sample}.cls says {text[:20]!r}; it must be the number of a class, 0 to "
                f"{len(classes) - 1}"
            )
        labels.append(label)
    return Images(str(folder), classes, np.array(labels, np.int64), store, **image_options)


def _check_shard_count(file: Path, count: int) -> None:
    """`nshards.txt`, if it exists, says how many shards there must be."""
    if not file.is_file():
        return
    text = read_text(file).strip()
    expected = _parse_number(text)
    if expected is None:
        raise UserError(f"{file} says {text[:20]!r}; it must be the number of shards")
    if expected != count:
        raise UserError(
            f"{file.parent} has {count} shards, but its {file.name} says {expected}; download the "
            "missing ones"
        )


def _parse_number(text: str) -> int | None:
    """A number of up to nine digits; `isdigit` alone also accepts a superscript."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
