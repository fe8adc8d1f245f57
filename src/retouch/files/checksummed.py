"""Documents that contain a checksum of their own content, and have a schema.

Every document that a later command continues from is written and read here: JSON, YAML and JSON
lines files, and the headers of safetensors files. Its last key is `checksum`, a SHA-256 over all
the rest. The layout of the text does not count, so a file stays a plain document for editors and
other programs; one whose content was edited, or damaged by a disk or a transfer, is refused with an
error that names it. Its schema, a `Document`, says what it may hold: whoever reads it gets exactly
that, or a `UserError` that names the file, the entry and what to do.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retouch.errors import UserError, first_problem
from retouch.files.write import write_atomically
from retouch.text.parsing import parse_json, parse_yaml

KEY = "checksum"
_LINE_DIGITS = 8  # of a line's checksum, which are enough for a line

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things."""
Percent = Annotated[float, Field(ge=0, le=100)]


class Document(BaseModel):
    """The schema of a document, or of a part of one."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


D = TypeVar("D", bound=BaseModel)


# Checksums.


def checksum(content: Any, previous: str = "") -> str:
    """SHA-256 of the content as JSON. The order of keys matters: some of it has meaning."""
    return hashlib.sha256((previous + json.dumps(content)).encode()).hexdigest()


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as plain JSON values, with its checksum."""
    plain: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
    plain.pop(KEY, None)
    return {**plain, KEY: checksum(plain)}


def _unseal(content: Any, previous: str = "", digits: int = 64) -> dict[str, Any]:
    """The content without its checksum. Raises ValueError where the two do not match."""
    if not isinstance(content, dict):
        raise ValueError("it does not hold a document")
    stored = content.get(KEY)
    if stored is None:
        raise ValueError("it has no checksum")
    plain = {key: value for key, value in content.items() if key != KEY}
    if stored != checksum(plain, previous)[:digits]:
        raise ValueError("its content does not match its checksum")
    return plain


# Whole files.


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


_FAST_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read(path: str | Path, schema: type[D], remedy: str) -> D:
    """Read what `write_json` or `write_yaml` wrote.

    Args:
        path: The file; if its name ends in `.yaml`, it is YAML.
        schema: What it may hold.
        remedy: Tells the user what to do if it does not.
    """
    path = Path(path)
    content = path.read_bytes()
    try:
        parsed = parse_yaml(content.decode()) if path.suffix == ".yaml" else parse_json(content)
        return _document(_unseal(parsed), schema)
    except ValueError as why:
        raise refusal(str(path), why, remedy) from None


# Headers of safetensors files, which hold one string under "retouch".


def to_metadata(content: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a safetensors file with this header.

    All in one entry: safetensors writes several entries in no fixed order.
    """
    return {"retouch": json.dumps(seal(content))}


def from_metadata(metadata: Mapping[str, str], schema: type[D]) -> D:
    """The header in the metadata of a safetensors file. Raises ValueError; see `refusal`."""
    return _document(_unseal(parse_json(metadata["retouch"])), schema)


# Files that grow line by line.


def to_line(content: Mapping[str, Any], previous: str = "") -> bytes:
    """One line of a JSON lines file. Its checksum also covers `previous`, that of the line before
    it, if the file is to be read as a chain.
    """
    plain = json.loads(json.dumps(content, allow_nan=False))
    sealed = {**plain, KEY: checksum(plain, previous)[:_LINE_DIGITS]}
    return json.dumps(sealed).encode() + b"\n"


def line_checksum(line: bytes) -> str:
    """The checksum of a line that `to_line` wrote."""
    return str(json.loads(line)[KEY])


def read_lines(
    path: str | Path, schema: type[D], remedy: str, *, chained: bool = False
) -> list[tuple[D, str]]:
    """All lines that `to_line` wrote, each with its checksum.

    An incomplete last line, left by a kill, is skipped.

    Args:
        path: The file.
        schema: What a line may hold.
        remedy: Tells the user what to do if it does not.
        chained: Whether each line's checksum covers that of the line before it.
    """
    *lines, rest = Path(path).read_bytes().split(b"\n")
    documents: list[tuple[D, str]] = []
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        previous = documents[-1][1] if documents and chained else ""
        try:
            content = parse_json(line)
            plain = _unseal(content, previous, _LINE_DIGITS)
            documents.append((_document(plain, schema), content[KEY]))
        except ValueError as why:
            if number > len(lines):
                break
            raise refusal(f"line {number} of {path}", why, remedy) from None
    return documents


# Schemas.


def refusal(what: str, why: Exception, remedy: str) -> UserError:
    """Why a document is refused: it is damaged, or its content is not what its schema says."""
    if isinstance(why, ValidationError):
        problem = f"was written by another version of retouch, or edited ({first_problem(why)})"
    else:
        problem = f"is damaged or was changed by hand ({str(why).partition(chr(10))[0][:200]})"
    return UserError(f"{what} {problem}; {remedy}")


def _document(content: dict[str, Any], schema: type[D]) -> D:
    """The content as its schema. An entry that has a default may not be missing either: whatever
    is written is written whole.
    """
    document = schema.model_validate(content, strict=True)
    if missing := _first_missing(content, document.model_dump(by_alias=True)):
        detail = {"type": "missing", "loc": tuple(missing), "input": content}
        raise ValidationError.from_exception_data(schema.__name__, [detail])  # type: ignore[list-item]
    return document


def _first_missing(content: Any, whole: Any) -> list[Any]:
    """The path of the first entry that is in `whole` only."""
    if isinstance(content, dict) and isinstance(whole, dict):
        for key in whole:
            if key not in content:
                return [key]
            if path := _first_missing(content[key], whole[key]):
                return [key, *path]
    elif isinstance(content, list) and isinstance(whole, list):
        for number, pair in enumerate(zip(content, whole, strict=True)):
            if path := _first_missing(*pair):
                return [number, *path]
    return []
