"""Class folders: `photos/golden retriever/1.jpg`, with or without `train` and `test` folders above.

The images' notes say what is not read: images beside the class folders, and files that look like
images but cannot be decoded here.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from retouch.data.formats.skipped_files import LINKED_FOLDER, SkippedFiles, skip_reason
from retouch.data.images import Images, refuse_empty
from retouch.data.loading.decode import EXTENSIONS
from retouch.data.splits import Splits, assign_splits, role_of
from retouch.data.stores.file import FileStore
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError

_IGNORED_FOLDERS = ("__MACOSX", "@eaDir")
"""Folders that archives and network drives leave behind."""


def read(folder: Path) -> Splits:
    """The name of a folder is its class, with `_` read as a space."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one that has a folder of images per class")
    subfolders = _subfolders(folder)
    named = [name for name in subfolders if role_of(name)]
    nested = [name for name in named if _subfolders(folder / name)]
    others = [name for name in subfolders if name not in named]
    if not named:
        return Splits(train=read_classes(folder))
    if not _are_splits(folder, nested, others):
        if not others:
            raise UserError(
                f"{folder}: {' and '.join(named)} have no class folders; put the images of each "
                f"class into its own folder, such as {folder / named[0]}/cat/1.jpg"
            )
        images = read_classes(folder)
        images.notes.insert(
            0, f"{folder}: {named[0]}/ is read as a class, since {others[0]}/ beside it is one"
        )
        return Splits(train=images)
    return _read_splits(folder, nested, [name for name in subfolders if name not in nested])


def _are_splits(folder: Path, nested: list[str], others: list[str]) -> bool:
    """Whether folders called train, test and so on are splits, or classes like the others.

    They are splits if they contain class folders; if other folders of images are beside them, only
    if there are at least two of them.
    """
    if not nested:
        return False
    roles = {role_of(name) for name in nested}
    return len(roles) > 1 or not any(_has_images(folder / name) for name in others)


def _read_splits(folder: Path, nested: list[str], others: list[str]) -> Splits:
    assignment = assign_splits(str(folder), nested)
    notes = [assignment.note(str(folder), "/")]
    if others:
        listed = ", ".join(f"{name}/" for name in others[:5])
        more = f" and {len(others) - 5:,} more" if len(others) > 5 else ""
        notes.append(f"{folder}: not used, because they are beside {nested[0]}/: {listed}{more}")
    notes += _loose_images_note(folder)
    train, test = (
        read_classes(folder / name) if name else None
        for name in (assignment.train, assignment.test)
    )
    if train and test and train.classes != test.classes:
        unmatched = sorted(set(train.classes) ^ set(test.classes))[0]
        lacking = assignment.test if unmatched in train.classes else assignment.train
        raise UserError(f"{folder}: the class {unmatched!r} is missing in {lacking}; add it there")
    for images in (train, test):
        if images:
            images.notes[:0] = notes
    return Splits(train, test)


def read_classes(folder: Path) -> Images:
    """All images of a folder of class folders."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one that has a folder of images per class")
    class_folders = _subfolders(folder)
    if not class_folders:
        raise UserError(
            f"{folder} has no subfolders; put the images of each class into its own folder"
        )
    counts: list[int] = []
    skipped = SkippedFiles()
    names = StringArray(_names_by_class(folder, class_folders, counts, skipped))
    labels = np.repeat(np.arange(len(class_folders)), counts)
    classes = [name.replace("_", " ") for name in class_folders]
    _refuse_same_names(folder, class_folders, classes)
    notes = [*_loose_images_note(folder), *skipped.notes(str(folder))]
    for name, count in zip(class_folders, counts, strict=True):
        if not count and (example := skipped.example_in(name)):
            raise UserError(f"{folder}: no image of the class {name!r} can be read: {example}")
    images = Images(str(folder), classes, labels, FileStore(folder, names), notes=notes)
    refuse_empty(images)
    return images


def _refuse_same_names(folder: Path, class_folders: Sequence[str], classes: Sequence[str]) -> None:
    """Raise an error if two folders name the same class: an underscore is read as a space."""
    folder_of: dict[str, str] = {}
    for name, class_name in zip(class_folders, classes, strict=True):
        if class_name in folder_of:
            raise UserError(
                f"{folder}: the folders {folder_of[class_name]!r} and {name!r} both name the class "
                f"{class_name!r}; rename one, or put their images into one"
            )
        folder_of[class_name] = name


def _loose_images_note(folder: Path) -> list[str]:
    """A note on images that are beside the class folders, if there are any."""
    with os.scandir(folder) as entries:
        loose = sorted(
            e.name for e in entries if e.name.lower().endswith(EXTENSIONS) and e.is_file()
        )
    if not loose:
        return []
    if len(loose) == 1:
        return [f"{folder}: 1 image is not used because it is in no class folder: {loose[0]}"]
    return [
        f"{folder}: {len(loose):,} images are not used because they are in no class folder, such "
        f"as {loose[0]}"
    ]


def _names_by_class(
    folder: Path, classes: list[str], counts: list[int], skipped: SkippedFiles
) -> Iterator[str]:
    """The images class by class, sorted by name; appends each class's count to `counts`."""
    for class_folder in classes:
        names = sorted(image_names(folder, class_folder, skipped))
        counts.append(len(names))
        yield from names


def image_names(
    folder: Path, subfolder: str = "", skipped: SkippedFiles | None = None
) -> Iterator[str]:
    """The names of all images in and below `subfolder`, relative to `folder`, in any order.

    Only regular files are images. A folder that is a link is entered only directly below `folder`,
    where it is a class: deeper links could lead anywhere, and in circles. What is left out, and
    images that are links, are added to `skipped`.
    """
    skipped = SkippedFiles() if skipped is None else skipped
    pending = [subfolder]
    while pending:
        current = pending.pop()
        if current and "/" not in current:
            _check_link(folder, current, skipped)
        with os.scandir(folder / current) as entries:
            for entry in entries:
                name = f"{current}/{entry.name}" if current else entry.name
                if entry.is_dir():
                    if current and entry.is_symlink():
                        skipped.add(LINKED_FOLDER, name)
                    else:
                        pending.append(name)
                elif reason := skip_reason(entry):
                    skipped.add(reason, name)
                elif entry.name.lower().endswith(EXTENSIONS) and not entry.name.startswith("._"):
                    if entry.is_symlink():
                        skipped.add_link(name)
                    yield name


def _check_link(folder: Path, name: str, skipped: SkippedFiles) -> None:
    """Refuse a class folder that is a link to a folder which contains all classes."""
    if not (folder / name).is_symlink():
        return
    target = (folder / name).resolve()
    if folder.resolve().is_relative_to(target):
        raise UserError(
            f"{folder}: {name} is a link to {target}, which contains all the others; remove it"
        )
    skipped.add_link(name)


def _subfolders(folder: Path) -> list[str]:
    """The folders in it that are neither hidden nor left behind by an archive."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(name for name in names if name[0] != "." and name not in _IGNORED_FOLDERS)


def _has_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(e.name.lower().endswith(EXTENSIONS) and e.is_file() for e in entries)
