"""Silence other libraries while an export is written."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from retouch.clip.torchvision_compat import patch_torchvision

_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "onnxruntime")


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """No progress bars, warnings or log lines; what goes wrong is raised as an error here."""
    patch_torchvision()
    import transformers

    transformers_logging: Any = transformers.logging
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    transformers_logging.disable_progress_bar()
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.enable_progress_bar()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
