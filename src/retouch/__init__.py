"""Teach CLIP new things without making it forget.

import retouch

plan = retouch.plan("photos", "openai/clip-vit-base-patch16", control="imagenet")
results = retouch.teach(plan, out="runs/march")
"""

from importlib import import_module

from retouch.version import VERSION as __version__

# The subpackage that each name comes from. They are imported on first use, so that
# `retouch --help` does not have to import torch.
_SUBPACKAGES = {
    "Bench": "bench",
    "Clip": "clip",
    "Delta": "sparse",
    "DualEncoder": "clip",
    "Images": "data",
    "Preprocess": "clip",
    "RECIPES": "methods",
    "Results": "evaluate",
    "Selection": "sparse",
    "Settings": "methods",
    "Snapshot": "sparse",
    "SparseAdamW": "sparse",
    "Splits": "data",
    "Stream": "data",
    "cached": "data",
    "continue_run": "train",
    "difference": "sparse",
    "fingerprint": "sparse",
    "in_memory": "data",
    "load": "clip",
    "load_suite": "bench",
    "locate": "sparse",
    "merge": "sparse",
    "plan": "train",
    "preview": "train",
    "read_control": "data",
    "read_data": "data",
    "read_pairs": "data",
    "recipe": "methods",
    "register": "methods",
    "open_run": "train",
    "select": "sparse",
    "teach": "train",
    "write_report": "report",
}
__all__ = sorted(_SUBPACKAGES)

TYPE_CHECKING = False  # `typing` is not imported: see `__main__`
if TYPE_CHECKING:
    from retouch.bench import Bench, load_suite
    from retouch.clip import Clip, DualEncoder, Preprocess
    from retouch.clip.loading.load import load
    from retouch.data import (
        Images,
        Splits,
        Stream,
        cached,
        in_memory,
        read_control,
        read_data,
        read_pairs,
    )
    from retouch.evaluate import Results
    from retouch.methods import RECIPES, Settings, recipe, register
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
    from retouch.train import plan, preview, teach
    from retouch.train.continue_run import continue_run
    from retouch.train.run_folder.read import open_run


def __getattr__(name: str) -> object:
    if name not in _SUBPACKAGES:
        raise AttributeError(f"retouch has no {name!r}")
    return getattr(import_module(f"retouch.{_SUBPACKAGES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
