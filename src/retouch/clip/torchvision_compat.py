"""Make a torchvision without its compiled operators importable.

transformers and open_clip import torchvision where it is installed. Beside a torch for CPUs, the
usual torchvision wheel stops at its missing operators `nms` and `qnms`, which nobody here calls:
declaring them lets the import go through.
"""

import importlib
import importlib.util

import torch

_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def patch_torchvision() -> None:
    """Call before the first import of transformers or open_clip."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as why:
        if "torchvision::nms" not in str(why):
            raise
        torch.library.define("torchvision::nms", _BOXES)
        torch.library.define("torchvision::qnms", _BOXES)
        importlib.import_module("torchvision")
