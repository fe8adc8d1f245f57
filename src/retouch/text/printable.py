"""Make untrusted text, such as names of files and classes, safe to display."""

import re

# Control characters (except tab and line feed), line separators, bidirectional overrides, and lone
# surrogates, which stand for bytes in a file's name that are not text.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text with its control characters escaped, as in `\x1b`; all else is unchanged."""
    return _CONTROLS.sub(lambda match: _escaped(ord(match[0])), text)


def printable_json(text: str) -> str:
    """The same for a JSON document, which keeps its meaning."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
