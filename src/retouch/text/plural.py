"""Counts with their noun, for text that people read."""


def count(number: int, noun: str, plural: str = "") -> str:
    """For example "1 epoch", "2 epochs", "1,200 images"; `plural` where appending an s is wrong."""
    return f"{number:,} {noun if number == 1 else plural or _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("s"):
        return f"{noun}es"
    return f"{noun}s"
