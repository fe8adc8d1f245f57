"""Continue a finished run with new images, in one call."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from retouch.arguments import check_arguments
from retouch.clip import Clip
from retouch.data.images import Images
from retouch.data.stream import Stream
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.methods import Method, Settings
from retouch.train.api import teach
from retouch.train.arguments import REMEDIES
from retouch.train.extend_stream import extend_stream, run_or_copy
from retouch.train.run_folder.images import stored_images
from retouch.train.run_folder.read import method_of, open_run

log = logging.getLogger("retouch")


@check_arguments(**REMEDIES)
def continue_run(
    run: str | Path,
    train: Images,
    test: Images,
    *,
    out: str | Path,
    tasks: int = 1,
    order: int | Sequence[str] = 0,
    model: str | Path | Clip | None = None,
    device: str | torch.device = "cpu",
    method: str | Method | None = None,
    settings: Settings | None = None,
    overwrite: bool = False,
    **more: Any,
) -> Results:
    """Teach the model of a finished run more classes, or more images of classes that it knows.

    Args:
        run: The folder of the finished run. It is not changed, and `out` does not need it later.
        train: The new images to learn from.
        test: The new images to evaluate on.
        out: The folder of the new run, which begins with the tasks of the earlier one. If
            interrupted, the same call resumes it.
        tasks: How many tasks the new classes are split into, as in `Stream.split`.
        order: The order of the new classes, as in `Stream.split`.
        model: The model that the earlier run began with, if it has moved since; or that model
            itself, as it was before the first task, which is then changed in place.
        device: Where to load the model.
        method: Default: that of the earlier run, with its parts and settings. Give it if a part of
            that is a class of your own that was renamed or moved since.
        settings: Default: those of the earlier run.
        overwrite: Replace another run in `out`, as in `teach`.
        more: Anything else that `teach` takes, such as `control`, `reference`, `callback` or
            `store_images`.
    """
    earlier_folder, folder = Path(run), Path(out)
    if earlier_folder.resolve() == folder.resolve():
        raise UserError(f"{out} is the run to continue; give the new run a folder of its own")
    opened = open_run(run_or_copy(earlier_folder, folder, overwrite), model=model, device=device)
    new = Stream.split(train, test, tasks=tasks, order=order)
    stream, earlier = extend_stream(opened, stored_images(opened.folder), new)
    for note in dict.fromkeys([*stream.train.notes, *stream.test.notes]):
        log.warning("%s", note)
    return teach(
        opened.clip,
        stream,
        method_of(opened.config, opened.folder) if method is None else method,
        settings=settings or Settings(**opened.config["settings"]),
        out=out,
        earlier=earlier,
        overwrite=overwrite,
        **more,
    )
