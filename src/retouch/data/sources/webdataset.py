"""Tar shards: `train/0.tar` with `000.webp` and `000.cls`, as CLIP_benchmark has them."""

import tarfile
from array import array
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tarfile import BLOCKSIZE
from typing import Any

import numpy as np

from retouch.clip.zero_shot import fill_template
from retouch.data.decode import EXTENSIONS
from retouch.data.image_store import TarStore
from retouch.data.images import TEMPLATE, Images
from retouch.data.split_names import choose_parts, role_of
from retouch.data.splits import Splits
from retouch.data.string_array import StringArray
from retouch.data.text_files import LONGEST_LINE, open_regular, read_lines, read_text
from retouch.errors import UserError

CLASSES, TEMPLATES = "classnames.txt", "zeroshot_classification_templates.txt"


def recognises(folder: Path) -> bool:
    return (folder / CLASSES).is_file() and bool(_parts(folder))


def read(folder: Path) -> Splits:
    """`classnames.txt` names the classes, a sample's `.cls` is the number of its class."""
    classes = read_lines(folder / CLASSES)
    if not classes:
        raise UserError(f"{folder / CLASSES} names no class; write a name a line")
    return read_as(folder, classes, templates=_templates(folder / TEMPLATES))


def _templates(file: Path) -> list[str]:
    if not file.is_file():
        return [TEMPLATE]
    templates = [line.replace("{c}", "{}") for line in read_lines(file)]
    if not templates:
        raise UserError(f"{file} is empty; write a template a line, or delete it")
    for template in templates:
        fill_template(template, [])
    return templates


def _parts(folder: Path) -> list[str]:
    """The folders of shards that are called train, test or the like."""
    return sorted(p.name for p in folder.iterdir() if role_of(p.name) and shards_of(p))


def read_as(folder: Path, classes: list[str], **more: Any) -> Splits:
    """The same with class names and templates of one's own."""
    parts = choose_parts(str(folder), _parts(folder))
    notes = [] if parts.plain else [parts.note(str(folder), "/")]
    train, test = (
        _split(folder / part, classes, {**more, "notes": [*notes]}) if part else None
        for part in (parts.train, parts.test)
    )
    return Splits(train, test)


def _split(folder: Path, classes: list[str], more: dict[str, Any]) -> Images:
    shards = shards_of(folder)
    said = folder / "nshards.txt"
    if said.is_file() and (count := _number(text := read_text(said).strip())) != len(shards):
        if count is None:
            raise UserError(f"{said} says {text[:20]!r}; it must be a number of shards")
        raise UserError(
            f"{folder} holds {len(shards)} shards, and its nshards.txt says {count}; "
            "fetch the missing ones"
        )
    pictures, texts = scan(shards, "cls")
    labels = array("q")
    for index, text in enumerate(texts):
        label = _number(text.strip())
        if label is None or label >= len(classes):
            place = pictures.location(index).rpartition(".")[0]
            raise UserError(
                f"{place}.cls says {text[:20]!r}; it must be the number of a class, 0 to "
                f"{len(classes) - 1}"
            )
        labels.append(label)
    return Images(str(folder), classes, np.array(labels, np.int64), pictures, **more)


def _number(text: str) -> int | None:
    """A number of up to nine digits; `isdigit` alone also takes a superscript for one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def scan(shards: list[Path], ending: str) -> tuple[TarStore, StringArray]:
    """All images of some shards in order, and the text of that `ending` that goes with each."""
    names, texts, places = StringArray(), StringArray(), array("q")
    for number, shard in enumerate(shards):
        images: dict[str, tuple[str, int, int]] = {}
        beside: dict[str, str] = {}
        for name, start, size, text in _members(shard, ending):
            if text is None:
                images[_key(name)] = name, start, size
            else:
                beside[_key(name)] = text
        for key, (name, start, size) in images.items():
            if key not in beside:
                raise UserError(f"{shard}: {name} has no {key}.{ending} beside it; add it")
            texts.append(beside[key])
            names.append(name)
            places.extend((number, start, size))
    shard_of, start_of, size_of = np.array(places, np.int64).reshape(-1, 3).T.copy()
    return TarStore(shards, shard_of, start_of, size_of, names), texts


def _key(name: str) -> str:
    """What the files of a sample have in common: the name up to its first dot."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.split(".", 1)[0]


def _members(shard: Path, ending: str) -> Iterator[tuple[str, int, int, str | None]]:
    """Images with their places, and texts with what they say, one after the other."""
    try:
        with open_regular(shard) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as there:
            for name, start, size in _files(there):
                if name.lower().endswith(EXTENSIONS):
                    yield name, start, size, None
                elif name.endswith(f".{ending}"):
                    yield name, 0, 0, _said(f"{shard}:{name}", there[start : start + size])
    except UserError:
        raise
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as why:
        raise UserError(f"{shard} cannot be read as a tar file ({why}); fetch it again") from None


def _said(where: str, raw: bytes) -> str:
    """What the text of a sample says."""
    if len(raw) > LONGEST_LINE:
        raise UserError(f"{where} has {len(raw):,} bytes, which no label and no caption needs")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise UserError(f"{where} is not in UTF-8: it says {raw[:20]!r}") from None


def _files(there: mmap) -> Iterator[tuple[str, int, int]]:
    """The files of a tar with their places.

    Plain ones are found four times as quickly as `tarfile` does it; whatever is out of the
    ordinary, or wrong, is left to `tarfile` from there on.
    """
    at = 0
    while at < len(there):
        head = there[at : at + BLOCKSIZE]
        if head == _END:
            return
        start, size = at + BLOCKSIZE, _size_of_plain(head)
        if size is None or start + size > len(there):
            break
        folder, name = _text(head[345:500]), _text(head[:100])
        yield f"{folder}/{name}" if folder else name, start, size
        at = start + -(-size // BLOCKSIZE) * BLOCKSIZE
    there.seek(at)
    with tarfile.open(fileobj=there, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep every one
            end = member.offset_data + member.size
            if member.issparse() or member.size < 0 or (member.isfile() and end > len(there)):
                raise tarfile.ReadError(f"{member.name} claims more bytes than there are")
            if member.isfile():
                yield member.name, member.offset_data, member.size


_END = bytes(BLOCKSIZE)
_KINDS = tarfile.POSIX_MAGIC, tarfile.GNU_MAGIC


def _size_of_plain(head: bytes) -> int | None:
    """The size of the file that this head tells of; None if it is no plain file's."""
    size, told = head[124:136].rstrip(b"\0 "), head[148:156].rstrip(b"\0 ")
    if not (size.isdigit() and told.isdigit() and head[257:265] in _KINDS):
        return None
    added = sum(head) - sum(head[148:156]) + 8 * ord(" ")
    plain = head[156:157] == tarfile.REGTYPE and added == int(told, 8)
    return int(size, 8) if plain else None


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def shards_of(folder: Path) -> list[Path]:
    """The tar files of a folder, 2.tar before 10.tar."""
    return sorted(folder.glob("*.tar"), key=lambda path: (len(path.name), path.name))
