"""Hooks of mkdocs: put every document on the site under its path in the repository.

README.md, CONTRIBUTING.md and CHANGELOG.md lie outside `docs`, and documents link to results and to
source files. mkdocs reads a single folder, so this builds the list of files itself. Paths are the
same on the site and in the repository: links need no rewriting, and mkdocs checks every one.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


class SourcePage(File):
    """A Python file that a document links to, shown as a page with its code."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of `docs` by all documents of the repository and what they link to."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    documents = [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "results").rglob("*.md"),
    ]
    paths = {document.relative_to(ROOT).as_posix() for document in documents}
    for document in documents:
        paths |= linked_files(document)
    return Files([*theme, *(site_file(path, config) for path in sorted(paths))])


def linked_files(document: Path) -> set[str]:
    """Files of the repository that a document links to; mkdocs reports those that are missing."""
    folder = document.parent.relative_to(ROOT).as_posix()
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    paths = {posixpath.normpath(posixpath.join(folder, target)) for target in targets}
    return {path for path in paths if (ROOT / path).is_file()}


def site_file(path: str, config: MkDocsConfig) -> File:
    """The file at a path of the repository, as mkdocs sees it."""
    if path.endswith(".py"):
        code = (ROOT / path).read_text(encoding="utf-8")
        page = f"# {path}\n\n````python\n{code}````\n"
        return SourcePage.generated(config, path, content=page)
    return File(path, str(ROOT), config.site_dir, config.use_directory_urls)
