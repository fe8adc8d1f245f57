"""What does it cost that several processes learn together? Time, and bytes against DDP's.

    torchrun --nproc-per-node 2 benchmarks/ranks.py                  # a small model on a processor
    torchrun --nproc-per-node 8 benchmarks/ranks.py --device cuda    # CLIP ViT-B/16 on 8 GPUs
    torchrun --nproc-per-node 2 benchmarks/ranks.py --shape b16 --batch 4 --times 2
    python benchmarks/ranks.py --parts                   # what --shard leaves to each process

Each process takes `--batch` new images and as many replayed ones. A step together is compared with
the same images alone, in the same processes at the same time. Bytes are what one process sends in a
step, as a ring of processes does it; those of DDP are counted by a hook in its buckets. `--parts`
measures nothing: it counts the weights of models of the real shapes that have no memory.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from shapes import model_of
from speed import SHAPES, Ground
from torch.nn.parallel import DistributedDataParallel

from retouch.distributed import collectives, fsdp
from retouch.distributed.rendezvous import process_group
from retouch.methods import Method, recipe
from retouch.train.loop import backward, task_context

METHODS = {
    "spu": recipe("spu", {"update.score": "random"}),
    "spu --shard": recipe("spu", {"update.score": "random"}),
    "er": recipe("er"),
}


def step_of(ground: Ground, method: Method, times: int, shard: bool) -> tuple[float, Counter[str]]:
    """Milliseconds and bytes of a step with as many old images as new ones."""
    asked = {"shard": shard, "compile": ground.settings.compile and not shard}
    clip, settings = ground.clip(), ground.settings.model_copy(update=asked)
    clip.bf16 = settings.precision == "bf16"
    took, before = [], Counter[str]()
    with clip.fast("inductor" if settings.compile else None):
        context = task_context(clip, ground.stream, ground.stream.tasks[0], method, settings)
        with method.update.begin(context) as update:
            batch = context.load(np.arange(2 * settings.batch), settings.batch)
            for number in range(times + 3):
                if number == 3:
                    before = Counter(collectives.traffic)
                ground.synchronize()
                began = time.perf_counter()
                found = backward(context, batch, method.regularizer)
                update.step(1.0)
                collectives.all_reduce_scalar(float(found))
                took.append(1e3 * (time.perf_counter() - began))
    return median(took[3:]), Counter(
        {k: (n - before[k]) // times for k, n in collectives.traffic.items()}
    )


def ddp_bytes(ground: Ground, moving: tuple[str, ...] | None) -> int:
    """What DDP sends of gradients a step, for these parameters or all."""
    clip = ground.clip()
    for name, parameter in clip.model.named_parameters():
        parameter.requires_grad_(moving is None or name.endswith(moving))
    model, seen = DistributedDataParallel(clip.model), [0]

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        seen[0] += buffer.numel() * buffer.element_size()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    model.register_comm_hook(None, hook)
    pixels = torch.zeros(1, 3, *clip.preprocess.size, device=ground.device)
    tokens = clip.tokenize(["a photo of the red one"])["input_ids"].to(ground.device)
    model(pixel_values=pixels, input_ids=tokens).logits_per_image.sum().backward()
    return 2 * seen[0] * (collectives.world_size() - 1) // collectives.world_size()


def compare(asked: argparse.Namespace) -> list[list[str]]:
    rows, each, world = [], asked.batch, collectives.world_size()
    for name, method in METHODS.items():
        asked.batch = each * world
        shard = name.endswith("--shard")
        together, sent = step_of(Ground(asked), method, asked.times, shard)
        asked.batch = each
        device = torch.device(asked.device)
        collectives.end()
        alone, _ = step_of(Ground(asked), method, asked.times, shard)
        collectives.begin(device)
        dense = ddp_bytes(Ground(asked), None if name == "er" else (".fc1.weight",))
        whole = ddp_bytes(Ground(asked), None)
        rows.append(
            [
                name,
                f"{alone:.1f}",
                f"{together:.1f}",
                f"{100 * (together - alone) / alone:+.0f} %",
                f"{sent['gradients'] / 1e6:.2f}",
                f"{sent['features'] / 1e6:.2f}",
                f"{sent['weights'] / 1e6:.1f}",
                f"{dense / 1e6:.1f}",
                f"{whole / 1e6:.1f}",
            ]
        )
    return rows


PROCESSES = (2, 4, 8)


def parts(shapes: Sequence[str]) -> list[list[str]]:
    """Memory that the weights take in each process while a task is learned, and what travels."""
    rows = []
    for name in shapes:
        clip = model_of(name, torch.device("meta"))
        apart = METHODS["spu"].update.shardable_parameters(clip)
        whole = fsdp.bytes_per_rank(clip.model, {}, 1)
        each = [fsdp.bytes_per_rank(clip.model, apart, world) for world in PROCESSES]
        twice = 2 * sum(p.nbytes for p in apart.values())  # in the forward and the backward pass
        rows.append(
            [
                name,
                f"{clip.size / 1e6:.0f} M",
                *(f"{size / 1e9:.2f}" for size in (whole, *each)),
                f"{twice / 1e9:.2f}",
                f"{twice / 2e9:.2f}",
            ]
        )
    return rows


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options.add_argument("--shape", choices=SHAPES)
    options.add_argument("--batch", type=int, help="new images a process; as many old ones join")
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--fp32", action="store_true")
    options.add_argument("--no-compile", dest="compile", action="store_false")
    options.add_argument("--parts", action="store_true", help="what --shard leaves to each process")
    asked = options.parse_args()
    if asked.parts:
        many = [f"{world} processes, GB" for world in PROCESSES]
        bytes_ = "gathered a step in fp32, GB", "in bf16, GB"
        head = ["shape", "weights", "whole, GB", *many, *bytes_]
        sys.stdout.write(
            table(head, parts([asked.shape] if asked.shape else ["b16", "l14", "h14"]))
        )
        return
    cuda = asked.device == "cuda"
    asked.shape = asked.shape or ("b16" if cuda else "small")
    asked.batch = asked.batch or (128 if cuda else 16)
    asked.compile &= cuda
    asked.fp32 |= not cuda
    with process_group(asked.device) as asked.device:
        head = [
            "method",
            "alone, ms",
            "together, ms",
            "more",
            "gradients, MB",
            "features, MB",
            "weights, MB",
            "DDP of what may move, MB",
            "DDP of all, MB",
        ]
        rows = compare(asked)
        if collectives.is_rank0():
            images = f"{asked.batch} + {asked.batch} images each"
            about = f"{asked.shape}, {collectives.world_size()} processes, {images}"
            sys.stdout.write(f"{about}\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
