"""Text features of the classes of some images, each with the prompts of its own data set."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.text.zero_shot import PromptEnsemble
from retouch.data.domain import Domain
from retouch.data.images import Images


class ClassFeatures:
    """The prompts of all classes, tokenized once and encoded whenever the model changes.

    Args:
        clip: The model, for its tokenizer.
        classes: The names of the classes.
        groups: Data sets with their own templates, which together have all of these classes.
    """

    def __init__(self, clip: Clip, classes: Sequence[str], groups: Sequence[Domain]) -> None:
        named = [(list(group.classes.values()), group.templates) for group in groups]
        self._ensemble = PromptEnsemble(clip, named)
        position = {name: i for i, name in enumerate(name for g in groups for name in g.classes)}
        self._order = torch.tensor([position[name] for name in classes]).to(clip.device)

    def __len__(self) -> int:
        """How many prompts this rank encodes."""
        return len(self._ensemble)

    @torch.no_grad()
    def __call__(
        self, clip: Clip, progress: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter
    ) -> Tensor:
        """One feature per class [C, D], in the order of `classes`.

        `progress` passes on the features of each batch of prompts.
        """
        return self._ensemble.features(clip, progress)[self._order]


def prompt_names(images: Images) -> list[str]:
    """The names of the classes as they appear in prompts; two data sets may share one."""
    names = {key: name for group in images.prompt_groups for key, name in group.classes.items()}
    return [names[name] for name in images.classes]
