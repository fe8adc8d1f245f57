"""One tower of a CLIP, run clean, corrupted, or from any block on.

No block runs twice on the same tokens. What follows attention inside a block works on each token
separately, so a block's output with attention (or the MLP) restored at one token differs in that
token only; a single pass of the block with *all* of its attention restored gives that row for every
token. Hence every restoration, at any site, is one row replaced in the corrupted tokens after a
block, and only the blocks after it have to run, many rows in a batch: for a tower with L blocks and
T tokens, each site costs T × L (L - 1) / 2 block passes, not T × L × L.

B: batch, T: tokens, W: width of the tower, D: width of the joint embedding space.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from retouch.analysis.layer_names import TowerName
from retouch.analysis.trace.hooks import (
    ForwardHook,
    Site,
    hooked_forward,
    input_tokens,
    output_tokens,
    replace_input,
    replace_output,
    tower_modules,
)
from retouch.clip import Clip, Tokens
from retouch.errors import UserError

Inputs = Tensor | Tokens
"""One image as 8-bit pixels [1, H, W, 3], or one tokenized prompt."""


@dataclass
class _Run:
    """The activations of a forward pass, and its result."""

    feature: Tensor = field(default_factory=lambda: torch.empty(0))
    """The tower's output [D], of unit length."""
    layer: list[Tensor] = field(default_factory=list)
    """After each block [T, W]; likewise for the sites below."""
    attention: list[Tensor] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)


@dataclass
class CleanRun(_Run):
    """An unmodified forward pass."""

    embeddings: Tensor = field(default_factory=lambda: torch.empty(0))
    """The input of the first block [T, W]."""


class CorruptedRun(_Run):
    """A forward pass with other embeddings.

    `attention` and `mlp` hold the output of each block if that part had returned what it returned
    in the clean run.
    """


