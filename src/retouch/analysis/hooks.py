"""Where activations are read and replaced: the blocks of a tower, their attention, their MLP.

B: runs side by side, T: tokens, W: width of the tower.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.visual_prompts import PROMPTS
from retouch.errors import UserError

TowerName = Literal["image", "text"]
Kind = Literal["layer", "attention", "mlp"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Inside a block, the module whose output is added to what came in. In BERT's blocks the modules
# called `output` add it themselves, so there it is the last matrix inside.
_ATTENTION = ("self_attn", "attn", "attention.output.dense", "attention")
_MLP = ("mlp", "output.dense", "ffn")

Act = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""What to do in place of a module: is told the module's own forward, and what it is called with."""


@dataclass(frozen=True)
class Sites:
    """The modules of one tower, from the input to the output."""

    blocks: list[nn.Module]
    attention: list[nn.Module]
    mlp: list[nn.Module]

    def __len__(self) -> int:
        return len(self.blocks)


def sites_of(clip: Clip, tower: TowerName) -> Sites:
    """The blocks of a tower, and in each the attention and the MLP."""
    if getattr(clip.model, PROMPTS, None) is not None:
        raise UserError(
            f"{clip.name} has learned prompts, so its visual tower runs twice and reads more than "
            "the image; trace the model it began with, or a run of another method"
        )
    names = clip.blocks[tower]
    if not names:
        raise UserError(
            f"the {tower} tower of {clip.name} has no transformer blocks that retouch knows, so "
            "there is nothing to trace; choose a CLIP of transformers or open_clip, with a ViT"
        )
    return Sites(
        [clip.model.get_submodule(name) for name in names],
        [_inside(clip, name, _ATTENTION, "attention") for name in names],
        [_inside(clip, name, _MLP, "MLP") for name in names],
    )


def _inside(clip: Clip, name: str, places: tuple[str, ...], what: str) -> nn.Module:
    block = clip.model.get_submodule(name)
    for place in places:
        try:
            return block.get_submodule(place)
        except AttributeError:
            continue
    parts = ", ".join(part for part, _ in block.named_children())
    raise UserError(
        f"the block {name} (a {type(block).__name__} of {parts}) has no {what} under a name that "
        f"retouch knows ({', '.join(places)}); tracing needs one of them"
    )


@contextmanager
def with_hook(module: nn.Module, act: Act) -> Iterator[None]:
    """While this lasts, calling the module does what `act` says."""
    own, forward = vars(module).get("forward"), module.forward
    vars(module)["forward"] = lambda *args, **kwargs: act(forward, args, kwargs)
    try:
        yield
    finally:
        del vars(module)["forward"]
        if own is not None:
            vars(module)["forward"] = own


def entering(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The tokens that a block is called with, however it is called."""
    found: Tensor = args[0] if args else kwargs["hidden_states"]
    return found


def with_entering(
    tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with other tokens."""
    if args:
        return (tokens, *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": tokens}


def leaving(output: Any) -> Tensor:
    """The tokens that a module gives back; attention may give more beside them."""
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def with_leaving(tokens: Tensor, output: Any) -> Any:
    """The same output with other tokens."""
    return (tokens, *output[1:]) if isinstance(output, tuple) else tokens
