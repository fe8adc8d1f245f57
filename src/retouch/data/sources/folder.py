"""Class folders: `photos/golden retriever/1.jpg`, with or without a `train` and a `test` above.

What lies there and is not read is said in the images' notes: pictures beside the class folders, and
files that look like images but cannot be read here.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from retouch.data.decode import EXTENSIONS
from retouch.data.image_store import FileStore
from retouch.data.images import Images, refuse_duplicate_classes, refuse_empty
from retouch.data.split_names import choose_parts, role_of
from retouch.data.splits import Splits
from retouch.data.string_array import StringArray
from retouch.data.text_files import special_kind
from retouch.errors import UserError

_UNREAD = (
    ".heic", ".heif", ".avif", ".svg", ".psd", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw",
    ".raf", ".orf", ".rw2", ".jp2", ".jxl", ".eps", ".ico", ".tga", ".jpe", ".pbm", ".pgm", ".pnm",
)  # fmt: skip
"""Endings of images that are not read; a file with another ending is taken for something else."""
_JUNK = ("__MACOSX", "@eaDir")
"""Folders that archives and network drives leave behind."""


def read(folder: Path) -> Splits:
    """A folder's name is its class, `_` read as a space."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one that holds a folder of images per class")
    inside = _folders(folder)
    named = [name for name in inside if role_of(name)]
    divided = [name for name in named if _folders(folder / name)]
    others = [name for name in inside if name not in named]
    if not named:
        return Splits(train=read_classes(folder))
    if not _are_parts(folder, divided, others):
        if not others:
            raise UserError(
                f"{folder}: {' and '.join(named)} hold no class folders; put the images of each "
                f"class into a folder of its own, such as {folder / named[0]}/cat/1.jpg"
            )
        images = read_classes(folder)
        images.notes.insert(
            0, f"{folder}: {named[0]}/ is read as a class, since {others[0]}/ beside it is one"
        )
        return Splits(train=images)
    return _read_parts(folder, divided, [name for name in inside if name not in divided])


def _are_parts(folder: Path, divided: list[str], others: list[str]) -> bool:
    """Whether folders called train and the like divide the images, or are classes as others are.

    They do if they hold class folders; with other folders of images beside them, it takes two.
    """
    if not divided:
        return False
    roles = {role_of(name) for name in divided}
    return len(roles) > 1 or not any(_has_images(folder / name) for name in others)


def _read_parts(folder: Path, divided: list[str], others: list[str]) -> Splits:
    parts = choose_parts(str(folder), divided)
    notes = [parts.note(str(folder), "/")]
    if others:
        listed = ", ".join(f"{name}/" for name in others[:5])
        more = f" and {len(others) - 5:,} more" if len(others) > 5 else ""
        notes.append(f"{folder}: not used, since beside {divided[0]}/: {listed}{more}")
    notes += loose_images(folder)
    train, test = (
        read_classes(folder / name) if name else None for name in (parts.train, parts.test)
    )
    if train and test and train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))[0]
        raise UserError(
            f"{folder}: the class {odd!r} is missing in {parts.train} or in {parts.test}; add it "
            "there"
        )
    for images in (train, test):
        if images:
            images.notes[:0] = notes
    return Splits(train, test)


