"""Class vectors: a linear classifier of visual features that is kept beside an unchanged CLIP.

A class that has a vector is recognized by it, and any other class by its prompts. Both kinds of
score are on one scale, that of the cosine between an image and a prompt.

N: images, C: classes, D: dimensions of a feature, F: what a vector is multiplied with. F is D, or
the number of random features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import relu

from retouch.files.write import write_atomically
from retouch.sparse.fingerprints import digest
from retouch.sparse.sealed_tensors import SealedHeader, open_sealed, sealed_bytes

CLASS_VECTORS_FILE = "class_vectors.safetensors"
"""The name of such a file in an exported model's folder."""


@dataclass(frozen=True)
class ClassVectors:
    """One vector and one number for each class that was learned this way.

    The score of a class for an image is `hidden @ vector + bias`, where `hidden` is the image's
    normalized feature or, with a projection, `relu(feature @ projection)`.
    """

    names: tuple[str, ...]
    """The names of the classes [C]."""
    vectors: Tensor
    """[C, F]"""
    bias: Tensor
    """[C]"""
    projection: Tensor | None = None
    """[D, F]: makes random features of an image's feature."""

    def __len__(self) -> int:
        """How many classes have a vector."""
        return len(self.names)

    def scores(self, features: Tensor) -> Tensor:
        """The score of every class for every image [N, C], comparable with a prompt's cosine.

        Args:
            features: Normalized visual features [N, D].
        """
        hidden = features.to(self.vectors.device, self.vectors.dtype)
        if self.projection is not None:
            hidden = relu(hidden @ self.projection)
        return (hidden @ self.vectors.T + self.bias).to(features.device)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, as a file holds them."""
        projection = {} if self.projection is None else {"projection": self.projection}
        return {"vectors": self.vectors, "bias": self.bias, **projection}

    def to(self, device: torch.device | str) -> "ClassVectors":
        """The same on another device.

        Args:
            device: Such as `cpu` or `cuda:1`.
        """
        tensors = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        return ClassVectors(self.names, **tensors)


class ClassVectorsHeader(SealedHeader):
    """The header of a file of class vectors."""

    format: Literal["retouch class vectors 1"] = "retouch class vectors 1"
    classes: list[str]
    """The names of the classes, in the order of the vectors."""


def save_class_vectors(vectors: ClassVectors, file: Path) -> str:
    """Write class vectors as one safetensors file, whole or not at all, and return their digest.

    Args:
        vectors: The class vectors.
        file: The file to write.
    """
    header = ClassVectorsHeader(classes=list(vectors.names))
    tensors = vectors.to("cpu").tensors()
    write_atomically(file, sealed_bytes(header, tensors))
    return digest(tensors)


def load_class_vectors(file: Path, expected: str, remedy: str) -> ClassVectors:
    """Read what `save_class_vectors` wrote. A damaged file, or another one, is refused.

    Args:
        file: The file to read.
        expected: The digest that `save_class_vectors` returned.
        remedy: Tells the user what to do if the file is refused.
    """
    with open_sealed(file, ClassVectorsHeader, "a file of class vectors", remedy) as opened:
        names, tensors = opened.header.classes, opened.tensors()
        if opened.header.content != expected:
            raise ValueError("it is of another run, or of another task")
        _check_shapes(names, tensors)
    return ClassVectors(tuple(names), **tensors)


def _check_shapes(names: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that do not fit each other or the classes of the header."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    columns = shapes.get("vectors", ())[-1:]
    expected = {"vectors": (len(names), *columns), "bias": (len(names),)}
    if "projection" in shapes:
        expected["projection"] = (*shapes["projection"][:1], *columns)
    if shapes != expected or len(set(names)) < len(names):
        raise ValueError("its tensors have other shapes than its header says")
