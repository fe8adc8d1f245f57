"""Arbitrary text inside Markdown."""

from retouch.printable import printable

_ESCAPES = str.maketrans({c: f"&#{ord(c)};" for c in "\\`*_[]<>|~&#$!"})


def escape_markdown(text: object) -> str:
    """The text on one line, with every character escaped that Markdown or HTML would interpret."""
    return printable(" ".join(str(text).split())).translate(_ESCAPES)
