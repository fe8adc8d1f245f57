"""Results of runs that were never trained."""

from collections.abc import Sequence

from retouch.evaluate.results import Results
from retouch.evaluate.row import ControlPart, Row
from retouch.evaluate.task_info import DataInfo, TaskInfo

SIGNS = ["stop", "give way", "no entry", "roundabout", "bend left", "bend right"]


HOSTILE = [
    "<script>alert(1)</script>",
    "</style></svg><img src=x onerror=alert(2)>",
    "\"double\" & 'single'",
    "🛑 stop",
    "علامة قف",
    "{{ 7 * 7 }} $x^2$",
]


def fake_results(
    method: str = "spu",
    accuracy: Sequence[float] = (80, 70, 60),
    control: Sequence[float] | None = (97.5, 95, 93, 91.4),
    *,
    classes: Sequence[str] = SIGNS,
    moved: int = 27,
    notes: Sequence[str] = (),
    model: str = "tiny",
) -> Results:
    """Three tasks of two classes; after task t all learned ones are at `accuracy[t]`."""
    tasks = [TaskInfo(classes=list(classes[i : i + 2]), train=50, test=10) for i in (0, 2, 4)]
    table = [[10.0, 12.0, 14.0]] + [
        [a if i <= t else 10.0 for i in range(3)] for t, a in enumerate(accuracy)
    ]
    accuracies: Sequence[float | None] = control or [None] * 4
    return Results(
        method=method,
        summary=f"{method} in a sentence",
        model=model,
        tasks=tasks,
        parameters=1000,
        trained=[moved] * len(accuracy),
        rows=[Row(tasks=row, control=c) for row, c in zip(table, accuracies, strict=False)],
        seconds=[40.0] * len(accuracy),
        fraction_kept=[1.0] * len(accuracy),
        steps=[60] * len(accuracy),
        notes=list(notes),
        environment={"python": "3.11"},
    )


def checked_in_part(part: int = 1000) -> Results:
    """A run that checked a part of its 5,000 control images after each task but the last."""
    run = fake_results()
    run.data = {"control": DataInfo(name="known", classes=10, images=5000)}
    for row in run.rows[:3]:
        row.control_part = ControlPart(images=part, accuracy=(row.control or 0) - 1)
    return run


FROZEN = fake_results("frozen", (12, 12, 12), (97.5,) * 4, moved=0)


SEVERAL = [
    FROZEN,
    fake_results("flyp", (90, 60, 35), (97.5, 93, 88, 82.6), moved=1000),
    fake_results(),
]


def continued_results(
    accuracy: Sequence[float] = (77.5, 20.0),
    after: Sequence[float] = (70.0, 20.0),
    *,
    before: Sequence[str] = SIGNS[:4],
    own: Sequence[str] = SIGNS[4:],
    kept_images: int = 40,
) -> Results:
    """A run that continues another: one task was learned before, and one is its own."""
    run = fake_results(accuracy=(), control=(76.0,))
    run.tasks = [
        TaskInfo(classes=list(before), train=50, test=kept_images),
        TaskInfo(classes=list(own), train=50, test=25),
    ]
    first, *values = ([24.6, 10.0], accuracy, after)
    evaluated = [[old if kept_images else None, new] for old, new in values]
    control = (75.0, 74.6)
    run.rows = [Row(tasks=[first[0] if kept_images else None, first[1]], control=76.0)]
    run.rows += [Row(tasks=row, control=c) for row, c in zip(evaluated, control, strict=True)]
    run.learned_before, run.trained, run.seconds = 1, [27, 27], [40.0, 20.0]
    return run


def results_with_gaps() -> Results:
    """The first task can no longer be evaluated, the last was not known yet at first."""
    run = fake_results()
    run.tasks[0].test = 0
    for row in run.rows:
        row.tasks[0] = None
    run.rows[1].tasks[2] = None
    run.rows[2].control = None
    return run


def evaluated_at_the_end(run: Results) -> Results:
    """The run as if the model had been evaluated before the first task and after the last alone."""
    for row in run.rows[1:-1]:
        row.tasks, row.control = [None] * len(row.tasks), None
    return run
