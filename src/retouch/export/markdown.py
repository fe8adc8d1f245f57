"""Any text inside Markdown, as it is."""

_MEANT = str.maketrans({c: f"&#{ord(c)};" for c in "\\`*_[]<>|~&#$!"})


def literal(text: object) -> str:
    """The text on one line, in which no sign means anything to Markdown or HTML."""
    return " ".join(str(text).split()).translate(_MEANT)
