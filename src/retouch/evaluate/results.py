"""The results of a run, as they are stored in `results.json`."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from retouch.arguments import check_arguments
from retouch.data.replay import ReplayState
from retouch.data.stream import Choices
from retouch.errors import UserError
from retouch.evaluate import metrics
from retouch.evaluate.metrics import domain_accuracies, domain_metrics
from retouch.evaluate.row import Row
from retouch.evaluate.task_info import DataInfo, TaskInfo
from retouch.files import checksummed
from retouch.files.checksummed import Count, Document

FILE = "results.json"
_REMEDY = "take another copy of the run"


class Results(Document):
    """A run, finished or in progress."""

    method: str
    """The name of the recipe."""
    summary: str
    """The recipe in a few words."""
    model: str
    """The name of the model."""
    tasks: list[TaskInfo]
    """The classes and the number of images of each task."""
    parameters: Count
    """How many parameters the model has."""
    choices: Choices = "seen"
    """Which classes the model chose among: those learned so far, those of the image's own data set
    (`domain`), or all of the stream.
    """
    learned_before: Count = 0
    """How many tasks an earlier run had learned, where this run continues one."""
    command: str = ""
    """The command line that started the run, if there was one."""
    started: str = ""
    """When the run started, in UTC (ISO 8601)."""
    data: dict[str, DataInfo] = Field(default_factory=dict)
    """Under "train", "test" and "control"; where a run continues another, its own images."""
    trained: list[Count] = Field(default_factory=list)
    """How many weights could move in each task."""
    rows: list[Row] = Field(default_factory=list)
    """Before the first task, and after each."""
    seconds: list[Annotated[float, Field(ge=0)]] = Field(default_factory=list)
    """How long each task took to learn."""
    steps: list[Count] = Field(default_factory=list)
    """How many steps each task had: 0 where the method found that it needs none."""
    fraction_kept: list[Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=list)
    """How much of each task's change was kept: 1, or less where it was scaled back. Where weights
    are merged, of the change since the pre-trained ones.
    """
    class_vectors: Count = 0
    """How many classes are recognized by a vector beside the model (`ncm`, `lda`, `ridge`)."""
    replay: ReplayState = ReplayState()
    """The state of the replay buffer."""
    state: str = ""
    """Checksum of the method's state between tasks, if it has any."""
    losses: str = ""
    """Checksum of the last line of `metrics.jsonl` after the last learned task, if there is one."""
    notes: list[str] = Field(default_factory=list)
    """What the user should know: everything that was logged as a warning."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The settings of the run."""
    environment: dict[str, str] = Field(default_factory=dict)
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
        """Whether the model was evaluated on all tasks, as is done before the first step."""
        return bool(self.rows) and len(self.rows[0].tasks) == len(self.tasks)

    @property
    def evaluated_tasks(self) -> list[int]:
        """The numbers of the tasks, learned or not, that have test images."""
        return [number for number, task in enumerate(self.tasks) if task.test]

    @property
    def matrix(self) -> list[list[float | None]]:
        """`matrix[t][i]`: the accuracy on task i after task t, of tasks with test images.

        None where it was not measured. The last row is the latest one, whatever was learned last.
        """
        learned = [number for number in self.evaluated_tasks if number < self.done]
        ends = [*(number + 1 for number in learned[:-1]), self.done]
        return [
            [self.rows[end].tasks[i] for i in learned if i <= t]
            for t, end in zip(learned, ends, strict=False)
        ]

    @property
    def domains(self) -> list[str]:
        """The names of the data sets, in the order of the stream; empty if there is only one."""
        return list(dict.fromkeys(task.domain for task in self.tasks if task.domain))

    @property
    def domain_matrix(self) -> list[list[float | None]]:
        """`[t][d]`: the accuracy on data set d, before the first task (t = 0) and after each.

        Every test image has equal weight. None where it was not measured.
        """
        counts = [(task.domain, task.test) for task in self.tasks]
        return [domain_accuracies(counts, row.tasks) for row in self.rows]

    @property
    def frozen_accuracy(self) -> float:
        """On all classes of the stream, before anything was learned."""
        values = [(self.rows[0].tasks[i], self.tasks[i].test) for i in self.evaluated_tasks]
        known = [(value, images) for value, images in values if value is not None]
        return metrics.average_accuracy([[v for v, _ in known]], [images for _, images in known])

    @property
    def accuracy(self) -> float | None:
        """The latest accuracy on the new classes; None where there are no test images.

        Over the classes learned so far or, before the first task, over the whole stream.
        """
        if self.done:
            return self.metrics().get("accuracy")
        return self.frozen_accuracy if self.evaluated_tasks else None

    def begin(self, first: Row, latest: Row | None = None) -> None:
        """Add the first evaluation of a run.

        Rows of an earlier run in between know nothing of the tasks that came later.

        Args:
            first: The evaluation before the first task.
            latest: The latest evaluation, if an earlier run taught tasks already.
        """
        self.rows[:1] = [first]
        for row in self.rows[1:]:
            row.tasks += [None] * (len(self.tasks) - len(row.tasks))
        if latest is not None:
            self.rows[-1] = latest

    def metrics(self) -> dict[str, float]:
        """Every metric that can be computed so far; none while the latest accuracy is unknown.

        Forgetting is known only if the model was evaluated after every task.
        """
        matrix = self.matrix
        a = [[value for value in row if value is not None] for row in matrix]
        if not self.begun or not a or a[-1] != matrix[-1]:
            return {}
        images = [self.tasks[i].test for i in self.evaluated_tasks if i < self.done]
        values = {
            "accuracy": metrics.average_accuracy(a, images),
            "frozen_accuracy": self.frozen_accuracy,
        }
        if a == matrix:
            values |= {
                "forgetting": metrics.forgetting(a),
                "forgetting_paper": metrics.forgetting_paper(a),
                "learning_accuracy": metrics.learning_accuracy(a),
                "backward_transfer": metrics.backward_transfer(a),
            }
        if self.finished and len(self.domains) > 1:
            starts = [[t.domain for t in self.tasks].index(domain) for domain in self.domains]
            values |= domain_metrics(self.domain_matrix[1:], starts)
        before, after = self.rows[0].control, self.rows[-1].control
        if before is not None and after is not None:
            values |= {
                "control_before": before,
                "control": after,
                "control_drop": metrics.control_drop(before, after),
            }
        start, joint = self.rows[0].joint, self.rows[-1].joint
        if start is not None and joint is not None:
            values |= {
                "joint_accuracy_before": start.overall,
                "joint_accuracy": joint.overall,
                "joint_new": joint.new,
                "joint_control": joint.control,
            }
        if drift := self.rows[-1].drift:
            values |= {"drift": drift.moved, "drift_neighbours": drift.neighbours}
        return values

    def to_json(self) -> str:
        """The results as JSON."""
        return self.model_dump_json(indent=1)

    @check_arguments()
    def write(self, folder: str | Path) -> None:
        """Write the results into a run's folder, with a checksum.

        Args:
            folder: The run's folder.
        """
        checksummed.write_json(Path(folder) / FILE, json.loads(self.to_json()))

    @classmethod
    @check_arguments()
    def read(cls, folder: str | Path) -> "Results":
        """Read the results of a run's folder.

        Args:
            folder: The run's folder. Results that were changed or damaged are refused.
        """
        file = Path(folder) / FILE
        try:
            results = checksummed.read(file, cls, _REMEDY)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{folder} holds no run (no {FILE}); name a run's folder") from None
        if reason := results._inconsistency():
            raise UserError(f"{file} cannot be right: {reason}; {_REMEDY}")
        return results

    def _inconsistency(self) -> str:
        """Why no run can have these results, even if each entry is valid; empty if all is well."""
        done, tasks = self.done, len(self.tasks)
        lengths = {len(row.tasks) for row in self.rows}
        lists = {
            "trained": len(self.trained),
            "seconds": len(self.seconds),
            "steps": len(self.steps),
            "fraction_kept": len(self.fraction_kept),
        }
        wrong = [name for name, length in lists.items() if length != done]
        if done > tasks or max(lengths, default=0) > tasks or len(lengths) > 1:
            return f"its rows do not fit its {tasks} tasks"
        return f"{done} tasks are learned, but {wrong[0]} has another length" if wrong else ""

    def check_replay(self, folder: str | Path, images: int) -> None:
        """Refuse a replay buffer whose positions are outside of the training images.

        Args:
            folder: The run's folder, for the message.
            images: How many training images there are.
        """
        positions = [p for group in self.replay.groups.values() for p in group]
        if wrong := [p for p in positions if p >= images]:
            raise UserError(
                f"{Path(folder) / FILE} says to replay image {wrong[0]} of {images:,} training "
                f"images; {_REMEDY}"
            )
