"""What the documents point to exists: files, anchors, modules of the package and tests."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "tools").rglob("*.md")),
    ]
}
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)")
DEFINITION = re.compile(r"^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
INLINE_CODE = re.compile(r"(`+)(?!`)(.*?)(?<!`)\1(?!`)")


@cache
def without_blocks(document: Path) -> str:
    """The text of a document without its code blocks, in which # starts no heading."""
    block = re.compile(r"^( *)(`{3,}).*?^\1\2`*$", re.DOTALL | re.MULTILINE)
    return block.sub("", document.read_text())


def links(document: Path) -> list[str]:
    text = INLINE_CODE.sub("", without_blocks(document))
    return [*LINK.findall(text), *DEFINITION.findall(text)]


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub and mkdocs give to the headings of a document."""
    headings = HEADING.findall(without_blocks(document))
    return {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings}


def resolves(link: str, document: Path, root: Path) -> bool:
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    if not target.exists() or not target.is_relative_to(root):
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target))


def broken_links(document: Path, root: Path = ROOT) -> list[str]:
    relative = [link for link in links(document) if not re.match(r"[a-z]+:", link)]
    return [link for link in relative if not resolves(link, document, root)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_relative_links_and_anchors_resolve(name: str):
    assert not broken_links(DOCUMENTS[name])


def test_a_broken_link_or_anchor_is_found(tmp_path: Path):
    (tmp_path / "other.md").write_text("# A heading: `--shard`, more\n\n```sh\n# a comment\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md) [b](other.md#a-heading---shard-more) [c](#page) `[d](code.md)`\n"
        "[e](https://example.org/x) [f](gone.md) [g](other.md#a-comment) [h](#gone)\n"
        "![i](gone.png) [j][k]\n\n[k]: gone.txt\n[l]: ../outside.md\n"
    )
    assert broken_links(page, tmp_path) == [
        *("gone.md", "other.md#a-comment", "#gone", "gone.png", "gone.txt", "../outside.md")
    ]


def test_every_document_can_be_reached_from_the_readme():
    reached, waiting = set(), [DOCUMENTS["README.md"]]
    while waiting:
        document = waiting.pop()
        reached.add(document)
        targets = {(document.parent / link.partition("#")[0]).resolve() for link in links(document)}
        waiting += targets & set(DOCUMENTS.values()) - reached
    assert not [name for name, document in DOCUMENTS.items() if document not in reached]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_modules_and_tests_that_a_document_names_exist(name: str):
    """Of `sparse/select.py` the file, below the package or the repository; of `test_…` the test."""
    document = DOCUMENTS[name]
    words = {code for _, code in INLINE_CODE.findall(without_blocks(document))}
    words |= set(re.findall(r'"(\w+(?:/\w+)+\.py)"', document.read_text()))  # labels of diagrams
    folders = (ROOT, ROOT / "src", ROOT / "src" / "retouch", TESTS, document.parent)
    paths = {word for word in words if re.fullmatch(r"[\w-]+(/[\w-]+)*/[\w-]+\.py", word)}
    assert not {path for path in paths if not any((f / path).is_file() for f in folders)}
    files = {word for word in words if re.fullmatch(r"test_\w+\.py", word)}
    assert not {file for file in files if not any(TESTS.rglob(file))}
    functions = {word for word in words if re.fullmatch(r"test_\w+", word)}
    assert functions <= set(names_of_tests())


@cache
def names_of_tests() -> tuple[str, ...]:
    code = "".join(file.read_text() for file in TESTS.rglob("test_*.py"))
    return tuple(re.findall(r"^def (test_\w+)\(", code, re.MULTILINE))
