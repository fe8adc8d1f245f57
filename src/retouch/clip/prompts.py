"""From class names to text features: prompts, and ensembles of them."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from retouch.clip.compiled import MANY
from retouch.clip.model import Clip, Tokens
from retouch.devices import ranks
from retouch.errors import UserError


def fill(template: str, names: Sequence[str]) -> list[str]:
    """A prompt for each name; `{}` in the template is where the name goes."""
    if template.count("{}") != 1:
        raise UserError(f"the template {template!r} must hold {{}} once, where the class name goes")
    return [template.replace("{}", name) for name in names]


class Ensemble:
    """The prompts of some classes, cut into tokens once and encoded whenever the model changes."""

    def __init__(
        self,
        clip: Clip,
        names: Sequence[str],
        templates: Sequence[str],
        at_once: int | None = None,
    ) -> None:
        self._shape = len(templates), len(names)
        prompts = [prompt for template in templates for prompt in fill(template, names)]
        # Prompts of like length together, so that few are padded; the order is restored below.
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        # Several processes take turns, so that each has short ones and long ones.
        every = ranks.world()
        turns = [i for first in range(every) for i in order[first::every]]
        self._order = torch.tensor(turns)
        own = turns[ranks.own(len(order))]
        self._own = len(own)
        self._prompts = [prompts[i] for i in own or order[:1]]  # see `encode` for an empty part
        self._tokens: list[Tokens] = []
        self._at_once = at_once or (512 if clip.device.type == "cpu" else MANY)

    @torch.no_grad()
    def features(self, clip: Clip) -> Tensor:
        """One feature a class [C, D]: the mean over the templates, as CLIP's authors do it."""
        own = torch.cat([clip.text_features(tokens) for tokens in self._cut(clip)])
        found = ranks.gather(own[: self._own], len(self._order), "judging")
        features = torch.empty_like(found)
        features[self._order.to(found.device)] = found
        return normalize(features.view(*self._shape, -1).mean(dim=0), dim=-1)

    def _cut(self, clip: Clip) -> Iterator[Tokens]:
        """While one part is encoded, the next is cut."""
        for number, start in enumerate(range(0, len(self._prompts), self._at_once)):
            if number == len(self._tokens):
                part = self._prompts[start : start + self._at_once]
                tokens = clip.tokenise(part)  # sent once: a GPU would wait for them every time
                self._tokens.append({key: each.to(clip.device) for key, each in tokens.items()})
            yield self._tokens[number]


def classifier(clip: Clip, names: Sequence[str], templates: Sequence[str]) -> Tensor:
    """One feature a class [C, D], for once; who asks again keeps an `Ensemble`."""
    return Ensemble(clip, names, templates).features(clip)
