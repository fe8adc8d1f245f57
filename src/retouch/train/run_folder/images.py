"""Images that a run stores for later runs: its replay buffer, and some test images.

They are stored losslessly, preprocessed for the model, so that a run can be moved and continued
where its data is gone. `index.json` lists each with its checksum: an image that was changed or is
missing is refused.
"""

import hashlib
import io
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.images import Images
from retouch.data.loading.decode import parallel_map
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.replay import Group
from retouch.data.stores.file import FileStore
from retouch.data.stores.image_store import Indices
from retouch.data.stores.string_array import StringArray
from retouch.data.stream import Stream, Task
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.files import checksummed
from retouch.files.checksummed import Count, Document
from retouch.files.write import replace_folder
from retouch.random_streams import RandomStream
from retouch.text.plural import count

FOLDER = "images"
INDEX = "index.json"
FILES = (INDEX, "replay-[0-9]*.png", "test-[0-9]*.png")
"""The names of the files."""
TEST_IMAGES_PER_CLASS = 20
"""How many test images of each class are stored."""
_CHUNK = 256  # images read at a time
_FAST = {"compress_level": 1, "compress_type": zlib.Z_RLE}
"""A fifth of the time that Pillow's default takes; photos get 1.5 % larger."""
_REMEDY = "take another copy of the run"


class StoredImage(Document):
    """An image's entry in the index."""

    file: Annotated[str, Field(pattern=r"^(replay|test)-[0-9]+\.png$")]
    """Its name in the folder."""
    sha256: str
    """Of the file."""
    name: Annotated[str, Field(alias="class")]
    """Its class."""
    caption: str = ""
    """Its text in training; "" for that of its class."""
    task: Count = 0
    """The task it belongs to, from 0."""


class StoredIndex(Document):
    """The content of `index.json`."""

    format: Literal["retouch images 1"] = "retouch images 1"
    size: Annotated[list[Count], Field(min_length=2, max_length=2)]
    """The height and width of the images."""
    prompt: str
    """The template of a class's text in training."""
    templates: Annotated[list[str], Field(min_length=1)]
    """The templates of a class's texts in evaluation."""
    groups: dict[Group, list[Count]]
    """The positions of the images to replay in each group of the replay buffer."""
    seen: Count
    """How many images the replay buffer was chosen from."""
    replay: list[StoredImage]
    """The images to replay."""
    test: list[StoredImage]
    """The images to evaluate on."""

    @model_validator(mode="after")
    def _groups_hold_each_image(self) -> "StoredIndex":
        positions = sorted(position for group in self.groups.values() for position in group)
        if positions != list(range(len(self.replay))):
            raise ValueError(
                f"the groups do not hold each of the {len(self.replay)} images to replay once"
            )
        return self


@dataclass(frozen=True)
class StoredImages:
    """The images in a run's folder."""

    replay: Images
    test: Images
    replay_tasks: Indices
    """The task of each image to replay, from 0."""
    test_tasks: Indices
    """The task of each test image, from 0."""
    groups: dict[str, list[int]] = field(default_factory=dict)
    """The positions of the images to replay in each group of the replay buffer."""
    seen: int = 0
    """How many images the replay buffer was chosen from."""


class PreparedStore(FileStore):
    """Files that hold preprocessed pictures, which are not resized and cropped again."""

    def preprocessed(self, index: int, preprocess: Preprocess) -> Uint8:
        picture = self.image(index)
        ready = (picture.height, picture.width) == preprocess.size
        return np.asarray(picture) if ready else preprocess.prepare(picture)


def has_stored_images(run: str | Path) -> bool:
    """Whether a run stored images."""
    return (Path(run) / FOLDER / INDEX).is_file()


