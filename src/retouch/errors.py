"""Errors that the user can fix: each names the value, what is wrong and what to do."""

import errno
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pydantic import ValidationError

_MAX_LENGTH = 400


class UserError(ValueError):
    """A mistake in the input. The command line prints it without a traceback.

    Args:
        message: The value, what is wrong with it and what to do. It names no command-line option.
        argument: The argument that fixes it, such as `overwrite=True`. It is shown in brackets
            after the message; the command line shows its own option there instead.
    """

    def __init__(self, message: str, *, argument: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.argument = argument

    def __str__(self) -> str:
        return f"{self.message} ({self.argument})" if self.argument else self.message


class NotFinite(UserError):
    """Weights or features are infinite or NaN; its text says which, as the end of a sentence."""


class Diverged(UserError):
    """Training ran into a loss, weights or features that are infinite or NaN.

    What was learned before stays on disk.
    """


class SystemLimit(NamedTuple):
    """What the system has no more of, and what to do about it."""

    problem: str
    remedy: str = "make room"


_LIMITS = {
    errno.ENOSPC: SystemLimit("the disk is full"),
    errno.EDQUOT: SystemLimit("your disk quota is used up"),
    errno.EFBIG: SystemLimit(
        "a file would be larger than the limit on this machine (ulimit -f) allows"
    ),
}
_NO_MORE_THREADS = SystemLimit(
    "the system starts no more threads or processes for you", "raise the limit (ulimit -u)"
)


def system_limit(why: BaseException) -> SystemLimit | None:
    """The limit of the system that an error is about, whatever was being done; else None."""
    if isinstance(why, RuntimeError) and str(why) == "can't start new thread":
        return _NO_MORE_THREADS
    if isinstance(why, BlockingIOError) and not hasattr(why, "characters_written"):
        return _NO_MORE_THREADS  # no process could be forked; a write would have the attribute
    return _LIMITS.get(why.errno or 0) if isinstance(why, OSError) else None


def message_of(why: BaseException) -> str:
    """Another library's error message in one line, to be used in a sentence.

    If the message alone says little, as that of a KeyError, the error's type precedes it.
    """
    reason = " ".join(str(why).split()).rstrip(".")
    if not reason or isinstance(why, LookupError | AttributeError | TypeError):
        reason = f"{type(why).__name__}: {reason}".removesuffix(": ")
    return reason if len(reason) <= _MAX_LENGTH else f"{reason[:_MAX_LENGTH]} …"


def first_problem(why: "ValidationError") -> str:
    """The first problem that pydantic reports: the field, the value and what it should be."""
    problem = why.errors(include_url=False)[0]
    field = ".".join(map(str, problem["loc"]))
    rule = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{field or 'it'}: there is no such entry"
    if problem["type"] in ("missing", "json_invalid") or not field:
        return f"{field}: {rule}".removeprefix(": ")
    return f"{field}={problem['input']!r:.80}: {rule[:1].lower()}{rule[1:]}"
