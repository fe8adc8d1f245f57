"""How good is the scale on which class vectors and prompts are answers to the same image?

    python benchmarks/class_vector_scale.py benchmarks/real_words.yaml --methods ncm,lda,ridge \
        --datasets cub --seeds 1 --features runs/features

takes the arguments of `real_tower.py`, and only methods that give classes vectors. For each cell it
prints how many images are recognized where new and control classes are answers at once, with the
package's scale and with the best scale and shift in hindsight: chosen on the very images that are
judged, so no method can be better than this by its scale alone (one of those that are tried: 15
scales and 31 shifts).
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from frozen_features import looking_up
from real_tower import NumberedControlData, arguments, benches, data_options, open_shared
from rich.console import Console
from torch import Tensor

import retouch
from retouch.bench import load_suite
from retouch.evaluate.joint_accuracy import Encoded, class_ids
from retouch.evaluate.predict import encode

SCALES = np.geomspace(1 / 16, 8, 15)
SHIFTS = np.linspace(-0.2, 0.1, 31)


class Joint(NamedTuple):
    """Percentages of images that are recognized among new and control classes."""

    new: float
    control: float
    together: float

    def __str__(self) -> str:
        return " / ".join(f"{value:.1f}" for value in self)


class Scores(NamedTuple):
    """Of the images of one set."""

    vectors: Tensor
    """By class vectors [N, C]."""
    prompts: Tensor
    """By prompts of the control classes [N, K]."""
    label: Tensor
    """The id of each image's class [N]."""


def main() -> None:
    args, console = arguments(), Console(soft_wrap=True, highlight=False)
    if args.features is None:
        raise SystemExit("--features FOLDER: each image is encoded once, into files of this folder")
    suite = load_suite(args.suite).only([m for m in args.methods.split(",") if m])
    options = {**data_options(args), "features": args.features}
    clip, data = open_shared(args, NumberedControlData, **options)
    cells = [cell for bench in benches(args, suite, data) for cell in bench.cells]
    data.prepare(cells)
    with looking_up(clip, data.table):
        for cell in cells:
            plan = data.plan(cell, data.make_model())
            results = retouch.teach(plan, evaluate_each_task=False)
            new = encode(clip, plan.stream.test)
            control = encode(clip, data.control(cell.control), learned=False)
            sets, ids = list(scores(new, control)), class_id(new, control)
            best = max(hindsight(sets, ids), key=lambda each: each.together)
            console.print(
                f"{cell.row}, {cell.dataset}, seed {cell.seed}: alone "
                f"{results.metrics()['accuracy']:.1f} %, new / control / together "
                f"{joint(sets, ids)}, in hindsight {best}"
            )


def class_id(new: Encoded, control: Encoded) -> Tensor:
    """The ids of all answers [C + K]; classes of one name are one class."""
    names = [*new.names, *control.names]
    ids = class_ids(names)
    return torch.tensor([ids[name] for name in names])


def scores(new: Encoded, control: Encoded) -> Iterator[Scores]:
    """Those of the new images, then those of the control images."""
    ids = class_id(new, control).split([len(new.names), len(control.names)])
    for images, own in zip((new, control), ids, strict=True):
        vectors = new.classifier(images.features)
        yield Scores(vectors, control.classifier(images.features), own[images.labels])


def hindsight(sets: Sequence[Scores], ids: Tensor) -> Iterator[Joint]:
    """With other scales, around the mean of the new images' best scores, and other shifts."""
    center = float(sets[0].vectors.amax(dim=1).mean())
    for scale, shift in product(SCALES, SHIFTS):
        changed = (scale * (each.vectors - center) + center + shift for each in sets)
        yield joint([s._replace(vectors=v) for s, v in zip(sets, changed, strict=True)], ids)


def joint(sets: Sequence[Scores], ids: Tensor) -> Joint:
    """What is recognized where all classes are answers."""
    best = [torch.cat([each.vectors, each.prompts], dim=1).argmax(dim=1) for each in sets]
    hits = [(ids[b] == each.label).double() for b, each in zip(best, sets, strict=True)]
    return Joint(*(100 * float(each.mean()) for each in (*hits, torch.cat(hits))))


if __name__ == "__main__":
    main()
