"""From class names to text features: prompts, and ensembles of them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from retouch.clip.model import Clip
from retouch.errors import UserError


def fill(template: str, names: Sequence[str]) -> list[str]:
    """A prompt for each name; `{}` in the template is where the name goes."""
    if template.count("{}") != 1:
        raise UserError(f"the template {template!r} must hold {{}} once, where the class name goes")
    return [template.replace("{}", name) for name in names]


@torch.no_grad()
def classifier(
    clip: Clip, names: Sequence[str], templates: Sequence[str], batch: int = 512
) -> Tensor:
    """One feature a class [C, D]: the mean over the templates, as CLIP's authors do it."""
    prompts = [prompt for template in templates for prompt in fill(template, names)]
    # Prompts of like length together, so that few are padded; the order is restored below.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    parts = [order[i : i + batch] for i in range(0, len(order), batch)]
    found = torch.cat([clip.text_features(clip.tokenise([prompts[i] for i in p])) for p in parts])
    features = torch.empty_like(found)
    features[torch.tensor(order, device=found.device)] = found
    return normalize(features.view(len(templates), len(names), -1).mean(dim=0), dim=-1)
