"""Each image is encoded once for all cells, where the visual tower never changes (`--features`).

From then on an image is a number, which the visual tower looks up, and a cell takes seconds on a
CPU. Prompts are encoded once, too, as long as the model stays as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from retouch.bench.datasets import BenchData
from retouch.clip import Clip
from retouch.clip.preprocess import Preprocess
from retouch.data import Images, in_memory
from retouch.evaluate.image_features import image_features


@dataclass
class NumberedData(BenchData):
    """Benchmark data whose images are numbers: rows of a table of features.

    The features of a data set's split are a file of `features`; it is written if it is missing.
    """

    features: Path = Path("features")
    table: list[Tensor] = field(default_factory=list)

    def _prepared(self, images: Images) -> Images:
        name = "-".join(Path(images.name).parts[-2:])
        file = self.features / f"{name}.pt"
        if not file.is_file():
            self.features.mkdir(parents=True, exist_ok=True)
            every = np.arange(len(images))
            features = image_features(self.make_model(), super()._prepared(images), every)
            torch.save(features.half().cpu(), file)
        features = torch.load(file, weights_only=True).float()
        if len(features) != len(images):
            raise SystemExit(f"{file} has {len(features)} features, not {len(images)}; delete it")
        numbers = np.arange(len(features), dtype="<u4") + sum(map(len, self.table))
        self.table.append(features)
        pixels = numbers.view(np.uint8).reshape(-1, 1, 1, 4)[..., :3]
        numbered = in_memory(
            images.name, images.classes, images.labels, np.ascontiguousarray(pixels)
        )
        return replace(images, store=numbered.store)


@contextmanager
def looking_up(clip: Clip, table: list[Tensor]) -> Iterator[None]:
    """Inside this context, an image is the number of its features, and prompts are encoded once."""
    features = torch.cat(table).to(clip.device)
    digits = torch.tensor([1, 2**8, 2**16], device=clip.device)
    known: dict[bytes, Tensor] = {}
    versions: list[int] = []
    encode_texts, plain = clip.encode_texts, clip.preprocess

    def numbered(pixels: Tensor) -> Tensor:
        numbers = (pixels.flatten(1).double() * 255).round().long()
        return features[(numbers * digits).sum(dim=1)]

    def memoized(tokens: dict[str, Tensor]) -> Tensor:
        if torch.is_grad_enabled():
            return encode_texts(tokens)
        now = [parameter._version for parameter in clip.model.parameters()]
        if now != versions:  # each change of a parameter counts up its version
            known.clear()
            versions[:] = now
        key = b"".join(ids.cpu().numpy().tobytes() for ids in tokens.values())
        if key not in known:
            known[key] = encode_texts(tokens)
        return known[key]

    clip.preprocess = Preprocess(size=(1, 1), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    clip.encode_images, clip.encode_texts = numbered, memoized
    try:
        yield
    finally:
        clip.preprocess = plain
        del clip.encode_images, clip.encode_texts
