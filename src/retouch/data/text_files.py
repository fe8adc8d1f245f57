"""Read the text files that people keep beside their images: lists, tables and JSON.

Everything that a user names is opened here, so that every reader refuses the same things in the
same words: what is no regular file (a pipe would block for ever), what is not in UTF-8 or does not
say that it is in UTF-16, lines and files too long to be what they should be, and JSON that Python
cannot hold.
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

LONGEST_LINE = 1_000_000
"""Characters; a longer line is a file without line ends, or no text at all."""
LARGEST_FILE = 1 << 30
"""Bytes of a file that is read whole; COCO's largest has less than half of that."""

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
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
    """What a path is that is no regular file, from its `st_mode`; None for a regular one."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def open_regular(path: Path) -> BinaryIO:
    """A regular file to read bytes from; `UserError` for anything else, which is not opened."""
    try:
        found = os.stat(path)  # noqa: PTH116
        kind = special_kind(found.st_mode)
        if kind is None:
            return path.open("rb")
    except OSError as why:
        raise UserError(f"{path} cannot be read: {why.strerror}") from None
    except ValueError:  # a NUL, or half of a surrogate pair
        raise UserError(f"{str(path)!r} cannot be the name of a file") from None
    raise UserError(f"{path} is {kind}; give a regular file")


def read_text(path: Path) -> str:
    """A whole file, decoded by its byte-order mark or else as UTF-8; line ends become newlines."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_FILE:
            raise UserError(
                f"{path} has {size / 1e9:,.1f} GB; at most {LARGEST_FILE / 1e9:.1f} GB are read"
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
    """The lines that are not empty, without the spaces around them."""
    return [line.strip() for line in iterate_lines(path) if line.strip()]


def iterate_lines(path: Path) -> Iterator[str]:
    """One line after the other, with its end, so that a table of any length takes no memory."""
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
                        f"{path}, line {number} has more than {LONGEST_LINE:,} characters; is this "
                        "really a text file?"
                    )
                if "\0" in line:
                    _refuse_nul(path, number)
                yield line
        except UnicodeDecodeError as why:
            _refuse_encoding(path, why)


def read_rows(path: Path, delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table with a header, each with the number of its line.

    A value that is missing at the end of a row is "". Where a comma is asked for and the header has
    semicolons alone, as Excel writes it in half of the world, they divide the values.
    """
    lines = iterate_lines(path)
    header = next(lines, "")
    if delimiter == "," and "," not in header and ";" in header:
        delimiter = ";"
    reader = csv.DictReader(
        itertools.chain([header], lines), delimiter=delimiter, restkey=_TOO_MANY, restval=""
    )
    try:
        for row in reader:
            if _TOO_MANY in row:
                raise UserError(
                    f"{path}, line {reader.line_num} has more values than the header has columns; "
                    f"put a value that holds {delimiter!r} in double quotes"
                )
            yield reader.line_num, row
    except csv.Error as why:
        _refuse_csv(path, reader.line_num, why)


def read_cells(path: Path) -> list[list[str]]:
    """The rows of a table without a header that have a value, their cells stripped."""
    reader = csv.reader(iterate_lines(path))
    try:
        return [[cell.strip() for cell in row] for row in reader if any(row)]
    except csv.Error as why:
        _refuse_csv(path, reader.line_num, why)


def read_json(path: Path, *, pairs: bool = False) -> Any:
    """What a JSON file holds; an object as a list of pairs if asked, so that no key is lost."""
    return parse_json(read_text(path), str(path), pairs=pairs)


def parse_json(text: str, what: str, *, pairs: bool = False) -> Any:
    """What a JSON text holds; `what` says in an error where it stands."""
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=list if pairs else None
        )
    except RecursionError:
        raise UserError(f"{what} is nested too deeply for JSON that holds data") from None
    except json.JSONDecodeError as why:
        raise UserError(f"{what} is no JSON ({why})") from None
    except ValueError as why:  # a number of thousands of digits, NaN or Infinity
        raise UserError(f"{what} holds a number that cannot be read ({why})") from None


def is_text(value: str) -> bool:
    """Whether it can be written to a file, shown and used as a name: no NUL, no half character."""
    try:
        value.encode()
        return "\0" not in value
    except UnicodeEncodeError:
        return False


_TOO_MANY = "\0"  # can be no column's name


def _encoding(start: bytes) -> str:
    return next((name for mark, name in _BOMS if start.startswith(mark)), "utf-8")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _refuse_nul(path: Path, number: int) -> NoReturn:
    raise UserError(
        f"{path}, line {number} holds a NUL character, as UTF-16 without a byte-order mark does; "
        "save it as UTF-8"
    )


def _refuse_csv(path: Path, number: int, why: csv.Error) -> NoReturn:
    if "field limit" in str(why):
        raise UserError(
            f"{path}, line {number}: a value has more than {csv.field_size_limit():,} characters; "
            "is a double quote not closed before it?"
        ) from None
    raise UserError(f"{path}, line {number} cannot be read as a table ({why})") from None


def _refuse_encoding(path: Path, why: UnicodeDecodeError) -> NoReturn:
    if not why.encoding.startswith("utf-8"):
        raise UserError(
            f"{path} begins with a mark of {why.encoding.upper()} and is not in it ({why.reason}); "
            "save it as UTF-8"
        ) from None
    place = _first_line_not_utf8(path)
    raise UserError(
        f"{path} is not in UTF-8: {place}, as Latin-1 or Windows-1252 have it. Save it as UTF-8 "
        '(in Excel: "CSV UTF-8"), or convert it with `iconv -f WINDOWS-1252 -t UTF-8`'
    ) from None


def _first_line_not_utf8(path: Path) -> str:
    with open_regular(path) as file:
        number = 0
        while line := file.readline(4 * LONGEST_LINE):
            number += 1
            try:
                line.decode()
            except UnicodeDecodeError as why:
                return f"line {number} holds the byte 0x{line[why.start]:02X}"
    return "it changed while it was read"
