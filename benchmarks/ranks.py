"""What does training on several ranks cost? Time, and bytes compared with DDP.

    torchrun --nproc-per-node 2 benchmarks/ranks.py                  # a small model on a CPU
    torchrun --nproc-per-node 8 benchmarks/ranks.py --device cuda    # CLIP ViT-B/16 on 8 GPUs
    torchrun --nproc-per-node 2 benchmarks/ranks.py --shape b16 --batch 4 --times 2
    python benchmarks/ranks.py --parts                   # memory per rank with --shard

Each rank takes `--batch` new images and as many replayed ones. A joint step is compared with a step
of each rank on its own, in the same processes at the same time. Bytes are what one rank sends per
step with ring collectives; those of DDP are counted by a communication hook. `--parts` measures
nothing: it counts the weights of models of the real shapes on the meta device.
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
from speed import SHAPES, Workload
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


def time_step(
    workload: Workload, method: Method, times: int, shard: bool
) -> tuple[float, Counter[str]]:
    """Milliseconds and bytes of a step with as many replayed images as new ones."""
    changes = {"shard": shard, "compile": workload.settings.compile and not shard}
    clip, settings = workload.clip(), workload.settings.model_copy(update=changes)
    clip.bf16 = settings.precision == "bf16"
    durations, before = [], Counter[str]()
    with clip.fast("inductor" if settings.compile else None):
        context = task_context(clip, workload.stream, workload.stream.tasks[0], method, settings)
        with method.update.begin(context) as update:
            batch = context.load(np.arange(2 * settings.batch), settings.batch)
            for number in range(times + 3):
                if number == 3:
                    before = Counter(collectives.traffic)
                workload.synchronize()
                start = time.perf_counter()
                loss = backward(context, batch, method.regularizer)
                update.step(1.0)
                collectives.all_reduce_scalar(float(loss))
                durations.append(1e3 * (time.perf_counter() - start))
    return median(durations[3:]), Counter(
        {k: (n - before[k]) // times for k, n in collectives.traffic.items()}
    )


def ddp_bytes(workload: Workload, trainable: tuple[str, ...] | None) -> int:
    """Bytes of gradients that DDP sends per step, for these parameters or for all."""
    clip = workload.clip()
    for name, parameter in clip.model.named_parameters():
        parameter.requires_grad_(trainable is None or name.endswith(trainable))
    model, num_bytes = DistributedDataParallel(clip.model), 0

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal num_bytes
        buffer = bucket.buffer()
        num_bytes += buffer.numel() * buffer.element_size()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    model.register_comm_hook(None, hook)
    pixels = torch.zeros(1, 3, *clip.preprocess.size, device=workload.device)
    tokens = clip.tokenize(["a photo of the red one"])["input_ids"].to(workload.device)
    model(pixel_values=pixels, input_ids=tokens).logits_per_image.sum().backward()
    return 2 * num_bytes * (collectives.world_size() - 1) // collectives.world_size()


def compare(args: argparse.Namespace) -> list[list[str]]:
    rows, batch, world_size = [], args.batch, collectives.world_size()
    for name, method in METHODS.items():
        args.batch = batch * world_size
        shard = name.endswith("--shard")
        together, sent = time_step(Workload(args), method, args.times, shard)
        args.batch = batch
        device = torch.device(args.device)
        collectives.end()
        alone, _ = time_step(Workload(args), method, args.times, shard)
        collectives.begin(device)
        ddp_trainable = ddp_bytes(Workload(args), None if name == "er" else (".fc1.weight",))
        ddp_all = ddp_bytes(Workload(args), None)
        rows.append(
            [
                name,
                f"{alone:.1f}",
                f"{together:.1f}",
                f"{100 * (together - alone) / alone:+.0f} %",
                f"{sent['gradients'] / 1e6:.2f}",
                f"{sent['features'] / 1e6:.2f}",
                f"{sent['weights'] / 1e6:.1f}",
                f"{ddp_trainable / 1e6:.1f}",
                f"{ddp_all / 1e6:.1f}",
            ]
        )
    return rows


WORLD_SIZES = (2, 4, 8)


def parts(shapes: Sequence[str]) -> list[list[str]]:
    """Memory of the weights on each rank during training, and bytes that are gathered per step."""
    rows = []
    for name in shapes:
        clip = model_of(name, torch.device("meta"))
        sharded = METHODS["spu"].update.shardable_parameters(clip)
        whole = fsdp.bytes_per_rank(clip.model, {}, 1)
        per_rank = [fsdp.bytes_per_rank(clip.model, sharded, size) for size in WORLD_SIZES]
        twice = 2 * sum(p.nbytes for p in sharded.values())  # in the forward and the backward pass
        rows.append(
            [
                name,
                f"{clip.size / 1e6:.0f} M",
                *(f"{size / 1e9:.2f}" for size in (whole, *per_rank)),
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
    options.add_argument("--batch", type=int, help="new images per rank; as many are replayed")
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--fp32", action="store_true")
    options.add_argument("--no-compile", dest="compile", action="store_false")
    options.add_argument("--parts", action="store_true", help="memory per rank with --shard")
    args = options.parse_args()
    if args.parts:
        columns = [f"{size} ranks, GB" for size in WORLD_SIZES]
        bytes_ = "gathered per step in fp32, GB", "in bf16, GB"
        head = ["shape", "weights", "whole, GB", *columns, *bytes_]
        sys.stdout.write(table(head, parts([args.shape] if args.shape else ["b16", "l14", "h14"])))
        return
    cuda = args.device == "cuda"
    args.shape = args.shape or ("b16" if cuda else "small")
    args.batch = args.batch or (128 if cuda else 16)
    args.compile &= cuda
    args.fp32 |= not cuda
    with process_group(args.device) as args.device:
        head = [
            "method",
            "alone, ms",
            "together, ms",
            "more",
            "gradients, MB",
            "features, MB",
            "weights, MB",
            "DDP of trainable weights, MB",
            "DDP of all weights, MB",
        ]
        rows = compare(args)
        if collectives.is_rank0():
            images = f"{args.batch} + {args.batch} images each"
            about = f"{args.shape}, {collectives.world_size()} ranks, {images}"
            sys.stdout.write(f"{about}\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
