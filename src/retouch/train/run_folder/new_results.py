"""The results of a run that has not learned anything yet, or only what an earlier run did."""

from datetime import UTC, datetime

from retouch.data.identity import images_identity
from retouch.data.images import Images
from retouch.data.stream import Stream
from retouch.evaluate.results import Results
from retouch.evaluate.task_info import DataInfo, TaskInfo
from retouch.text.printable import printable
from retouch.train.environment import environment
from retouch.train.extend_stream import EarlierRun
from retouch.train.plan import Plan
from retouch.train.run_folder.config_schema import result_settings


def new_results(plan: Plan) -> Results:
    """The results at the beginning, including those of the run that this one continues."""
    clip, stream, method = plan.clip, plan.stream, plan.method
    results = Results(
        method=method.name,
        summary=method.summary,
        model=clip.name,
        parameters=clip.size,
        tasks=[
            TaskInfo(
                classes=stream.names(t.classes),
                train=len(t.train),
                test=len(t.test),
                domain=stream.domain_of(t),
            )
            for t in stream.tasks
        ],
        choices=stream.choices,
        command=plan.command,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        data=_data_info(stream, plan.control),
        settings=result_settings(plan.settings),
        environment=environment(clip, plan.settings),
    )
    if plan.earlier is not None:
        _take_over(results, plan.earlier, plan.control)
    return results


def _data_info(stream: Stream, control: Images | None) -> dict[str, DataInfo]:
    sets = {"train": stream.train, "test": stream.test, "control": control}
    return {
        use: DataInfo(name=printable(images.name), classes=len(images.classes), images=len(images))
        for use, images in sets.items()
        if images is not None
    }


def _take_over(results: Results, earlier: EarlierRun, control: Images | None) -> None:
    """Copy the results of the tasks that an earlier run learned."""
    before = earlier.results
    results.learned_before = before.done
    results.tasks[: before.done] = before.tasks
    results.trained, results.seconds = [*before.trained], [*before.seconds]
    results.fraction_kept, results.steps = [*before.fraction_kept], [*before.steps]
    results.class_vectors = before.class_vectors
    results.replay, results.state = before.replay, before.state
    results.losses = before.losses
    results.notes = [*before.notes]
    results.rows = [row.model_copy(deep=True) for row in before.rows]
    for learned, row in enumerate(results.rows):
        row.tasks = [
            value if number < learned and number not in earlier.fewer_images else None
            for number, value in enumerate(row.tasks)
        ]  # a task was measured on other images, or, before it was learned, among other classes
    if earlier.control != (control and images_identity(control)):  # not comparable
        for row in results.rows:
            row.control = row.control_part = row.joint = None
