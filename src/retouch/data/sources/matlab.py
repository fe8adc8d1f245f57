"""MATLAB's .mat files of level 5, which two benchmarks describe themselves with.

This reads what their devkits hold: struct arrays, cell arrays, text and numbers. It calls nothing
in the file, and no size is believed that the file cannot back with bytes. (scipy's reader ends the
whole process on some damaged files.)
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from retouch.data.text_files import open_regular
from retouch.errors import UserError

LARGEST = 256 << 20
"""Bytes, of the file and of what is compressed in it; the largest devkit has 12 MB."""
_HEADER = 128
_DEEPEST = 8
_MATRIX, _COMPRESSED = 14, 15
_CODES = {  # as `struct` has them
    1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q",
}  # fmt: skip
_CODECS = {1: "utf-8", 2: "utf-8", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_TAG = {"<": struct.Struct("<II"), ">": struct.Struct(">II")}
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMBERS = range(6, 16)
_Elements = Iterator[tuple[int, memoryview]]


class _Damaged(Exception):
    """What is in the file does not fit together."""


def load_mat(file: Path) -> dict[str, list[Any]]:
    """Its variables, each as a flat list: of namespaces (structs), texts and numbers."""
    with open_regular(file) as stream:
        raw = stream.read(LARGEST + 1)
    try:
        if len(raw) > LARGEST:
            raise _Damaged(f"it has more than {LARGEST:,} bytes")
        return dict(_variables(raw))
    except (_Damaged, zlib.error, struct.error, UnicodeDecodeError, OverflowError) as why:
        raise UserError(f"{file} cannot be read as a .mat file ({why}); fetch it again") from None


def _variables(raw: bytes) -> Iterator[tuple[str, list[Any]]]:
    order = {b"IM": "<", b"MI": ">"}.get(raw[126:128])
    if raw.startswith(b"MATLAB 7.3"):
        raise _Damaged("it is of version 7.3; save it with -v7")
    if order is None:
        raise _Damaged("it has no header of MATLAB 5")
    left = LARGEST
    for kind, content in _elements(memoryview(raw)[_HEADER:], order):
        if kind == _COMPRESSED:
            inflated = zlib.decompressobj().decompress(content, left)
            left -= len(inflated)
            if left <= 0:
                raise _Damaged(f"more than {LARGEST:,} bytes are compressed in it")
            kind, content = next(_elements(memoryview(inflated), order), (0, content))
        if kind == _MATRIX:
            name, value = _matrix(content, order, 0)
            yield name, value if isinstance(value, list) else [value]


def _elements(raw: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """The kind and the content of one data element after the other."""
    at = 0
    while at + 8 <= len(raw):
        kind, size = _TAG[order].unpack_from(raw, at)
        start, room = at + 8, len(raw) - at - 8
        if kind >> 16:  # a small element: kind and size in four bytes, the content in the next four
            kind, size, start, room = kind & 0xFFFF, kind >> 16, at + 4, 4
        if size > room:
            raise _Damaged(f"an element claims {size:,} bytes where there are {room:,}")
        yield kind, raw[start : start + size]
        end = start + size
        at = end if kind == _COMPRESSED else -(-end // 8) * 8


def _matrix(raw: memoryview, order: str, depth: int) -> tuple[str, Any]:
    """The name and the value of an array; one with a single entry is that entry."""
    if depth > _DEEPEST:
        raise _Damaged(f"more than {_DEEPEST} arrays lie in each other")
    if not raw:
        return "", []
    parts = _elements(raw, order)
    flags, shape = _numbers(parts, order), _numbers(parts, order)
    name = bytes(_next(parts)[1]).decode("ascii", "replace")
    if not flags or not all(isinstance(n, int) and n >= 0 for n in [*flags, *shape]):
        raise _Damaged("an array says neither its kind nor its shape")
    kind, count = flags[0] & 0xFF, math.prod(shape)
    if kind == _CHAR:
        return name, _text(parts, order) if count else ""
    if kind in _NUMBERS:
        values = _numbers(parts, order) if count else []
    elif kind == _CELL:
        values = [_inner(parts, order, depth) for _ in range(count)]
    elif kind == _STRUCT:
        values = _structs(parts, order, depth, count)
    else:
        raise _Damaged(f"a devkit has no arrays of kind {kind}")
    if len(values) != count:
        raise _Damaged(f"an array of {count:,} entries has {len(values):,}")
    return name, values[0] if count == 1 else values


def _structs(parts: _Elements, order: str, depth: int, count: int) -> list[Any]:
    """Namespaces. Every value takes bytes of the file, so `count` cannot be made up."""
    width, names = _numbers(parts, order), bytes(_next(parts)[1])
    if len(width) != 1 or not isinstance(width[0], int) or width[0] < 1 or not names:
        raise _Damaged("a struct does not name its fields")
    starts = range(0, len(names), width[0])
    fields = [names[i : i + width[0]].partition(b"\0")[0].decode() for i in starts]
    return [
        SimpleNamespace(**{field: _inner(parts, order, depth) for field in fields})
        for _ in range(count)
    ]


def _inner(parts: _Elements, order: str, depth: int) -> Any:
    kind, content = _next(parts)
    if kind != _MATRIX:
        raise _Damaged(f"an element of kind {kind} stands where an array should")
    return _matrix(content, order, depth + 1)[1]


def _numbers(parts: _Elements, order: str) -> list[Any]:
    kind, content = _next(parts)
    code = _CODES.get(kind) or _refuse(kind)
    count = len(content) // struct.calcsize(f"{order}{code}")
    return list(struct.unpack(f"{order}{count}{code}", content))


def _text(parts: _Elements, order: str) -> str:
    kind, content = _next(parts)
    codec = _CODECS.get(kind) or _refuse(kind)
    ending = {"<": "-le", ">": "-be"}[order] if codec != "utf-8" else ""
    return bytes(content).decode(codec + ending)


def _next(parts: _Elements) -> tuple[int, memoryview]:
    found = next(parts, None)
    if found is None:
        raise _Damaged("an array is cut off")
    return found


def _refuse(kind: int) -> NoReturn:
    raise _Damaged(f"data of kind {kind} is neither numbers nor text")
