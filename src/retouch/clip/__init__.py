"""A CLIP, whichever library it comes from: encode images and texts, tokenize, preprocess images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The module that each name comes from. They are imported on first use, so that processes that only
# decode images (`data.loading.worker`) do not import torch for `clip.resize`.
_MODULES = {
    "Batch": "losses",
    "Clip": "model",
    "DualEncoder": "dual_encoder",
    "Features": "losses",
    "Preprocess": "preprocess",
    "Tokens": "text.tokens",
    "load": "loading.load",
}
__all__ = ["Batch", "Clip", "DualEncoder", "Features", "Preprocess", "Tokens", "load"]

if TYPE_CHECKING:
    from retouch.clip.dual_encoder import DualEncoder
    from retouch.clip.loading.load import load
    from retouch.clip.losses import Batch, Features
    from retouch.clip.model import Clip
    from retouch.clip.preprocess import Preprocess
    from retouch.clip.text.tokens import Tokens


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"retouch.clip has no {name!r}")
    return getattr(import_module(f"retouch.clip.{_MODULES[name]}"), name)
