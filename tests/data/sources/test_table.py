"""CSV, TSV and JSONL tables."""

from pathlib import Path

import layouts
import numpy as np
import pytest
from source_cases import DEEP_JSON, PREPROCESS, notes_of, read_everything, time_limit

from retouch.data import read_data
from retouch.errors import UserError


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "path,label\nx.png,\n", "x.png has no label"),
        ("a.csv", "path,kind\nx.png,cat\n", "a.csv has no column `label`; it has `path`, `kind`"),
        ("a.csv", "file name,label\nx.png,cat\n", "line 2: has no path of an image.*column `path`"),
        ("a.csv", "path,label,split\nx.png,cat,some\n", "line 2: the split 'some'"),
        ("a.csv", "path,label,split\nx,a,train\ny,a,\n", "a line has no split"),
        ("a.csv", "path,label\n", "lists no images"),
        ("a.jsonl", "{\n", "line 1 is not JSON"),
        ("a.jsonl", "[1]\n", "line 1: write"),
    ],
)
def test_invalid_tables_are_refused(name, text, message, tmp_path: Path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_data(tmp_path / name)


TABLE = "path,label,split\n1.png,a,{}\n2.png,a,{}\n3.png,a,{}\n"


@pytest.mark.parametrize(
    ("splits", "counts", "expected_note"),
    [
        (("train", "train", "test"), (2, 1), None),
        (("Train", "training", "VAL"), (2, 1), "train is for training, val for testing"),
        (("train", "valid", "test"), (1, 1), "val is not used, because there is test"),
        (("train", "train", "train"), (3, 0), "there is no test split"),
    ],
)
def test_splits_of_a_table(splits, counts, expected_note, tmp_path: Path):
    (tmp_path / "a.csv").write_text(TABLE.format(*splits))
    result = read_data(tmp_path / "a.csv")
    assert (len(result.train or []), len(result.test or [])) == counts
    notes = notes_of(result)
    assert any(expected_note in note for note in notes) if expected_note else not notes


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
    images = read_data(tmp_path / name).evaluation_images()
    assert images.classes == ["Käse"]
    assert images.read(np.array([0]), PREPROCESS).shape == (1, 8, 8, 3)


def test_semicolons_as_delimiter(tmp_path: Path):
    (tmp_path / "a.csv").write_text('path;label\n1.png;cat\n2.png;"dog; small"\n')
    assert read_data(tmp_path / "a.csv").evaluation_images().classes == ["cat", "dog; small"]


TABLES = {
    "latin-1": ("a.csv", "path,label\n1.png,cat\n2.png,Käse\n".encode("latin-1"), "line 3.*0xE4"),
    "utf-16 without a mark": (
        "a.csv",
        "path,label\n1.png,a\n".encode("utf-16-le"),
        "NUL",
    ),
    "a wrong byte-order mark": ("a.csv", b"\xff\xfep\0a\0t", "UTF-16"),
    "an unclosed quote": (
        "a.csv",
        b'path,label\n1.png,"cat\n' + 200 * (b"x" * 999 + b"\n"),
        r"line \d+: a value has more than 131,072 characters",
    ),
    "no line ends": (
        "a.csv",
        b"path,label\n" + b"x" * 1_100_000,
        "line 2 has more than 1,000,000",
    ),
    "too many values": ("a.csv", b"path,label\n1,2.png,cat\n", "line 2 has more values"),
    "a NUL in a path": ("a.csv", b"path,label\na\0b.png,cat\n", "line 2 has a NUL"),
    "a NUL in JSON": ("a.jsonl", b'{"path": "a\\u0000b", "label": "x"}', "line 1.*'a.x00b'"),
    "a surrogate in a path": ("a.jsonl", b'{"path": "a\\ud800", "label": "x"}', "line 1.*ud800"),
    "a surrogate in a label": ("a.jsonl", b'{"path": "a", "label": "x\\udc80"}', "line 1.*udc80"),
    "deep JSON": ("a.jsonl", DEEP_JSON, "line 1 is nested too deeply"),
    "a huge number": ("a.jsonl", b'{"path": "a", "label": ' + b"9" * 5000 + b"}", "line 1.*digits"),
    "not a number": ("a.jsonl", b'{"path": "a", "label": NaN}', "line 1.*NaN"),
    "a list as label": ("a.jsonl", b'{"path": "a", "label": ["x"]}', "line 1.*label"),
    "an object as path": ("a.jsonl", b'{"path": {}, "label": "x"}', "line 1.*path"),
    "a list as split": ("a.jsonl", b'{"path": "a", "label": "x", "split": []}', "line 1.*split"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_cannot_be_read(case: str, tmp_path: Path):
    name, content, message = TABLES[case]
    (tmp_path / name).write_bytes(content)
    with time_limit(20), pytest.raises(UserError, match=message) as why:
        read_everything(read_data(tmp_path / name))
    assert str(tmp_path / name) in str(why.value)
