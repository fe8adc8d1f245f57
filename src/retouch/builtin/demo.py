"""The demo: a small CLIP learns 25 traffic signs in five tasks, with several methods."""

from collections.abc import Sequence
from pathlib import Path

from retouch.builtin.demo_settings import demo_settings
from retouch.builtin.images import control_images, sign_images
from retouch.clip import load
from retouch.data import Stream
from retouch.evaluate import Results
from retouch.train import teach
from retouch.train.callbacks.progress import progress_callback


def run_demo(
    folder: Path, methods: Sequence[str], *, quick: bool = False, seed: int = 0, quiet: bool = False
) -> list[Results]:
    """Run each method in its own subfolder; runs that are finished are not repeated."""
    demo = demo_settings().reduced() if quick else demo_settings()
    recipes = [demo.method(name) for name in methods]
    pictures = demo.pictures
    signs = sign_images("train", pictures.train), sign_images("test", pictures.test)
    stream = Stream.split(*signs, tasks=demo.tasks, order=seed)
    control = control_images(pictures.control)
    runs = []
    for method in recipes:
        settings = demo.settings(method.name, seed)
        runs.append(
            teach(
                load("builtin", light=True),
                stream,
                method,
                settings=settings,
                control=control,
                out=folder / method.name,
                callback=progress_callback(
                    method.name, len(stream.tasks), settings.epochs, quiet=quiet
                ),
                store_images=False,  # the demo compares methods, task by task
                per_class=False,
            )
        )
    return runs
