"""JSON, YAML and JSON lines documents that contain a checksum of their own content.

Every document that a later command continues from is written and read here. Its last key is
`checksum`, a SHA-256 over all the rest. The layout of the text does not count, so a file stays a
plain document for editors and other programs; one whose content was edited, or damaged by a disk or
a transfer, is refused with an error that names it.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from retouch.errors import UserError, message_of
from retouch.files import write_atomically

KEY = "checksum"


class DamagedFile(UserError):
    """A file whose content is not what was written."""


def checksum(content: Any) -> str:
    """SHA-256 of the content as JSON. The order of keys matters: some of it has meaning."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def seal(content: Mapping[str, Any], digits: int = 64) -> dict[str, Any]:
    """The content as plain JSON values, with its checksum (or the first `digits` of it)."""
    plain: dict[str, Any] = json.loads(json.dumps(content))
    plain.pop(KEY, None)
    return {**plain, KEY: checksum(plain)[:digits]}


def unseal(content: Any, digits: int = 64) -> dict[str, Any]:
    """The content without its checksum. Raises ValueError where the two do not match."""
    if not isinstance(content, dict):
        raise ValueError("it does not hold a document")
    stored = content.get(KEY)
    if stored is None:
        raise ValueError("it has no checksum")
    plain = {key: value for key, value in content.items() if key != KEY}
    if stored != checksum(plain)[:digits]:
        raise ValueError("its content does not match its checksum")
    return plain


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a sealed JSON document, whole or not at all."""
    text = json.dumps(seal(content), indent=1, ensure_ascii=False) + "\n"
    write_atomically(
        path, text.encode(errors="backslashreplace")
    )  # lone surrogates, as JSON escapes them


def write_yaml(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a sealed YAML document, whole or not at all."""
    write_atomically(path, _dump_yaml(seal(content)))


def _dump_yaml(content: Mapping[str, Any]) -> str:
    """With libyaml, in a fifth of the time. It writes neither lone surrogates nor, unescaped, what
    lies beyond the first 65,536 characters, such as emoji: that is left to Python.
    """
    options: Any = {"sort_keys": False, "allow_unicode": True}
    with suppress(UnicodeEncodeError):
        text: str = yaml.dump(content, Dumper=_FAST_DUMPER, **options)
        if "\\U" not in text:
            return text
    return str(yaml.safe_dump(content, **options))


def read_json(path: str | Path, remedy: str) -> dict[str, Any]:
    """Read what `write_json` wrote. `remedy` tells the user what to do if the file is damaged."""
    return _read(Path(path), json.loads, remedy)


def read_yaml(path: str | Path, remedy: str) -> dict[str, Any]:
    """Read what `write_yaml` wrote."""
    return _read(Path(path), _plain_yaml, remedy)


def to_line(content: Mapping[str, Any]) -> bytes:
    """One line of a JSON lines file, with 8 digits of its checksum, which are enough for a line."""
    return json.dumps(seal(content, 8)).encode() + b"\n"


def read_lines(path: str | Path, remedy: str) -> list[dict[str, Any]]:
    """All lines that `to_line` wrote. An incomplete last line, left by a kill, is skipped."""
    *lines, rest = Path(path).read_bytes().split(b"\n")
    documents = []
    for number, line in enumerate(lines, 1):
        try:
            documents.append(unseal(json.loads(line), 8))
        except (ValueError, TypeError, RecursionError) as why:
            raise DamagedFile(_damage_message(f"line {number} of {path}", why, remedy)) from None
    if rest:
        with suppress(ValueError, TypeError, RecursionError):
            documents.append(unseal(json.loads(rest), 8))
    return documents


def parse_yaml(text: str, what: str) -> Any:
    """Parse YAML that a user wrote; `what` names it in errors."""
    try:
        return _plain_yaml(text)
    except RecursionError:
        raise UserError(f"{what} is nested too deeply") from None
    except TypeError:
        raise UserError(f"{what} holds a date, a set or bytes; put words in quotes") from None
    except (ValueError, yaml.YAMLError) as why:
        raise UserError(
            f"{what} cannot be read as YAML ({message_of(why)}); write numbers, words, true or "
            "false, or lists in [ ]"
        ) from None


def _plain_yaml(text: str) -> Any:
    """As plain JSON values: YAML also has dates, and keys that are not strings."""
    return json.loads(json.dumps(_load_yaml(text)))


def _load_yaml(text: str) -> Any:
    """Parse with libyaml, in a fifth of the time. What it refuses is left to the parser in Python,
    which also reads escapes of lone surrogates and explains errors.
    """
    with suppress(yaml.YAMLError):
        return yaml.load(text, _FastLoader)
    return yaml.load(text, _PlainLoader)


class _PlainComposer(Composer):
    """Refuses aliases: nothing here writes them, and a few can expand to a billion nodes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # type: ignore[attr-defined]
            raise yaml.YAMLError("it holds an alias")
        return super().compose_node(parent, index)


class _PlainLoader(_PlainComposer, yaml.SafeLoader):
    pass


_FAST_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LIBYAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _FastLoader(_PlainComposer, _LIBYAML):  # type: ignore[misc]
    """Events come from libyaml. Its own composer is not used: deep nesting would crash it."""

    def __init__(self, text: str) -> None:
        _LIBYAML.__init__(self, text)
        self.anchors: dict[str, Any] = {}


def _read(path: Path, parse: Callable[[str], Any], remedy: str) -> dict[str, Any]:
    content = path.read_bytes()
    try:
        return unseal(parse(content.decode()))
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as why:
        raise DamagedFile(_damage_message(str(path), why, remedy)) from None


def _damage_message(what: str, why: BaseException, remedy: str) -> str:
    reason = "it is nested too deeply" if isinstance(why, RecursionError) else str(why)
    reason = reason.partition("\n")[0][:200]
    return f"{what} is damaged or was changed by hand ({reason}); {remedy}"
