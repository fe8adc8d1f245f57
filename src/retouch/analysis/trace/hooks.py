"""Where activations are read and replaced: the blocks of a tower, their attention, their MLP.

B: batch, T: tokens, W: width of the tower.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn

from retouch.analysis.layer_names import TowerName
from retouch.clip import Clip
from retouch.clip.prompts.visual import PROMPTS
from retouch.errors import UserError
from retouch.sparse.replaced_forward import replaced_forward

Site = Literal["layer", "attention", "mlp"]
"""What is restored: the output of a whole block, of its attention or of its MLP."""
SITES: tuple[Site, ...] = get_args(Site)

# The module in a block whose output is added to the residual stream. In BERT's blocks the modules
# named `output` add it themselves, so there it is the linear layer inside.
_ATTENTION = ("self_attn", "attn", "attention.output.dense", "attention")
_MLP = ("mlp", "output.dense", "ffn")

ForwardHook = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Runs in place of a module's forward; gets that forward, its args and its kwargs."""


@dataclass(frozen=True)
class TowerModules:
    """The modules of one tower, from the input to the output."""

    blocks: list[nn.Module]
    attention: list[nn.Module]
    mlp: list[nn.Module]

    def __len__(self) -> int:
        return len(self.blocks)


def tower_modules(clip: Clip, tower: TowerName) -> TowerModules:
    """The blocks of a tower, and the attention and the MLP of each."""
    if getattr(clip.model, PROMPTS, None) is not None:
        raise UserError(
            f"{clip.name} has learned prompts, so its visual tower runs twice and reads more than "
            "the image; trace the model it began with, or a run of another method"
        )
    names = clip.blocks[tower]
    if not names:
        raise UserError(
            f"the {tower} tower of {clip.name} has no transformer blocks that retouch knows, so "
            "there is nothing to trace; choose a CLIP from transformers or open_clip, with a ViT"
        )
    return TowerModules(
        [clip.model.get_submodule(name) for name in names],
        [_submodule(clip, name, _ATTENTION, "attention") for name in names],
        [_submodule(clip, name, _MLP, "MLP") for name in names],
    )


def _submodule(clip: Clip, block_name: str, candidates: tuple[str, ...], what: str) -> nn.Module:
    block = clip.model.get_submodule(block_name)
    for name in candidates:
        try:
            return block.get_submodule(name)
        except AttributeError:
            continue
    children = ", ".join(name for name, _ in block.named_children())
    raise UserError(
        f"the block {block_name} (a {type(block).__name__} of {children}) has no {what} under a "
        f"name that retouch knows ({', '.join(candidates)}); tracing needs one of them"
    )


def hooked_forward(module: nn.Module, hook: ForwardHook) -> AbstractContextManager[None]:
    """Within this context, calling the module runs `hook` instead of its forward."""
    forward = module.forward
    return replaced_forward({module: lambda *args, **kwargs: hook(forward, args, kwargs)})


def input_tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The tokens that a block is called with, positionally or by keyword."""
    tokens: Tensor = args[0] if args else kwargs["hidden_states"]
    return tokens


def replace_input(
    tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with other tokens."""
    if args:
        return (tokens, *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": tokens}


def output_tokens(output: Any) -> Tensor:
    """The tokens that a module returns; attention may return more with them."""
    tokens: Tensor = output[0] if isinstance(output, tuple) else output
    return tokens


def replace_output(tokens: Tensor, output: Any) -> Any:
    """The same output with other tokens."""
    return (tokens, *output[1:]) if isinstance(output, tuple) else tokens
