"""What a run found out, as it is stored in `results.json`."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from retouch.errors import UserError
from retouch.learn import metrics

FILE = "results.json"


class TaskInfo(BaseModel):
    """A task of the stream."""

    classes: list[str]
    train: int
    test: int


class Row(BaseModel):
    """Accuracy in percent at one moment."""

    tasks: list[float]
    """On each task: over all classes seen so far if it is learned, else over all of the stream."""
    control: float | None = None
    """On what the model could do before, which no task holds."""


class Results(BaseModel):
    """A run, finished or under way."""

    model_config = ConfigDict(extra="forbid")

    method: str
    summary: str
    model: str
    tasks: list[TaskInfo]
    parameters: int
    trained: list[int] = []
    """How many entries could move in each task."""
    rows: list[Row] = []
    """Before the first task, then after each."""
    seconds: list[float] = []
    """How long each task took to learn."""
    replay: dict[str, Any] = {}
    notes: list[str] = []
    """What the user should know: whatever was logged as a warning."""
    settings: dict[str, Any] = {}
    environment: dict[str, str] = {}

    @property
    def done(self) -> int:
        """How many tasks are learned."""
        return max(0, len(self.rows) - 1)

    @property
    def finished(self) -> bool:
        return self.done == len(self.tasks)

    @property
    def matrix(self) -> list[list[float]]:
        """a[t][i] for i ≤ t, of the tasks learned so far."""
        return [row.tasks[: t + 1] for t, row in enumerate(self.rows[1:])]

    @property
    def frozen_accuracy(self) -> float:
        """On all classes of the stream, before anything was learned."""
        return metrics.average_accuracy([self.rows[0].tasks], [task.test for task in self.tasks])

    def metrics(self) -> dict[str, float]:
        """Every number that can be computed so far."""
        if not self.done:
            return {}
        a, images = self.matrix, [task.test for task in self.tasks[: self.done]]
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
        return found

    def to_json(self) -> str:
        return self.model_dump_json(indent=1)

    @classmethod
    def read(cls, folder: str | Path) -> "Results":
        """The results of a run's folder."""
        file = Path(folder) / FILE
        try:
            return cls.model_validate_json(file.read_text())
        except FileNotFoundError:
            raise UserError(f"{folder} holds no run: {FILE} is missing there") from None
        except ValueError as why:
            raise UserError(f"{file} is damaged or of another version ({why})") from None
