"""Suites that cannot be read."""

from pathlib import Path

import pytest

from retouch.bench.suite import load_suite
from retouch.errors import UserError

BOMB = "[&a [1], &b [*a, *a, *a, *a], &c [*b, *b, *b, *b], *c]"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a suite"),
        (b"7", "not a suite"),
        (b"[a, b]", "not a suite"),
        (b"title: x", "rows: Field required"),
        (b"title: x\nrows: 7", "rows=7: input should be"),
        (b"title: x\nrows: [{name: a, method: 3}]", "rows.0.method=3"),
        (b"title: x\nrows: []\nodd: 1", "odd: there is no such entry"),
        (b"title: !!python/name:os.system\nrows: []", "cannot be read as YAML"),
        (b"title: x\nrows: " + BOMB.encode(), "alias"),
        (b"title: 2024-01-01\nrows: []", "date"),
        ("title: Größe".encode("latin-1"), "UTF-8"),
        (b"title: [", "cannot be read as YAML"),
    ],
)
def test_a_suite(content: bytes, complaint: str, tmp_path: Path):
    (tmp_path / "own.yaml").write_bytes(content)
    with pytest.raises(UserError, match=complaint) as why:
        load_suite(str(tmp_path / "own.yaml"))
    assert "http" not in str(why.value)


def test_a_tilde_in_a_suite_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    content = "title: x\nrows: []\ndatasets: [~/birds, cifar100]\ncontrol: ~/known"
    (tmp_path / "own.yaml").write_text(content)
    suite = load_suite(str(tmp_path / "own.yaml"))
    assert suite.datasets == ("/home/me/birds", "cifar100")
    assert suite.control == "/home/me/known"
