"""Read the text files that come with images: lists, tables and JSON.

Every file that a user names is opened here, so that all readers refuse the same things with the
same messages: anything but a regular file (a pipe would block forever), encodings other than UTF-8
and UTF-16 with a byte-order mark, lines and files that are too long, and JSON that Python cannot
represent.
"""

import codecs
import csv
import io
import itertools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from retouch.errors import UserError
from retouch.text.parsing import refuse_constant

LONGEST_LINE = 1_000_000
"""Characters; a file with a longer line has no line breaks, or is not text."""
LARGEST_FILE = 1 << 30
"""Bytes of a file that is read at once; COCO's largest has less than half of that."""

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is a prefix of it
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def special_kind(mode: int) -> str | None:
    """What kind of special file has this `st_mode`; None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "not a regular file")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes; `UserError` for anything else, which is not opened."""
    try:
        kind = special_kind(os.stat(path).st_mode)  # noqa: PTH116
        if kind is None:
            return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; check the path") from None
    except OSError as why:
        raise UserError(f"{path} cannot be read: {why.strerror}") from None
    except ValueError:  # a NUL, or half of a surrogate pair
        raise UserError(f"{str(path)!r} cannot be the name of a file") from None
    raise UserError(f"{path} is {kind}; give a regular file")


def read_text(path: Path) -> str:
    """A whole file, decoded by its byte-order mark or else as UTF-8, with `\\n` as line break."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_FILE:
            raise UserError(
                f"{path} has {size / 1e9:,.1f} GB; the limit is {LARGEST_FILE / 1e9:.1f} GB"
            )
        raw = file.read()
    try:
        text = raw.decode(_encoding(raw[:4]))
    except UnicodeDecodeError as why:
        _refuse_encoding(path, why)
    if "\0" in text:
        _refuse_nul(path, text.count("\n", 0, text.index("\0")) + 1)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path) -> list[str]:
    """The lines that are not empty, without surrounding spaces."""
    return [line.strip() for line in iterate_lines(path) if line.strip()]


def iterate_lines(path: Path) -> Iterator[str]:
    """Each line with its line break, so that a table of any length takes little memory."""
    with open_regular(path) as raw:
        encoding = _encoding(raw.read(4))
        raw.seek(0)
        text = io.TextIOWrapper(raw, encoding=encoding, newline="")
        number = 0
        try:
            while line := text.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise UserError(
                        f"{path}, line {number} has more than {LONGEST_LINE:,} characters; is it "
                        "really a text file?"
                    )
                if "\0" in line:
                    _refuse_nul(path, number)
                yield line
        except UnicodeDecodeError as why:
            _refuse_encoding(path, why)


def read_rows(path: Path, delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table with a header, each with its line number.

    Values missing at the end of a row are "". If the delimiter is a comma and the header has only
    semicolons, as Excel writes in many countries, semicolons are the delimiter.
    """
    lines = iterate_lines(path)
    header = next(lines, "")
    if delimiter == "," and "," not in header and ";" in header:
        delimiter = ";"
    reader = csv.DictReader(
        itertools.chain([header], lines), delimiter=delimiter, restkey=_EXTRA_VALUES, restval=""
    )
    try:
        for row in reader:
            if _EXTRA_VALUES in row:
                raise UserError(
                    f"{path}, line {reader.line_num} has more values than the header has columns; "
                    f"put a value that holds {delimiter!r} in double quotes"
                )
            yield reader.line_num, row
    except csv.Error as why:
        _refuse_csv(path, reader.line_num, why)


def read_cells(path: Path) -> list[list[str]]:
    """The rows of a table without a header, their cells stripped; empty rows are left out."""
    reader = csv.reader(iterate_lines(path))
    try:
        return [[cell.strip() for cell in row] for row in reader if any(row)]
    except csv.Error as why:
        _refuse_csv(path, reader.line_num, why)


def read_json(path: Path, *, pairs: bool = False) -> Any:
    """The content of a JSON file; with `pairs`, objects as lists of pairs, to see repeated keys."""
    return parse_json(read_text(path), str(path), pairs=pairs)


def parse_json(text: str, what: str, *, pairs: bool = False) -> Any:
    """The content of a JSON text; `what` is what an error calls the text."""
    try:
        return json.loads(
            text, parse_constant=refuse_constant, object_pairs_hook=list if pairs else None
        )
    except RecursionError:
        raise UserError(f"{what} is nested too deeply") from None
    except json.JSONDecodeError as why:
        raise UserError(f"{what} is not JSON ({why})") from None
    except ValueError as why:  # a number with thousands of digits, NaN or Infinity
        raise UserError(f"{what} has a number that cannot be read ({why})") from None


def is_text(value: str) -> bool:
    """Whether it can be written, shown and used as a name: no NUL and no lone surrogate."""
    try:
        value.encode()
        return "\0" not in value
    except UnicodeEncodeError:
        return False


_EXTRA_VALUES = "\0"  # cannot be the name of a column


def _encoding(start: bytes) -> str:
    return next((name for mark, name in _BYTE_ORDER_MARKS if start.startswith(mark)), "utf-8")


def _refuse_nul(path: Path, number: int) -> NoReturn:
    raise UserError(
        f"{path}, line {number} has a NUL character, as in UTF-16 without a byte-order mark; save "
        "it as UTF-8"
    )


def _refuse_csv(path: Path, number: int, why: csv.Error) -> NoReturn:
    if "field limit" in str(why):
        raise UserError(
            f"{path}, line {number}: a value has more than {csv.field_size_limit():,} characters; "
            "is a double quote before it not closed?"
        ) from None
    raise UserError(f"{path}, line {number} cannot be read as a table ({why})") from None


def _refuse_encoding(path: Path, why: UnicodeDecodeError) -> NoReturn:
    if not why.encoding.startswith("utf-8"):
        raise UserError(
            f"{path} has the byte-order mark of {why.encoding.upper()}, but is not valid in it "
            f"({why.reason}); save it as UTF-8"
        ) from None
    raise UserError(
        f"{path} is not in UTF-8: {_first_invalid_line(path)}, as in Latin-1 or Windows-1252. Save "
        'it as UTF-8 (in Excel: "CSV UTF-8"), or convert it with `iconv -f WINDOWS-1252 -t UTF-8`'
    ) from None


def _first_invalid_line(path: Path) -> str:
    with open_regular(path) as file:
        number = 0
        while line := file.readline(4 * LONGEST_LINE):
            number += 1
            try:
                line.decode()
            except UnicodeDecodeError as why:
                return f"line {number} has the byte 0x{line[why.start]:02X}"
    return "it changed while it was being read"
