"""gScoreCAM on a real pre-trained tower: does it point at the object, and what does it look like?

    python benchmarks/cam.py --coco 12 --cub 6 --out runs/cam

The model and the images are those of `../shared` (see its README). Of COCO, the class that fills
most of an image is looked for, where its boxes fill between a twentieth and three tenths of it; how
often the heat map's maximum lies in one of them is compared with chance and with random neurons
(the pointing game). Of CUB-200 there are no boxes here; those are only drawn. One map is 307 masked
images at a share of 0.1.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from real_tower import NAME, load, say

from retouch.analysis.cam import SHARE, Cam, cam
from retouch.analysis.neurons import Neurons
from retouch.analysis.objects import Box, read_annotations
from retouch.analysis.pointing import pointing_game
from retouch.analysis.token_regions import seen
from retouch.clip import Clip
from retouch.clip.preprocess import Uint8
from retouch.clip.torchvision_compat import patch_torchvision
from retouch.data import read_data
from retouch.report.cam import Shown, write_cam

FILLS = (0.05, 0.3)
"""Of an image: what fills more is hit by chance."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shared", type=Path, default=Path("../shared"))
    options.add_argument("--coco", type=int, default=12, help="images of COCO")
    options.add_argument("--cub", type=int, default=6, help="images of CUB-200")
    options.add_argument("--random", action="store_true", help="random neurons as well")
    options.add_argument("--layer", type=int)
    options.add_argument("--share", type=float, default=SHARE)
    options.add_argument("--bf16", action="store_true")
    options.add_argument("--device", default="cpu")
    options.add_argument("--out", type=Path, default=Path("runs/cam"))
    asked = options.parse_args()
    patch_torchvision()
    clip = load(asked.shared / "models" / NAME).to(asked.device)
    clip.bf16 = asked.bf16
    objects = coco(clip, asked.shared / "data" / "coco-val-200", asked.coco)
    how = (asked.layer, asked.share)
    found: dict[str, Any] = {}
    shown: list[Shown] = []
    for neurons in ("gradient", "random") if asked.random else ("gradient",):
        cams = [look(clip, image, text, neurons, *how) for _, image, text, _ in objects]
        if cams:
            found[neurons] = pointing_game(cams, [boxes for *_, boxes in objects])._asdict()
            say(f"{neurons}: {found[neurons]}")
        if neurons == "gradient":
            shown = [
                Shown(name, image, {"where they look": one})
                for (name, image, _, _), one in zip(objects, cams, strict=True)
            ]
    for name, image, text in birds(clip, asked.shared / "data" / "cub200", asked.cub):
        one = look(clip, image, text, "gradient", *how)
        shown.append(Shown(name, image, {"where they look": one}))
    blocks = len(clip.blocks["image"])
    write_cam(asked.out, shown, {"model": NAME, "blocks": blocks, "neurons": "gradient"})
    (asked.out / "pointing.json").write_text(json.dumps(found, indent=1) + "\n")


def look(
    clip: Clip, image: Uint8, text: str, neurons: Neurons, layer: int | None, share: float
) -> Cam:
    begun = time.perf_counter()
    found = cam(clip, torch.tensor(image), text, block=layer, neurons=neurons, share=share)
    say(f"{text}: {time.perf_counter() - begun:.1f} s, {neurons}")
    return found


def coco(clip: Clip, folder: Path, count: int) -> list[tuple[str, Uint8, str, Sequence[Box]]]:
    """Images with the class of their largest object, and its boxes in what the model sees."""
    objects = read_annotations(folder)
    found: list[tuple[str, Uint8, str, Sequence[Box]]] = []
    whole = clip.preprocess.size[0] * clip.preprocess.size[1]
    for index in np.random.default_rng(0).permutation(len(objects)).tolist():
        scene = objects.scenes[index]
        here = {
            name: [seen(box, scene.size, clip.preprocess) for box in boxes]
            for name, boxes in scene.boxes.items()
        }
        sizes = {name: sum(box[2] * box[3] for box in its) / whole for name, its in here.items()}
        name = max(sizes, key=lambda each: sizes[each], default="")
        if len(found) < count and name and FILLS[0] < sizes[name] <= FILLS[1]:
            image = clip.preprocess.prepare(objects.pictures.image(index))
            found.append((scene.key, image, f"a photo of a {name}", here[name]))
    return found


def birds(clip: Clip, folder: Path, count: int) -> list[tuple[str, Uint8, str]]:
    """One image of each of so many classes, evenly spread."""
    images = read_data(str(folder)).evaluation_images()
    classes = [int((place + 0.5) * len(images.classes) / count) for place in range(count)]
    firsts = [int(np.flatnonzero(images.labels == label)[0]) for label in classes]
    return [
        (
            images.store.location(index),
            images.store.prepared(index, clip.preprocess),
            f"a photo of a {images.classes[images.labels[index]]}, a type of bird",
        )
        for index in firsts
    ]


if __name__ == "__main__":
    main()
