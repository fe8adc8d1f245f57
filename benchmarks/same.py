"""Is it the same, as written, compiled, and (on a GPU) compiled and recorded? Every recipe.

    python benchmarks/same.py --device cuda --jobs 8
    python benchmarks/same.py --methods spu,er                    # a processor records nothing

Each recipe learns two tasks of the built-in model in float32, four times. Compiled and as written
differ by rounding, told as a share of how far the weights moved; recorded and compiled should not
differ in a single bit, nor should a second recorded run.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from unittest import mock

import torch
from torch import Tensor

import retouch
from retouch.builtin.images import control_images, sign_images, world_pairs
from retouch.data import Stream
from retouch.methods import RECIPES, Settings, recipe
from retouch.train import teach

WAYS = ("as written", "compiled", "recorded", "again")
BY_NEURON = "spu by neuron"
CHANGES = {
    "l2p": {"replay.size": 50},  # one of each class
    "dualprompt": {"replay.size": 50},
    BY_NEURON: {"update.unit": "neuron"},
}


def learned(name: str, way: str, device: str) -> tuple[Tensor, Tensor, float]:
    """All weights before and after, and what of the new classes is recognised."""
    method = recipe("spu" if name == BY_NEURON else name, CHANGES.get(name, {}))
    clip = retouch.load("builtin", device=device)
    own = dict(clip.model.named_parameters())
    before = flat(own)
    unrecorded = mock.patch("retouch.clip.model.Recorder", return_value=None)
    with nullcontext() if way in WAYS[2:] else unrecorded:
        results = teach(
            clip,
            Stream.split(sign_images("train", 12), sign_images("test", 4), tasks=2),
            method,
            settings=Settings(epochs=3, batch=32, lr=1e-4, compile=way != "as written"),
            control=control_images(2),
            reference=world_pairs(64) if method.needs_reference else None,
        )
    return before, flat(own), results.metrics()["accuracy"]


def flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in weights.values()])


def compare(device: str, name: str) -> str:
    began = time.monotonic()
    found = {way: learned(name, way, device) for way in WAYS}
    before = found["as written"][0]
    weights = {way: after for way, (_, after, _) in found.items()}
    moved = (weights["as written"] - before).abs().sum().item()
    apart = (weights["compiled"] - weights["as written"]).abs().sum().item()
    recorded, again = (
        "the same bits" if torch.equal(weights[a], weights[b]) else "OTHER BITS"
        for a, b in (("recorded", "compiled"), ("again", "recorded"))
    )
    right = " / ".join(f"{accuracy:.0f}" for _, _, accuracy in found.values())
    return (
        f"{name}: compiled {100 * apart / (moved or 1):.2f} % apart; recorded {recorded}; "
        f"again {again}; {right} % right; {time.monotonic() - began:.0f} s"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--methods", default=",".join([*RECIPES, BY_NEURON]))
    options.add_argument("--jobs", type=int, default=1)
    asked = options.parse_args()
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        for line in pool.map(partial(compare, asked.device), asked.methods.split(",")):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
