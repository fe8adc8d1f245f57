"""Any text inside Markdown, as it is."""

from retouch.printable import printable

_MEANT = str.maketrans({c: f"&#{ord(c)};" for c in "\\`*_[]<>|~&#$!"})


def literal(text: object) -> str:
    """The text on one line, in which no sign means anything to Markdown or HTML."""
    return printable(" ".join(str(text).split())).translate(_MEANT)
