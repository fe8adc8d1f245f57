"""Parse JSON and YAML into plain values, strictly.

Only what JSON can hold is read, in any layout: no NaN or infinite numbers, no key twice in a
mapping, no dates, no aliases. Whatever is wrong is a `ValueError` with a reason in a few words,
also nesting that would end in a RecursionError and numbers of thousands of digits.
"""

import json
import math
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

import yaml
from yaml.composer import Composer

from retouch.errors import UserError, message_of


def parse_json(text: str | bytes) -> Any:
    """The content of a JSON text. Raises ValueError."""
    try:
        return json.loads(
            text,
            parse_constant=refuse_constant,
            parse_float=_finite_float,
            object_pairs_hook=_unique_keys,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """The content of a YAML text. Raises ValueError."""
    try:
        content = _load_yaml(text)
        return json.loads(json.dumps(content, allow_nan=False))  # keys become strings
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except TypeError:
        raise ValueError("it holds a date, a set or bytes; put words in quotes") from None
    except yaml.YAMLError as why:
        raise ValueError(message_of(why)) from None


def parse_user_yaml(text: str, what: str) -> Any:
    """Parse YAML that a user wrote; `what` names it in errors."""
    try:
        return parse_yaml(text)
    except ValueError as why:
        raise UserError(
            f"{what} cannot be read as YAML ({message_of(why)}); write numbers, words, true or "
            "false, or lists in [ ]"
        ) from None


def refuse_constant(name: str) -> NoReturn:
    """For `json.loads`: NaN and Infinity are no JSON."""
    raise ValueError(f"{name} is not a number")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is too large")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        _refuse_repeated(key for key, _ in pairs)
    return content


def _refuse_repeated(keys: Iterable[Hashable]) -> None:
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"it holds {key!r:.80} twice")
        seen.add(key)


def _load_yaml(text: str) -> Any:
    """Parse with libyaml, in a fifth of the time. What it refuses is left to the parser in Python,
    which also reads escapes of lone surrogates and explains errors.
    """
    with suppress(yaml.YAMLError):
        return yaml.load(text, _FastLoader)
    return yaml.load(text, _PlainLoader)


class _Plain(Composer):
    """Refuses aliases, for nothing here writes them and a few can expand to a billion nodes, and
    keys that come twice.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # type: ignore[attr-defined]
            raise yaml.YAMLError("it holds an alias")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        _refuse_repeated(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        return node


class _PlainLoader(_Plain, yaml.SafeLoader):
    pass


_LIBYAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _FastLoader(_Plain, _LIBYAML):  # type: ignore[misc]
    """Events come from libyaml. Its own composer is not used: deep nesting would crash it."""

    def __init__(self, text: str) -> None:
        _LIBYAML.__init__(self, text)
        self.anchors: dict[str, Any] = {}
