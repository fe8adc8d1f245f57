"""How do time and memory grow with the model, the batch and the number of images?

    python benchmarks/scale.py                                  # selection and deltas, five models
    python benchmarks/scale.py --device cuda --out scale.json   # steps and evaluation as well

Weights are random. The last column of each table divides by what the cost should be linear in, so
it should not grow.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shapes import SHAPES, model_of
from speed import Workload, our_step

from retouch.evaluate.image_features import image_features
from retouch.methods import recipe
from retouch.sparse import Delta, Snapshot, locate, select


def seconds(run: Any, device: torch.device) -> tuple[float, Any]:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, result


def selection_and_delta(name: str, device: torch.device) -> dict[str, float]:
    """Selecting a tenth of the first MLP layers, and writing, reading and undoing a delta of it."""
    clip = model_of(name, device)
    layers = locate(clip.model, "first-mlp")
    size = sum(p.numel() for p in layers.values())
    scores = {key: torch.rand_like(p) for key, p in layers.items()}
    select(dict(list(scores.items())[:1]), 0.10)  # warm-up
    row: dict[str, float] = {"parameters (M)": clip.size / 1e6, "candidates (M)": size / 1e6}
    row["select (s)"], selection = seconds(lambda: select(scores, 0.10), device)
    row["snapshot (s)"], before = seconds(lambda: Snapshot(clip.model, selection), device)
    with torch.no_grad():
        for key, index in selection.items():
            index.scatter(layers[key], index.gather(layers[key]) + 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "delta.safetensors"
        row["write a delta (s)"], _ = seconds(lambda: before.delta().save(file), device)
        row["delta (MB)"] = file.stat().st_size / 1e6
        row["read it (s)"], delta = seconds(lambda: Delta.load(file), device)
        row["undo it (s)"], _ = seconds(lambda: delta.undo(clip.model), device)
    total = sum(value for key, value in row.items() if key.endswith("(s)"))
    row["total, ms per million weights"] = 1e3 * total / row["parameters (M)"]
    return row


def training_step(name: str, device: str, batch: int) -> dict[str, float]:
    """A step on `batch` new images and as many replayed ones."""
    workload = Workload(_arguments(name, device, batch))
    step = our_step(workload, recipe("spu", {"update.score": "random"}))
    return {
        "images": 2 * batch,
        "step (ms)": step["ms"],
        "GiB": step["peak"],
        "ms per image": step["ms"] / (2 * batch),
    }


def evaluation(name: str, device: str, count: int) -> dict[str, float]:
    """Encoding `count` images as in an evaluation."""
    workload = Workload(_arguments(name, device, 128))
    clip, images = workload.clip(), workload.stream.test
    clip.bf16 = not workload.args.fp32
    positions = np.arange(count) % len(images)
    with clip.fast("inductor" if workload.args.compile else None):
        image_features(clip, images, positions[:512])
        duration, _ = seconds(lambda: image_features(clip, images, positions), clip.device)
    return {"images": count, "evaluation (s)": duration, "ms per image": 1e3 * duration / count}


def _arguments(name: str, device: str, batch: int) -> argparse.Namespace:
    cuda = device != "cpu"
    return argparse.Namespace(
        device=device, shape=name, batch=batch, fp32=not cuda, compile=cuda, times=5
    )


def table(rows: list[dict[str, float]], names: list[str]) -> str:
    lines = ["| | " + " | ".join(rows[0]) + " |", "|---|" + "--:|" * len(rows[0])]
    for name, row in zip(names, rows, strict=True):
        cells = " | ".join(
            f"{value:.3g}" if value < 1e3 else f"{value:.0f}" for value in row.values()
        )
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--shapes", default="b16,l14,h14,siglip2-b16,siglip2-l16")
    options.add_argument("--batches", default="32,64,128")
    options.add_argument("--out", type=Path)
    args = options.parse_args()
    shapes = [name for name in args.shapes.split(",") if name in SHAPES]
    results: dict[str, Any] = {}
    models = [selection_and_delta(name, torch.device(args.device)) for name in shapes]
    sys.stdout.write(table(models, shapes) + "\n")
    results["models"] = dict(zip(shapes, models, strict=True))
    if args.device != "cpu":
        sizes = [int(batch) for batch in args.batches.split(",")]
        for name in shapes:
            steps = [training_step(name, args.device, batch) for batch in sizes]
            sys.stdout.write(table(steps, [name] * len(steps)) + "\n")
            results[f"steps, {name}"] = steps
        evaluations = [evaluation(shapes[0], args.device, count) for count in (2048, 4096, 8192)]
        sys.stdout.write(table(evaluations, [shapes[0]] * len(evaluations)) + "\n")
        results["evaluation"] = evaluations
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
