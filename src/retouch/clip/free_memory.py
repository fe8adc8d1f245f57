"""How much memory a device has left."""

import os
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """The bytes that this process could still allocate on a device; 0 if that is unknown."""
    if device.type == "cuda":
        return free_gpu_memory(device)
    if device.type != "cpu" or "SC_AVPHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return 0
    free: int = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:  # a container may have a limit of its own
        limit, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (ValueError, OSError):
        return free
    return min(free, max(0, limit - used))


def free_gpu_memory(device: torch.device) -> int:
    """Free bytes, within a limit set with `torch.cuda.set_per_process_memory_fraction`."""
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    limit = torch.cuda.get_per_process_memory_fraction(device) * total
    return int(min(free, limit - reserved)) + reserved - torch.cuda.memory_allocated(device)
