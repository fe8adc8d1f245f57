"""Data that is damaged, in another encoding, too large, or no file at all: no traceback.

Each source is also written in its official layout and then damaged in many ways, by a seed.
"""

import json
import os
import signal
import socket
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import layouts
import numpy as np
import pytest
from layouts import make_folder
from test_sources import CASES, PIXELS, read

from retouch.analysis.objects import read_annotations
from retouch.bench import load_suite
from retouch.cli.classify import _lines as read_names_file
from retouch.cli.learn_checks import read_order
from retouch.data import Splits, read_data, read_pairs
from retouch.data.class_names import read_class_names
from retouch.errors import UserError


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail instead of hanging."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def use(splits: Splits) -> None:
    """Do with images what every command does: stamp them, and read them all."""
    for images in (splits.train, splits.test):
        if images is not None:
            json.dumps(images.classes, ensure_ascii=False).encode()
            images.store.version()
            images.store.try_read(np.arange(len(images)), PIXELS)


# Tables, in all encodings.


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_tables_in_every_unicode_encoding(name: str, encoding: str, tmp_path: Path):
    layouts.save(tmp_path / "1.png")
    rows = {
        "a.csv": "path,label\r\n1.png,Käse\r\n",
        "a.tsv": "path\tlabel\n1.png\tKäse\n",
        "a.jsonl": '{"path": "1.png", "label": "Käse"}\n',
    }
    (tmp_path / name).write_bytes(rows[name].encode(encoding))
    found = read_data(tmp_path / name).evaluation_images()
    assert found.classes == ["Käse"]
    assert found.read(np.array([0]), PIXELS).shape == (1, 8, 8, 3)


def test_the_semicolons_of_excel(tmp_path: Path):
    (tmp_path / "a.csv").write_text('path;label\n1.png;cat\n2.png;"dog; small"\n')
    assert read_data(tmp_path / "a.csv").evaluation_images().classes == ["cat", "dog; small"]


DEEP = "[" * 100_000 + "]" * 100_000
TABLES = {
    "latin-1": ("a.csv", "path,label\n1.png,cat\n2.png,Käse\n".encode("latin-1"), "line 3.*0xE4"),
    "utf-16 without a mark": ("a.csv", "path,label\n1.png,a\n".encode("utf-16-le"), "NUL"),
    "a false mark": ("a.csv", b"\xff\xfep\0a\0t", "UTF-16"),
    "an open quote": (
        "a.csv",
        b'path,label\n1.png,"cat\n' + 200 * (b"x" * 999 + b"\n"),
        r"line \d+: a value has more than 131,072 characters",
    ),
    "no line ends": ("a.csv", b"path,label\n" + b"x" * 1_100_000, "line 2 has more than 1,000,000"),
    "too many values": ("a.csv", b"path,label\n1,2.png,cat\n", "line 2 has more values"),
    "a NUL in a path": ("a.csv", b"path,label\na\0b.png,cat\n", "line 2 has a NUL"),
    "a NUL in JSON": ("a.jsonl", b'{"path": "a\\u0000b", "label": "x"}', "line 1.*'a.x00b'"),
    "half a character": ("a.jsonl", b'{"path": "a\\ud800", "label": "x"}', "line 1.*ud800"),
    "half a label": ("a.jsonl", b'{"path": "a", "label": "x\\udc80"}', "line 1.*udc80"),
    "deep JSON": ("a.jsonl", DEEP.encode(), "line 1 is nested too deeply"),
    "a huge number": ("a.jsonl", b'{"path": "a", "label": ' + b"9" * 5000 + b"}", "line 1.*digits"),
    "no number": ("a.jsonl", b'{"path": "a", "label": NaN}', "line 1.*NaN"),
    "a list as label": ("a.jsonl", b'{"path": "a", "label": ["x"]}', "line 1.*label"),
    "an object as path": ("a.jsonl", b'{"path": {}, "label": "x"}', "line 1.*path"),
    "a list as split": ("a.jsonl", b'{"path": "a", "label": "x", "split": []}', "line 1.*split"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_cannot_be_read(case: str, tmp_path: Path):
    name, content, complaint = TABLES[case]
    (tmp_path / name).write_bytes(content)
    with within(20), pytest.raises(UserError, match=complaint) as why:
        use(read_data(tmp_path / name))
    assert str(tmp_path / name) in str(why.value)


LISTS: dict[str, Callable[[Path], object]] = {
    "names": read_class_names,
    "order": lambda file: read_order(str(file)),
    "names file": read_names_file,
}


@pytest.mark.parametrize("reader", LISTS)
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("Käse,Ä\n".encode("latin-1"), "not in UTF-8: line 1 has the byte 0xE4"),
        (b"a,b\n\0\n", "line 2 has a NUL"),
        (b"x" * 1_100_000, "line 1 has more than 1,000,000"),
    ],
)
def test_lists_that_cannot_be_read(reader: str, content: bytes, complaint: str, tmp_path: Path):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        LISTS[reader](tmp_path / "list.txt")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("summary: Käse\n".encode("latin-1"), "not in UTF-8"),
        (b"a: " + b"[" * 1500, "nested too deeply"),
        (b"summary: 2001-99-99\n", "cannot be read as YAML"),
        (b"- 1\n", "is no suite"),
    ],
)
def test_suites_that_cannot_be_read(content: bytes, complaint: str, tmp_path: Path):
    (tmp_path / "own.yaml").write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        load_suite(str(tmp_path / "own.yaml"))


