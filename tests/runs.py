"""Small runs that several tests share: taught in seconds, stopped anywhere, compared."""

import json
import signal
from pathlib import Path
from typing import Any

from tiny import images, tiny_clip, tiny_folder

import retouch
from retouch.data import Stream
from retouch.evaluate import Results
from retouch.methods import Method, Settings, recipe
from retouch.sparse import fingerprint
from retouch.train import Callback

QUICK = Settings(epochs=3, batch=8, lr=5e-3)
CONTROL = images("control", 4, 5)


def method(name: str = "spu") -> Method:
    """A recipe whose replay buffer fits the tiny stream."""
    changes: dict[str, dict[str, Any]] = {"flyp": {}, "mas": {"regularizer.images": 8}}
    return recipe(name, changes.get(name, {"replay.size": 12}))


def teach(out: Path | None = None, name: str = "spu", **options: Any) -> tuple[Results, str]:
    """Teach a tiny model three tasks of two classes; 9 steps per task.

    Returns the results and the fingerprint of the model.
    """
    clip = tiny_clip()
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)
    options = {"settings": QUICK, "control": images("control", 4, 3), **options}
    results = retouch.teach(clip, stream, method(name), out=out, **options)
    return results, fingerprint(clip.model)


def make_run(folder: Path) -> Path:
    """A run in FOLDER/run, learned well enough to see it, whose model is in FOLDER/model."""
    stream = Stream.split(images("train", 6, 12), images("test", 6, 4), tasks=3, order=0)
    clip = retouch.load(str(tiny_folder(folder / "model")))
    settings = Settings(epochs=10, batch=8, lr=1e-2, weight_decay=0.01)
    retouch.teach(clip, stream, "spu", settings=settings, control=CONTROL, out=folder / "run")
    return folder / "run"


def content(folder: Path) -> dict[str, Any]:
    """All files of a run's folder, without what depends on the clock."""
    files: dict[str, Any] = {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    results = json.loads(files["results.json"])
    for changing in ("seconds", "started", "checksum"):
        results.pop(changing)
    return {**files, "results.json": results}


class Stop(Callback):
    """Raises an error after a number of steps, over all tasks."""

    def __init__(self, after: int, error: BaseException) -> None:
        self.left = after
        self.error = error

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


class CtrlC(Callback):
    """Interrupts this process after a number of steps; the run saves a checkpoint and stops."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


class Losses(Callback):
    """Collects the loss of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.values.append(loss)
