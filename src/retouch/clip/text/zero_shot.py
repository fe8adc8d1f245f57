"""From class names to text features: prompts, and ensembles of prompts."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from retouch.clip.fast.padding import EVAL_TEXT_BATCH
from retouch.clip.model import Clip
from retouch.clip.text.tokens import Tokens, num_prompts
from retouch.distributed import collectives
from retouch.errors import UserError

CPU_TEXT_BATCH = 512
SORT_WINDOW = 2**17
"""Prompts that are tokenized at a time and sorted by length."""


def fill_template(template: str, names: Sequence[str]) -> list[str]:
    """One prompt per name; `{}` in the template is where the name goes."""
    if template.count("{}") != 1:
        raise UserError(f"the template {template!r} must hold {{}} once, where the class name goes")
    return [template.replace("{}", name) for name in names]


def classifier(clip: Clip, names: Sequence[str], templates: Sequence[str]) -> Tensor:
    """The zero-shot classifier [C, D]; keep a `PromptEnsemble` if it is needed again."""
    return PromptEnsemble(clip, [(names, templates)]).features(clip)


def probabilities(clip: Clip, similarity: Tensor) -> Tensor:
    """The probability of each class for each image, from their similarities [B, C].

    CLIP's is a softmax over the classes given. SigLIP judges each class by itself: all may be
    improbable.
    """
    scores = clip.logit_scale * similarity
    return (
        scores.softmax(dim=1) if clip.logit_bias is None else (scores + clip.logit_bias).sigmoid()
    )


class PromptEnsemble:
    """The prompts of a set of classes, tokenized once and encoded whenever the model changes.

    Classes come in groups, each with templates of its own. With several ranks, each encodes its
    share of the prompts.
    """

    def __init__(
        self,
        clip: Clip,
        groups: Sequence[tuple[Sequence[str], Sequence[str]]],
        batch_size: int | None = None,
    ) -> None:
        self._shapes = [(len(templates), len(names)) for names, templates in groups]
        prompts = [
            prompt
            for names, templates in groups
            for template in templates
            for prompt in fill_template(template, names)
        ]
        # Prompts are dealt to the ranks in turn, so that each rank has prompts of all templates.
        world_size, count = collectives.world_size(), len(prompts)
        dealt = [i for rank in range(world_size) for i in range(rank, count, world_size)]
        self._order = torch.tensor(dealt).argsort().to(clip.device)
        local = dealt[collectives.rank_slice(count)]
        self._num_local = len(local)
        # Every rank encodes equally many (see `clip.encode`); the padding is dropped.
        padding = max(1, collectives.largest_rank_slice(count)) - len(local)
        self._prompts = [prompts[i] for i in local + dealt[:1] * padding]
        self._batches: list[Tokens] = []
        self._unsort = torch.empty(0, dtype=torch.int64)
        default = CPU_TEXT_BATCH if clip.device.type == "cpu" else EVAL_TEXT_BATCH
        self._batch_size = batch_size or default

    def __len__(self) -> int:
        """How many prompts this rank encodes."""
        return len(self._prompts)

    @torch.no_grad()
    def features(
        self, clip: Clip, progress: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter
    ) -> Tensor:
        """One feature per class [C, D]: the mean over the templates, as CLIP's authors do it.

        `progress` passes on the features of each batch of prompts.
        """
        batches = enumerate(self._tokenized(clip))
        encoded = list(progress(clip.text_features(tokens, (self, i)) for i, tokens in batches))
        local = torch.cat(encoded)[self._unsort[: self._num_local]]
        features = collectives.gather(local, len(self._order), "evaluation")[self._order]
        parts = features.split([templates * names for templates, names in self._shapes])
        means = [
            part.view(*shape, -1).mean(dim=0)
            for part, shape in zip(parts, self._shapes, strict=True)
        ]
        return normalize(torch.cat(means), dim=-1)

    def _tokenized(self, clip: Clip) -> Iterator[Tokens]:
        """Batches of tokens, sorted by length; they stay on the device after the first call."""
        if self._batches:
            yield from self._batches
            return
        batches, order = [], []
        for start in range(0, len(self._prompts), SORT_WINDOW):
            tokens = clip.tokenize(self._prompts[start : start + SORT_WINDOW])
            for index, batch in by_length(tokens, clip.lengths(tokens), self._batch_size):
                batches.append({key: ids.to(clip.device) for key, ids in batch.items()})
                order.append(start + index)
                yield batches[-1]
        self._batches, self._unsort = batches, torch.cat(order).argsort().to(clip.device)


def by_length(
    tokens: Tokens, lengths: Tensor | None, batch_size: int
) -> Iterator[tuple[Tensor, Tokens]]:
    """Batches of prompts with their indices, shortest first, each cut to its longest prompt.

    This keeps padding low. A prompt's number of tokens cannot be told from its characters.
    """
    if lengths is None:
        for index in torch.arange(num_prompts(tokens)).split(batch_size):
            yield index, {key: ids[index] for key, ids in tokens.items()}
        return
    for index in lengths.argsort(stable=True).split(batch_size):
        longest = int(lengths[index].max())
        yield index, {key: ids[index, :longest] for key, ids in tokens.items()}
