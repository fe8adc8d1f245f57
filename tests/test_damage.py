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
from recipes_for_tests import quick
from runs import QUICK, Stop, method
from safetensors.torch import load
from safetensors.torch import save as to_bytes
from tiny import images, tiny_clip

import retouch
from retouch import checksummed
from retouch.analysis.trace.effects import PairEffects
from retouch.analysis.trace.journal import PAIRS, SETTINGS, Journal
from retouch.bench.cell import Cell
from retouch.clip.prompt_file import load_prompts
from retouch.clip.visual_prompts import prompts_of
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.evaluate.per_class import ClassRow, PerClass
from retouch.sparse import Delta
from retouch.train.checkpoint_file import read_checkpoint
from retouch.train.metrics_file import read_metrics
from retouch.train.replay_store import StoredImages, read_stored_images, write_images
from retouch.train.run_folder import read_config

MUTATIONS = 40
"""Changes to the bytes of each file, and as many to the values of each document."""


def teach(out: Path, **options: Any) -> Results:
    stream = Stream.split(images("train", 4, 12), images("test", 4, 4), tasks=2, order=0)
    control = images("control", 4, 3)
    more = {"settings": QUICK, "control": control, "checkpoint_seconds": 0, **options}
    results = retouch.teach(tiny_clip(), stream, method(), out=out, **more)
    write_images(out, stream, results, tiny_clip().preprocess)
    return results


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in its second task, and other files that are read back."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.raises(ZeroDivisionError):
        teach(folder / "run", callback=Stop(16, ZeroDivisionError()))
    stream = Stream.split(images("train", 4, 12), images("test", 4, 4), tasks=2, order=0)
    results = Results.read(folder / "run")
    write_images(folder / "run", stream, results, tiny_clip().preprocess)
    PerClass(classes=[ClassRow(name="cat", images=3, before=1.5, after=66.6)]).write(folder / "run")
    prompted = tiny_clip()
    quick("l2p").start(prompted, QUICK)
    prompted.save(folder / "prompted")
    journal = Journal(folder / "trace", {"model": "tiny", "draws": 3})
    journal.start({"image": 0.5})
    about: dict[str, Any] = {"name": "cat", "tower": "image", "corrupted": 0.125, "noised": 3}
    rows: dict[str, Any] = {"tokens": 4, "layer": [0.1, 0.2], "attention": [0.1, 0.3], "mlp": [0.7]}
    for number in range(3):
        journal.add([PairEffects(image=f"{number}.jpg", clean=0.25 + number, **about, **rows)])
    made = cell()
    made.begin(folder / "bench").mkdir()
    results.write(made.run(folder / "bench"))
    made.end(folder / "bench", {"seconds": 1.5, "whole": True, "extra": {"copies": 2}})
    return folder


def cell() -> Cell:
    about: dict[str, Any] = {"row": "spu", "method": "spu", "dataset": "cub", "seed": 0}
    about |= {"model": "builtin", "tasks": 2, "control": None, "change": {"replay.size": 7}}
    return Cell(**about, settings={"epochs": 1, "lr": 1e-3})


def stored_images_of(run: Path) -> Any:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else value

    stored: StoredImages = read_stored_images(run)
    both = [
        (i.classes, i.labels.tolist(), list(i.store.names), i.prompt, tuple(i.templates))  # type: ignore[attr-defined]
        for i in (stored.replay, stored.test)
    ]
    return both, *(
        plain(v) for v in (stored.replay_tasks, stored.test_tasks, stored.groups, stored.seen)
    )


def plain_tensors(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: (str(t.dtype), t.tolist()) for name, t in sorted(tensors.items())}


def checkpoint_of(run: Path) -> Any:
    position, tensors = read_checkpoint(run / "checkpoint.safetensors")
    return position, plain_tensors(tensors)


def prompts_in(folder: Path) -> Any:
    clip = tiny_clip()
    load_prompts(clip, folder)
    prompts = prompts_of(clip.model)
    return prompts and (prompts.kind, prompts.shape, plain_tensors(prompts.state_dict()))


def delta_of(file: Path) -> Any:
    delta = Delta.load(file)
    changes = {name: (c.dtype, c.xor.tolist()) for name, c in delta.changes.items()}
    return delta.before, delta.after, delta.metadata, changes


def traced(folder: Path) -> Any:
    journal = Journal(folder, {"model": "tiny", "draws": 3})
    return [journal.embedding_std, *journal._effects.items()]


STATE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "run/config.yaml": ("run", read_config),
    "run/results.json": ("run", Results.read),
    "run/classes.json": ("run", PerClass.read),
    "run/images/index.json": ("run", stored_images_of),
    "run/metrics.jsonl": ("run", read_metrics),
    "run/checkpoint.safetensors": ("run", checkpoint_of),
    "run/deltas/task-01.safetensors": ("run/deltas/task-01.safetensors", delta_of),
    "prompted/prompts.safetensors": ("prompted", prompts_in),
    f"trace/{SETTINGS}": ("trace", traced),
    f"trace/{PAIRS}": ("trace", traced),
    "bench/cells/spu/cub/seed-0/cell.json": ("bench", lambda out: cell().finished(out)),
    "bench/cells/spu/cub/seed-0/done.json": ("bench", lambda out: cell().record(out)),
}


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
    return to_bytes(load(data), {"retouch": json.dumps(header)})


def header_of(data: bytes) -> Any:
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["retouch"])


def outcome(read: Callable[[Path], Any], path: Path) -> tuple[Any, str]:
    try:
        return read(path), ""
    except UserError as why:
        return None, str(why)


@pytest.mark.slow
@pytest.mark.parametrize("name", STATE)
def test_damage_is_refused_or_changes_nothing(name: str, state: Path):
    (path, read), file = STATE[name], state / name
    whole, rng = file.read_bytes(), np.random.default_rng(len(name))
    expected = read(state / path)
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
                # A file that grows line by line may have been cut off: the rest is written again.
                lines = len(content) if name.endswith(".jsonl") else None
                same = content == (expected if lines is None else expected[:lines])
                assert same, f"{name}, mutation {number}: {_where(whole, damaged)}"
    finally:
        file.write_bytes(whole)
    assert refused > MUTATIONS
    assert read(state / path) == expected


def _where(whole: bytes, damaged: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(whole, damaged, strict=False)) if a != b), -1)
    return f"{whole[max(0, at - 30) : at + 30]!r} became {damaged[max(0, at - 30) : at + 30]!r}"
