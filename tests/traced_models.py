"""Models that can be traced, and COCO-like data to trace them on."""

import json
from pathlib import Path

import numpy as np
import torch
from backbones import BACKBONES
from PIL import Image

from retouch.analysis.trace.hooks import output_tokens, replace_output
from retouch.analysis.trace.patched_forward import PatchedTower
from retouch.clip import Clip

TOWERS = ("image", "text")


TRACEABLE = {name: make for name, make in BACKBONES.items() if name != "DualEncoder"}


def inputs_of(clip: Clip, tower_name: str):
    if tower_name == "text":
        return clip.tokenize(["a photo of red"])
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.integers(0, 256, (1, *clip.preprocess.size, 3), np.uint8))


def run_restored_slowly(
    tower: PatchedTower, inputs, embeddings, clean, site: str, block: int, token: int
):
    """One restoration as the definition says: the whole tower runs, with torch's own hooks."""
    modules = tower.modules
    by_site = {"layer": modules.blocks, "attention": modules.attention, "mlp": modules.mlp}

    def enter(_, args, kwargs):
        return (embeddings[None], *args[1:]), kwargs

    def restore(_, args, output):
        tokens = output_tokens(output).clone()
        tokens[0, token] = getattr(clean, site)[block][token]
        return replace_output(tokens, output)

    handles = [
        modules.blocks[0].register_forward_pre_hook(enter, with_kwargs=True),
        by_site[site][block].register_forward_hook(restore),
    ]
    feature = tower.features(inputs)[0]
    for handle in handles:
        handle.remove()
    return feature


def write_coco(folder: Path, official: bool = False, **changes: object) -> Path:
    """Three images, of which one has no objects, in the official layout or flat."""
    content = {
        "images": [
            {"id": 7 + i, "file_name": f"{i}.png", "width": 40, "height": 30} for i in range(3)
        ],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": [5, 5, 20, 20]},
            {"id": 2, "image_id": 7, "category_id": 4, "bbox": [1, 1, 2, 2]},
            {"id": 3, "image_id": 8, "category_id": 4, "bbox": [10, 10, 30.4, 20]},
            {"id": 4, "image_id": 9, "category_id": 4, "bbox": [0, 0, 40, 30], "iscrowd": 1},
        ],
        "categories": [{"id": 3, "name": "red"}, {"id": 4, "name": "dark blue"}],
        **changes,
    }
    images = folder / ("val2017" if official else "images")
    images.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(images / f"{i}.png")
    file = folder / ("annotations/instances_val2017.json" if official else "instances.json")
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))
    return file