def write_images(
    run: str | Path,
    stream: Stream,
    results: Results,
    preprocess: Preprocess,
    progress: Progress = no_progress,
) -> int:
    """Store the replay buffer and some test images, all or none. Returns their size in bytes."""
    folder = Path(run) / FOLDER
    part = folder.with_name(f".{FOLDER}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    groups = {g: np.array(p, np.int64) for g, p in results.replay.groups.items()}
    replay_positions = np.concatenate([np.empty(0, np.int64), *groups.values()])
    seed = int(results.settings.get("seed", 0))
    test_positions = [_some_of_each_class(stream.test, task, seed) for task in stream.tasks]
    replay = _write(part, "replay", stream.train, replay_positions, preprocess, progress)
    test = _write(part, "test", stream.test, np.concatenate(test_positions), preprocess, progress)
    task_of = {int(i): task.number for task in stream.tasks for i in task.train}
    for entry, position in zip(replay, replay_positions, strict=True):
        entry.task = task_of[int(position)]
    numbers = np.repeat([t.number for t in stream.tasks], [len(p) for p in test_positions])
    for entry, number in zip(test, numbers, strict=True):
        entry.task = int(number)
    index = StoredIndex(
        size=list(preprocess.size),
        prompt=stream.train.prompt,
        templates=list(stream.test.templates),
        groups=_stored_groups(groups),
        seen=results.replay.seen,
        replay=replay,
        test=test,
    )
    checksummed.write_json(part / INDEX, index.model_dump(by_alias=True))
    replace_folder(part, folder, FILES)
    return sum(file.stat().st_size for file in folder.iterdir())


def _stored_groups(groups: Mapping[str, Indices]) -> dict[str, list[int]]:
    """The positions of each group among the stored images, which are in the order of the groups."""
    ends = np.cumsum([0, *(len(positions) for positions in groups.values())]).tolist()
    return {group: list(range(ends[n], ends[n + 1])) for n, group in enumerate(groups)}


def _some_of_each_class(images: Images, task: Task, seed: int) -> Indices:
    """A few random test images of each class: the first are often pictures of the same thing."""
    labels = images.labels[task.test]
    chosen = [np.empty(0, np.int64)]
    for label in np.unique(labels):
        place = [seed, task.number, RandomStream.STORED_TEST_IMAGES, int(label)]
        shuffled = np.random.default_rng(place).permutation(task.test[labels == label])
        chosen.append(np.sort(shuffled[:TEST_IMAGES_PER_CLASS]))
    return np.concatenate(chosen)


def _write(
    folder: Path,
    use: str,
    images: Images,
    positions: Indices,
    preprocess: Preprocess,
    progress: Progress,
) -> list[StoredImage]:
    """Write images as PNG; returns their entries in the index."""
    entries: list[StoredImage] = []
    chunks = [positions[i : i + _CHUNK] for i in range(0, len(positions), _CHUNK)]
    purpose = {"replay": "to replay later", "test": "to evaluate on later"}[use]
    text = f"Storing {count(len(positions), 'image')} {purpose}"
    for chunk in progress(chunks, text, len(positions)) if chunks else ():
        names = [f"{use}-{len(entries) + number:06}.png" for number in range(len(chunk))]
        digests = write_pngs(folder, names, images.read(chunk, preprocess))
        for name, digest, position in zip(names, digests, chunk, strict=True):
            about = {"file": name, "sha256": digest}
            about["class"] = images.classes[images.labels[position]]
            if images.captions is not None:
                about["caption"] = images.captions[int(position)]
            entries.append(StoredImage.model_validate(about))
    return entries


def write_pngs(folder: Path, names: Sequence[str], pixels: Uint8) -> Sequence[str]:
    """Write images losslessly, on all cores; returns the SHA-256 of each.

    Args:
        folder: Where to write them.
        names: The files' names.
        pixels: The images [N, H, W, 3].
    """
    return parallel_map(partial(_write_png, folder, names, pixels), len(names))


def _write_png(folder: Path, names: Sequence[str], pixels: Uint8, number: int) -> str:
    """Write one of several images; returns its SHA-256."""
    data = io.BytesIO()
    Image.fromarray(pixels[number]).save(data, "PNG", **_FAST)
    (folder / names[number]).write_bytes(data.getvalue())
    return hashlib.sha256(data.getvalue()).hexdigest()


def read_stored_images(run: str | Path) -> StoredImages:
    """The images that a run stored, all of them checked."""
    folder = Path(run) / FOLDER
    index = _read_index(folder)
    replay, test = (_images(folder, index, entries) for entries in (index.replay, index.test))
    replay_tasks, test_tasks = (
        np.array([entry.task for entry in entries], np.int64)
        for entries in (index.replay, index.test)
    )
    return StoredImages(
        replay, test, replay_tasks, test_tasks, groups=index.groups, seen=index.seen
    )


def stored_images(folder: Path) -> StoredImages | None:
    """The images that a run stored; None if it stored none.

    Args:
        folder: The run's folder.
    """
    return read_stored_images(folder) if has_stored_images(folder) else None


def _read_index(folder: Path) -> StoredIndex:
    try:
        return checksummed.read(folder / INDEX, StoredIndex, _REMEDY)
    except FileNotFoundError:
        raise UserError(
            f"{folder.parent} holds no images to continue from: it was made without them "
            "(store_images=False, or no replay), or is not finished; finish it first"
        ) from None


def _images(folder: Path, index: StoredIndex, entries: Sequence[StoredImage]) -> Images:
    for entry in entries:
        _check_file(folder / entry.file, entry.sha256)
    classes = list(dict.fromkeys(entry.name for entry in entries))
    captions = [entry.caption for entry in entries]
    return Images(
        name=str(folder),
        classes=classes,
        labels=np.array([classes.index(entry.name) for entry in entries], np.int64),
        store=PreparedStore(folder, [entry.file for entry in entries]),
        prompt=index.prompt,
        templates=tuple(index.templates),
        captions=StringArray(captions) if any(captions) else None,
    )


def _check_file(file: Path, expected: str) -> None:
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as why:
        raise UserError(f"{file} cannot be read ({why.strerror}); {_REMEDY}") from None
    if digest != expected:
        raise UserError(f"{file} was changed since the run stored it; {_REMEDY}")


def with_classes(images: Images, classes: list[str]) -> Images:
    """The same images among more classes, in this order."""
    label_of = {name: label for label, name in enumerate(classes)}
    new_labels = np.array([label_of[name] for name in images.classes], np.int64)
    labels = new_labels[images.labels] if len(images) else images.labels
    return replace(images, classes=classes, labels=labels)
