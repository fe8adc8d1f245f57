"""Complete the folder of a run whose last task is learned, so that it stands alone."""

from pathlib import Path

from retouch.clip import Clip
from retouch.data.cache import Progress, no_progress
from retouch.data.images import Images
from retouch.data.stream import Stream
from retouch.distributed import collectives
from retouch.evaluate.per_class import PerClass
from retouch.evaluate.results import Results
from retouch.train.compare import compare_run
from retouch.train.extend_stream import remove_earlier_copy
from retouch.train.replay_store import has_stored_images, write_images
from retouch.train.run_folder import OpenRun, read_config


def finish(
    folder: Path,
    clip: Clip,
    stream: Stream,
    results: Results,
    control: Images | None = None,
    *,
    store_images: bool = True,
    per_class: bool = True,
    progress: Progress = no_progress,
) -> None:
    """Add what a finished run's folder lacks; call it on every rank, rank 0 writes.

    With `per_class` the model before the first task and after the last are compared class by class
    (`classes.json`); with `store_images` the replay buffer and some test images are stored, which a
    continued run needs, and example images for the page. Each part is written whole or not at all,
    and what is there already is left alone: a run that was killed meanwhile is completed by calling
    this again. The copy of an earlier run goes last, since everything before may need it.
    """
    assert results.finished
    if per_class and not collectives.broadcast_str(
        lambda: "compared" if PerClass.read(folder) else ""
    ):
        run = OpenRun(folder, read_config(folder), results, clip, results.done)
        try:
            compare_run(run, stream.test, control, examples=store_images, progress=progress)
        finally:
            run.load_task()  # the caller's model is handed back as the last task left it
    if not collectives.is_rank0():
        return
    if store_images and not has_stored_images(folder):
        write_images(folder, stream, results, clip.preprocess, progress)
    remove_earlier_copy(folder)
