"""Say nothing of the libraries' chatter while something is written."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from retouch.clip.torchvision_compat import patch_torchvision

_CHATTER = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "onnxruntime")


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """What goes wrong becomes an error here, so the libraries need not talk."""
    patch_torchvision()
    import transformers

    talk: Any = transformers.logging
    levels = {name: logging.getLogger(name).level for name in _CHATTER}
    talk.disable_progress_bar()
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        talk.enable_progress_bar()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