class PatchedTower:
    """A tower that can be run in these ways; the model itself stays unchanged."""

    def __init__(self, clip: Clip, name: TowerName) -> None:
        self.clip = clip
        self.name: TowerName = name
        self.modules = tower_modules(clip, name)

    def __len__(self) -> int:
        return len(self.modules)

    def features(self, inputs: Inputs, count: int = 1) -> Tensor:
        """The tower's output for `count` copies of the input [B, D]."""
        return features(self.clip, inputs, count)

    def embeddings(self, inputs: Inputs) -> Tensor:
        """The input of the first block [T, W]; no block runs."""
        block_inputs: list[Tensor] = []

        def skip_block(forward: Any, args: Any, kwargs: Any) -> Tensor:
            block_inputs.append(input_tokens(args, kwargs))
            return block_inputs[-1]

        with _hooked_all((block, skip_block) for block in self.modules.blocks):
            self.features(inputs)
        return self._single(block_inputs[0])

    def run_clean(self, inputs: Inputs) -> CleanRun:
        """An unmodified forward pass that records its activations."""
        run, modules = CleanRun(), self.modules

        def first_block(forward: Any, args: Any, kwargs: Any) -> Any:
            run.embeddings = self._single(input_tokens(args, kwargs))
            return self._require_tensor(forward(*args, **kwargs))

        with ExitStack() as stack:
            stack.enter_context(hooked_forward(modules.blocks[0], first_block))
            for site_modules, outputs in (
                (modules.blocks, run.layer),
                (modules.attention, run.attention),
                (modules.mlp, run.mlp),
            ):
                recorder = self._record_into(outputs)
                stack.enter_context(_hooked_all((module, recorder) for module in site_modules))
            run.feature = self.features(inputs)[0]
        return run

    def run_corrupted(self, inputs: Inputs, embeddings: Tensor, clean: CleanRun) -> CorruptedRun:
        """A forward pass that starts with these embeddings [T, W]."""
        run, modules = CorruptedRun(), self.modules

        def corrupted_block(block: int) -> ForwardHook:
            def hook(forward: Any, args: Any, kwargs: Any) -> Any:
                if not run.layer:
                    args, kwargs = replace_input(embeddings[None], args, kwargs)
                output = forward(*args, **kwargs)
                run.layer.append(self._single(output_tokens(output)))
                for site in ("attention", "mlp"):
                    module, value = getattr(modules, site)[block], getattr(clean, site)[block]
                    with hooked_forward(module, _return_tokens(value)):
                        restored = output_tokens(forward(*args, **kwargs))
                    getattr(run, site).append(self._single(restored))
                return output

            return hook

        blocks = enumerate(modules.blocks)
        with _hooked_all((block, corrupted_block(number)) for number, block in blocks):
            run.feature = self.features(inputs)[0]
        return run

    def resume_after(self, inputs: Inputs, tokens: Tensor, block: int) -> Tensor:
        """The tower's output [B, D] if `block` returns these tokens [B, T, W].

        The blocks up to that one are skipped. The embeddings are computed all the same, and
        ignored: that way the model library handles masks and pooling.
        """

        def return_tokens(forward: Any, args: Any, kwargs: Any) -> Tensor:
            return tokens

        skipped = self.modules.blocks[: block + 1]
        with _hooked_all((module, return_tokens) for module in skipped):
            return self.features(inputs, len(tokens))

    def run_restored(
        self,
        inputs: Inputs,
        tokens: Tensor,
        rows: Tensor,
        positions: Sequence[int],
        block: int,
        batch: int,
    ) -> Tensor:
        """The tower's output [N, D] for the tokens [T, W] after a block, each with one replaced.

        The n-th of the `rows` [N, W] replaces the token at the n-th of the `positions`.
        """
        outputs = []
        index = torch.as_tensor(positions, device=rows.device)
        for part, part_index in zip(rows.split(batch), index.split(batch), strict=True):
            patched = tokens.repeat(len(part), 1, 1)
            copies = torch.arange(len(part), device=part_index.device)
            patched[copies, part_index] = part.to(patched.dtype)
            outputs.append(self.resume_after(inputs, patched, block))
        return torch.cat(outputs)

    def _record_into(self, outputs: list[Tensor]) -> ForwardHook:
        def hook(forward: Any, args: Any, kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            outputs.append(self._single(output_tokens(output)))
            return output

        return hook

    def _require_tensor(self, output: Any) -> Tensor:
        if isinstance(output, Tensor):
            return output
        raise UserError(
            f"a block of the {self.name} tower of {self.clip.name} returns a "
            f"{type(output).__name__}, not tokens alone; tracing such blocks is not supported"
        )

    def _single(self, tokens: Tensor) -> Tensor:
        """The tokens [T, W] of a batch of one."""
        if tokens.ndim != 3 or len(tokens) != 1:
            raise UserError(
                f"a block of the {self.name} tower of {self.clip.name} returns tokens of shape "
                f"{tuple(tokens.shape)} for one input; tracing needs [1, tokens, width]"
            )
        return tokens[0]


@torch.no_grad()
def features(clip: Clip, inputs: Inputs, count: int = 1) -> Tensor:
    """The features of `count` copies of an image or a prompt [B, D]."""
    if isinstance(inputs, dict):
        return clip.text_features(
            {key: value.expand(count, *value.shape[1:]) for key, value in inputs.items()}
        )
    return clip.image_features(inputs.expand(count, *inputs.shape[1:]))


def restored_rows(clean: CleanRun, corrupted: CorruptedRun, site: Site, block: int) -> Tensor:
    """Each token [T, W] after a block, with the site restored at that token alone."""
    rows: Tensor = clean.layer[block] if site == "layer" else getattr(corrupted, site)[block]
    return rows


def _return_tokens(tokens: Tensor) -> ForwardHook:
    """Run the module, but return these tokens [T, W] in place of its own."""

    def hook(forward: Any, args: Any, kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        return replace_output(tokens[None].to(output_tokens(output).dtype), output)

    return hook


def _hooked_all(hooks: Iterable[tuple[nn.Module, ForwardHook]]) -> ExitStack:
    """A context in which each module has its hook."""
    stack = ExitStack()
    for module, hook in hooks:
        stack.enter_context(hooked_forward(module, hook))
    return stack
