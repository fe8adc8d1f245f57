"""Folders of runs that were never trained: with classes, images and real deltas."""

import io
import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from tiny import tiny_clip

from retouch.evaluate.per_class import (
    MAX_MATRIX_CLASSES,
    ClassRow,
    Confusion,
    ConfusionMatrix,
    Example,
    PerClass,
)
from retouch.evaluate.results import Results
from retouch.sparse import Snapshot, locate, select


def write_run(
    folder: Path, results: Results, classes: PerClass | None = None, *, deltas: bool = True
) -> Path:
    """What the page needs of a run's folder; without deltas, its page is drawn faster."""
    (folder / "examples").mkdir(parents=True)
    (folder / "config.yaml").write_text("weights: none\n")
    results.write(folder)
    if classes:
        for number, example in enumerate(classes.examples):
            (folder / example.file).write_bytes(jpeg(number))
        classes.write(folder)
    if deltas:
        write_deltas(folder / "deltas", results.done)
    return folder


def write_deltas(folder: Path, tasks: int) -> None:
    """The first MLP layers of a tiny CLIP move in every task, the later ones farther."""
    folder.mkdir()
    model = tiny_clip().model
    scores = {name: p.detach().abs() for name, p in locate(model).items()}
    chosen = select(scores, 0.1)
    for task in range(tasks):
        before = Snapshot(model, chosen)
        with torch.no_grad():
            for name, p in locate(model).items():
                block = int(name.split("layers.")[1].split(".")[0])
                p.view(-1)[chosen[name].index] *= 1 + 0.01 * (block + 1)
        before.delta().save(folder / f"task-{task + 1:02}.safetensors")


def by_class(names: Sequence[str], old: Sequence[str] = ("tench", "hen")) -> PerClass:
    """The first new class gained most, the last lost most; all old ones lost a little."""
    rows = [
        ClassRow(name=name, images=20, before=40.0, after=40.0 + 50 - 80 * i / (len(names) - 1))
        for i, name in enumerate(names)
    ]
    rows += [ClassRow(name=name, images=8, before=75.0, after=50.0, learned=False) for name in old]
    told = [
        (name, wrong, right, known)
        for group, known in ((names, True), (old, False))
        for name in (group[0], group[-1])
        for wrong, right in ((group[1], name), (name, group[1]), (group[1], group[1]))
    ]
    examples = [
        Example(file=f"examples/{i:02}.jpg", name=name, before=was, after=now, learned=known)
        for i, (name, was, now, known) in enumerate(told)
    ]
    confusions = [
        Confusion(name=a, called=b, images=9 - i % 9, of=20)
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    numbers = range(len(names))
    counts = [[11 if a == b else 9 if b == a + 1 else 0 for b in numbers] for a in numbers]
    matrix = ConfusionMatrix(classes=list(names), counts=counts)
    few = [matrix] if len(names) <= MAX_MATRIX_CLASSES else []
    return PerClass(classes=rows, confusions=confusions, matrices=few, examples=examples)


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (120, 160), (20 * number % 256, 120, 200)).save(file, "JPEG")
    return file.getvalue()
