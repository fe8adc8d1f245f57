"""Documents with a checksum: plain text, in any layout, refused where their content changed."""

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field

from retouch.errors import UserError
from retouch.files import checksummed
from retouch.files.checksummed import Document
from retouch.text.parsing import parse_user_yaml, parse_yaml


class Fox(Document):
    name: str
    lr: float = 1e-3
    on: str = ""
    rows: list[list[float]] = Field(default_factory=list)
    one: Annotated[None, Field(alias="1")] = None


BAD = [
    "",
    "[]",
    "{}",
    '{"a": 1}',
    "[" * 100_000,
    '{"a": ' * 3_000,
    f'{{"name": {"9" * 5_000}, "checksum": "x"}}',
    '{"name": NaN}',
    '{"name": -Infinity}',
    '{"name": 1e999}',
    '{"name": "fox", "name": "hen"}',
    "\x00",
    "\udcff",
    "2024-01-01",
]
BAD_YAML = ["a: &x [1]\nb: *x", "a: .nan", "a: -.inf", "a: 1\na: 2", "a: 0x" + "f" * 5_000]


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_document_is_plain_and_its_layout_does_not_count(suffix: str, tmp_path: Path):
    rows: list[list[float]] = [[1, 2.0], []]
    fox = Fox.model_validate({"name": "Fuchs, 狐 \udcff", "lr": 1e-05, "on": "yes", "rows": rows})
    write = checksummed.write_yaml if suffix == "yaml" else checksummed.write_json
    write(file := tmp_path / f"a.{suffix}", fox.model_dump(by_alias=True))
    assert "狐" in file.read_text()
    assert checksummed.read(file, Fox, "try again") == fox
    if suffix == "yaml":
        content = yaml.safe_load(file.read_text())
        file.write_text(yaml.safe_dump(content, sort_keys=False, indent=7))
    else:
        file.write_text(json.dumps(json.loads(file.read_text())))
    assert checksummed.read(file, Fox, "try again") == fox  # in another layout


@pytest.mark.parametrize(
    ("suffix", "text"),
    [*(("json", text) for text in BAD), *(("yaml", text) for text in [*BAD, *BAD_YAML])],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_no_document_is_refused(suffix: str, text: str, tmp_path: Path):
    (file := tmp_path / f"a.{suffix}").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"is damaged or was changed by hand \([^\n]{5,220}\); try"):
        checksummed.read(file, Fox, "try again")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": 5}, "name=5: input should be a valid string"),
        ({"lr": "1"}, "lr='1': input should be a valid number"),
        ({"lr": True}, "lr=True: input should be a valid number"),
        ({"rows": [[1], "x"]}, "rows.1='x': input should be a valid list"),
        ({"more": 1}, "more: there is no such entry"),
        ({"on": ...}, "on: Field required"),
        ({"name": ...}, "name: Field required"),
    ],
)
def test_the_schema_is_checked_though_the_checksum_is_right(
    change: dict[str, Any], problem: str, tmp_path: Path
):
    """Also of entries that have a default: all are written."""
    content = Fox(name="Fuchs").model_dump(by_alias=True) | change
    content = {key: value for key, value in content.items() if value is not ...}
    checksummed.write_json(file := tmp_path / "a.json", content)
    with pytest.raises(UserError) as refused:
        checksummed.read(file, Fox, "try again")
    expected = f"{file} was written by another version of retouch, or edited ({problem}"
    assert str(refused.value).startswith(expected)
    assert str(refused.value).endswith("; try again")


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        checksummed.write_json(tmp_path / "a.json", {"x": float("nan")})


def test_a_chain_of_lines_has_no_gap(tmp_path: Path):
    chain, previous = [], ""
    for name in ("fox", "hen", "owl"):
        chain.append(checksummed.to_line(Fox(name=name).model_dump(by_alias=True), previous))
        previous = checksummed.line_checksum(chain[-1])
    file = tmp_path / "a.jsonl"

    def names(*lines: bytes, chained: bool = True) -> list[str]:
        file.write_bytes(b"".join(lines))
        return [fox.name for fox, _ in checksummed.read_lines(file, Fox, "x", chained=chained)]

    assert names(*chain) == names(*chain, b'{"name": "ha') == ["fox", "hen", "owl"]
    assert names(*chain[:2], chain[2][:-9]) == ["fox", "hen"]  # killed while it wrote
    for order in ([0, 2], [1, 2], [1, 0], [0, 0]):
        with pytest.raises(UserError, match=r"line [12] of .*a\.jsonl is damaged"):
            names(*(chain[number] for number in order))


def test_yaml_with_aliases_or_nested_too_deeply_is_refused():
    with pytest.raises(UserError, match="it holds an alias"):
        parse_user_yaml("a: &x [1]\nb: *x", "the file")
    for deep in ("[" * 1_000_000, "- " * 100_000):  # libyaml alone would crash
        with pytest.raises(UserError, match=r"the file cannot be read .* nested too deeply"):
            parse_user_yaml(deep, "the file")


@pytest.mark.parametrize("name", ["Fuchs, 狐", "a smile 😀", "x \udcff", "C:\\Users", "\x07 \x85"])
def test_yaml_is_written_as_python_alone_would(name: str, tmp_path: Path):
    """People read it: emoji and the like are not escaped."""
    content = {"name": name, "rows": [[1, 2.5e-5], {}, None, "yes", "1e5"], "long": "word " * 50}
    checksummed.write_yaml(tmp_path / "a.yaml", content)
    sealed = checksummed.seal(content)
    expected = yaml.safe_dump(sealed, sort_keys=False, allow_unicode=True)
    assert (tmp_path / "a.yaml").read_text() == expected
    assert parse_yaml(expected) == sealed
