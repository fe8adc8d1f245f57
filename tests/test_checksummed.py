"""Documents with a checksum: plain text, in any layout, refused where their content changed."""

import json
from pathlib import Path

import pytest
import yaml

from retouch import checksummed
from retouch.errors import UserError


@pytest.mark.slow
def test_a_document_is_plain_and_its_layout_does_not_count(tmp_path: Path):
    content = {
        "name": "Fuchs, 狐 \udcff",
        "lr": 1e-05,
        "on": "yes",
        "rows": [[1, 2.0], []],
        "1": None,
    }
    for write, read in (
        (checksummed.write_json, checksummed.read_json),
        (checksummed.write_yaml, checksummed.read_yaml),
    ):
        write(file := tmp_path / "a", content)
        assert "狐" in file.read_text()
        assert read(file, "try again") == content
        if read is checksummed.read_yaml:
            file.write_text(
                yaml.safe_dump(yaml.safe_load(file.read_text()), sort_keys=False, indent=7)
            )
        else:
            file.write_text(json.dumps(json.loads(file.read_text())))
        assert read(file, "try again") == content  # in another layout
        for bad in (
            "",
            "[]",
            "{}",
            '{"a": 1}',
            "a: &x [1]\nb: *x",
            "[" * 3_000,
            "\x00",
            "2024-01-01",
        ):
            file.write_text(bad)
            with pytest.raises(
                UserError, match=r"a is damaged or was changed by hand .*; try again"
            ):
                read(file, "try again")


def test_yaml_with_aliases_or_nested_too_deeply_is_refused():
    with pytest.raises(UserError, match="it holds an alias"):
        checksummed.parse_yaml("a: &x [1]\nb: *x", "the file")
    for deep in ("[" * 1_000_000, "- " * 100_000):  # libyaml alone would crash
        with pytest.raises(UserError, match="the file is nested too deeply"):
            checksummed.parse_yaml(deep, "the file")


@pytest.mark.parametrize("name", ["Fuchs, 狐", "a smile 😀", "x \udcff", "C:\\Users", "\x07 \x85"])
def test_yaml_is_written_as_python_alone_would(name: str, tmp_path: Path):
    """People read it: emoji and the like are not escaped."""
    content = {"name": name, "rows": [[1, 2.5e-5], {}, None, "yes", "1e5"], "long": "word " * 50}
    checksummed.write_yaml(tmp_path / "a", content)
    sealed = checksummed.seal(content)
    expected = yaml.safe_dump(sealed, sort_keys=False, allow_unicode=True)
    assert (tmp_path / "a").read_text() == expected
    assert checksummed.read_yaml(tmp_path / "a", "try again") == content
