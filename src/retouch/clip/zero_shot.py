"""From class names to text features: prompts, and ensembles of them."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from retouch.clip.fast.compile import MANY
from retouch.clip.model import Clip, Tokens, num_prompts
from retouch.distributed import collectives
from retouch.errors import UserError


def fill_template(template: str, names: Sequence[str]) -> list[str]:
    """A prompt for each name; `{}` in the template is where the name goes."""
    if template.count("{}") != 1:
        raise UserError(f"the template {template!r} must hold {{}} once, where the class name goes")
    return [template.replace("{}", name) for name in names]


class PromptEnsemble:
    """The prompts of some classes, cut into tokens once and encoded whenever the model changes."""

    def __init__(
        self,
        clip: Clip,
        names: Sequence[str],
        templates: Sequence[str],
        at_once: int | None = None,
    ) -> None:
        self._shape = len(templates), len(names)
        prompts = [prompt for template in templates for prompt in fill_template(template, names)]
        # Several processes take turns, so that each has prompts of all templates.
        every, count = collectives.world_size(), len(prompts)
        turns = [i for first in range(every) for i in range(first, count, every)]
        self._order = torch.tensor(turns).argsort().to(clip.device)
        own = turns[collectives.rank_slice(count)]
        self._own = len(own)
        # All processes encode as many, see `encode`; what is too much is thrown away.
        more = max(1, collectives.largest_rank_slice(count)) - len(own)
        self._prompts = [prompts[i] for i in own + turns[:1] * more]
        self._parts: list[Tokens] = []
        self._where = torch.empty(0, dtype=torch.int64)
        self._at_once = at_once or (512 if clip.device.type == "cpu" else MANY)

    @torch.no_grad()
    def features(self, clip: Clip) -> Tensor:
        """One feature a class [C, D]: the mean over the templates, as CLIP's authors do it."""
        found = [clip.text_features(tokens) for tokens in self._cut(clip)]
        own = torch.cat(found)[self._where[: self._own]]
        features = collectives.gather(own, len(self._order), "evaluation")[self._order]
        return normalize(features.view(*self._shape, -1).mean(dim=0), dim=-1)

    def _cut(self, clip: Clip) -> Iterator[Tokens]:
        """The prompts as tokens, some at once, not in order; on the device from then on."""
        if self._parts:
            yield from self._parts
            return
        parts, order = [], []
        for first in range(0, len(self._prompts), _SORTED_AT_ONCE):
            tokens = clip.tokenize(self._prompts[first : first + _SORTED_AT_ONCE])
            for places, part in _by_length(tokens, clip.lengths(tokens), self._at_once):
                parts.append({key: each.to(clip.device) for key, each in part.items()})
                order.append(first + places)
                yield parts[-1]
        self._parts, self._where = parts, torch.cat(order).argsort().to(clip.device)


_SORTED_AT_ONCE = 2**17


def _by_length(
    tokens: Tokens, lengths: Tensor | None, at_once: int
) -> Iterator[tuple[Tensor, Tokens]]:
    """Some prompts at once with their places, short ones first, each part cut at its longest.

    So few are padded. How many tokens a prompt has cannot be seen from its letters.
    """
    if lengths is None:
        for places in torch.arange(num_prompts(tokens)).split(at_once):
            yield places, {key: each[places] for key, each in tokens.items()}
        return
    for places in lengths.argsort(stable=True).split(at_once):
        longest = int(lengths[places].max())
        yield places, {key: each[places, :longest] for key, each in tokens.items()}


def classifier(clip: Clip, names: Sequence[str], templates: Sequence[str]) -> Tensor:
    """One feature a class [C, D], for once; who asks again keeps an `Ensemble`."""
    return PromptEnsemble(clip, names, templates).features(clip)
