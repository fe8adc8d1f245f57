"""Make a torchvision without its compiled operators importable.

transformers and open_clip import torchvision where it is installed. With a CPU build of torch, the
usual torchvision wheel fails to import, because its operators `nms` and `qnms` are missing. Nothing
here calls them: declaring them is enough for the import to succeed.
"""

import importlib
import importlib.util

import torch

_NMS_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def patch_torchvision() -> None:
    """Call this before the first import of transformers or open_clip."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        torch.library.define("torchvision::nms", _NMS_SIGNATURE)
        torch.library.define("torchvision::qnms", _NMS_SIGNATURE)
        importlib.import_module("torchvision")