def test_a_list_in_utf_16(tmp_path: Path):
    (tmp_path / "list.txt").write_bytes("Käse,Brot\r\n".encode("utf-16"))
    found = [reader(tmp_path / "list.txt") for reader in LISTS.values()]
    assert found == [{"Käse": "Brot"}, ["Käse,Brot"], ["Käse,Brot"]]


# What is no file.


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its name may not be long
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (make_pipe, "named pipe"),
    "socket": (make_socket, "socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "device"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "no such file|No such file"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(kind: str, tmp_path: Path):
    make, complaint = KINDS[kind]
    folder = make_folder(tmp_path / "photos", {"a": 2, "b": 2})
    make(folder / "a" / "x.jpg")
    table = tmp_path / "photos.csv"
    table.write_text("path,label\nphotos/a/x.jpg,a\nphotos/b/0.png,b\n")
    for path in (make_file(tmp_path / "names.csv", make), tmp_path):
        for reader in (read_class_names, read_names_file):
            with within(10), pytest.raises(UserError, match=f"{complaint}|folder"):
                reader(path)
    with within(10):
        images = read_data(folder).evaluation_images()
        assert len(images) == 4
        assert any("x.jpg" in note for note in images.notes)
        _, bad = read_data(table).evaluation_images().store.try_read(np.arange(2), PIXELS)
    assert [str(tmp_path / "photos/a/x.jpg")] == [each.location for each in bad]
    assert any(word in bad[0].reason for word in complaint.split("|"))


def make_file(path: Path, make: Callable[[Path], None]) -> Path:
    make(path)
    return path


def test_a_pipe_among_the_files_of_a_source(tmp_path: Path):
    """Every file that a reader opens may be one; what is there says which."""
    for name in ("aircraft", "birdsnap", "cars", "cifar100", "cub", "webdataset", "coco"):
        case, root = CASES[name], tmp_path / name
        root.mkdir()
        case.write(root)
        for file in (f for f in sorted(root.rglob("*")) if f.is_file() and not is_image(f)):
            whole = file.read_bytes()
            file.unlink()
            make_pipe(file)
            with within(10), suppress(UserError):
                use(read(case, root))
            file.unlink()
            file.write_bytes(whole)


def is_image(file: Path) -> bool:
    return file.suffix.lower() in (".jpg", ".jpeg", ".png", ".ppm", ".webp")


def test_a_link_to_a_folder_above_is_not_followed_for_ever(tmp_path: Path):
    folder = make_folder(tmp_path, {"a": 2, "b": 2})
    for name in ("one", "two"):
        (folder / "a" / name).symlink_to(folder)
    with within(10):
        found = read_data(folder).evaluation_images()
    assert np.bincount(found.labels).tolist() == [2, 2]
    other = make_folder(tmp_path.parent / f"{tmp_path.name}-more", {"c": 3})
    (folder / "b" / "more").symlink_to(other / "c")
    assert np.bincount(read_data(folder).evaluation_images().labels).tolist() == [2, 5]


def test_a_class_folder_whose_name_is_no_text(tmp_path: Path):
    folder = make_folder(tmp_path, {"a": 2, "b": 2})
    (folder / "b").rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9"))
    with pytest.raises(UserError, match=r"the class name 'caf\\udce9'.*rename"):
        read_data(folder)


# Shards.


def shards(folder: Path, cls: bytes = b"0", **more: str) -> Path:
    layouts.write_tar(
        folder / "test" / "0.tar", {"0.webp": layouts.encoded(0, "WEBP"), "0.cls": cls}
    )
    texts = {"classnames.txt": "thing\nother\n", "test/nshards.txt": "1\n"} | more
    for name, text in texts.items():
        layouts.write_lines(folder / name, [text])
    return folder


@pytest.mark.parametrize(
    ("cls", "more", "complaint"),
    [
        ("²".encode(), {}, r"0\.cls says '²'"),
        (b"9" * 5000, {}, r"0\.cls says '9{20}"),
        (b"\xff", {}, r"0\.cls"),
        (b"-1", {}, r"0\.cls says '-1'"),
        (b"0", {"test/nshards.txt": "many"}, r"nshards\.txt says 'many'; it must be the number"),
        (b"0", {"test/nshards.txt": "²"}, r"nshards\.txt says '²'"),
        (b"0", {"test/nshards.txt": ""}, r"nshards\.txt"),
        (b"0", {"classnames.txt": ""}, r"classnames\.txt is empty"),
        (b"0", {"zeroshot_classification_templates.txt": "no place"}, "'no place' must hold {}"),
        (b"0", {"zeroshot_classification_templates.txt": ""}, r"templates\.txt is empty"),
    ],
)
def test_odd_shards(cls: bytes, more: dict[str, str], complaint: str, tmp_path: Path):
    with pytest.raises(UserError, match=complaint):
        use(read_data(shards(tmp_path, cls, **more)))


@pytest.mark.parametrize("size", [2**50, -512])
def test_a_member_that_is_larger_than_its_shard(size: int, tmp_path: Path):
    """A sparse one of 2^50 bytes takes a kilobyte; a negative size led back to the start."""
    shards(tmp_path)
    member = tarfile.TarInfo("1.webp")
    member.type = tarfile.GNUTYPE_SPARSE if size > 0 else tarfile.REGTYPE
    head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if size > 0:
        head[386:398], head[398:410] = b"%011o\0" % 0, b"%011o\0" % 0
        head[483:495] = b"\x80" + size.to_bytes(11, "big")
    else:
        head[124:136] = b"\xff" + (2**88 + size).to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (tmp_path / "test" / "0.tar").write_bytes(bytes(head) + bytes(10240))
    with within(10), pytest.raises(UserError, match=r"0\.tar"):
        use(read_data(tmp_path))


# Everything, damaged.

TOKENS = [
    b"\0", b"\xff", b"\xed\xa0\x80", b'"', b"\\ud800", b"[" * 3000, b"9" * 4999, b"-1", b"1e999",
    b"{}", b"null", b"\n", b"\r", b",", b"\t", b" ", b"../", b"x" * 5000, "²".encode(), b"\xfe\xff",
]  # fmt: skip


def damaged(whole: bytes, rng: np.random.Generator) -> bytes:
    """Cut off, a part gone, a bit turned, or something odd put in or in place of something."""
    at, to = sorted(int(n) for n in rng.integers(0, len(whole) + 1, 2))
    token = TOKENS[rng.integers(len(TOKENS))]
    if (how := rng.integers(6)) == 0:
        return whole[:at]
    if how == 1:
        return whole[:at] + whole[min(to, at + 9) :]
    if how == 2 and at < len(whole):
        return whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :]
    if how == 3:
        return whole[:at] + token + whole[at + len(token) :]
    if how == 4:
        return token
    return whole[:at] + token + whole[at:]


