"""Continue a finished run: a stream of its tasks and then new ones."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from retouch.clip.preprocess import Preprocess
from retouch.data.cache.images import chunks
from retouch.data.images import Images, concatenate, refuse_confusable_classes
from retouch.data.replay import ReplayState
from retouch.data.stores.file import FileStore
from retouch.data.stream import Stream, Task
from retouch.errors import UserError
from retouch.evaluate import results as results_file
from retouch.evaluate.results import Results
from retouch.methods import Method
from retouch.methods.after_task.bounded_drop import unbounded
from retouch.methods.method import PARTS
from retouch.methods.method_config import method_config
from retouch.methods.part_classes import part_name
from retouch.text.plural import count
from retouch.train.run_folder.checkpoint import parts_with_state, state_file
from retouch.train.run_folder.files import COPY, OLD_COPY, delete_run_folder
from retouch.train.run_folder.images import FOLDER as IMAGES
from retouch.train.run_folder.images import StoredImages, has_stored_images, with_classes
from retouch.train.run_folder.metrics import METRICS
from retouch.train.run_folder.read import (
    CLASS_VECTORS,
    CONFIG,
    OpenRun,
    class_vectors_file,
    delta_file,
    is_run,
)

MAX_COMPARED = 20_000
"""Of more images of known classes, none are compared: that would take too long."""


def repeated_images_note(
    stored: StoredImages, train: Images, test: Images, preprocess: Preprocess
) -> str | None:
    """What to say if an image is both learned from and tested on, in either of the two runs.

    Only classes that both runs have are compared, by their pixels.

    Args:
        stored: The images that the earlier run stored: some of those that it had.
        train: The new images to learn from.
        test: The new images to evaluate on.
        preprocess: How the model takes images, which is how they are stored.
    """
    now_tested = _matches(stored.replay, test, preprocess)
    now_learned = _matches(stored.test, train, preprocess)
    parts = [
        f"tests on {count(now_tested, 'image')} that the earlier run learned from",
        f"learns from {count(now_learned, 'image')} that the earlier run tested on",
    ]
    found = [part for part, number in zip(parts, (now_tested, now_learned), strict=True) if number]
    if not found:
        return None
    return (
        f"{train.name}: this run {' and '.join(found)}, so its accuracy looks better than it is. "
        "There may be more, for only some images of a run are stored. Give only new images"
    )


def _matches(earlier: Images, new: Images, preprocess: Preprocess) -> int:
    """How many of the new images equal an earlier one, among the classes that both have."""
    common = set(earlier.classes) & set(new.classes)
    earlier, new = _of_classes(earlier, common), _of_classes(new, common)
    if not 0 < len(new) <= MAX_COMPARED:
        return 0
    seen = set(_pixel_hashes(earlier, preprocess))
    return sum(pixels in seen for pixels in _pixel_hashes(new, preprocess))


def _of_classes(images: Images, names: Collection[str]) -> Images:
    labels = [label for label, name in enumerate(images.classes) if name in names]
    return images.subset(images.of_classes(labels))


def _pixel_hashes(images: Images, preprocess: Preprocess) -> Iterator[int]:
    for chunk in chunks(len(images)):
        yield from (hash(pixels.tobytes()) for pixels in images.read(chunk, preprocess))


@dataclass(frozen=True)
class EarlierRun:
    """The finished run that a new run continues."""

    folder: Path
    results: Results
    """Its results; the positions in the replay buffer are those of the new stream."""
    control: dict[str, Any] | None
    """The identity of its control set."""
    method: dict[str, Any]
    """Its method as the config has it: a part may be of a class that is unknown here."""
    fewer_images: tuple[int, ...] = ()
    """The tasks of which it stored only some of the test images that it was evaluated on."""

    def check(self, method: Method) -> None:
        """Refuse a method that cannot use the state or the replay buffer of the earlier one."""
        with_state = parts_with_state(self.folder, self.results)
        for name in [name for name in PARTS if name in with_state]:
            owner = unbounded(self.method[name])["class"]
            heir = unbounded(method_config(method)[name])["class"]
            if heir not in (owner, part_name(PARTS[name])):
                raise UserError(
                    f"the earlier run has a state of its {name} that was left by {owner}, and "
                    f"{heir} cannot use it; continue it with {name}={owner}"
                )
        if not method.trains_nothing and self.results.class_vectors:
            raise UserError(
                f"the earlier run recognizes what it learned by class vectors, which fit no other "
                f"weights, and {method.name} changes the weights; continue it with the method "
                f"{self.method['name']}, or learn all classes in a new run"
            )
        balance = self.method["replay"].get("balance")
        requested = getattr(method.replay, "balance", balance)
        if self.results.replay.groups and balance != requested:
            raise UserError(
                f"replay.balance={requested}: the earlier run grouped its images to replay by "
                f"{balance!r}, and they cannot be regrouped; continue it with "
                f"replay.balance={balance}"
            )

    def copy_to(self, folder: Path, images: bool) -> None:
        """Copy all that the new run needs: deltas, class vectors, losses, the method's state.

        Config, results and stored images go into a subfolder, which is deleted when the new run is
        finished. Without `images`, those are left where they are.
        """
        (folder / COPY).mkdir()
        for name in (CONFIG, results_file.FILE):
            shutil.copyfile(self.folder / name, folder / COPY / name)
        if images and has_stored_images(self.folder):
            shutil.copytree(self.folder / IMAGES, folder / COPY / IMAGES)
        done = self.results.done
        for number in range(done):
            shutil.copyfile(delta_file(self.folder, number), delta_file(folder, number))
        if (self.folder / CLASS_VECTORS).is_dir():
            (folder / CLASS_VECTORS).mkdir()
            for number in range(done):
                file = class_vectors_file(self.folder, number)
                if file.exists():
                    shutil.copyfile(file, class_vectors_file(folder, number))
        for file in (self.folder / METRICS, state_file(self.folder, done)):
            if file.exists():
                shutil.copyfile(file, folder / file.name)


def run_or_copy(earlier: Path, out: Path, overwrite: bool = False) -> Path:
    """Where to read the earlier run: its folder, or the copy that an interrupted run in `out` has.

    The copy is used where it is of that run, with its images, or where that run is gone.
    """
    copy = out / COPY
    if overwrite or not is_run(copy):
        return earlier
    if not is_run(earlier):
        return copy
    same = (earlier / CONFIG).read_bytes() == (copy / CONFIG).read_bytes()
    whole = has_stored_images(copy) or not has_stored_images(earlier)
    return copy if same and whole else earlier


def remove_earlier_copy(folder: Path) -> None:
    """Delete the copy of the earlier run; a finished run does not need it."""
    deleted = folder / OLD_COPY
    if (folder / COPY).exists():
        (folder / COPY).rename(deleted)  # atomically: half a copy must not look like a whole one
    delete_run_folder(deleted)


def refuse_unfinished(folder: Path, results: Results) -> None:
    """Only a finished run can be continued."""
    if not results.finished:
        raise UserError(
            f"{folder} is not finished ({results.done} of {count(len(results.tasks), 'task')}); "
            "finish it first, with the command or the call that started it"
        )


def refuse_domains(folder: Path, results: Results) -> None:
    """A run over several data sets cannot be continued."""
    if results.domains:
        raise UserError(
            f"{folder} was learned from several data sets ({', '.join(results.domains)}), and such "
            "a run cannot be continued; learn all of them and the new one together, in a new run"
        )


def extend_stream(
    run: OpenRun,
    stored: StoredImages | None,
    new: Stream,
) -> tuple[Stream, EarlierRun]:
    """A stream of the tasks of a run, and then new ones.

    Args:
        run: The finished run.
        stored: The images that the run stored of its tasks: its replay buffer, and some test
            images. Without them the earlier tasks are neither replayed nor evaluated.
        new: The new tasks.
    """
    refuse_unfinished(run.folder, run.results)
    refuse_domains(run.folder, run.results)
    train, test = new.train, new.test
    old = stored or _no_images(run)
    _check_stored(run, old)
    classes = _class_names(run, train)
    train_images, test_images = (
        with_classes(concatenate(old_images, new_images), classes)
        for old_images, new_images in ((old.replay, train), (old.test, test))
    )
    if note := _images_note(run, stored, train, test):
        train_images = replace(train_images, notes=[*train_images.notes, note])
    all_tasks = (*_old_tasks(run, old, train_images), *_new_tasks(run, old, new, train_images))
    missing = sum(task.train for task in run.results.tasks) - len(old.replay)
    stream = Stream(train_images, test_images, all_tasks, missing_images=missing)
    results = run.results.model_copy(deep=True)
    results.replay = ReplayState(seen=old.seen, groups=old.groups)
    pairs = list(zip(results.tasks, stream.tasks, strict=False))
    fewer = tuple(task.number for info, task in pairs if info.test != len(task.test))
    for info, task in pairs:
        info.test = len(task.test)
    method, control = run.config["method"], run.config["control"]
    return stream, EarlierRun(run.folder, results, control, method, fewer)


def _check_stored(run: OpenRun, old: StoredImages) -> None:
    """Refuse stored images that do not belong to the tasks of the run."""
    tasks = dict(enumerate(task.classes for task in run.results.tasks))
    for images, numbers in ((old.replay, old.replay_tasks), (old.test, old.test_tasks)):
        for label, number in zip(images.labels.tolist(), numbers.tolist(), strict=True):
            if images.classes[label] not in tasks.get(number, ()):
                raise UserError(
                    f"{run.folder / IMAGES} has an image of {images.classes[label]!r} in task "
                    f"{number + 1}, where the run has none; take another copy of the run"
                )


def _class_names(run: OpenRun, train: Images) -> list[str]:
    """Class names by label: a class of the earlier run keeps its label, new ones are appended.

    The state of a method that is indexed by label (a class-balanced buffer, SLCA's Gaussians) thus
    stays with its class, however often a run is continued.
    """
    known = run.config["data"]["classes"]
    if not set(run.classes) <= set(known):
        raise UserError(
            f"{run.folder / CONFIG} is damaged or was written by another version: data.classes "
            "does not hold the classes that were learned; take another copy of the run"
        )
    classes = list(dict.fromkeys([*known, *train.classes]))
    refuse_confusable_classes(f"{run.folder} and {train.name}", classes)
    return classes


def _images_note(
    run: OpenRun, stored: StoredImages | None, train: Images, test: Images
) -> str | None:
    """What a user should know of the earlier images."""
    if stored is not None:
        return repeated_images_note(stored, train, test, run.clip.preprocess)
    total = len(run.classes)
    classes = "its class is" if total == 1 else f"its {total:,} classes are"
    return (
        f"the earlier run stored no images (store_images=False, or no replay): {classes} neither "
        "replayed nor evaluated again, so what is forgotten of what it learned does not show"
    )


def _no_images(run: OpenRun) -> StoredImages:
    data, none = run.config["data"], np.empty(0, np.int64)
    empty = Images(
        str(run.folder),
        [],
        none,
        FileStore(run.folder, []),
        data["prompt"],
        tuple(data["templates"]),
    )
    return StoredImages(empty, empty, none, none)


def _labels(images: Images, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(images.classes.index(name) for name in names)


def _old_tasks(run: OpenRun, old: StoredImages, images: Images) -> list[Task]:
    return [
        Task(
            number,
            _labels(images, info.classes),
            np.flatnonzero(old.replay_tasks == number),
            np.flatnonzero(old.test_tasks == number),
        )
        for number, info in enumerate(run.results.tasks)
    ]


def _new_tasks(run: OpenRun, old: StoredImages, new: Stream, images: Images) -> list[Task]:
    return [
        Task(
            run.results.done + task.number,
            _labels(images, new.names(task.classes)),
            task.train + len(old.replay),
            task.test + len(old.test),
        )
        for task in new.tasks
    ]
