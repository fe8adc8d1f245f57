"""Read deltas and adapters from the Hugging Face hub, where `retouch push` writes them.

`hf:OWNER/NAME` names a repository there, `hf:OWNER/NAME@REVISION` one revision of it. Only
safetensors and JSON are downloaded. Without a connection, the copy in the cache is used.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from retouch.errors import UserError, message_of, system_limit
from retouch.sparse import Delta, in_order, read_header

PREFIX, SEPARATOR = "hf:", "@hf:"
DELTA_FILES = ("task-??.safetensors", "task-???.safetensors")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
TIMEOUT = 60.0
"""Timeout in seconds of each request; without it, huggingface_hub would wait for ever."""
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")


def on_hub(path: str | Path) -> bool:
    """Whether it names a repository on the hub."""
    return str(path).startswith(PREFIX)


def deltas_folder(name: str | Path) -> Path:
    """The deltas of `hf:OWNER/NAME`, downloaded."""
    folder = _download(str(name), [*DELTA_FILES, "adapter_config.json", "config.json"])
    if any(folder.glob("task-*.safetensors")):
        return folder
    repo = str(name).removeprefix(PREFIX)
    if (folder / "adapter_config.json").exists():
        remedy = f"it holds an adapter of peft: `retouch delta import {name}` makes a delta of it"
    elif (folder / "config.json").exists():
        remedy = f"it holds a whole model, which loads by its name, {repo}"
    else:
        remedy = "they are called task-01.safetensors and so on, as `retouch push` writes them"
    raise UserError(f"{name} holds no deltas; {remedy}")


def adapter_folder(name: str | Path) -> Path:
    """The adapter of `hf:OWNER/NAME`, downloaded."""
    return _download(str(name), [*ADAPTER_FILES])


def apply_hub_deltas(model: nn.Module, name: str) -> None:
    """Apply all deltas of `hf:OWNER/NAME` to the model that they belong to, in place."""
    headers = [read_header(file) for file in sorted(deltas_folder(name).glob("task-*.safetensors"))]
    for header in in_order(headers):
        Delta.load(header.name).apply(model)


def refuse_unreadable(name: str, files: Sequence[str]) -> None:
    """Refuse, by the names of its files, a repository from which no model can be loaded.

    Args:
        name: The repository, `OWNER/NAME`.
        files: The names of all its files.
    """
    if "config.json" not in files:
        if any(Path(file).match(pattern) for file in files for pattern in DELTA_FILES):
            raise UserError(
                f"{name} holds deltas, not a model; with the model that they belong to, write "
                f"BASE{SEPARATOR}{name}"
            )
        if "adapter_config.json" in files:
            raise UserError(
                f"{name} holds an adapter for another model; make a delta of it: "
                f"`retouch delta import {PREFIX}{name}`"
            )
    pickled = [file for file in files if file.endswith(PICKLE_SUFFIXES) and "/" not in file]
    if pickled and not any(file.endswith(".safetensors") for file in files):
        raise UserError(
            f"{name} has only pickled weights on the hub ({pickled[0]}), which can run code when "
            "they are read; retouch reads safetensors only. Ask its owner to add "
            "model.safetensors, or, if you trust it, load it with transformers in a process "
            "of its own, `save_pretrained(FOLDER)`, and give that folder"
        )


def find_on_hub(name: str, file: str, options: Mapping[str, Any]) -> Path | None:
    """A file of a repository, downloaded; None if the repository, or its cached copy, has none.

    Args:
        name: The repository, `OWNER/NAME`.
        file: The name of the file.
        options: Options for downloading, as `hub_options` returns them.
    """
    import huggingface_hub as hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    with explain_hub_errors(name), bars_on_a_terminal_only():
        try:
            return Path(hub.hf_hub_download(name, file, **options))
        except EntryNotFoundError as why:
            if isinstance(why, LocalEntryNotFoundError) and not options.get("local_files_only"):
                raise  # the connection failed
            return None


def _download(name: str, patterns: list[str]) -> Path:
    import huggingface_hub as hub

    repo, _, revision = name.removeprefix(PREFIX).partition("@")
    with explain_hub_errors(f"{PREFIX}{repo}"), bars_on_a_terminal_only():
        return Path(hub.snapshot_download(repo, revision=revision or None, allow_patterns=patterns))


@contextmanager
def bars_on_a_terminal_only() -> Iterator[None]:
    """Hide progress bars in log files, where huggingface_hub shows them too."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    hide = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            enable_progress_bars()


@contextmanager
def _timeout() -> Iterator[None]:
    """Every request inside this context has a timeout: huggingface_hub sets none for most."""
    from huggingface_hub import get_session

    def set_timeout(request: Any) -> None:
        given = request.extensions.get("timeout") or {}
        phases = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {name: given.get(name) or TIMEOUT for name in phases}

    hooks = get_session().event_hooks["request"]
    hooks.append(set_timeout)
    try:
        yield
    finally:
        hooks.remove(set_timeout)


@contextmanager
def explain_hub_errors(name: str) -> Iterator[None]:
    """Turn the errors of huggingface_hub into a `UserError` that says what to do.

    No request inside waits for ever: one without an answer is such an error, too.
    """
    from huggingface_hub import errors

    try:
        with _timeout():
            yield
    except UserError:
        raise
    except errors.LocalTokenNotFoundError:
        raise UserError(f"you are not logged in to the hub, for {name}: `hf auth login`") from None
    except errors.HFValidationError as why:
        raise UserError(
            f"{name} is not a name on the hub, which are like OWNER/NAME ({message_of(why)})"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name} has no such revision on the hub; check the part after @") from None
    except errors.GatedRepoError:
        raise UserError(
            f"{name} is on the hub, but not open to you; ask for access on its page there"
        ) from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{name} is not on the hub, or it is private and you are not logged in; check the "
            "spelling, or run `hf auth login`"
        ) from None
    except errors.HfHubHTTPError as why:
        code = why.response.status_code if why.response is not None else 0
        if code in (401, 403):
            raise UserError(
                f"the hub does not allow this for {name} (HTTP {code}); run `hf auth login` with a "
                "token that may write there"
            ) from None
        raise UserError(f"the hub refused {name}: {message_of(why)}") from None
    except Exception as why:  # a missing connection raises many kinds of errors
        if system_limit(why):
            raise
        kind = type(why).__name__
        if "Timeout" in kind:
            raise UserError(
                f"the hub did not answer in time for {name} ({kind}); try again later"
            ) from None
        raise UserError(
            f"the hub cannot be reached for {name} ({kind}); go online and try again"
        ) from None
