"""Go on from a finished run: its tasks, then new ones, as a stream and a run of their own."""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from retouch.data.file_store import FileStore
from retouch.data.images import Images, concatenate
from retouch.data.stream import Stream, Task
from retouch.errors import UserError
from retouch.evaluate import results as stored
from retouch.evaluate.results import Results
from retouch.methods import Method
from retouch.plural import count
from retouch.train.replay_store import FOLDER as IMAGES
from retouch.train.replay_store import StoredImages, has_stored_images, with_classes
from retouch.train.run_folder import CONFIG, OpenRun, delta_file, is_run

log = logging.getLogger("retouch")

COPY = "earlier"
"""Where a run that is under way keeps what it needs of the one before."""


@dataclass(frozen=True)
class EarlierRun:
    """What a run is built upon: the folder of the one before, and what that found out."""

    folder: Path
    results: Results
    """With the replay buffer's positions in the new stream."""
    control: dict[str, Any] | None = None
    """The identity of the control set that it was judged by."""
    method: dict[str, Any] = field(default_factory=dict)
    """Name and settings of the method that learned it."""

    def check(self, method: Method) -> None:
        """Refuse a method that would take what the earlier one remembers for something else."""
        if self.results.state and method.name != self.results.method:
            raise UserError(
                f"the earlier run was learned by {self.results.method}, and {method.name} cannot "
                f"use what that remembers of its tasks; continue it by {self.results.method}"
            )
        balance = self.method.get("replay", {}).get("balance")
        wanted = getattr(method.replay, "balance", balance)
        if self.results.replay["groups"] and balance != wanted:
            raise UserError(
                f"replay.balance={wanted}: the earlier run stored its images to replay by "
                f"{balance!r}, and its groups mean nothing otherwise; continue it with "
                f"replay.balance={balance}"
            )

    def copy_to(self, folder: Path) -> None:
        """All that the new run needs to stand alone: what was changed, and what was remembered.

        Until it is finished, that includes the images that the earlier run kept.
        """
        (folder / COPY).mkdir()
        for name in (CONFIG, stored.FILE):
            shutil.copyfile(self.folder / name, folder / COPY / name)
        if has_stored_images(self.folder):
            shutil.copytree(self.folder / IMAGES, folder / COPY / IMAGES)
        done = self.results.done
        for number in range(done):
            shutil.copyfile(delta_file(self.folder, number), delta_file(folder, number))
        for name in ("metrics.jsonl", f"state-{done:02}.safetensors"):
            if (self.folder / name).exists():
                shutil.copyfile(self.folder / name, folder / name)


def run_or_copy(before: Path, out: Path, overwrite: bool = False) -> Path:
    """Where to read the earlier run: itself, or the copy that an interrupted run in `out` has.

    Another run than the one that was copied is not taken for it.
    """
    copy = out / COPY
    if overwrite or not is_run(copy):
        return before
    gone = not is_run(before)
    same = gone or (before / CONFIG).read_bytes() == (copy / CONFIG).read_bytes()
    return copy if same else before


def remove_earlier_copy(folder: Path) -> None:
    """A run that is finished stands alone."""
    gone = folder / f".{COPY}.gone"
    if (folder / COPY).exists():
        (folder / COPY).rename(gone)  # in one move, so that half a copy is never taken for one
    shutil.rmtree(gone, ignore_errors=True)


def refuse_unfinished(folder: Path, results: Results) -> None:
    """Only a finished run can be gone on from."""
    if not results.finished:
        raise UserError(
            f"{folder} is not finished ({results.done} of {count(len(results.tasks), 'task')}); "
            "run its own command to the end first"
        )


def extend_stream(
    run: OpenRun,
    kept: StoredImages | None,
    train: Images,
    test: Images,
    *,
    tasks: int = 1,
    order: int | Sequence[str] = 0,
) -> tuple[Stream, EarlierRun]:
    """The tasks of a run and then those of new images.

    Of the earlier tasks there are the images that the run kept: those of its replay buffer to learn
    from, and some to judge by. Without `kept` there are none, and the earlier tasks are not judged.
    """
    refuse_unfinished(run.folder, run.results)
    new = Stream.split(train, test, tasks, order)
    old = kept or _nothing(run)
    classes = _numbered(run, train)
    learn, judge = (
        with_classes(concatenate(stored_images, fresh), classes)
        for stored_images, fresh in ((old.replay, train), (old.test, test))
    )
    if kept is None:
        learn = replace(learn, notes=[*learn.notes, _without_images(run)])
    stream = Stream(learn, judge, (*_old_tasks(run, old, learn), *_new_tasks(run, old, new, learn)))
    gone = sum(task.train for task in run.results.tasks) - len(old.replay)
    results = run.results.model_copy(deep=True)
    results.replay = {"seen": old.seen, "groups": old.groups}
    for info, task in zip(results.tasks, stream.tasks, strict=False):
        info.test = len(task.test)
    return replace(stream, missing_images=gone), EarlierRun(
        run.folder, results, run.config["control"], run.config["method"]
    )


def _numbered(run: OpenRun, train: Images) -> list[str]:
    """Class names by label: a class of the earlier run keeps its label, new ones are appended.

    Whatever a method remembers by label (a class-balanced buffer, SLCA's Gaussians) thus stays with
    its class, however often a run is continued.
    """
    known = run.config["data"].get("classes")
    if not isinstance(known, list) or not set(run.classes) <= set(map(str, known)):
        raise UserError(
            f"{run.folder / CONFIG} is damaged or of another version: data.classes does not hold "
            "the classes that were learned; take another copy of the run"
        )
    return list(dict.fromkeys([*known, *train.classes]))


def _without_images(run: OpenRun) -> str:
    """What follows for a continued run, logged, and as a note for its results."""
    count = len(run.classes)
    known = "its class is" if count == 1 else f"its {count:,} classes are"
    said = (
        "the earlier run stored no images (it was made with --replay none, or with "
        f"store_images=False): {known} neither replayed nor evaluated again, so what is forgotten "
        "of what it learned does not show"
    )
    log.warning(said)
    return said


def _nothing(run: OpenRun) -> StoredImages:
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
