"""Loading a model runs no code from its files, neither Python nor pickles, and never asks to.

transformers offers to run Python files that come with the weights, and both libraries read pickled
weights if a config or an index names them. Both are blocked here.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import safetensors
import torch

from retouch.errors import UserError, message_of, system_limit

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "layers", "depth")
_SIZES = (
    *(
        "hidden_size",
        "intermediate_size",
        "projection_dim",
        "projection_size",
        "embed_dim",
        "width",
    ),
    *("vocab_size", "max_position_embeddings", "context_length", "image_size", "num_channels"),
    *("num_attention_heads", "heads", "dim", "hidden_dim", "n_heads"),
)
NO_REMOTE_CODE = (
    "it comes with Python code of its own (auto_map), which retouch never runs. If you trust it, "
    "load it yourself and wrap its encoders in retouch.DualEncoder"
)


@contextmanager
def explain_errors(source: str, explain: Callable[[str], str]) -> Iterator[None]:
    """Turn a library's error while loading `source` into a `UserError`.

    `explain` gets the error's message and returns the sentence that the user reads. An error about
    a limit of the system, such as a full disk, is passed on as it is.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the library
        if system_limit(error):
            raise
        if "trust_remote_code" in str(error):
            raise UserError(f"{source} could not be loaded: {NO_REMOTE_CODE}") from error
        raise UserError(explain(message_of(error))) from error


@contextmanager
def block_remote_code(source: str) -> Iterator[None]:
    """While `source` is loaded, transformers imports none of its modules, and torch no pickle.

    `trust_remote_code=False` is not enough: open_clip calls transformers without it, and passes on
    what the config in a folder requests.
    """
    from transformers import dynamic_module_utils as modules

    def refuse_module(*_: object, **__: object) -> NoReturn:
        raise UserError(f"{source} could not be loaded: {NO_REMOTE_CODE}")

    def refuse_pickle(file: object = "", *_: object, **__: object) -> NoReturn:
        name = Path(file).name if isinstance(file, str | Path) else "a file"
        raise UserError(
            f"{source} could not be loaded: {name} holds pickled weights, which can run code when "
            "they are read; use weights in safetensors files"
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
    """Refuse a config.json with an unknown model type, or with code or weights from elsewhere."""
    model_type = config.get("model_type")
    if model_type is None and "auto_map" not in config:
        raise UserError(
            f"{source} could not be loaded: config.json is missing, or has no model_type. A folder "
            "needs config.json, model.safetensors and its tokenizer's files"
        )
    if not isinstance(model_type, str) or model_type not in types:
        has_code = "auto_map" in config
        remedy = f"and {NO_REMOTE_CODE}" if has_code else "wrap others in retouch.DualEncoder"
        raise UserError(
            f"{source} is a model of type {model_type!r}. Of transformers, retouch loads "
            f"{', '.join(types)}; {remedy}"
        )
    for attention in _entries(config, ("attn_implementation", "_attn_implementation")):
        if isinstance(attention, str) and "/" in attention:
            raise UserError(
                f"the config.json of {source} asks for the kernels {attention!r}, which is code "
                "from the hub; remove that entry"
            )
    weights = config.get("transformers_weights")
    suffixes = (".safetensors", ".safetensors.index.json")
    if weights is not None and not _is_file_name(weights, suffixes):
        raise UserError(
            f"the config.json of {source} names the weights {weights!r}; retouch reads only "
            "safetensors files in the same folder"
        )


def _entries(config: object, names: tuple[str, ...]) -> Iterator[object]:
    """The values of these keys, in the config and in the nested configs of its towers."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key in names:
                yield value
            yield from _entries(value, names)


def check_weights(source: str, config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse adapters, and an index that names anything but safetensors files in its folder."""
    if find_file(source, "adapter_config.json", options):
        raise UserError(
            f"{source} holds an adapter for another model (adapter_config.json); make a delta of "
            "it (`retouch delta import`), or merge it into that model: peft's "
            "`merge_and_unload()`, then `save_pretrained(FOLDER)`"
        )
    explicit = config.get("transformers_weights")
    name = explicit if explicit and explicit.endswith(".json") else WEIGHTS_INDEX
    weights = explicit if explicit and not explicit.endswith(".json") else WEIGHTS
    if file := find_file(source, weights, options):  # transformers prefers it, too
        check_sizes(source, config, *count_tensors([file]))
    elif (explicit is None or explicit == name) and (path := find_file(source, name, options)):
        shards = [find_file(source, shard, options) for shard in _check_index(source, Path(path))]
        check_sizes(source, config, *count_tensors([shard for shard in shards if shard]))


def count_tensors(files: Iterable[str | Path]) -> tuple[int, int]:
    """How many tensors safetensors files hold, and their size in bytes."""
    tensors = 0
    for file in files:
        with safetensors.safe_open(str(file), framework="pt") as content:
            tensors += len(content.keys())
    return tensors, sum(Path(file).stat().st_size for file in files)


def check_sizes(source: str, config: Mapping[str, Any], tensors: int, size: int) -> None:
    """Refuse a config whose model is larger than the weights, before it is built.

    Otherwise a billion layers would take forever. A layer has at least one tensor, and a width or
    a vocabulary at least as many entries.

    Args:
        source: The model's name, for the error.
        config: The config, with those of its towers.
        tensors: How many tensors the weights are.
        size: Their size in bytes.
    """
    for names, limit in ((_LAYER_COUNTS, tensors), (_SIZES, size)):
        for name in names:
            for value in _entries(config, (name,)):
                counts = value if isinstance(value, list) else [value]
                if any(isinstance(count, int | float) and not count <= limit for count in counts):
                    raise UserError(
                        f"the config of {source} says {name}={value!r:.80}, which is more than its "
                        f"weights can hold ({tensors:,} tensors, {size:,} bytes); take all files "
                        "from the same place"
                    )


def find_file(source: str, name: str, options: Mapping[str, Any]) -> str | None:
    """The path of a model's file, in its folder or in the hub's cache; None if it has none."""
    from transformers.utils import cached_file

    missing = ("gated_repo", "missing_entries", "connection_errors")
    quiet = {f"_raise_exceptions_for_{what}": False for what in missing}
    path: str | None = cached_file(source, name, **quiet, **options)
    return path


def _check_index(source: str, file: Path) -> set[str]:
    """The names of the files in an index, which must be safetensors files in its folder."""
    try:
        names = json.loads(file.read_text("utf-8"))["weight_map"].values()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{source}: {file.name} is damaged; take another copy of it") from None
    if not names:
        raise UserError(f"{source}: {file.name} lists no weights; take another copy of it")
    for name in names:
        if not _is_file_name(name, (".safetensors",)):
            raise UserError(
                f"{source}: {file.name} names the weights {name!r}; retouch reads only safetensors "
                "files in the same folder"
            )
    return set(names)


def _is_file_name(name: object, suffixes: tuple[str, ...]) -> bool:
    """Whether it is a bare file name with one of these suffixes."""
    return isinstance(name, str) and name.endswith(suffixes) and not set(name) & set("/\\\0")
