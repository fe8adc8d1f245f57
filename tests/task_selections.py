"""Selections and runs whose tasks can be compared."""

from pathlib import Path

import torch
from tiny import images, tiny_clip

from retouch.analysis.overlap.compute import Overlap, compute_overlap
from retouch.clip import Clip
from retouch.data import Stream
from retouch.methods import Settings, recipe
from retouch.sparse import Selection, SparseIndex, select
from retouch.train import teach


def entries(shape: tuple[int, ...], positions: list[int]) -> SparseIndex:
    return SparseIndex(shape, torch.tensor(sorted(positions)))


def random_selection(seed: int, shapes: dict[str, tuple[int, ...]], rate: float = 0.1) -> Selection:
    rng = torch.Generator().manual_seed(seed)
    return select({name: torch.rand(shape, generator=rng) for name, shape in shapes.items()}, rate)


def learned_run(
    folder: Path, name: str = "spu", tasks: int = 3, rate: float = 0.1, clip: Clip | None = None
) -> Path:
    """A run of one epoch; with a model that was loaded from disk it can be opened again."""
    stream = Stream.split(images("train", 6, 12), images("test", 6, 2), tasks=tasks)
    method = recipe(name, {"update.rate": rate} if name == "spu" else {})
    settings = Settings(epochs=1, batch=6, lr=1e-3)
    teach(clip or tiny_clip(), stream, method, settings=settings, out=folder)
    return folder


def overlap_of_layers(image: int, text: int, tasks: int = 2, rate: float = 0.1) -> Overlap:
    shapes = {f"vision_model.layers.{i}.mlp.fc1.weight": (30, 10) for i in range(image)}
    shapes |= {f"text_model.layers.{i}.mlp.fc1.weight": (20, 10) for i in range(text)}
    return compute_overlap(random_selection(seed, shapes, rate) for seed in range(tasks))
