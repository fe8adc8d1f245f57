"""Hooks of mkdocs: documents have their path in the repository, API pages list what is public.

README.md, CONTRIBUTING.md and CHANGELOG.md lie outside `docs`, and documents link to results and to
source files. mkdocs reads a single folder, so this builds the list of files itself. Paths are the
same on the site and in the repository: links need no rewriting, and mkdocs checks every one.
"""

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
SUBPACKAGE = re.compile(r"^::: retouch\.(\w+)$", re.MULTILINE)
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
    paths |= {str(path) for path in config.extra_css if (ROOT / str(path)).is_file()}
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


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """On the page of a subpackage, let mkdocstrings show each name of the subpackage's `__all__`.

    Left to itself it would leave out `select`, as a module of that name lies in the same package.
    """
    if not page.file.src_uri.startswith("docs/api/") or page.file.name == "retouch":
        return markdown
    return SUBPACKAGE.sub(lambda subpackage: public_names(subpackage[1]), markdown)


def public_names(subpackage: str) -> str:
    """Directives for the docstring of a subpackage and for each public name where it is defined."""
    tree = ast.parse(
        (ROOT / "src" / "retouch" / subpackage / "__init__.py").read_text(encoding="utf-8")
    )
    origin = {
        alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)  # a subpackage may import its names on first use
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    module = f"::: retouch.{subpackage}\n    options: {{members: [], show_root_heading: false}}"
    shown = [f"::: {origin[name]}\n    options: {{show_root_full_path: false}}" for name in names]
    return "\n\n".join([module, *shown])
