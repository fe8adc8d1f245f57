"""gScoreCAM on a real pre-trained tower: does it point at the object, and what does it look like?

    python benchmarks/cam.py --coco 12 --cub 6 --out runs/cam

The model and the images are those of `../shared` (see its README). In COCO images, the text names
the class with the largest boxes, if these fill between a twentieth and three tenths of the image;
how often the maximum of the heat map lies in one of them is compared with chance and with random
neurons (the pointing game). There are no boxes for CUB-200; its maps are only drawn. A map takes
307 masked images at a share of 0.1.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from real_tower import NAME, load

from retouch.analysis.annotations import Box, read_annotations
from retouch.analysis.cam.figure import ImageCams
from retouch.analysis.cam.gscorecam import DEFAULT_SHARE, Cam, gscorecam
from retouch.analysis.cam.neurons import NeuronChoice
from retouch.analysis.cam.pointing_game import pointing_game
from retouch.analysis.cam.text import write_cam
from retouch.analysis.token_regions import box_in_input
from retouch.clip import Clip
from retouch.clip.preprocess import Uint8
from retouch.data import read_data
from retouch.torchvision_compat import patch_torchvision

AREA = (0.05, 0.3)
"""The share of an image that its boxes may fill: larger ones are hit by chance."""


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shared", type=Path, default=Path("../shared"))
    options.add_argument("--coco", type=int, default=12, help="number of COCO images")
    options.add_argument("--cub", type=int, default=6, help="number of CUB-200 images")
    options.add_argument("--random", action="store_true", help="also use random neurons")
    options.add_argument("--layer", type=int)
    options.add_argument("--share", type=float, default=DEFAULT_SHARE)
    options.add_argument("--bf16", action="store_true")
    options.add_argument("--device", default="cpu")
    options.add_argument("--out", type=Path, default=Path("runs/cam"))
    args = options.parse_args()
    patch_torchvision()
    clip = load(args.shared / "models" / NAME).to(args.device)
    clip.bf16 = args.bf16
    objects = coco(clip, args.shared / "data" / "coco-val-200", args.coco)
    map_options = (args.layer, args.share)
    scores: dict[str, Any] = {}
    shown: list[ImageCams] = []
    for neurons in ("gradient", "random") if args.random else ("gradient",):
        cams = [
            timed_cam(clip, image, text, neurons, *map_options) for _, image, text, _ in objects
        ]
        if cams:
            scores[neurons] = pointing_game(cams, [boxes for *_, boxes in objects])._asdict()
            print_line(f"{neurons}: {scores[neurons]}")
        if neurons == "gradient":
            shown = [
                ImageCams(name, image, {"where they look": heat_map})
                for (name, image, _, _), heat_map in zip(objects, cams, strict=True)
            ]
    for name, image, text in birds(clip, args.shared / "data" / "cub200", args.cub):
        heat_map = timed_cam(clip, image, text, "gradient", *map_options)
        shown.append(ImageCams(name, image, {"where they look": heat_map}))
    blocks = len(clip.blocks["image"])
    write_cam(args.out, shown, {"model": NAME, "blocks": blocks, "neurons": "gradient"})
    (args.out / "pointing.json").write_text(json.dumps(scores, indent=1) + "\n")


def timed_cam(
    clip: Clip, image: Uint8, text: str, neurons: NeuronChoice, layer: int | None, share: float
) -> Cam:
    start = time.perf_counter()
    heat_map = gscorecam(clip, torch.tensor(image), text, block=layer, neurons=neurons, share=share)
    print_line(f"{text}: {time.perf_counter() - start:.1f} s, {neurons}")
    return heat_map


def coco(clip: Clip, folder: Path, count: int) -> list[tuple[str, Uint8, str, Sequence[Box]]]:
    """Images with a prompt for their largest class, and its boxes in the model's input."""
    objects = read_annotations(folder)
    selected: list[tuple[str, Uint8, str, Sequence[Box]]] = []
    area = clip.preprocess.size[0] * clip.preprocess.size[1]
    for index in np.random.default_rng(0).permutation(len(objects)).tolist():
        scene = objects.scenes[index]
        boxes_by_class = {
            name: [box_in_input(box, scene.size, clip.preprocess) for box in boxes]
            for name, boxes in scene.boxes.items()
        }
        sizes = {
            name: sum(box[2] * box[3] for box in boxes) / area
            for name, boxes in boxes_by_class.items()
        }
        name = max(sizes, key=lambda name: sizes[name], default="")
        if len(selected) < count and name and AREA[0] < sizes[name] <= AREA[1]:
            image = clip.preprocess.prepare(objects.pictures.image(index))
            selected.append((scene.key, image, f"a photo of a {name}", boxes_by_class[name]))
    return selected


def birds(clip: Clip, folder: Path, count: int) -> list[tuple[str, Uint8, str]]:
    """One image of each of `count` classes, evenly spread."""
    images = read_data(str(folder)).evaluation_images()
    classes = [int((i + 0.5) * len(images.classes) / count) for i in range(count)]
    firsts = [int(np.flatnonzero(images.labels == label)[0]) for label in classes]
    return [
        (
            images.store.location(index),
            images.store.preprocessed(index, clip.preprocess),
            f"a photo of a {images.classes[images.labels[index]]}, a type of bird",
        )
        for index in firsts
    ]


if __name__ == "__main__":
    main()
