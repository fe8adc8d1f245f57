"""One of every document that is read back, and how it is read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipes_for_tests import quick
from runs import QUICK, Stop, method
from safetensors.torch import load
from safetensors.torch import save as to_bytes
from tiny import images, tiny_clip

import retouch
from retouch.analysis.trace.effects import PairEffects
from retouch.analysis.trace.journal import PAIRS, SETTINGS, Journal
from retouch.bench.cell import Cell, CellRecord, ExtraNeeds
from retouch.clip.preprocess import Preprocess
from retouch.clip.prompts.file import load_prompts
from retouch.clip.prompts.visual import prompts_of
from retouch.data import Stream, cached
from retouch.data.cache.file import find_damage
from retouch.data.stores.cached import CachedStore
from retouch.evaluate import Results
from retouch.evaluate.per_class import PerClass
from retouch.sparse import Delta
from retouch.train.run_folder.checkpoint import read_checkpoint
from retouch.train.run_folder.images import StoredImages, read_stored_images
from retouch.train.run_folder.metrics import read_metrics
from retouch.train.run_folder.read import read_class_vectors, read_config

LARGER = Preprocess(size=(24, 24))
STEPS = 9
"""Of each task."""


def stream() -> Stream:
    return Stream.split(images("train", 4, 12), images("test", 4, 4), tasks=2, order=0)


def teach(out: Path, **options: Any) -> Results:
    control = images("control", 4, 3)
    more = {"settings": QUICK, "control": control, "checkpoint_seconds": 0, **options}
    return retouch.teach(tiny_clip(), stream(), method(), out=out, **more)


def write_documents(folder: Path) -> Path:
    """A run that was stopped in its second task, the same run finished, and other files."""
    with pytest.raises(ZeroDivisionError):
        teach(folder / "run", callback=Stop(16, ZeroDivisionError()))
    shutil.copytree(folder / "run", folder / "done")
    results = teach(folder / "done")
    for method_name in ("l2p", "dualprompt"):
        prompted = tiny_clip()
        quick(method_name).start(prompted, QUICK)
        prompted.save(folder / method_name)
    few = Stream.split(images("train", 4, 2), images("test", 4, 1), tasks=1)
    retouch.teach(tiny_clip(), few, "lda", settings=QUICK, out=folder / "lda")
    write_trace(folder / "trace")
    made = cell()
    made.begin(folder / "bench").mkdir()
    results.write(made.run(folder / "bench"))
    made.end(folder / "bench", record())
    cached(images("train", 4, 12), LARGER, folder / "cache")
    return folder


def write_trace(folder: Path) -> None:
    journal = Journal(folder, {"model": "tiny", "draws": 3})
    journal.start({"image": 0.5})
    about: dict[str, Any] = {"name": "cat", "tower": "image", "corrupted": 0.125, "noised": 3}
    rows: dict[str, Any] = {"tokens": 4, "layer": [0.1, 0.2], "attention": [0.1, 0.3], "mlp": [0.7]}
    for number in range(3):
        journal.add([PairEffects(image=f"{number}.jpg", clean=0.25 + number, **about, **rows)])


def record() -> CellRecord:
    extra = ExtraNeeds(reference_data=False, copies_of_weights=2)
    return CellRecord(seconds=1.5, peak_memory_bytes=None, extra=extra, all_images=True)


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


def class_vectors_of(run: Path) -> Any:
    vectors = read_class_vectors(run, Results.read(run), 1)
    return vectors and (vectors.names, plain_tensors(vectors.tensors()))


def traced(folder: Path) -> Any:
    journal = Journal(folder, {"model": "tiny", "draws": 3})
    return [journal.embedding_std, *journal._effects.items()]


def cache_index(folder: Path) -> Path:
    (file,) = folder.glob("*/index.json")
    return file


def cached_images(folder: Path) -> Any:
    """What is wrong with the cache; it is rebuilt."""
    store = CachedStore(images("train", 4, 12).store, LARGER, cache_index(folder).parent)
    return find_damage(store.folder), store.unreadable


DOCUMENTS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "run/config.yaml": ("run", read_config),
    "done/config.yaml": ("done", read_config),
    "run/results.json": ("run", Results.read),
    "done/results.json": ("done", Results.read),
    "done/classes.json": ("done", PerClass.read),
    "done/images/index.json": ("done", stored_images_of),
    "run/metrics.jsonl": ("run", read_metrics),
    "done/metrics.jsonl": ("done", read_metrics),
    "run/checkpoint.safetensors": ("run", checkpoint_of),
    "run/deltas/task-01.safetensors": ("run/deltas/task-01.safetensors", delta_of),
    "lda/class-vectors/task-01.safetensors": ("lda", class_vectors_of),
    "l2p/prompts.safetensors": ("l2p", prompts_in),
    "dualprompt/prompts.safetensors": ("dualprompt", prompts_in),
    f"trace/{SETTINGS}": ("trace", traced),
    f"trace/{PAIRS}": ("trace", traced),
    "bench/cells/spu/cub/seed-0/cell.json": ("bench", lambda out: cell().finished(out)),
    "bench/cells/spu/cub/seed-0/done.json": ("bench", lambda out: cell().record(out)),
}
"""Each file, with what reads it and from where."""


# A safetensors file as one with a header.


def header_of(data: bytes) -> Any:
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["retouch"])


def with_header(data: bytes, header: str) -> bytes:
    return to_bytes(load(data), {"retouch": header})
