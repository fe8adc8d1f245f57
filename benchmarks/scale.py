"""What grows with the model, with the images and with the steps, and how fast?

    python benchmarks/scale.py                                  # selecting and deltas, three sizes
    python benchmarks/scale.py --device cuda --out scale.json   # steps and judging as well

Weights are random. What should be linear is divided by what it should be linear in: the last
columns of a table should not grow.
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
from speed import Ground, our_step

from retouch.evaluate.image_features import image_features
from retouch.methods import recipe
from retouch.sparse import Delta, Snapshot, locate, select


def seconds(run: Any, device: torch.device) -> tuple[float, Any]:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    found = run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, found


def of_the_model(name: str, device: torch.device) -> dict[str, float]:
    """Selecting a tenth of the first MLP layers, and a delta of that."""
    clip = model_of(name, device)
    layers = locate(clip.model, "first-mlp")
    size = sum(p.numel() for p in layers.values())
    scores = {key: torch.rand_like(p) for key, p in layers.items()}
    select(dict(list(scores.items())[:1]), 0.10)  # to warm up
    told: dict[str, float] = {"parameters (M)": clip.size / 1e6, "to choose from (M)": size / 1e6}
    told["select (s)"], chosen = seconds(lambda: select(scores, 0.10), device)
    told["snapshot (s)"], before = seconds(lambda: Snapshot(clip.model, chosen), device)
    with torch.no_grad():
        for key, each in chosen.items():
            each.put(layers[key], each.take(layers[key]) + 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "delta.safetensors"
        told["write a delta (s)"], _ = seconds(lambda: before.delta().save(file), device)
        told["delta (MB)"] = file.stat().st_size / 1e6
        told["read it (s)"], delta = seconds(lambda: Delta.load(file), device)
        told["undo it (s)"], _ = seconds(lambda: delta.undo(clip.model), device)
    spent = sum(value for key, value in told.items() if key.endswith("(s)"))
    told["all, ms a million weights of the model"] = 1e3 * spent / told["parameters (M)"]
    return told


def of_the_batch(name: str, device: str, batch: int) -> dict[str, float]:
    """A step on twice as many images."""
    ground = Ground(_asked(name, device, batch))
    found = our_step(ground, recipe("spu", {"update.score": "random"}))
    return {
        "images": 2 * batch,
        "step (ms)": found["ms"],
        "GiB": found["peak"],
        "ms an image": found["ms"] / (2 * batch),
    }


def of_the_images(name: str, device: str, count: int) -> dict[str, float]:
    """Judging so many."""
    ground = Ground(_asked(name, device, 128))
    clip, images = ground.clip(), ground.stream.test
    clip.bf16 = not ground.asked.fp32
    positions = np.arange(count) % len(images)
    with clip.fast("inductor" if ground.asked.compile else None):
        image_features(clip, images, positions[:512])
        took, _ = seconds(lambda: image_features(clip, images, positions), clip.device)
    return {"images": count, "judging (s)": took, "ms an image": 1e3 * took / count}


def _asked(name: str, device: str, batch: int) -> argparse.Namespace:
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
    options.add_argument("--shapes", default="b16,l14,h14")
    options.add_argument("--batches", default="32,64,128")
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    shapes = [name for name in asked.shapes.split(",") if name in SHAPES]
    told: dict[str, Any] = {}
    models = [of_the_model(name, torch.device(asked.device)) for name in shapes]
    sys.stdout.write(table(models, shapes) + "\n")
    told["models"] = dict(zip(shapes, models, strict=True))
    if asked.device != "cpu":
        sizes = [int(batch) for batch in asked.batches.split(",")]
        for name in shapes:
            steps = [of_the_batch(name, asked.device, batch) for batch in sizes]
            sys.stdout.write(table(steps, [name] * len(steps)) + "\n")
            told[f"steps, {name}"] = steps
        judged = [of_the_images(shapes[0], asked.device, count) for count in (2048, 4096, 8192)]
        sys.stdout.write(table(judged, [shapes[0]] * len(judged)) + "\n")
        told["judging"] = judged
    if asked.out:
        asked.out.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
