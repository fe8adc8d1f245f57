"""Pad batches to the next size of a short list: the same features, the same gradients.

Compiled code and captured graphs are specialized to one shape. A smaller last batch or a longer
prompt does not start the compiler again, nor is it captured again.
"""

import torch
from torch import Tensor

MIN_BATCH = 32
"""Smaller batches of images or prompts are padded to this size."""
EVAL_TEXT_BATCH = 2048
"""Prompts encoded at a time during evaluation on a GPU."""
LENGTH_MULTIPLE = 16
"""Prompts are padded to a multiple of this many tokens."""


def padded_batch_size(count: int) -> int:
    """The batch size that `count` rows are padded to."""
    return max(MIN_BATCH, power_of_two(count))


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def padded_num_images(count: int, compiled: bool) -> int:
    """The number of images that `count` are padded to.

    A shape that is only captured costs much less than one that is compiled. So where there are
    gradients, there are finer steps, which save up to a quarter of the time: 40 new and 40 replayed
    images are padded to 96, not to 128.
    """
    size = padded_batch_size(count)
    three_quarters = size // 4 * 3
    finer = torch.is_grad_enabled() and not compiled and size > MIN_BATCH
    return three_quarters if finer and count <= three_quarters else size


def padded_eval_batch_size(count: int) -> int:
    """As `padded_batch_size`, for prompts without gradients.

    A larger batch is padded to a multiple of `EVAL_TEXT_BATCH`, which costs less than compiling
    another shape.
    """
    if count <= 8 * MIN_BATCH:
        return padded_batch_size(count)
    return -(-count // EVAL_TEXT_BATCH) * EVAL_TEXT_BATCH


def padded_num_prompts(count: int) -> int:
    """The number of prompts that `count` are padded to, with or without gradients."""
    return padded_batch_size(count) if torch.is_grad_enabled() else padded_eval_batch_size(count)


def padded_length(length: int, context: int) -> int:
    """The number of tokens that a prompt is padded to, at most the model's context."""
    return min(context, -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)


def pad_rows(rows: Tensor, count: int) -> Tensor:
    """Repeat the last row until there are `count` rows."""
    missing = count - len(rows)
    if missing <= 0:
        return rows
    return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
