"""What the model is trained on: pictures of the world with captions, drawn on all CPU cores."""

import multiprocessing
from collections.abc import Sequence
from ctypes import c_uint8
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.pictures import world
from tools.pretrain.model import CONTEXT, SIZE

CAPTIONS = 3
"""Captions per picture."""
CHUNK = 500
"""Pictures per seed."""

_buffer: Any = None  # the pictures, in memory shared by all processes


def _draw_chunk(task: tuple[int, int]) -> list[list[str]]:
    """Draw a chunk of pictures into the shared buffer; return their captions."""
    seed, number = task
    rng = np.random.default_rng([seed, number])
    pictures = np.frombuffer(_buffer, np.uint8).reshape(-1, SIZE, SIZE, 3)
    captions = []
    for position in range(number * CHUNK, (number + 1) * CHUNK):
        scene = world.choose_scene(rng)
        pictures[position] = world.draw_scene(scene, rng)
        captions.append([world.describe(scene, rng) for _ in range(CAPTIONS)])
    return captions


def draw_world(count: int, seed: int) -> tuple[NDArray[np.uint8], list[list[str]]]:
    """Pictures [count, 64, 64, 3], and CAPTIONS true captions of each."""
    global _buffer
    _buffer = multiprocessing.RawArray(c_uint8, count * SIZE * SIZE * 3)
    tasks = [(seed, number) for number in range(count // CHUNK)]
    with multiprocessing.get_context("fork").Pool() as pool:
        captions = [row for rows in pool.imap(_draw_chunk, tasks, chunksize=4) for row in rows]
    return np.frombuffer(_buffer, np.uint8).reshape(-1, SIZE, SIZE, 3), captions


def tokenize(tokenizer: Any, captions: Sequence[Sequence[str]]) -> Tensor:
    """Captions as token ids [N, CAPTIONS, CONTEXT].

    A random tenth of the merges is left out (BPE dropout), so that pieces of words are trained as
    well: the model will meet words that it has never seen.
    """
    tokenizer.model.dropout = 0.1
    tokenizer.enable_padding(length=CONTEXT)
    tokenizer.enable_truncation(CONTEXT)
    flat = [caption for row in captions for caption in row]
    ids = np.array([e.ids for e in tokenizer.encode_batch(flat)], np.int16)
    tokenizer.model.dropout = None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return torch.from_numpy(ids).view(len(captions), CAPTIONS, CONTEXT)
