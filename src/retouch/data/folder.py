"""Class folders: `photos/golden retriever/1.jpg`, with or without a `train` and a `test` above."""

from pathlib import Path

import numpy as np
from PIL import Image

from retouch.clip.pixels import Pixels, Uint8
from retouch.data.images import Images, Indices
from retouch.errors import UserError

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"}


class FolderImages(Images):
    """Files on disk, one folder a class, decoded when they are needed."""

    def __init__(self, name: str, classes: list[str], labels: list[int], files: list[Path]) -> None:
        super().__init__(name, classes, labels)
        self.files = files

    def read(self, indices: Indices, pixels: Pixels) -> Uint8:
        return np.stack([self._decode(self.files[i], pixels) for i in indices])

    @staticmethod
    def _decode(file: Path, pixels: Pixels) -> Uint8:
        try:
            with Image.open(file) as picture:
                return pixels.prepare(picture)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as why:
            raise UserError(
                f"{file} cannot be read as an image ({why}); repair or remove it"
            ) from None


def read_folder(folder: str | Path, holdout: float = 0.2, seed: int = 0) -> tuple[Images, Images]:
    """Images to learn from and images to judge by.

    With folders `train` and `test` inside, those are taken; otherwise the share `holdout` of every
    class is kept aside for judging. A folder's name is its class, `_` read as a space.
    """
    folder = Path(folder)
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        train, test = read_classes(folder / "train"), read_classes(folder / "test")
        if train.classes != test.classes:
            odd = sorted(set(train.classes) ^ set(test.classes))[0]
            raise UserError(
                f"{folder}: the class {odd!r} is missing in train or in test; add it there"
            )
        return train, test
    return _hold_out(read_classes(folder), holdout, seed)


def read_classes(folder: str | Path) -> FolderImages:
    """All images of a folder of class folders."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one that holds a folder of images per class")
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if not inside:
        raise UserError(
            f"{folder} holds no folders; put the images of each class into one of its own"
        )
    groups = [sorted(p for p in c.rglob("*") if p.suffix.lower() in ENDINGS) for c in inside]
    labels = [label for label, group in enumerate(groups) for _ in group]
    classes = [path.name.replace("_", " ") for path in inside]
    return FolderImages(str(folder), classes, labels, [file for group in groups for file in group])


def _hold_out(images: FolderImages, share: float, seed: int) -> tuple[Images, Images]:
    if not 0 < share < 1:
        raise UserError(f"holdout={share} is not a share between 0 and 1, such as 0.2")
    kept: list[int] = []
    for label, name in enumerate(images.classes):
        own = images.of_classes([label])
        if len(own) < 2:
            raise UserError(
                f"{images.name}: the class {name!r} has a single image; it takes two, one to learn "
                "from and one to judge by"
            )
        count = min(max(1, round(share * len(own))), len(own) - 1)
        kept += np.random.default_rng([seed, label]).permutation(own)[:count].tolist()
    test = set(kept)
    parts = [i for i in range(len(images)) if i not in test], sorted(test)
    train, judged = (
        FolderImages(
            images.name,
            images.classes,
            images.labels[part].tolist(),
            [images.files[i] for i in part],
        )
        for part in parts
    )
    return train, judged
