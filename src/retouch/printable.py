"""Text of strangers, such as names of files and classes, where it is shown."""

import re

# Controls (but for tab and line feed), line separators, what turns the direction of a line, and
# lone surrogates, which stand for bytes in a file's name that are no text.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text with its control characters spelled out, as in `\x1b`; all else stays as it is."""
    return _CONTROLS.sub(lambda found: _spelled(ord(found[0])), text)


def printable_json(text: str) -> str:
    """The same of a JSON document, which stays one and means the same."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
