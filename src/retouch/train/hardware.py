"""What suits the machine, where a user does not say: precision and compilation."""

from dataclasses import dataclass

import torch

from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods import Method, Settings, available_methods
from retouch.plural import count
from retouch.train.defaults import SMALL_MODEL

PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Hardware:
    """How to compute, and where."""

    device: torch.device
    precision: str
    compile: bool

    @property
    def settings(self) -> dict[str, str | bool]:
        """What differs from the defaults of `Settings`."""
        chosen: dict[str, str | bool] = {"precision": self.precision, "compile": self.compile}
        plain = Settings()
        return {key: value for key, value in chosen.items() if value != getattr(plain, key)}

    def __str__(self) -> str:
        kind = "compiled" if self.compile else "not compiled"
        ranks = collectives.world_size()
        many = f", in {ranks} processes together" if ranks > 1 else ""
        return f"Computes on {name_of(self.device)} in {self.precision}, {kind}{many}"


def hardware(
    device: torch.device, size: int, precision: str = "auto", compiled: bool | None = None
) -> Hardware:
    """Choose for a model of so many weights what was left open.

    On a GPU, bfloat16 and compiled towers; on a processor bfloat16 where it has units for that and
    the model is large enough to gain by it. What is compiled must be worth the minute it takes.
    """
    check_precision(precision)
    cuda, large = device.type == "cuda", size >= SMALL_MODEL
    half = (cuda and torch.cuda.is_bf16_supported()) or (large and _has_bf16_units(device))
    chosen = ("bf16" if half else "fp32") if precision == "auto" else precision
    return Hardware(device, chosen, cuda and large if compiled is None else compiled)


def check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: say one of {', '.join(PRECISIONS)}")


def check_shard(method: Method, settings: Settings) -> None:
    """Refuse what does not go together with frozen weights that processes share."""
    if not settings.shard:
        return
    if collectives.world_size() == 1:
        raise UserError(
            "--shard divides the frozen weights over several processes, and there is only this "
            "one; start some with torchrun --nproc-per-node N -m retouch learn … --shard, or leave "
            "--shard out"
        )
    if not method.shards:
        able = ", ".join(name for name, each in available_methods().items() if each.shards)
        raise UserError(
            f"--shard divides the weights that a method does not move: {able} can do that, "
            f"{method.name} cannot; use one of them, or leave --shard out"
        )
    if settings.compile:
        raise UserError("--shard and --compile do not go together; leave one of them out")


def name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"the processor ({count(torch.get_num_threads(), 'thread')})"


def _has_bf16_units(device: torch.device) -> bool:
    known = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return device.type == "cpu" and known is not None and bool(known())
