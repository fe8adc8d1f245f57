"""How much GPU memory `retouch learn` needs at its defaults, on cards of a given size.

    python benchmarks/memory.py --device cuda                     # ViT-B/16: 8 GB, L/14@336: 16 GB
    python benchmarks/memory.py --device cuda --cards b16:8,b16:4 --surprise

Each card is a process of its own, limited with `torch.cuda.set_per_process_memory_fraction` to its
size less what CUDA itself takes. It runs the command line on folders of photos, with a model of
random weights: two tasks, so that images are replayed in the second. `--surprise` runs the same in
Python without an estimate before it, so that memory runs out and the micro-batch is halved, and
compares the weights with those of a run without a limit.
"""

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from first_learn_cpu import write_photos
from shapes import SHAPES, model_of

CUDA_GIB = 0.6
"""What CUDA's context and libraries take beside PyTorch's allocations."""


def limit_memory(gib: float) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((gib - CUDA_GIB) * 2**30 / total)


def child(args: argparse.Namespace) -> None:
    """Learn with the command line, and print the peak."""
    shape, gib = args.child
    if gib != "0":
        limit_memory(float(gib))
    if args.surprise:
        _learn_in_python(args, shape)
    else:
        _learn_by_command(args, shape)
    if args.device != "cpu":
        peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        allocated, reserved = (peak / 2**30 for peak in peaks)
        sys.stdout.write(f"peak: {allocated:.2f} GiB allocated, {reserved:.2f} GiB reserved\n")


def _learn_by_command(args: argparse.Namespace, shape: str) -> None:
    from retouch.cli import app

    model = args.folder / shape
    if not model.is_dir():
        model_of(shape, torch.device("cpu")).save(model)
    options = ["--model", str(model), "--tasks", "2", "--device", args.device]
    if args.epochs:
        options += ["--epochs", str(args.epochs)]
    out = args.folder / f"run {time.time_ns()}"
    app(
        ["learn", str(args.folder / "photos"), *options, "--out", str(out), "--overwrite"],
        standalone_mode=False,
    )


def _learn_in_python(args: argparse.Namespace, shape: str) -> None:
    from functools import partial

    import retouch
    from retouch.data import Stream
    from retouch.methods import Settings, recipe

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    clip = model_of(shape, torch.device(args.device))
    before = {name: weight.detach().clone() for name, weight in clip.model.named_parameters()}
    decoded = retouch.read_data(args.folder / "photos").map(
        partial(retouch.cached, preprocess=clip.preprocess)
    )
    stream = Stream.split(*decoded.train_and_test(), tasks=2)
    precision: Any = "fp32" if args.device == "cpu" else "bf16"
    settings = Settings(epochs=args.epochs or 1, batch=128, lr=1e-4, precision=precision)
    retouch.teach(clip, stream, recipe("spu+"), settings=settings)
    weights = {name: weight.detach().cpu() for name, weight in clip.model.named_parameters()}
    other = args.folder / f"{shape}.pt"
    if other.exists():
        expected = torch.load(other)
        moved = sum((expected[n] - before[n].cpu()).abs().sum() for n in expected)
        apart = sum((expected[n] - weights[n]).abs().sum() for n in expected)
        sys.stdout.write(f"differs by {100 * apart / moved:.2f} % of what was learned\n")
    else:
        torch.save(weights, other)


def main() -> None:
    args = arguments()
    if args.child:
        child(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder) / "photos", args.classes, args.photos)
        caches = {"RETOUCH_CACHE": str(Path(folder) / "cache"), "NO_COLOR": "1"}
        for card in args.cards.split(","):
            shape, gib = card.split(":")
            for limit in ("0", gib) if args.surprise else (gib,):
                own = ["--folder", folder, "--child", shape, limit]
                command = [sys.executable, __file__, *sys.argv[1:], *own]
                sys.stdout.write(f"== {shape}, {limit} GiB\n")
                sys.stdout.flush()
                subprocess.run(command, env=os.environ | caches, check=False)


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cuda")
    options.add_argument("--cards", default="b16:8,l14-336:16", help=f"of {', '.join(SHAPES)}")
    options.add_argument("--classes", type=int, default=20)
    options.add_argument("--photos", type=int, default=40, help="per class")
    options.add_argument("--epochs", type=int, help="default: as `learn` chooses")
    options.add_argument("--surprise", action="store_true", help="without an estimate before it")
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return options.parse_args()


if __name__ == "__main__":
    main()
