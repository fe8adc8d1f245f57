"""Precision and compilation: chosen for the machine where the user does not set them."""

import platform
import time
from dataclasses import dataclass
from functools import cache

import torch

from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods import Method, Settings, available_methods
from retouch.text.plural import count
from retouch.train.defaults import SMALL_MODEL
from retouch.train.work import Work

MIN_GAIN = 1.2
"""As many times as fast bfloat16 must be to be chosen, since it is less accurate."""
_ROWS, _INPUTS, _OUTPUTS = 788, 768, 3072  # four images, a first MLP layer
_REPEATS = 5


def bf16_units() -> str | None:
    """What this CPU computes bfloat16 with; None if torch knows of nothing."""
    if platform.machine() in ("aarch64", "arm64"):
        return "Arm BF16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else None
    names = {"_is_amx_tile_supported": "AMX", "_is_avx512_bf16_supported": "AVX-512 BF16"}
    supported = {name: getattr(torch.cpu, check, bool) for check, name in names.items()}
    return next((name for name, check in supported.items() if check()), None)


@cache
def bf16_gain() -> float:
    """How many times as fast as in float32 this CPU multiplies matrices in bfloat16."""
    return _seconds(torch.float32) / _seconds(torch.bfloat16)


def choose_on_cpu() -> tuple[str, str]:
    """The faster precision for a large model, and why."""
    units = bf16_units()
    if units is None:
        return "fp32", "this CPU has no units for bf16"
    gain = bf16_gain()
    measured = f"with {units}, bf16 was measured {gain:.1f} times as fast as fp32"
    return ("bf16" if gain >= MIN_GAIN else "fp32"), measured


def _seconds(dtype: torch.dtype) -> float:
    """The fastest of a few matrix products, after one to warm up."""
    left, right = (
        torch.ones(_ROWS, _INPUTS, dtype=dtype),
        torch.ones(_INPUTS, _OUTPUTS, dtype=dtype),
    )
    torch.mm(left, right)
    measured = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        torch.mm(left, right)
        measured.append(time.perf_counter() - began)
    return min(measured)


PRECISIONS = ("auto", "fp32", "bf16")
COMPILE_SECONDS = 35.0
"""What compiling both towers takes the first time."""
_SAVED_PER_PASS = 0.043e-3 / 150e6
"""Seconds that a compiled tower saves per image's forward pass and weight. Measured on an H200: 256
images through a training step of a ViT-B/16 take 52 ms instead of 82, and a step is worth three
passes (docs/performance.md)."""
_PROMPTS_PER_IMAGE = 20
"""Prompts that take as long as an image."""


@dataclass(frozen=True)
class Hardware:
    """The device, and how to compute on it."""

    device: torch.device
    precision: str
    compile: bool
    cuda_graphs: bool = False
    reason: str = ""
    """Why this precision, where a user may wonder."""

    @property
    def settings(self) -> dict[str, str | bool]:
        """The entries that differ from the defaults of `Settings`."""
        names = ("precision", "compile", "cuda_graphs")
        entries: dict[str, str | bool] = {name: getattr(self, name) for name in names}
        defaults = Settings()
        return {key: value for key, value in entries.items() if value != getattr(defaults, key)}

    def __str__(self) -> str:
        compiled = "compiled" if self.compile else "not compiled"
        if self.cuda_graphs:
            compiled = "captured as CUDA graphs, as this run is too short to compile for"
        world_size = collectives.world_size()
        ranks = f", in {world_size} processes" if world_size > 1 else ""
        precision = f"{self.precision} ({self.reason})" if self.reason else self.precision
        return f"Computes on {device_name(self.device)} in {precision}, {compiled}{ranks}"


def hardware(
    device: torch.device,
    size: int,
    precision: str = "auto",
    compiled: bool | None = None,
    work: Work | None = None,
) -> Hardware:
    """Choose the precision and whether to compile.

    On a GPU, bfloat16 and compiled towers; on a CPU, bfloat16 where it has units for it, they are
    measured to be faster, and the model is large enough to gain from them. Small models are not
    compiled: it takes a minute. Nor are large ones for a run that would gain less than that; their
    plain towers are captured. The choice to compile depends on the run's size and not on timing, so
    the same run is computed the same way.

    Args:
        device: Where to compute.
        size: How many weights the model has.
        precision: "fp32" or "bf16"; "auto" to choose.
        compiled: Whether to compile; None to choose.
        work: What the run computes, if it is known.
    """
    check_precision(precision)
    cuda, large = device.type == "cuda", size >= SMALL_MODEL
    reason = ""
    if device.type == "cpu" and large:
        precision, reason = _on_cpu(precision)
    elif precision == "auto":
        precision = "bf16" if cuda and torch.cuda.is_bf16_supported() else "fp32"
    if compiled is not None or not (cuda and large):
        return Hardware(device, precision, bool(compiled), reason=reason)
    pays = work is None or seconds_saved_by_compiling(work, size) > COMPILE_SECONDS
    return Hardware(device, precision, pays, cuda_graphs=not pays)


def _on_cpu(precision: str) -> tuple[str, str]:
    """The precision of a large model on a CPU, and why."""
    if precision == "auto":
        return choose_on_cpu()
    slow = precision == "bf16" and bf16_units() is None
    return precision, "slow: this CPU has no units for it, fp32 is faster" if slow else ""


def seconds_saved_by_compiling(work: Work, size: int) -> float:
    """Roughly what a run gains from compiled towers, on the GPU that they were measured on."""
    passes = 3 * work.trained + work.evaluated
    prompts = 3 * work.trained_prompts + work.evaluated_prompts
    return _SAVED_PER_PASS * size * (passes + prompts / _PROMPTS_PER_IMAGE)


def check_precision(precision: str) -> None:
    """Refuse an unknown precision."""
    if precision not in PRECISIONS:
        raise UserError(
            f"unknown precision {precision!r}; use one of {', '.join(PRECISIONS)}",
            argument="precision=…",
        )


def check_shard(method: Method, settings: Settings) -> None:
    """Refuse what cannot be combined with frozen weights that are divided over the ranks."""
    if not settings.shard:
        return
    if collectives.world_size() == 1:
        raise UserError(
            "sharding divides the frozen weights over several processes, and there is only one; "
            "start several with torchrun, or leave sharding out",
            argument="shard=False",
        )
    if not method.shards:
        names = ", ".join(name for name, recipe in available_methods().items() if recipe.shards)
        raise UserError(
            f"{method.name} cannot be sharded; use one of {names}, or leave sharding out",
            argument="shard=False",
        )
    if settings.compile:
        raise UserError("sharding cannot be combined with compiling; leave one of them out")


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"the CPU ({count(torch.get_num_threads(), 'thread')})"
