"""Images that a run keeps, to go on from later: those to replay, and those to judge by.

They lie in the run's folder as the model takes them, without loss, so that a run can be moved and
continued where its data is gone. `index.json` names each with its checksum: an image that was
changed, or that is missing, is refused.
"""

import hashlib
import io
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from retouch import checksummed
from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.cache import Progress, no_progress
from retouch.data.file_store import FileStore
from retouch.data.image_store import Indices
from retouch.data.images import Images
from retouch.data.stream import Stream
from retouch.data.string_array import StringArray
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.plural import count

FOLDER = "images"
INDEX = "index.json"
FORMAT = "retouch images 1"
TEST_IMAGES_PER_CLASS = 20
"""So many images of each class are kept to judge by."""
_PART = 256


@dataclass(frozen=True)
class StoredImages:
    """What a run's folder holds. `groups` says which images each of the buffer's groups has."""

    replay: Images
    test: Images
    replay_tasks: Indices
    """The task that each image to replay was learned in, from 0."""
    test_tasks: Indices
    groups: dict[str, list[int]] = field(default_factory=dict)
    seen: int = 0


class PreparedStore(FileStore):
    """Files that hold pictures as the model takes them: not to be resized and cropped again."""

    def preprocessed(self, index: int, preprocess: Preprocess) -> Uint8:
        picture = self.image(index)
        whole = (picture.height, picture.width) == preprocess.size
        return np.asarray(picture) if whole else preprocess.prepare(picture)


def has_stored_images(run: str | Path) -> bool:
    return (Path(run) / FOLDER / INDEX).is_file()


def write_images(
    run: str | Path,
    stream: Stream,
    results: Results,
    pixels: Preprocess,
    progress: Progress = no_progress,
) -> int:
    """Store the replay buffer and images to judge by, whole or not at all. Returns their bytes."""
    folder = Path(run) / FOLDER
    part = folder.with_name(f".{FOLDER}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    groups = {g: np.array(own, np.int64) for g, own in results.replay.get("groups", {}).items()}
    replayed = np.concatenate([np.empty(0, np.int64), *groups.values()])
    judged = [_some_of_each(stream.test, task.test) for task in stream.tasks]
    replay = _write(part, "replay", stream.train, replayed, pixels, progress)
    judge = _write(part, "test", stream.test, np.concatenate(judged), pixels, progress)
    of_task = {int(i): task.number for task in stream.tasks for i in task.train}
    for entry, position in zip(replay, replayed, strict=True):
        entry["task"] = of_task[int(position)]
    numbers = np.repeat([task.number for task in stream.tasks], [len(own) for own in judged])
    for entry, number in zip(judge, numbers, strict=True):
        entry["task"] = int(number)
    ends = np.cumsum([0, *(len(own) for own in groups.values())]).tolist()
    index = {
        "format": FORMAT,
        "size": list(pixels.size),
        "prompt": stream.train.prompt,
        "templates": list(stream.test.templates),
        "groups": {g: list(range(ends[n], ends[n + 1])) for n, g in enumerate(groups)},
        "seen": results.replay.get("seen", 0),
        "replay": replay,
        "test": judge,
    }
    checksummed.write_json(part / INDEX, index)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return sum(file.stat().st_size for file in folder.iterdir())


def read_stored_images(run: str | Path) -> StoredImages:
    """The images of a run, every one of them checked."""
    folder = Path(run) / FOLDER
    index = _read_index(folder)
    replay, judge = (_images(folder, index, use) for use in ("replay", "test"))
    tasks = {use: np.array([e["task"] for e in index[use]], np.int64) for use in ("replay", "test")}
    return StoredImages(
        replay, judge, tasks["replay"], tasks["test"], groups=index["groups"], seen=index["seen"]
    )


def _read_index(folder: Path) -> dict[str, Any]:
    file = folder / INDEX
    try:
        index = checksummed.read_json(file, "take another copy of the run")
    except FileNotFoundError:
        raise UserError(
            f"{folder.parent} holds no images to go on from: it was made with --replay none or "
            "store_images=False, or is not finished; run its own command to the end first"
        ) from None
    if index.get("format") != FORMAT:
        raise UserError(f"{file} is of another version of retouch ({index.get('format')})")
    try:
        reason = _inconsistency(index)
    except (KeyError, TypeError, AttributeError) as why:
        reason = f"an entry is missing, or not of its kind: {why}"
    if reason:
        raise UserError(f"{file} cannot be right: {reason}; take another copy of the run")
    return index


def _inconsistency(index: dict[str, Any]) -> str:
    """Why these cannot be a run's images; a checksum does not know."""
    replay, judge = index["replay"], index["test"]
    outside = [e["file"] for e in (*replay, *judge) if Path(e["file"]).name != e["file"]]
    if outside:
        return f"{outside[0]} does not lie in the folder"
    positions = sorted(position for group in index["groups"].values() for position in group)
    if positions != list(range(len(replay))):
        return f"the groups do not hold each of the {len(replay)} images to replay once"
    return "" if all(e["task"] >= 0 for e in (*replay, *judge)) else "a task has no number"


def _images(folder: Path, index: dict[str, Any], use: str) -> Images:
    entries = index[use]
    for entry in entries:
        _check(folder / entry["file"], entry["sha256"])
    classes = list(dict.fromkeys(entry["class"] for entry in entries))
    captions = [entry.get("caption", "") for entry in entries]
    return Images(
        name=str(folder),
        classes=classes,
        labels=np.array([classes.index(entry["class"]) for entry in entries], np.int64),
        store=PreparedStore(folder, [entry["file"] for entry in entries]),
        prompt=index["prompt"],
        templates=tuple(index["templates"]),
        captions=StringArray(captions) if any(captions) else None,
    )


def _check(file: Path, wanted: str) -> None:
    try:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as why:
        raise UserError(f"{file} cannot be read ({why.strerror}); take another copy") from None
    if found != wanted:
        raise UserError(f"{file} was changed since the run stored it; take another copy of the run")


def _some_of_each(images: Images, positions: Indices) -> Indices:
    """The first few images of each class."""
    labels = images.labels[positions]
    chosen = [positions[labels == label][:TEST_IMAGES_PER_CLASS] for label in np.unique(labels)]
    return np.concatenate([np.empty(0, np.int64), *chosen])


def _write(
    folder: Path,
    use: str,
    images: Images,
    positions: Indices,
    pixels: Preprocess,
    progress: Progress,
) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    parts = [positions[i : i + _PART] for i in range(0, len(positions), _PART)]
    what = f"Storing {count(len(positions), 'image')} to {use} later"
    for own in progress(parts, what, len(positions)) if parts else ():
        for position, array in zip(own, images.read(own, pixels), strict=True):
            name = f"{use}-{len(entries):06}.png"
            data = io.BytesIO()
            Image.fromarray(array).save(data, "PNG")
            (folder / name).write_bytes(data.getvalue())
            entry = {
                "file": name,
                "sha256": hashlib.sha256(data.getvalue()).hexdigest(),
                "class": images.classes[images.labels[position]],
            }
            if images.captions is not None and images.captions[int(position)]:
                entry["caption"] = images.captions[int(position)]
            entries.append(entry)
    return entries


def with_classes(images: Images, classes: list[str]) -> Images:
    """The same images among more classes, in this order."""
    place = {name: label for label, name in enumerate(classes)}
    moved = np.array([place[name] for name in images.classes], np.int64)
    labels = moved[images.labels] if len(images) else images.labels
    return replace(images, classes=classes, labels=labels)
