"""Every file that is read back is damaged in many ways: it is refused, or reads as before.

Bytes are flipped, removed and doubled, and values of documents are changed as with an editor. The
seed is fixed. What a reader returns must never differ from what was written.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from documents import DOCUMENTS, STEPS, header_of, with_header, write_documents

from retouch.errors import UserError
from retouch.files import checksummed

MUTATIONS = 40
"""Changes to the bytes of each file, and as many to the values of each document."""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("state"))


def damaged_bytes(data: bytes, rng: np.random.Generator, low: int, high: int) -> bytes:
    at = int(rng.integers(low, high))
    how = rng.integers(5)
    if how == 0:
        return data[:at] + data[at + 1 :]
    if how == 1:
        return data[:at] + data[at : at + 1] + data[at:]
    if how == 2:
        return data[:at]
    flipped = data[at] ^ (1 << int(rng.integers(8))) if how == 3 else int(rng.integers(256))
    return data[:at] + bytes([flipped]) + data[at + 1 :]


def change_value(content: Any, rng: np.random.Generator) -> None:
    """Change one value, or one key, somewhere below; but not the checksum itself."""
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = [k for k in keys if k != checksummed.KEY][
        int(rng.integers(len(keys) - ("checksum" in keys)))
    ]
    value = content[key]
    if isinstance(value, dict | list) and value and rng.integers(6):
        change_value(value, rng)
    elif isinstance(content, dict) and not rng.integers(6):
        content[f"{key}x"] = content.pop(key)
    elif isinstance(value, bool) or value is None:
        content[key] = not value
    elif isinstance(value, int):
        content[key] = value + int(rng.choice([-1, 1, 3, 1_000_000]))
    elif isinstance(value, float):
        content[key] = math.nextafter(value, 1e9)
    elif isinstance(value, str):
        content[key] = value[:-1] if value and rng.integers(2) else f"{value} "
    else:
        content[key] = [*value, value[0]] if isinstance(value, list) and value else {"a": [1]}


def damaged_values(name: str, data: bytes, rng: np.random.Generator) -> bytes:
    if name.endswith(".safetensors"):
        return damaged_header(data, rng)
    if name.endswith(".yaml"):
        content = yaml.safe_load(data)
        change_value(content, rng)
        return yaml.safe_dump(content, sort_keys=False).encode()
    if name.endswith(".json"):
        content = json.loads(data)
        change_value(content, rng)
        return json.dumps(content, indent=1).encode()
    lines = data.splitlines(keepends=True)
    at = int(rng.integers(len(lines)))
    content = json.loads(lines[at])
    change_value(content, rng)
    lines[at] = json.dumps(content).encode() + b"\n"
    return b"".join(lines)


def damaged_header(data: bytes, rng: np.random.Generator) -> bytes:
    """A safetensors file with a change in its header."""
    header = header_of(data)
    change_value(header, rng)
    return with_header(data, json.dumps(header))


def outcome(read: Callable[[Path], Any], path: Path) -> tuple[Any, str]:
    try:
        return read(path), ""
    except UserError as why:
        return None, str(why)


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_damage_is_refused_or_changes_nothing(name: str, state: Path):
    (path, read), file = DOCUMENTS[name], state / name
    whole, rng = file.read_bytes(), np.random.default_rng(len(name))
    expected = read(state / path)
    least = {"run/metrics.jsonl": STEPS, "done/metrics.jsonl": 2 * STEPS}.get(name, 0)
    refused = 0
    try:
        for number in range(2 * MUTATIONS):
            header = 8 + int.from_bytes(whole[:8], "little") if name.endswith("tensors") else 0
            end = header if header and number % 4 == 0 else len(whole)
            by_bytes = number < MUTATIONS
            damaged = (
                damaged_bytes(whole, rng, 0, end) if by_bytes else damaged_values(name, whole, rng)
            )
            file.write_bytes(damaged)
            content, complaint = outcome(read, state / path)
            if complaint:
                refused += 1
                assert file.name in complaint or "seed-0" in complaint
                assert len(complaint) < 1000
                assert "\n" not in complaint
            else:
                # Lines of what is not done may have been cut off: they are written again.
                lines = max(len(content), least) if name.endswith(".jsonl") else None
                same = content == (expected if lines is None else expected[:lines])
                assert same, f"{name}, mutation {number}: {_where(whole, damaged)}"
    finally:
        file.write_bytes(whole)
    assert refused > MUTATIONS
    assert read(state / path) == expected


def _where(whole: bytes, damaged: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(whole, damaged, strict=False)) if a != b), -1)
    return f"{whole[max(0, at - 30) : at + 30]!r} became {damaged[max(0, at - 30) : at + 30]!r}"
