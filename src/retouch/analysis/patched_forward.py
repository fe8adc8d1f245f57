"""One tower of a CLIP, run clean, corrupted, or from any block on.

No block runs twice on the same tokens. What follows attention inside a block works on each token by
itself, so a block's output with attention (or the MLP) restored at one token differs in that token
alone; a single pass of the block with *all* of its attention restored gives that row for every
token. Hence every restoration, whatever its kind, is one row replaced in the corrupted tokens after
a block, and only the blocks behind it have to run, many rows side by side: of a tower with L blocks
and T tokens, each kind costs T × L (L - 1) / 2 block passes, not T × L × L.

B: runs side by side, T: tokens, W: width of the tower, D: width of the common space.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from retouch.analysis.hooks import (
    Act,
    Kind,
    TowerName,
    entering,
    leaving,
    sites_of,
    with_entering,
    with_hook,
    with_leaving,
)
from retouch.clip import Clip, Tokens
from retouch.errors import UserError

Inputs = Tensor | Tokens
"""One image as 8-bit pixels [1, H, W, 3], or one prompt."""


@dataclass
class _Run:
    """What a tower gives on the way, and at the end."""

    feature: Tensor = field(default_factory=lambda: torch.empty(0))
    """What the tower says [D], of length one."""
    layer: list[Tensor] = field(default_factory=list)
    """After each block [T, W], and likewise below."""
    attention: list[Tensor] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)


@dataclass
class Clean(_Run):
    """A run as the model does it."""

    entered: list[Tensor] = field(default_factory=list)
    """The embeddings: what enters the first block [T, W], once."""


class Corrupted(_Run):
    """A run with other embeddings.

    `attention` and `mlp` are what comes after each block, had that part given what it gave in the
    clean run.
    """


class PatchedTower:
    """A tower that can be run in these ways; the model itself is left as it was."""

    def __init__(self, clip: Clip, name: TowerName) -> None:
        self.clip = clip
        self.name: TowerName = name
        self.sites = sites_of(clip, name)

    def __len__(self) -> int:
        return len(self.sites)

    def features(self, inputs: Inputs, count: int = 1) -> Tensor:
        """What the tower says of the input, so many times over [B, D]."""
        return features(self.clip, inputs, count)

    def embeddings(self, inputs: Inputs) -> Tensor:
        """What enters the first block [T, W]; no block runs."""
        found: list[Tensor] = []

        def keep(forward: Any, args: Any, kwargs: Any) -> Tensor:
            found.append(entering(args, kwargs))
            return found[-1]

        with _all((block, keep) for block in self.sites.blocks):
            self.features(inputs)
        return self._one(found[0])

    def clean(self, inputs: Inputs) -> Clean:
        """A run as the model does it, and all that happens in it."""
        run, sites = Clean(), self.sites

        def first(forward: Any, args: Any, kwargs: Any) -> Any:
            run.entered.append(self._one(entering(args, kwargs)))
            return self._tokens_alone(forward(*args, **kwargs))

        with ExitStack() as stack:
            stack.enter_context(with_hook(sites.blocks[0], first))
            for modules, into in (
                (sites.blocks, run.layer),
                (sites.attention, run.attention),
                (sites.mlp, run.mlp),
            ):
                stack.enter_context(_all((module, self._keep(into)) for module in modules))
            run.feature = self.features(inputs)[0]
        return run

    def corrupted(self, inputs: Inputs, embeddings: Tensor, clean: Clean) -> Corrupted:
        """A run that begins with these embeddings [T, W]."""
        run, sites = Corrupted(), self.sites

        def watched(block: int) -> Act:
            def act(forward: Any, args: Any, kwargs: Any) -> Any:
                if not run.layer:
                    args, kwargs = with_entering(embeddings[None], args, kwargs)
                output = forward(*args, **kwargs)
                run.layer.append(self._one(leaving(output)))
                for kind in ("attention", "mlp"):
                    module, value = getattr(sites, kind)[block], getattr(clean, kind)[block]
                    with with_hook(module, _giving(value)):
                        other = leaving(forward(*args, **kwargs))
                    getattr(run, kind).append(self._one(other))
                return output

            return act

        with _all((block, watched(number)) for number, block in enumerate(sites.blocks)):
            run.feature = self.features(inputs)[0]
        return run

    def resume(self, inputs: Inputs, tokens: Tensor, after: int) -> Tensor:
        """What the tower says [B, D] where these tokens [B, T, W] come out of block `after`.

        The blocks up to that one are passed by. The embeddings are made all the same, and ignored:
        that way the library itself sees to masks and pooling.
        """

        def give(forward: Any, args: Any, kwargs: Any) -> Tensor:
            return tokens

        with _all((block, give) for block in self.sites.blocks[: after + 1]):
            return self.features(inputs, len(tokens))

    def restored(
        self,
        inputs: Inputs,
        tokens: Tensor,
        rows: Tensor,
        places: Sequence[int],
        after: int,
        batch: int,
    ) -> Tensor:
        """What the tower says [N, D] with the tokens [T, W] after a block, one replaced each time.

        The first of the `rows` [N, W] stands in at the first of the `places`, and so on.
        """
        found = []
        where = torch.as_tensor(places, device=rows.device)
        for part, place in zip(rows.split(batch), where.split(batch), strict=True):
            many = tokens.repeat(len(part), 1, 1)
            many[torch.arange(len(part), device=place.device), place] = part.to(many.dtype)
            found.append(self.resume(inputs, many, after))
        return torch.cat(found)

    def _keep(self, into: list[Tensor]) -> Act:
        def act(forward: Any, args: Any, kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            into.append(self._one(leaving(output)))
            return output

        return act

    def _tokens_alone(self, output: Any) -> Tensor:
        if isinstance(output, Tensor):
            return output
        raise UserError(
            f"a block of the {self.name} tower of {self.clip.name} gives a "
            f"{type(output).__name__}, not tokens alone; tracing such blocks is not supported"
        )

    def _one(self, tokens: Tensor) -> Tensor:
        """The tokens of the one input there is."""
        if tokens.ndim != 3 or len(tokens) != 1:
            raise UserError(
                f"a block of the {self.name} tower of {self.clip.name} gives tokens of shape "
                f"{tuple(tokens.shape)} for one input; tracing needs [1, tokens, width]"
            )
        return tokens[0]


@torch.no_grad()
def features(clip: Clip, inputs: Inputs, count: int = 1) -> Tensor:
    """What a CLIP says of an image or a prompt, so many times over [B, D]."""
    if isinstance(inputs, dict):
        return clip.text_features(
            {key: value.expand(count, *value.shape[1:]) for key, value in inputs.items()}
        )
    return clip.image_features(inputs.expand(count, *inputs.shape[1:]))


def _giving(tokens: Tensor) -> Act:
    """Do what the module does, and give these tokens [T, W] instead of the outcome."""

    def act(forward: Any, args: Any, kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        return with_leaving(tokens[None].to(leaving(output).dtype), output)

    return act


def _all(pairs: Any) -> ExitStack:
    """All these modules at once do what is said beside them."""
    stack = ExitStack()
    pair: tuple[nn.Module, Act]
    for pair in pairs:
        stack.enter_context(with_hook(*pair))
    return stack


def rows_of(clean: Clean, corrupted: Corrupted, kind: Kind, block: int) -> Tensor:
    """What each token [T, W] is after a block, with that token restored and no other."""
    rows: Tensor = clean.layer[block] if kind == "layer" else getattr(corrupted, kind)[block]
    return rows
