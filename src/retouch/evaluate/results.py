"""What a run found out, as it is stored in `results.json`."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from retouch import checksummed
from retouch.errors import UserError, first_problem
from retouch.evaluate import metrics

FILE = "results.json"


class TaskInfo(BaseModel):
    """A task of the stream."""

    classes: list[str]
    train: int
    test: int


class Drift(BaseModel):
    """How far the meaning of everyday words moved: weaker evidence than a control set."""

    moved: float
    """Mean over the words of 1 − cosine between the text features before the first task and now."""
    neighbours: float
    """Percent of the words that are still nearest to the same other word."""


class Joint(BaseModel):
    """Accuracy in percent where every image may be called any new class or any control class.

    A class whose name is in both sets counts as one.
    """

    classes: int
    """How many classes the model chooses among."""
    new: float
    """Of the new classes' test images."""
    control: float
    """Of the control set's images."""
    overall: float
    """Of all of them; every image weighs the same."""


class Row(BaseModel):
    """Accuracy in percent at one moment."""

    tasks: list[float | None]
    """On each task: over all classes seen so far if it is learned, else over all of the stream.

    None where a task of an earlier run can no longer be judged, or a later one was not known yet.
    """
    control: float | None = None
    """On what the model could do before, which no task holds."""
    joint: Joint | None = None
    """On control and, at once, on the classes learned by then; before the first task, on all."""
    drift: Drift | None = None
    """How far the features of everyday words moved."""


class DataInfo(BaseModel):
    """A set of images that the run used."""

    name: str
    classes: int
    images: int


