"""Whether a CPU computes faster in bfloat16 than in float32.

Without units for it, torch computes bfloat16 in plain loops, many times slower. With units it
depends on the CPU, so it is measured: a few matrix products of the size of a ViT-B/16's.
"""

import platform
import time
from functools import cache

import torch

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
