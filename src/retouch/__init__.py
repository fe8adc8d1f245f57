"""Teach CLIP new things without making it forget.

import retouch

clip = retouch.load("openai/clip-vit-base-patch16")
stream = retouch.Stream.split(*retouch.read_data("photos").to_learn(), tasks=1)
results = retouch.teach(clip, stream, "spu", out="runs/march")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from retouch.version import VERSION as __version__

# Where each name comes from. They are imported when they are used, so that `retouch --help` need
# not wait for torch.
_HOME = {
    "Bench": "bench",
    "Clip": "clip",
    "Delta": "sparse",
    "Images": "data",
    "Pair": "clip",
    "Pixels": "clip",
    "RECIPES": "methods",
    "Results": "learn",
    "Selection": "sparse",
    "Settings": "methods",
    "Snapshot": "sparse",
    "SparseAdamW": "sparse",
    "Splits": "data",
    "Stream": "data",
    "cached": "data",
    "continue_run": "learn",
    "difference": "sparse",
    "fingerprint": "sparse",
    "in_memory": "data",
    "load": "clip",
    "load_suite": "bench",
    "locate": "sparse",
    "merge": "sparse",
    "preview": "learn",
    "read_data": "data",
    "read_pairs": "data",
    "recipe": "methods",
    "reopen": "learn",
    "select": "sparse",
    "teach": "learn",
    "write_report": "report",
}
__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from retouch.bench import Bench, load_suite
    from retouch.clip import Clip, Pair, Pixels
    from retouch.clip.load import load
    from retouch.data import Images, Splits, Stream, cached, in_memory, read_data, read_pairs
    from retouch.learn import Results, continue_run, preview, teach
    from retouch.learn.reopen import reopen
    from retouch.methods import RECIPES, Settings, recipe
    from retouch.report import write_report
    from retouch.sparse import (
        Delta,
        Selection,
        Snapshot,
        SparseAdamW,
        difference,
        fingerprint,
        locate,
        merge,
        select,
    )


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"retouch has no {name!r}")
    return getattr(import_module(f"retouch.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
