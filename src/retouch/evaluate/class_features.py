"""What classes are recognized by: prompts, each of its own data set, or learned class vectors."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.class_vectors import ClassVectors
from retouch.clip.text.zero_shot import PromptEnsemble
from retouch.data.domain import Domain
from retouch.data.images import Images, normalized_name
from retouch.errors import UserError


@dataclass(frozen=True)
class Classifier:
    """Scores classes for image features: the cosine with a prompt, or what stands in for it.

    C: classes, D: dimensions.
    """

    texts: Tensor
    """Text features [C, D]."""
    vectors: ClassVectors | None = None
    """The class vectors that some classes have."""
    rows: Tensor | None = None
    """The row of each class among these [C]; -1: it has none."""

    def __len__(self) -> int:
        return len(self.texts)

    def __call__(self, features: Tensor) -> Tensor:
        """The score of every class for every image [N, C].

        Args:
            features: Image features [N, D].
        """
        scores = features @ self.texts.T
        if self.vectors is None or self.rows is None:
            return scores
        learned = self.rows >= 0
        scores = scores.to(self.vectors.vectors.dtype)
        scores[:, learned] = self.vectors.scores(features)[:, self.rows[learned]]
        return scores

    def select(self, classes: Sequence[int]) -> "Classifier":
        """The same for some of the classes.

        Args:
            classes: Their positions.
        """
        rows = None if self.rows is None else self.rows[list(classes)]
        return replace(self, texts=self.texts[list(classes)], rows=rows)

    def as_vectors(self, names: Sequence[str]) -> ClassVectors:
        """The same as class vectors alone: the feature of its prompts is one, without a bias.

        Args:
            names: The names of the classes.
        """
        assert self.vectors is not None
        assert self.rows is not None
        vectors, bias = self.vectors.vectors[self.rows], self.vectors.bias[self.rows]
        if (prompted := self.rows < 0).any():
            if self.vectors.projection is not None:
                raise UserError(
                    "some of these classes answer by prompt and others by vectors of random "
                    "features, and no single file holds both; learn all of them in one run of "
                    "ridge, or with lda"
                )
            vectors[prompted], bias[prompted] = self.texts[prompted], 0.0
        return ClassVectors(tuple(names), vectors, bias, self.vectors.projection)

    @staticmethod
    def concatenate(parts: Sequence["Classifier"]) -> "Classifier":
        """One classifier over the classes of all parts, which are of the same model.

        Args:
            parts: The classifiers.
        """
        texts = torch.cat([part.texts for part in parts])
        vectors = next((part.vectors for part in parts if part.vectors is not None), None)
        if vectors is None:
            return Classifier(texts)
        none = [torch.full((len(part),), -1, device=texts.device) for part in parts]
        rows = [
            without if part.rows is None else part.rows
            for part, without in zip(parts, none, strict=True)
        ]
        return Classifier(texts, vectors, torch.cat(rows))


class ClassFeatures:
    """The prompts of all classes, tokenized once and encoded whenever the model changes.

    Args:
        clip: The model, for its tokenizer.
        classes: The names of the classes.
        groups: Data sets with their own templates, which together have all of these classes.
        learned: Whether a class that the model has a class vector of is recognized by that. Those
            of a control set are not what was learned, even where they have the same name.
    """

    def __init__(
        self, clip: Clip, classes: Sequence[str], groups: Sequence[Domain], *, learned: bool = True
    ) -> None:
        named = [(list(group.classes.values()), group.templates) for group in groups]
        self._ensemble = PromptEnsemble(clip, named)
        position = {name: i for i, name in enumerate(name for g in groups for name in g.classes)}
        self._order = torch.tensor([position[name] for name in classes]).to(clip.device)
        self._names = [normalized_name(name) for name in classes]
        self._learned = learned

    def __len__(self) -> int:
        """How many prompts this rank encodes."""
        return len(self._ensemble)

    @torch.no_grad()
    def __call__(
        self, clip: Clip, progress: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter
    ) -> Classifier:
        """The classifier over these classes, in the order of `classes`.

        `progress` passes on the features of each batch of prompts.
        """
        texts = self._ensemble.features(clip, progress)[self._order]
        if clip.class_vectors is None or not self._learned:
            return Classifier(texts)
        row_of = {normalized_name(name): row for row, name in enumerate(clip.class_vectors.names)}
        rows = torch.tensor([row_of.get(name, -1) for name in self._names], device=texts.device)
        return Classifier(texts, clip.class_vectors, rows)


def prompt_names(images: Images) -> list[str]:
    """The names of the classes as they appear in prompts; two data sets may share one."""
    names = {key: name for group in images.prompt_groups for key, name in group.classes.items()}
    return [names[name] for name in images.classes]
