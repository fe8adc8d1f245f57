"""Complete the folder of a run whose last task is learned, so that it stands alone."""

from pathlib import Path

from retouch.clip import Clip
from retouch.data.cache import Progress, silent
from retouch.data.images import Images
from retouch.data.stream import Stream
from retouch.devices import ranks
from retouch.learn.by_class import ByClass
from retouch.learn.closely import look_closely
from retouch.learn.kept import is_kept, keep
from retouch.learn.onward import drop_copy
from retouch.learn.reopen import Reopened, read_config
from retouch.learn.results import Results


def finish(
    folder: Path,
    clip: Clip,
    stream: Stream,
    results: Results,
    control: Images | None = None,
    *,
    store_images: bool = True,
    per_class: bool = True,
    progress: Progress = silent,
) -> None:
    """Add what a finished run's folder lacks; call it on every rank, rank 0 writes.

    With `per_class` the model before the first task and after the last are compared class by class
    (`classes.json`); with `store_images` the replay buffer and some test images are stored, which a
    continued run needs, and example images for the page. Each part is written whole or not at all,
    and what is there already is left alone: a run that was killed meanwhile is completed by calling
    this again. The copy of an earlier run goes last, since everything before may need it.
    """
    assert results.finished
    if per_class and not ranks.from_first(lambda: "compared" if ByClass.read(folder) else ""):
        run = Reopened(folder, read_config(folder), results, clip, results.done)
        try:
            look_closely(run, stream.test, control, examples=store_images, progress=progress)
        finally:
            run.go_to()  # the caller's model is handed back as the last task left it
    if not ranks.is_first():
        return
    if store_images and not is_kept(folder):
        keep(folder, stream, results, clip.pixels, progress)
    drop_copy(folder)
