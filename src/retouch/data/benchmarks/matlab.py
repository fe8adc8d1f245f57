"""Read MATLAB 5 `.mat` files, in which three benchmarks store their annotations.

This reads what these contain: struct arrays, cell arrays, text and numbers. It executes nothing in
the file, and checks every size in it against the bytes that are left. (scipy's reader crashes the
process on some damaged files.)
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from retouch.data.formats.text_files import open_regular
from retouch.errors import UserError

MAX_BYTES = 256 << 20
"""Of the file, and of what is compressed in it; the largest devkit has 12 MB."""
_HEADER_SIZE = 128
_MAX_DEPTH = 8
# Types of data elements.
_MATRIX, _COMPRESSED = 14, 15
_NUMBER_FORMATS = {  # as `struct` spells them
    1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q",
}  # fmt: skip
_TEXT_ENCODINGS = {1: "utf-8", 2: "utf-8", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_TAG = {"<": struct.Struct("<II"), ">": struct.Struct(">II")}
# Classes of arrays.
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMERIC = range(6, 16)
_Elements = Iterator[tuple[int, memoryview]]


class _FormatError(Exception):
    """The content of the file is not consistent."""


def load_mat(file: Path) -> dict[str, list[Any]]:
    """The variables of a file, each as a flat list of namespaces (structs), texts or numbers."""
    with open_regular(file) as stream:
        raw = stream.read(MAX_BYTES + 1)
    try:
        if len(raw) > MAX_BYTES:
            raise _FormatError(f"it has more than {MAX_BYTES:,} bytes")
        return dict(_variables(raw))
    except (_FormatError, zlib.error, struct.error, UnicodeDecodeError, OverflowError) as why:
        raise UserError(
            f"{file} cannot be read as a .mat file ({why}); download it again"
        ) from None


def _variables(raw: bytes) -> Iterator[tuple[str, list[Any]]]:
    byte_order = {b"IM": "<", b"MI": ">"}.get(raw[126:128])
    if raw.startswith(b"MATLAB 7.3"):
        raise _FormatError("it has version 7.3; save it with -v7")
    if byte_order is None:
        raise _FormatError("it has no MATLAB 5 header")
    remaining = MAX_BYTES
    for kind, content in _elements(memoryview(raw)[_HEADER_SIZE:], byte_order):
        if kind == _COMPRESSED:
            inflated = zlib.decompressobj().decompress(content, remaining)
            remaining -= len(inflated)
            if remaining <= 0:
                raise _FormatError(f"more than {MAX_BYTES:,} bytes are compressed in it")
            kind, content = next(_elements(memoryview(inflated), byte_order), (0, content))
        if kind == _MATRIX:
            name, value = _read_matrix(content, byte_order, 0)
            yield name, value if isinstance(value, list) else [value]


def _elements(raw: memoryview, byte_order: str) -> _Elements:
    """The type and the content of each data element."""
    offset = 0
    while offset + 8 <= len(raw):
        kind, size = _TAG[byte_order].unpack_from(raw, offset)
        start, available = offset + 8, len(raw) - offset - 8
        if kind >> 16:  # a small element: type and size in four bytes, content in the next four
            kind, size, start, available = kind & 0xFFFF, kind >> 16, offset + 4, 4
        if size > available:
            raise _FormatError(f"an element claims {size:,} bytes, and {available:,} are left")
        yield kind, raw[start : start + size]
        end = start + size
        offset = end if kind == _COMPRESSED else -(-end // 8) * 8


def _read_matrix(raw: memoryview, byte_order: str, depth: int) -> tuple[str, Any]:
    """The name and the value of an array; an array of one entry is that entry."""
    if depth > _MAX_DEPTH:
        raise _FormatError(f"arrays are nested more than {_MAX_DEPTH} deep")
    if not raw:
        return "", []
    parts = _elements(raw, byte_order)
    flags, shape = _read_numbers(parts, byte_order), _read_numbers(parts, byte_order)
    name = bytes(_next(parts)[1]).decode("ascii", "replace")
    if not flags or not all(isinstance(n, int) and n >= 0 for n in [*flags, *shape]):
        raise _FormatError("an array has no valid class or shape")
    kind, count = flags[0] & 0xFF, math.prod(shape)
    if kind == _CHAR:
        return name, _read_text(parts, byte_order) if count else ""
    if kind in _NUMERIC:
        values = _read_numbers(parts, byte_order) if count else []
    elif kind == _CELL:
        values = [_read_nested(parts, byte_order, depth) for _ in range(count)]
    elif kind == _STRUCT:
        values = _read_structs(parts, byte_order, depth, count)
    else:
        raise _FormatError(f"arrays of class {kind} are not supported")
    if len(values) != count:
        raise _FormatError(f"an array of {count:,} entries has {len(values):,}")
    return name, values[0] if count == 1 else values


def _read_structs(parts: _Elements, byte_order: str, depth: int, count: int) -> list[Any]:
    """Structs as namespaces. Each value takes bytes of the file, so `count` is bounded by them."""
    width, names = _read_numbers(parts, byte_order), bytes(_next(parts)[1])
    if len(width) != 1 or not isinstance(width[0], int) or width[0] < 1 or not names:
        raise _FormatError("a struct does not name its fields")
    starts = range(0, len(names), width[0])
    fields = [names[i : i + width[0]].partition(b"\0")[0].decode() for i in starts]
    return [
        SimpleNamespace(**{field: _read_nested(parts, byte_order, depth) for field in fields})
        for _ in range(count)
    ]


def _read_nested(parts: _Elements, byte_order: str, depth: int) -> Any:
    kind, content = _next(parts)
    if kind != _MATRIX:
        raise _FormatError(f"an element of type {kind} is where an array is expected")
    return _read_matrix(content, byte_order, depth + 1)[1]


def _read_numbers(parts: _Elements, byte_order: str) -> list[Any]:
    kind, content = _next(parts)
    number_format = _NUMBER_FORMATS.get(kind) or _raise_unknown_type(kind)
    count = len(content) // struct.calcsize(f"{byte_order}{number_format}")
    return list(struct.unpack(f"{byte_order}{count}{number_format}", content))


def _read_text(parts: _Elements, byte_order: str) -> str:
    kind, content = _next(parts)
    encoding = _TEXT_ENCODINGS.get(kind) or _raise_unknown_type(kind)
    suffix = {"<": "-le", ">": "-be"}[byte_order] if encoding != "utf-8" else ""
    return bytes(content).decode(encoding + suffix)


def _next(parts: _Elements) -> tuple[int, memoryview]:
    element = next(parts, None)
    if element is None:
        raise _FormatError("an array is truncated")
    return element


def _raise_unknown_type(kind: int) -> NoReturn:
    raise _FormatError(f"data of type {kind} is neither numbers nor text")
