"""Complete the folder of a run after its last task, so that it needs nothing else."""

from collections.abc import Mapping
from pathlib import Path

from retouch.clip import Clip
from retouch.data.images import Images
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.stream import Stream
from retouch.distributed import collectives
from retouch.evaluate.per_class import PerClass
from retouch.evaluate.predict import PredictedClasses
from retouch.evaluate.results import Results
from retouch.train.compare_run import compare_run
from retouch.train.extend_stream import remove_earlier_copy
from retouch.train.run_folder.images import has_stored_images, write_images
from retouch.train.run_folder.read import OpenRun, read_config


def finish(
    folder: Path,
    clip: Clip,
    stream: Stream,
    results: Results,
    control: Images | None = None,
    predicted: Mapping[int, PredictedClasses] | None = None,
    progress: Progress = no_progress,
    *,
    store_images: bool | None = None,
    per_class: bool = True,
) -> None:
    """Add what the folder of a finished run lacks. Call it on every rank; rank 0 writes.

    Args:
        folder: The run's folder.
        clip: The model after the last task.
        stream: The tasks that were learned.
        results: The results, all tasks learned.
        control: The control set, if there was one.
        predicted: What the run's evaluations predicted, by the number of tasks learned; the rest is
            computed.
        progress: Shows how far this is.
        store_images: Store the replay buffer and some test images, which a continued run needs,
            and example images for the page. Default: as the run's config says.
        per_class: Compare the model before the first task and after the last, class by class.

    Each part is written whole or not at all, and what exists is left alone: where a run was killed
    in between, calling this again completes it. The copy of an earlier run is deleted last, since
    everything before may need it.
    """
    assert results.finished
    stores = collectives.is_rank0() and (
        read_config(folder)["method"]["store_images"] if store_images is None else store_images
    )
    if per_class and not collectives.broadcast_str(
        lambda: "compared" if PerClass.read(folder) else ""
    ):
        run = OpenRun(folder, read_config(folder), results, clip, results.done)
        try:
            compare_run(
                run,
                stream.test,
                control,
                predicted=predicted,
                examples=stores,
                progress=progress,
            )
        finally:
            run.load_task()  # the caller gets the model back as the last task left it
    if not collectives.is_rank0():
        return
    if stores and not has_stored_images(folder):
        write_images(folder, stream, results, clip.preprocess, progress)
    remove_earlier_copy(folder)
