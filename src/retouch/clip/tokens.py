"""A batch of prompts as a text tower takes them."""

from torch import Tensor

Tokens = dict[str, Tensor]
"""A batch of prompts as the text tower takes them, padded to the longest of them."""


def num_prompts(tokens: Tokens) -> int:
    """The number of prompts in a batch."""
    return len(next(iter(tokens.values())))
