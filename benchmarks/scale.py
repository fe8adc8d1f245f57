"""How do time and memory grow with the model, the batch and the number of images?

    python benchmarks/scale.py                                  # selection and deltas, five models
    python benchmarks/scale.py --device cuda --out scale.json   # steps and evaluation as well
    python benchmarks/scale.py --device cuda --language         # Llama-shaped models instead

Weights are random. The last column of each table divides by what the cost should be linear in, so
it should not grow.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from language import add_lora
from shapes import SHAPES, model_of
from speed import Workload, our_step

from retouch.evaluate.image_features import image_features
from retouch.methods import recipe
from retouch.sparse import (
    Delta,
    Snapshot,
    SparseAdamW,
    linear_layers,
    locate,
    select,
)
from retouch.torchvision_compat import patch_torchvision
from retouch.trainer.scoring import select_by


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


LLAMAS = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "heads": 32},
    "7B": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "heads": 32},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "heads": 2},
}
SCORE_BYTES = 2**30
"""As on a GPU that has little memory left; with more, scoring takes fewer passes."""
LANGUAGE_METHODS = ("LoRA r=16", "SPU by neuron", "SPU by weight", "full")


def language_step(shape: str, method: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Memory and time of a step of a Llama-shaped model in bfloat16, with gradient checkpointing.

    Scoring is measured by itself: it happens once, before the first step, when there are no moments
    yet.
    """
    device, length = torch.device(args.device), args.length
    model = _llama(shape, device)
    ids = torch.randint(0, model.config.vocab_size, (batch, length), device=device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            result: torch.Tensor = model(input_ids=ids, labels=ids).loss
        return result

    row: dict[str, Any] = {"model": shape, "method": method, "batch": batch, "length": length}
    row["parameters (M)"] = sum(p.numel() for p in model.parameters()) / 1e6
    _reset_peak(device)
    if method.startswith("SPU"):
        unit = method.removeprefix("SPU by ")
        row["score (s)"], selection = seconds(
            lambda: select_by(
                model,
                locate(model),
                lambda: iter([loss()]),
                score="gradient",
                rate=0.10,
                unit=unit,  # type: ignore[arg-type]
                seed=0,
                max_bytes=SCORE_BYTES,
            ),
            device,
        )
        row["score (GiB)"] = _peak(device)
        layers = linear_layers(model, selection) if unit == "neuron" else None
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        optimizer: torch.optim.Optimizer = SparseAdamW(
            dict(model.named_parameters()),
            selection,
            1e-5,
            layers=layers,
            compact=True,
            fused=args.fused,
        )
        row["trained (M)"] = selection.count / 1e6
    else:
        parameters = list(model.parameters())
        if method.startswith("LoRA"):
            model.requires_grad_(False)
            parameters, _ = add_lora(model, 16)
        optimizer = torch.optim.AdamW(parameters, 1e-5, fused=args.fused)
        row["trained (M)"] = sum(p.numel() for p in parameters) / 1e6

    def step() -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    if device.type == "cuda":
        torch.cuda.empty_cache()
    _reset_peak(device)
    times = [seconds(step, device)[0] for _ in range(args.times + 2)][2:]
    row["step (ms)"] = 1e3 * sorted(times)[len(times) // 2]
    row["GiB"] = _peak(device)
    if isinstance(optimizer, SparseAdamW):
        optimizer.close()  # its hooks would keep the model in memory
    return row


def _llama(shape: str, device: torch.device) -> Any:
    """A Llama with random weights, made on the device."""
    patch_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, int] = dict(LLAMAS[shape])
    heads = sizes.pop("heads")
    config = LlamaConfig(
        **sizes,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=32000 if shape != "tiny" else 256,
        max_position_embeddings=2048,
        use_cache=False,
        dtype=torch.bfloat16,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert all(layer.gradient_checkpointing for layer in model.model.layers)
    return model


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0


def language(args: argparse.Namespace) -> None:
    """A row for each model, batch and method; rows that are in the file already are skipped."""
    file = args.out or Path("results/language-scale.json")
    rows = json.loads(file.read_text()) if file.exists() else []
    done = {(row["model"], row["method"], row["batch"]) for row in rows}
    shapes = [name for name in args.shapes.split(",") if name in LLAMAS] or ["1B", "7B"]
    for shape in shapes:
        for batch in map(int, args.language_batches.split(",")):
            for method in LANGUAGE_METHODS:
                if (shape, method, batch) in done:
                    continue
                row = language_step(shape, method, batch, args)
                rows.append(row)
                file.write_text(json.dumps(rows, indent=1) + "\n")
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()
                gc.collect()
                if args.device != "cpu":
                    torch.cuda.empty_cache()


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
    options.add_argument("--language", action="store_true", help="steps of Llama-shaped models")
    options.add_argument("--language-batches", default="1,4")
    options.add_argument("--length", type=int, default=2048)
    options.add_argument("--times", type=int, default=5)
    args = options.parse_args()
    args.fused = args.device != "cpu"
    if args.language:
        language(args)
        return
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