class Results(BaseModel):
    """A run, finished or under way."""

    model_config = ConfigDict(extra="forbid")

    method: str
    """The name of the recipe."""
    summary: str
    """The recipe in a few words."""
    model: str
    """The name of the model."""
    tasks: list[TaskInfo]
    """The classes and the number of images of each task."""
    parameters: int
    """How many parameters the model has."""
    learned_before: int = 0
    """How many tasks an earlier run had learned (`learn --from`); this run learns the others."""
    command: str = ""
    """The command line that began the run, if there was one."""
    started: str = ""
    """When the run began, in UTC (ISO 8601)."""
    data: dict[str, DataInfo] = {}
    """Under "train", "test" and "control": of a run that goes on from another, its own images."""
    trained: list[int] = []
    """How many entries could move in each task."""
    rows: list[Row] = []
    """Before the first task, then after each."""
    seconds: list[float] = []
    """How long each task took to learn."""
    fraction_kept: list[float] = []
    """How much of each task's change was kept: 1, or less where it would have cost too much."""
    replay: dict[str, Any] = {}
    """The state of the replay buffer."""
    state: str = ""
    """Checksum of what the method remembers between tasks, if it does."""
    notes: list[str] = []
    """What the user should know: whatever was logged as a warning."""
    settings: dict[str, Any] = {}
    """The settings of the run."""
    environment: dict[str, str] = {}
    """Versions and hardware."""

    @property
    def done(self) -> int:
        """How many tasks are learned."""
        return max(0, len(self.rows) - 1)

    @property
    def finished(self) -> bool:
        return self.done == len(self.tasks)

    @property
    def begun(self) -> bool:
        """Whether the model was judged on all tasks, as is done before the first step."""
        return bool(self.rows) and len(self.rows[0].tasks) == len(self.tasks)

    @property
    def was_evaluated(self) -> list[int]:
        """The tasks, learned or not, that there are images to judge by for."""
        return [number for number, task in enumerate(self.tasks) if task.test]

    @property
    def matrix(self) -> list[list[float]]:
        """`matrix[t][i]`: the accuracy on task i after task t, of tasks with test images."""
        learned = [number for number in self.was_evaluated if number < self.done]
        rows = [[self.rows[t + 1].tasks[i] for i in learned if i <= t] for t in learned]
        return [[value for value in row if value is not None] for row in rows]

    @property
    def frozen_accuracy(self) -> float:
        """On all classes of the stream, before anything was learned."""
        values = [(self.rows[0].tasks[i], self.tasks[i].test) for i in self.was_evaluated]
        found = [(value, images) for value, images in values if value is not None]
        return metrics.average_accuracy([[v for v, _ in found]], [images for _, images in found])

    @property
    def accuracy(self) -> float | None:
        """On the new classes as the model is now; None where there are no images to judge by.

        Over the classes learned so far or, before the first task, over all of the stream.
        """
        if self.done:
            return self.metrics().get("accuracy")
        return self.frozen_accuracy if self.was_evaluated else None

    def begin(self, first: Row, now: Row | None = None) -> None:
        """Add the first evaluation of a run.

        Rows of an earlier run in between know nothing of the tasks that came later.

        Args:
            first: The evaluation before the first task.
            now: The evaluation of the model as it is now, if an earlier run taught it tasks
                already.
        """
        self.rows[:1] = [first]
        for row in self.rows[1:]:
            row.tasks += [None] * (len(self.tasks) - len(row.tasks))
        if now is not None:
            self.rows[-1] = now

    def metrics(self) -> dict[str, float]:
        """Every number that can be computed so far."""
        a = self.matrix
        if not a or not self.begun:
            return {}
        images = [self.tasks[i].test for i in self.was_evaluated if i < self.done]
        found = {
            "accuracy": metrics.average_accuracy(a, images),
            "frozen_accuracy": self.frozen_accuracy,
            "forgetting": metrics.forgetting(a),
            "forgetting_paper": metrics.forgetting_paper(a),
            "learning_accuracy": metrics.learning_accuracy(a),
            "backward_transfer": metrics.backward_transfer(a),
        }
        before, after = self.rows[0].control, self.rows[-1].control
        if before is not None and after is not None:
            found |= {
                "control_before": before,
                "control": after,
                "control_drop": metrics.control_drop(before, after),
            }
        start, joint = self.rows[0].joint, self.rows[-1].joint
        if start is not None and joint is not None:
            found |= {
                "joint_accuracy_before": start.overall,
                "joint_accuracy": joint.overall,
                "joint_new": joint.new,
                "joint_control": joint.control,
            }
        if drift := self.rows[-1].drift:
            found |= {"drift": drift.moved, "drift_neighbours": drift.neighbours}
        return found

    def to_json(self) -> str:
        """The results as JSON."""
        return self.model_dump_json(indent=1)

    def write(self, folder: str | Path) -> None:
        """Write the results into a run's folder, with a checksum.

        Args:
            folder: The run's folder.
        """
        checksummed.write_json(Path(folder) / FILE, json.loads(self.to_json()))

    @classmethod
    def read(cls, folder: str | Path) -> "Results":
        """Read the results of a run's folder.

        Args:
            folder: The run's folder. Results that were changed or damaged are refused.
        """
        file = Path(folder) / FILE
        try:
            found = cls.model_validate(checksummed.read_json(file, "take another copy of the run"))
        except FileNotFoundError:
            raise UserError(f"{folder} holds no run: {FILE} is missing there") from None
        except ValidationError as why:
            raise UserError(
                f"{file} is of another version of retouch ({first_problem(why)}); use that "
                "version, or learn it again in another folder"
            ) from None
        if reason := found._inconsistency():
            raise UserError(f"{file} cannot be right: {reason}; take another copy of the run")
        return found

    def _inconsistency(self) -> str:
        """Why no run can have found this out; a checksum does not know."""
        done, tasks = self.done, len(self.tasks)
        lengths = {len(row.tasks) for row in self.rows}
        lists = {
            "trained": len(self.trained),
            "seconds": len(self.seconds),
            "fraction_kept": len(self.fraction_kept),
        }
        odd = [name for name, length in lists.items() if length != done]
        if done > tasks or max(lengths, default=0) > tasks or len(lengths) > 1:
            return f"its rows do not fit its {tasks} tasks"
        return f"{done} tasks are learned, but {odd[0]} has another length" if odd else ""

    def check_replay(self, folder: str | Path, images: int) -> None:
        """Refuse a replay buffer whose positions are outside of the training images.

        Args:
            folder: The run's folder, for the message.
            images: How many training images there are.
        """
        positions = [p for group in self.replay.get("groups", {}).values() for p in group]
        if wrong := [p for p in positions if type(p) is not int or not 0 <= p < images]:
            raise UserError(
                f"{Path(folder) / FILE} says to replay image {wrong[0]} of {images:,} training "
                "images; take another copy of the run"
            )