def read_classes(folder: Path) -> Images:
    """All images of a folder of class folders."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one that holds a folder of images per class")
    inside = _folders(folder)
    if not inside:
        raise UserError(
            f"{folder} holds no folders; put the images of each class into one of its own"
        )
    counts: list[int] = []
    passed = PassedOver()
    names = StringArray(_all_names(folder, inside, counts, passed))
    labels = np.repeat(np.arange(len(inside)), counts)
    classes = [name.replace("_", " ") for name in inside]
    refuse_duplicate_classes(str(folder), classes)
    notes = [*loose_images(folder), *passed.notes(str(folder))]
    for name, count in zip(inside, counts, strict=True):
        if not count and (example := passed.inside(name)):
            raise UserError(f"{folder}: no image of the class {name!r} can be read: {example}")
    images = Images(str(folder), classes, labels, FileStore(folder, names), notes=notes)
    refuse_empty(images)
    return images


def loose_images(folder: Path) -> list[str]:
    """A sentence on images that lie beside the class folders, if there are any."""
    with os.scandir(folder) as entries:
        loose = sorted(
            e.name for e in entries if e.name.lower().endswith(EXTENSIONS) and e.is_file()
        )
    if not loose:
        return []
    what = "1 image is" if len(loose) == 1 else f"{len(loose):,} images are"
    return [f"{folder}: {what} not used because no class folder holds it, such as {loose[0]}"]


@dataclass
class PassedOver:
    """Files in class folders that are not read, by what they are."""

    found: dict[str, list[str]] = field(default_factory=dict)
    """Up to 1,000 names of each kind; how many there are in all is in `counts`."""
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, name: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] <= 1000:
            self.found.setdefault(kind, []).append(name)

    def inside(self, part: str) -> str:
        """What lies in one of the folders, "" for nothing."""
        names = [n for found in self.found.values() for n in found if n.startswith(f"{part}/")]
        return f"{names[0]}{_advice(Path(names[0]).suffix.lower())}" if names else ""

    def notes(self, source: str) -> list[str]:
        return [
            f"{source}: {count:,} × {kind} passed over, such as {min(self.found[kind])}"
            + _advice(kind)
            for kind, count in sorted(self.counts.items())
        ]


def _advice(kind: str) -> str:
    if kind in (".heic", ".heif"):
        return "; install pillow-heif to read such files, or save them as JPEG"
    return "; save such files as JPEG or PNG" if kind in _UNREAD else ""


def _all_names(
    folder: Path, classes: list[str], counts: list[int], passed: PassedOver
) -> Iterator[str]:
    """The images class by class, in order of their names; how many each has goes to `counts`."""
    for name in classes:
        found = sorted(image_names(folder, name, passed))
        counts.append(len(found))
        yield from found


def image_names(folder: Path, inside: str = "", passed: PassedOver | None = None) -> Iterator[str]:
    """The names of all images in and below `inside`, relative to `folder`, in no order.

    Only regular files are images. What is left out goes to `passed`.
    """
    passed = PassedOver() if passed is None else passed
    todo: list[tuple[str, tuple[str, ...]]] = [(inside, ())]
    while todo:
        below, above = todo.pop()
        above = (*above, os.path.realpath(folder / below))
        with os.scandir(folder / below) as entries:
            for entry in entries:
                name = f"{below}/{entry.name}" if below else entry.name
                is_folder = entry.is_dir()
                if is_folder and not _leads_back(entry, above):
                    todo.append((name, above))
                elif kind := "link to a folder above" if is_folder else _kind(entry):
                    passed.add(kind, name)
                elif entry.name.lower().endswith(EXTENSIONS) and not entry.name.startswith("._"):
                    yield name


def _leads_back(entry: os.DirEntry[str], above: tuple[str, ...]) -> bool:
    """A link to a folder in which it lies; to follow it would lead round and round."""
    if not entry.is_symlink():
        return False
    target = os.path.realpath(entry.path)
    return any(f"{place}/".startswith(f"{target}/") for place in above)


def _kind(entry: os.DirEntry[str]) -> str | None:
    """What it is that looks like an image and is not read as one."""
    ending = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122
    if ending in EXTENSIONS and not entry.is_file():
        return _special(entry)
    return ending if ending in _UNREAD and ending not in EXTENSIONS else None


def _special(entry: os.DirEntry[str]) -> str:
    try:
        return (special_kind(entry.stat().st_mode) or "no file").removeprefix("a ")
    except OSError:
        return "link to nothing"


def _folders(folder: Path) -> list[str]:
    """The folders in it that are neither hidden nor left behind by an archive."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(name for name in names if name[0] != "." and name not in _JUNK)


def _has_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(e.name.lower().endswith(EXTENSIONS) and e.is_file() for e in entries)
