"""Open the folder of a run: its config, its results, and its model after any task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from retouch.arguments import check_arguments
from retouch.clip import Clip, load
from retouch.clip.class_vectors import ClassVectors, load_class_vectors
from retouch.clip.loading.user_model import refuse_code
from retouch.errors import UserError
from retouch.evaluate.choices import ClassChoices
from retouch.evaluate.results import Results
from retouch.files import checksummed
from retouch.methods import Method, Settings
from retouch.methods.method_config import check_method_config, read_method
from retouch.sparse import Delta, Digests, fingerprint, read_header
from retouch.text.plural import count
from retouch.train.run_folder.config_schema import RunConfig

CONFIG, DELTAS, CLASS_VECTORS = "config.yaml", "deltas", "class-vectors"


@dataclass
class OpenRun:
    """A run and its model, which can be loaded as it was after any task."""

    folder: Path
    """The run's folder."""
    config: dict[str, Any]
    """What the run began with: model, data, method and settings."""
    results: Results
    """What was measured."""
    clip: Clip
    """The model; before the first task until `load_task` changes it."""
    at: int = 0
    """How many tasks are learned in `clip` now."""

    def load_task(self, tasks: int | None = None) -> Clip:
        """Set the model to its state after some tasks of the run, and return it.

        Args:
            tasks: How many tasks are learned by then: 0 is the model before the first. Default: all
                of them.
        """
        target = self.results.done if tasks is None else tasks
        if not 0 <= target <= self.results.done:
            raise UserError(
                f"{self.folder} has learned {count(self.results.done, 'task')}, not {target}"
            )
        model, digests = self.clip.model, Digests()
        while self.at < target:
            load_delta(self.folder, self.at).apply(model, digests)
            self.at += 1
        while self.at > target:
            load_delta(self.folder, self.at - 1).undo(model, digests)
            self.at -= 1
        self.clip.class_vectors = self._class_vectors()
        return self.clip

    def _class_vectors(self) -> ClassVectors | None:
        return read_class_vectors(self.folder, self.results, self.at, self.clip.device)

    @property
    def classes(self) -> list[str]:
        """The names of all learned classes, in order."""
        learned = self.results.tasks[: self.results.done]
        return list(dict.fromkeys(name for task in learned for name in task.classes))

    @property
    def choices(self) -> ClassChoices:
        """Which classes the run classified an image among, with which prompts."""
        return ClassChoices.of_config(self.config["data"])


def is_run(folder: str | Path) -> bool:
    """Whether a folder holds a run.

    Args:
        folder: Any path.
    """
    return (Path(folder) / CONFIG).is_file()


@check_arguments()
def open_run(
    folder: str | Path,
    *,
    model: str | Path | Clip | None = None,
    device: str | torch.device = "cpu",
    light: bool = False,
) -> OpenRun:
    """Open a run's folder, together with the model that it began with.

    The model is known by its weights: any other is refused.

    Args:
        folder: The run's folder.
        model: The model that the run began with, or its name, if it has moved since. Needed for a
            model of your own.
        device: Where to load the model.
        light: Load a plain CLIP without its library, as in `retouch.load`.
    """
    folder = Path(folder)
    config = read_config(folder)
    name = model.name if isinstance(model, Clip) else str(model or config["places"]["model"])
    if not model:
        refuse_code(name, folder)
    try:
        clip = model if isinstance(model, Clip) else load(name, device=device, light=light)
    except UserError as why:
        if model:
            raise
        raise UserError(
            f"{folder} began with the model {name}, which cannot be loaded here: {why}. "
            "Name the model that the run began with, where it is now",
            argument="model=…",
        ) from None
    known = fingerprint(clip.model) == config["weights"]
    if light and not known:
        return open_run(folder, model=model, device=device)
    if not known:
        method, settings = method_of(config, folder), Settings(**config["settings"])
        method.update.start(clip, settings, None)  # prompts are part of the model it began with
    if not known and (weights := fingerprint(clip.model)) != config["weights"]:
        raise UserError(
            f"{folder} began with weights {config['weights'][:12]}, but those of {name} are "
            f"{weights[:12]}; give the model that the run began with",
            argument="model=…",
        )
    return OpenRun(folder, config, Results.read(folder), clip)


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a run: the content of a `RunConfig`."""
    try:
        config = checksummed.read(folder / CONFIG, RunConfig, "take another copy of the run")
    except (FileNotFoundError, NotADirectoryError):
        problem = (
            f"{folder} holds no run: {CONFIG} is missing there"
            if folder.is_dir()
            else f"there is no folder {folder}"
        )
        raise UserError(f"{problem}; name the folder of a run") from None
    check_method_config(config.method, str(folder / CONFIG))
    return config.model_dump(by_alias=True)


def method_of(config: dict[str, Any], folder: Path) -> Method:
    """The method of a run, exactly as it was run.

    Args:
        config: The config of the run.
        folder: The run's folder, for errors.
    """
    return read_method(config["method"], str(folder / CONFIG))


def delta_file(folder: Path, number: int) -> Path:
    """The delta of a task; `number` counts from 0."""
    return folder / DELTAS / f"task-{number + 1:02}.safetensors"


def load_delta(folder: Path, number: int) -> Delta:
    """The delta of a task that a run has learned; `number` counts from 0."""
    file = delta_file(folder, number)
    if not file.is_file():
        raise UserError(
            f"{file} is missing, though {folder} has learned task {number + 1}; put it back, take "
            "another copy of the run, or learn it again in another folder"
        )
    return Delta.load(file)


def class_vectors_file(folder: Path, number: int) -> Path:
    """The class vectors after a task, if its method keeps any; `number` counts from 0."""
    return folder / CLASS_VECTORS / f"task-{number + 1:02}.safetensors"


def read_class_vectors(
    folder: Path, results: Results, tasks: int, device: torch.device | str = "cpu"
) -> ClassVectors | None:
    """The class vectors after this many tasks of a run; None if there are none.

    Whether there are is written in the delta of the last task, with their digest: a file that is
    missing, or that is of another run, is refused.

    Args:
        folder: The run's folder.
        results: Its results.
        tasks: How many tasks are learned.
        device: Where to put them.
    """
    if not tasks or not results.class_vectors:
        return None
    expected = read_header(delta_file(folder, tasks - 1)).metadata.get(CLASS_VECTORS)
    if expected is None:  # an earlier run had learned this task by other means
        return None
    file = class_vectors_file(folder, tasks - 1)
    if not file.is_file():
        raise UserError(
            f"{file} is missing, which holds what {folder} learned until task {tasks}; put it "
            "back, take another copy of the run, or learn it again in another folder"
        )
    return load_class_vectors(file, str(expected), "take another copy of the run").to(device)
