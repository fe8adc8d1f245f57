"""Does every recipe learn the same eagerly, compiled, and with CUDA graphs?

    python benchmarks/same.py --device cuda --jobs 8
    python benchmarks/same.py --methods spu,er                    # a CPU has no CUDA graphs

Each recipe learns two tasks with the built-in model in float32, five times. Eager and compiled runs
differ by rounding, given as a share of how far the weights moved. With CUDA graphs the weights must
equal those of the compiled run to the bit, and so must those of a second run with CUDA graphs. The
towers captured without compiling them must give the bits of the eager run.
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

MODES = ("eager", "compiled", "graphs", "again", "plain graphs")
WITH_GRAPHS = MODES[2:]
NOT_COMPILED = ("eager", "plain graphs")
BY_NEURON = "spu by neuron"
OVERRIDES = {
    "l2p": {"replay.size": 50},  # one per class
    "dualprompt": {"replay.size": 50},
    BY_NEURON: {"update.unit": "neuron"},
}


def learn(name: str, mode: str, device: str) -> tuple[Tensor, Tensor, float]:
    """All weights before and after, and the accuracy on the new classes."""
    method = recipe("spu" if name == BY_NEURON else name, OVERRIDES.get(name, {}))
    clip = retouch.load("builtin", device=device)
    parameters = dict(clip.model.named_parameters())
    before = flatten(parameters)
    without_graphs = mock.patch("retouch.clip.towers.GraphRecorder", return_value=None)
    how = {"compile": mode not in NOT_COMPILED, "cuda_graphs": mode == "plain graphs"}
    settings = Settings(epochs=3, batch=32, lr=1e-4, **how)
    with nullcontext() if mode in WITH_GRAPHS else without_graphs:
        results = teach(
            clip,
            Stream.split(sign_images("train", 12), sign_images("test", 4), tasks=2),
            method,
            settings=settings,
            control=control_images(2),
            reference=world_pairs(64) if method.needs_reference else None,
        )
    return before, flatten(parameters), results.metrics()["accuracy"]


def flatten(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in weights.values()])


def compare(device: str, name: str) -> str:
    started = time.monotonic()
    runs = {mode: learn(name, mode, device) for mode in MODES}
    before = runs["eager"][0]
    weights = {mode: after for mode, (_, after, _) in runs.items()}
    moved = (weights["eager"] - before).abs().sum().item()
    difference = (weights["compiled"] - weights["eager"]).abs().sum().item()
    graphs, again, plain = (
        "the same bits" if torch.equal(weights[a], weights[b]) else "OTHER BITS"
        for a, b in (("graphs", "compiled"), ("again", "graphs"), ("plain graphs", "eager"))
    )
    accuracies = " / ".join(f"{accuracy:.0f}" for _, _, accuracy in runs.values())
    return (
        f"{name}: compiled differs by {100 * difference / (moved or 1):.2f} %; with CUDA graphs "
        f"{graphs}; again {again}; plain towers with CUDA graphs {plain}; "
        f"accuracy {accuracies} %; {time.monotonic() - started:.0f} s"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--methods", default=",".join([*RECIPES, BY_NEURON]))
    options.add_argument("--jobs", type=int, default=1)
    args = options.parse_args()
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for line in pool.map(partial(compare, args.device), args.methods.split(",")):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
