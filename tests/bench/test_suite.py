"""Suite files that cannot be read."""

from pathlib import Path

import pytest

from retouch.bench import load_suite
from retouch.errors import UserError


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