def files_to_damage(root: Path) -> list[Path]:
    """All that say something of the images, and one image."""
    files = [file for file in sorted(root.rglob("*")) if file.is_file()]
    images = [file for file in files if is_image(file)]
    return [file for file in files if file not in images] + images[:1]


@pytest.mark.parametrize("name", CASES)
def test_damaged_sources(name: str, tmp_path: Path):
    case = CASES[name]
    case.write(tmp_path)
    rng = np.random.default_rng(len(name))
    with within(100):
        files = files_to_damage(tmp_path)
        for file in files:
            whole = file.read_bytes()
            for _ in range(max(3, 60 // len(files))):
                file.write_bytes(damaged(whole, rng))
                with suppress(UserError):
                    use(read(case, tmp_path))
            file.write_bytes(whole)
    use(read(case, tmp_path))


def read_coco_pairs(folder: Path) -> None:
    pairs = read_pairs(folder)
    pairs.store.try_read(np.arange(len(pairs)), PIXELS)


@pytest.mark.parametrize("reader", [read_coco_pairs, read_annotations])
def test_damaged_files_of_coco(reader: Callable[[Path], object], tmp_path: Path):
    layouts.write_coco(tmp_path)
    rng = np.random.default_rng(5)
    for file in sorted(tmp_path.rglob("*.json")):
        whole = file.read_bytes()
        for content in [DEEP.encode(), *(damaged(whole, rng) for _ in range(60))]:
            file.write_bytes(content)
            with suppress(UserError):
                reader(tmp_path / "coco")
        file.write_bytes(whole)


@pytest.mark.parametrize("reader", LISTS)
def test_damaged_lists(reader: str, tmp_path: Path):
    rng = np.random.default_rng(6)
    whole = "n01,golden retriever\nn02,Käse\n".encode()
    for _ in range(100):
        (tmp_path / "list.txt").write_bytes(damaged(whole, rng))
        with suppress(UserError):
            LISTS[reader](tmp_path / "list.txt")
