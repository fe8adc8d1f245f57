"""Loading a model runs no code from its files: no modules of its own, no pickles, no questions.

transformers offers to run Python that lies beside the weights, and both libraries read pickled
weights where a config or an index leads to them. Here both are shut.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from retouch.errors import UserError

INDEX = "model.safetensors.index.json"
NO_CODE = (
    "it brings Python code of its own (auto_map), which retouch never runs. If you trust it, load "
    "it yourself and wrap its encoders in retouch.DualEncoder"
)


@contextmanager
def no_code(source: str) -> Iterator[None]:
    """While `source` is loaded, transformers imports no module of its own, and torch no pickle.

    `trust_remote_code=False` is not enough: open_clip calls transformers without it, and passes on
    what a folder's own config asks for.
    """
    from transformers import dynamic_module_utils as modules

    def refuse_module(*_: object, **__: object) -> NoReturn:
        raise UserError(f"{source} cannot be loaded: {NO_CODE}")

    def refuse_pickle(file: object = "", *_: object, **__: object) -> NoReturn:
        name = Path(file).name if isinstance(file, str | Path) else "a file"
        raise UserError(
            f"{source} cannot be loaded: {name} holds pickled weights, which can run code when "
            "they are read; take weights in safetensors files"
        )

    with ExitStack() as patches:
        for target, name, replacement in (
            (modules, "TIME_OUT_REMOTE_CODE", 0),  # 0 refuses at once instead of asking
            (modules, "get_cached_module_file", refuse_module),
            (modules, "get_class_in_module", refuse_module),
            (torch, "load", refuse_pickle),
        ):
            patches.enter_context(_patched(target, name, replacement))
        yield


@contextmanager
def _patched(target: Any, name: str, replacement: object) -> Iterator[None]:
    original = getattr(target, name)
    setattr(target, name, replacement)
    try:
        yield
    finally:
        setattr(target, name, original)


def check_config(source: str, config: Mapping[str, Any], types: Mapping[str, str]) -> None:
    """Refuse a config.json that names another type of model, or code or weights from elsewhere."""
    kind = config.get("model_type")
    if kind is None and "auto_map" not in config:
        raise UserError(
            f"{source} could not be loaded: config.json is missing there, or names no model_type. "
            "A folder needs config.json, model.safetensors and its tokenizer's files"
        )
    if not isinstance(kind, str) or kind not in types:
        other = f"and {NO_CODE}" if "auto_map" in config else "wrap others in retouch.DualEncoder"
        raise UserError(
            f"{source} is a model of type {kind!r}. retouch loads {' and '.join(types)} from "
            f"transformers; {other}"
        )
    for attention in _entries(config, ("attn_implementation", "_attn_implementation")):
        if isinstance(attention, str) and "/" in attention:
            raise UserError(
                f"the config.json of {source} asks for the kernels {attention!r}, which is code "
                "from the hub; remove that entry"
            )
    weights = config.get("transformers_weights")
    if weights is not None and not _is_plain(weights, (".safetensors", ".safetensors.index.json")):
        raise UserError(
            f"the config.json of {source} names the weights {weights!r}; retouch reads safetensors "
            "files that lie beside it, and nothing else"
        )


def _entries(config: object, names: tuple[str, ...]) -> Iterator[object]:
    """The values of these keys, in the config itself and in those of its towers."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key in names:
                yield value
            yield from _entries(value, names)


def check_weights(source: str, config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse an index that leads to anything but safetensors files beside it, and adapters."""
    if find_file(source, "adapter_config.json", options):
        raise UserError(
            f"{source} holds an adapter (adapter_config.json) that changes another model; merge it "
            "into that model first: peft's `merge_and_unload()`, then `save_pretrained(FOLDER)`"
        )
    explicit = config.get("transformers_weights")
    name = explicit if explicit and explicit.endswith(".json") else INDEX
    if (explicit is None or explicit == name) and (path := find_file(source, name, options)):
        _check_index(source, Path(path))


def find_file(source: str, name: str, options: Mapping[str, Any]) -> str | None:
    """Where a file of a model lies, be it a folder or a name on the hub; None if it has none."""
    from transformers.utils import cached_file

    missing = ("gated_repo", "missing_entries", "connection_errors")
    quiet = {f"_raise_exceptions_for_{what}": False for what in missing}
    path: str | None = cached_file(source, name, **quiet, **options)
    return path


def _check_index(source: str, file: Path) -> None:
    try:
        names = json.loads(file.read_text("utf-8"))["weight_map"].values()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{source}: {file.name} is damaged; take another copy of it") from None
    if not names:
        raise UserError(f"{source}: {file.name} names no weights; take another copy of it")
    for name in names:
        if not _is_plain(name, (".safetensors",)):
            raise UserError(
                f"{source}: {file.name} names the weights {name!r}; retouch reads safetensors "
                "files that lie beside it, and nothing else"
            )


def _is_plain(name: object, suffixes: tuple[str, ...]) -> bool:
    """A file's name without any folder."""
    return isinstance(name, str) and name.endswith(suffixes) and not set(name) & set("/\\\0")
