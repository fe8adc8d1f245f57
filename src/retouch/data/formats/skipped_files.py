"""Files in class folders that look like images but are not read, and what to do about them."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from retouch.data.formats.text_files import special_kind
from retouch.data.loading.decode import EXTENSIONS

_UNSUPPORTED = (
    ".heic", ".heif", ".avif", ".svg", ".psd", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw",
    ".raf", ".orf", ".rw2", ".jp2", ".jxl", ".eps", ".ico", ".tga", ".jpe", ".pbm", ".pgm", ".pnm",
)  # fmt: skip
"""Extensions of images that are not read; files with any other extension are not images."""
_MAX_EXAMPLES = 1000
LINKED_FOLDER = "link to a folder"
"""The reason why a link below a class folder is not followed."""


@dataclass
class SkippedFiles:
    """Files that were not read, grouped by the reason: an extension, or what the file is."""

    examples: dict[str, list[str]] = field(default_factory=dict)
    """Up to 1,000 names for each reason."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many there are in all."""
    links: list[str] = field(default_factory=list)
    """Names that were read although they are links: up to 1,000."""
    num_links: int = 0
    """How many there are in all."""

    def add_link(self, name: str) -> None:
        self.num_links += 1
        if self.num_links <= _MAX_EXAMPLES:
            self.links.append(name)

    def add(self, reason: str, name: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if self.counts[reason] <= _MAX_EXAMPLES:
            self.examples.setdefault(reason, []).append(name)

    def example_in(self, folder: str) -> str:
        """A skipped file in this folder with advice; "" if there is none."""
        names = [n for names in self.examples.values() for n in names if n.startswith(f"{folder}/")]
        return f"{names[0]}{_advice(Path(names[0]).suffix.lower())}" if names else ""

    def notes(self, source: str) -> list[str]:
        notes = [
            f"{source}: skipped {count:,} × {reason}, such as {min(self.examples[reason])}"
            + _advice(reason)
            for reason, count in sorted(self.counts.items())
        ]
        if self.links:
            name = min(self.links)
            target = os.path.realpath(os.path.join(source, name))  # noqa: PTH118
            others = f"and {self.num_links - 1:,} more are links" if self.num_links > 1 else ""
            notes.append(f"{source}: {name} {others or 'is a link'}, to {target}")
        return notes


def skip_reason(entry: os.DirEntry[str]) -> str | None:
    """Why a file that looks like an image is not read; None if it is read, or is no image."""
    extension = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122
    if extension in EXTENSIONS and not entry.is_file():
        return _special_file(entry)
    return extension if extension in _UNSUPPORTED and extension not in EXTENSIONS else None


def _special_file(entry: os.DirEntry[str]) -> str:
    try:
        return (special_kind(entry.stat().st_mode) or "not a file").removeprefix("a ")
    except OSError:
        return "broken link"


def _advice(reason: str) -> str:
    if reason in (".heic", ".heif"):
        return "; install pillow-heif to read such files, or save them as JPEG"
    if reason == LINKED_FOLDER:
        return "; only a class folder itself may be a link"
    return "; save such files as JPEG or PNG" if reason in _UNSUPPORTED else ""
