"""A language model in a folder of transformers, as deltas and exports need it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from retouch.arguments import check_arguments
from retouch.errors import UserError, message_of
from retouch.sparse import fingerprint
from retouch.torchvision_compat import patch_torchvision

_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_TOKENIZER = (
    *("tokenizer.json", "vocab.json", "tokens.json", "tokens_map.json", "_config.json"),
    *(".model", ".txt", ".jinja"),
)
"""Endings of the files of tokenizers and processors."""


@dataclass
class CausalModel:
    """A model that generates text."""

    model: nn.Module
    """The model of transformers."""
    name: str
    """Its folder."""

    def save(self, folder: str | Path) -> None:
        """Write a folder that transformers loads, with the tokenizer of the original.

        Args:
            folder: The folder to write.
        """
        folder, source = Path(folder), Path(self.name)
        with _no_progress_bars():
            self.model.save_pretrained(folder)  # type: ignore[operator]
        for file in sorted(source.iterdir()):
            if file.name.endswith(_TOKENIZER) and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from transformers import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def is_causal_folder(name: str | Path) -> bool:
    """Whether this is the folder of a model that generates text.

    Args:
        name: A path, or the name of a model.
    """
    return _architecture(Path(name)) is not None


def _architecture(folder: Path) -> str | None:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    names = config.get("architectures") if isinstance(config, dict) else None
    name = names[0] if isinstance(names, list) and names else None
    return name if isinstance(name, str) and name.endswith(_ENDINGS) else None


@check_arguments()
def load_causal(folder: str | Path, weights: str | None = None) -> CausalModel:
    """Load a language model from its folder, in the precision that it is stored in.

    Args:
        folder: A folder as transformers writes it. Python code in it is not run.
        weights: The fingerprint that the weights should have. If they are stored in 16 bits and
            do not have it, they are loaded in float32, in which they may have been trained.
    """
    architecture = _architecture(Path(folder))
    if architecture is None:
        raise UserError(f"{folder} does not hold a language model; give a folder of transformers")
    model = _load(Path(folder), architecture, "auto")
    if weights is not None and _is_narrow(model) and fingerprint(model) != weights:
        model = _load(Path(folder), architecture, "float32")
    return CausalModel(model, str(folder))


def _is_narrow(model: nn.Module) -> bool:
    return any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())


def _load(folder: Path, architecture: str, dtype: str) -> Any:
    patch_torchvision()
    import transformers

    kind = getattr(transformers, architecture, None)
    if kind is None:
        raise UserError(
            f"{folder} is a {architecture}, which transformers {transformers.__version__} does not "
            "know; install a newer one. Python code in a model's folder is not run"
        )
    if (folder / "adapter_config.json").exists() and not list(folder.glob("model*.safetensors")):
        raise UserError(f"{folder} holds an adapter, not a model; give the model's folder")
    options = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
    try:
        with _no_progress_bars():
            model, report = kind.from_pretrained(folder, dtype=dtype, **options)
    except (OSError, ValueError, RuntimeError, KeyError) as why:
        raise UserError(f"{folder} cannot be loaded: {message_of(why)}") from None
    if missing := sorted(report.get("missing_keys", ())):
        raise UserError(f"{folder} is not complete: it has no {missing[0]}; take another copy")
    return model.eval()
