"""Does it learn the same in bfloat16, compiled and with CUDA graphs, as in eager float32?

    python benchmarks/precision.py                                        # the built-in model
    python benchmarks/precision.py --device cuda --shared ../shared       # a real tower, birds
    python benchmarks/precision.py --shared ../shared --gradients         # of one batch only

Three runs: eager float32, the fast way, and eager float32 with another seed. The first two see the
same images in the same order; the difference of their losses is printed beside that of the third.
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


class LossCurve(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.losses.append(loss)


def model(args: argparse.Namespace) -> Clip:
    if args.shared is None:
        return retouch.load("builtin", device=args.device)
    return load(args.shared / "models" / "clip-b16-minilm").to(args.device)


def stream(args: argparse.Namespace, clip: Clip) -> Stream:
    if args.shared is None:
        return Stream.split(sign_images("train", 20), sign_images("test", 8), tasks=2)
    train, test = read_data("cub", args.shared / "data").train_and_test()
    splits = [
        cached(some_classes(part, range(args.classes)), clip.preprocess) for part in (train, test)
    ]
    return Stream.split(*splits, tasks=2)


def run(args: argparse.Namespace, seed: int, fast: bool) -> tuple[list[float], float]:
    clip, curve = model(args), LossCurve()
    settings = Settings(
        epochs=args.epochs,
        batch=args.batch,
        lr=args.lr,
        seed=seed,
        precision="bf16" if fast else "fp32",
        compile=fast and args.device != "cpu",
    )
    method = recipe(args.method)
    results = teach(clip, stream(args, clip), method, settings=settings, callback=curve)
    return curve.losses, results.metrics()["accuracy"]


def gradients(args: argparse.Namespace) -> None:
    """Compare the gradients of the first MLP layers with float32: plain bfloat16, and fast."""
    clip = model(args)
    tasks, settings = stream(args, clip), Settings(batch=args.batch)
    context = task_context(clip, tasks, tasks.tasks[0], recipe("spu"), settings)
    layers = {n: p for n, p in locate(clip.model).items() if n.startswith(clip.image_prefix)}
    clip.model.requires_grad_(False)
    for weight in layers.values():
        weight.requires_grad_(True)
    compiler = "inductor" if args.device != "cpu" else "eager"
    grads: dict[str, dict[str, Tensor]] = {}
    for name, bf16, backend in (
        ("float32", False, None),
        ("bfloat16", True, None),
        ("fast", True, compiler),
    ):
        clip.bf16 = bf16
        with clip.fast(backend):
            backward(context, context.load(np.arange(args.batch), args.batch), Regularizer())
        grads[name] = {n: p.grad.clone() for n, p in layers.items() if p.grad is not None}
        clip.model.zero_grad()
    exact = grads.pop("float32")
    for name, inexact in grads.items():
        errors = [((inexact[n] - e).norm() / e.norm()).item() for n, e in exact.items()]
        same = [_shared_tenth(inexact[n], e) for n, e in exact.items()]
        sys.stdout.write(
            f"{name}: {mean(errors):.4f} from float32 (relative, mean of {len(errors)} layers), "
            f"{max(errors):.4f} at most; {100 * mean(same):.1f} % of the top tenth is the same\n"
        )


def _shared_tenth(a: Tensor, b: Tensor) -> float:
    top_a, top_b = (top(x.abs(), 0.1) for x in (a, b))
    return torch.isin(top_a, top_b).double().mean().item()


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
    args = options.parse_args()
    if args.gradients:
        gradients(args)
        return
    runs = {
        name: run(args, seed, fast)
        for name, seed, fast in (("float32", 0, False), ("fast", 0, True), ("seed 1", 1, False))
    }
    plain = np.array(runs["float32"][0])
    for name, (losses, accuracy) in runs.items():
        difference = np.abs(np.array(losses) - plain)
        last = np.mean(losses[-10:])
        sys.stdout.write(
            f"{name}: loss {losses[0]:.4f} at first, {last:.4f} in the last ten steps, "
            f"{difference.mean():.4f} from float32 on average, {difference.max():.4f} at most; "
            f"accuracy {accuracy:.1f} %\n"
        )
    if args.out:
        args.out.write_text(json.dumps(runs))


if __name__ == "__main__":
    main()
