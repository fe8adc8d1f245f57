"""Does it learn the same in bfloat16, compiled and recorded, as in float32 as it is written?

    python benchmarks/precision.py                                        # the built-in model
    python benchmarks/precision.py --device cuda --shared ../shared       # a real tower, birds
    python benchmarks/precision.py --shared ../shared --gradients         # of one batch alone

Three runs: float32 as written, the fast way, and float32 with another seed. The first two see the
same images in the same order; how far their losses lie apart is told beside how far the third is.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from real_tower import load
from torch import Tensor
from whole_run import some_classes

import retouch
from retouch.builtin.images import sign_images
from retouch.clip import Clip
from retouch.data import Stream, cached, read_data
from retouch.methods import Regularizer, Settings, recipe
from retouch.sparse import locate
from retouch.sparse.select import top
from retouch.train import Callback, teach
from retouch.train.loop import backward, task_context


class Curve(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.losses.append(loss)


def model(asked: argparse.Namespace) -> Clip:
    if asked.shared is None:
        return retouch.load("builtin", device=asked.device)
    return load(asked.shared / "models" / "clip-b16-minilm").to(asked.device)


def stream(asked: argparse.Namespace, clip: Clip) -> Stream:
    if asked.shared is None:
        return Stream.split(sign_images("train", 20), sign_images("test", 8), tasks=2)
    train, test = read_data("cub", asked.shared / "data").train_and_test()
    few = [
        cached(some_classes(part, range(asked.classes)), clip.preprocess) for part in (train, test)
    ]
    return Stream.split(*few, tasks=2)


def run(asked: argparse.Namespace, seed: int, fast: bool) -> tuple[list[float], float]:
    clip, curve = model(asked), Curve()
    settings = Settings(
        epochs=asked.epochs,
        batch=asked.batch,
        lr=asked.lr,
        seed=seed,
        precision="bf16" if fast else "fp32",
        compile=fast and asked.device != "cpu",
    )
    method = recipe(asked.method)
    found = teach(clip, stream(asked, clip), method, settings=settings, callback=curve)
    return curve.losses, found.metrics()["accuracy"]


def gradients(asked: argparse.Namespace) -> None:
    """How far the slopes of the first MLP layers lie from float32's: plain bfloat16, and fast."""
    clip = model(asked)
    to_learn, settings = stream(asked, clip), Settings(batch=asked.batch)
    context = task_context(clip, to_learn, to_learn.tasks[0], recipe("spu"), settings)
    layers = {n: p for n, p in locate(clip.model).items() if n.startswith(clip.image_prefix)}
    clip.model.requires_grad_(False)
    for weight in layers.values():
        weight.requires_grad_(True)
    compiler = "inductor" if asked.device != "cpu" else "eager"
    found: dict[str, dict[str, Tensor]] = {}
    for name, bf16, backend in (
        ("float32", False, None),
        ("bfloat16", True, None),
        ("fast", True, compiler),
    ):
        clip.bf16 = bf16
        with clip.fast(backend):
            backward(context, context.load(np.arange(asked.batch), asked.batch), Regularizer())
        found[name] = {n: p.grad.clone() for n, p in layers.items() if p.grad is not None}
        clip.model.zero_grad()
    exact = found.pop("float32")
    for name, slopes in found.items():
        apart = [((slopes[n] - e).norm() / e.norm()).item() for n, e in exact.items()]
        same = [_shared_tenth(slopes[n], e) for n, e in exact.items()]
        sys.stdout.write(
            f"{name}: {mean(apart):.4f} from float32 (relative, mean of {len(apart)} layers), "
            f"{max(apart):.4f} at most; {100 * mean(same):.1f} % of the largest tenth is the same\n"
        )


def _shared_tenth(a: Tensor, b: Tensor) -> float:
    one, two = (top(x.abs(), 0.1) for x in (a, b))
    return torch.isin(one, two).double().mean().item()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--shared", type=Path)
    options.add_argument("--classes", type=int, default=40)
    options.add_argument("--method", default="spu")
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--lr", type=float, default=2.5e-5)
    options.add_argument("--gradients", action="store_true")
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    if asked.gradients:
        gradients(asked)
        return
    told = {
        name: run(asked, seed, fast)
        for name, seed, fast in (("float32", 0, False), ("fast", 0, True), ("seed 1", 1, False))
    }
    plain = np.array(told["float32"][0])
    for name, (losses, accuracy) in told.items():
        apart = np.abs(np.array(losses) - plain)
        last = np.mean(losses[-10:])
        sys.stdout.write(
            f"{name}: loss {losses[0]:.4f} at first, {last:.4f} in the last ten steps, "
            f"{apart.mean():.4f} from float32 on average, {apart.max():.4f} at most; "
            f"{accuracy:.1f} % right\n"
        )
    if asked.out:
        asked.out.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
