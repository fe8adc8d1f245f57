"""The demo: a small CLIP learns 25 traffic signs in five tasks, by several methods."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from retouch.builtin.images import control_images, sign_images
from retouch.clip import load
from retouch.data import Stream
from retouch.evaluate import Results
from retouch.methods import Method, Settings, recipe
from retouch.train import teach
from retouch.train.progress import progress_callback

QUICK = {"pictures": {"train": 4, "test": 2, "control": 1}, "epochs": 1, "replay": 10}


def run_demo(
    folder: Path, methods: Sequence[str], *, quick: bool = False, seed: int = 0, quiet: bool = False
) -> list[Results]:
    """Run each method in its own subfolder; runs that are finished are not repeated."""
    options = yaml.safe_load((files("retouch.builtin") / "demo.yaml").read_text())
    options |= QUICK if quick else {}
    recipes = [_method(name, options) for name in methods]
    per_class = options["pictures"]
    signs = sign_images("train", per_class["train"]), sign_images("test", per_class["test"])
    stream = Stream.split(*signs, tasks=options["tasks"], order=seed)
    control = control_images(per_class["control"])
    runs = []
    for method in recipes:
        settings = Settings(
            epochs=options["epochs"],
            batch=options["batch"],
            lr=options["lr"].get(method.name, 1e-4),
            weight_decay=options["weight_decay"],
            seed=seed,
        )
        runs.append(
            teach(
                load("builtin"),
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


def _method(name: str, options: dict[str, Any]) -> Method:
    method = recipe(name)
    has_buffer = "size" in type(method.replay).model_fields
    return method.with_change({"replay.size": options["replay"]}) if has_buffer else method
