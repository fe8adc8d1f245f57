"""A class keeps its label however often a run is continued, so state keyed by label stays with it.

The classes are learned in another order than the data's own: where both are the same, a mistake
here cannot be seen.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from continued_runs import GIVEN, of
from recipes_for_tests import quick
from safetensors.torch import load_file
from tiny import images, tiny_folder
from torch import Tensor

import retouch
from retouch.data import Images, Stream
from retouch.evaluate import Results
from retouch.methods import Method, TaskContext
from retouch.methods.updates.slca import ClassifierAlignment
from retouch.train import open_run
from retouch.train.extend_stream import extend_stream
from retouch.train.run_folder.images import read_stored_images

TRAIN, TEST = images("train", 6, 6), images("test", 6, 3)
MONTHS = (range(2), range(2, 4), range(4, 6))
METHODS = {
    "slca": quick("slca"),
    "spu by class": quick("spu", replay__balance="class"),
    "spu by task": quick("spu"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


def backwards(names: list[str]) -> list[str]:
    return list(reversed(names))


def classes(labels: range) -> tuple[Images, Images]:
    return of(TRAIN, labels), of(TEST, labels)


def first(model: Path, out: Path, method: Method, data: tuple[Images, Images]) -> Stream:
    clip = retouch.load(str(model))
    stream = Stream.split(*data, tasks=1, order=backwards(data[0].classes))
    retouch.teach(clip, stream, method, out=out, **GIVEN)
    return stream


def onward(
    model: Path, before: Path, out: Path, method: Method, data: tuple[Images, Images]
) -> tuple[Any, Stream]:
    run = open_run(before, model=str(model))
    order = backwards(data[0].classes)
    stream, earlier = extend_stream(
        run, read_stored_images(before), Stream.split(*data, tasks=1, order=order)
    )
    retouch.teach(run.clip, stream, method, out=out, earlier=earlier, **GIVEN)
    return run.clip, stream


def statistics(run: Path, stream: Stream) -> dict[str, Tensor]:
    """The means that SLCA remembers, by the name of the class."""
    (file,) = run.glob("state-*.safetensors")
    named = {key.rpartition(":")[2]: t for key, t in load_file(file).items() if ":mean:" in key}
    return {stream.train.classes[int(label)]: mean for label, mean in named.items()}


def replayed(run: Path, stream: Stream) -> dict[str, list[str]]:
    """Of each group of a class-balanced buffer, by the name of its class: what its images show."""
    groups = Results.read(run).replay.groups
    labels, names = stream.train.labels, stream.train.classes
    return {names[int(g)]: [names[labels[i]] for i in own] for g, own in groups.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_three_runs_are_as_one_long_run(name: str, model: Path, tmp_path: Path):
    method, before = METHODS[name], tmp_path / "0"
    stream = first(model, before, method, classes(MONTHS[0]))
    for number, month in enumerate(MONTHS[1:], 1):
        clip, more = onward(model, before, tmp_path / str(number), method, classes(month))
        assert more.train.classes[: len(stream.train.classes)] == stream.train.classes
        assert more.test.classes == more.train.classes
        before, stream = tmp_path / str(number), more
    order = [n for month in MONTHS for n in backwards([TRAIN.classes[label] for label in month])]
    long, whole = retouch.load(str(model)), Stream.split(TRAIN, TEST, tasks=3, order=order)
    expected = retouch.teach(long, whole, method, out=tmp_path / "long", **GIVEN)
    for weight, tensor in clip.model.state_dict().items():
        torch.testing.assert_close(tensor, long.model.state_dict()[weight], atol=5e-5, rtol=1e-3)
    assert Results.read(before).rows[0].tasks == expected.rows[0].tasks
    if name == "slca":
        found, known = statistics(before, stream), statistics(tmp_path / "long", whole)
        assert found.keys() == known.keys() == set(TRAIN.classes)
        for each in known:
            torch.testing.assert_close(found[each], known[each], atol=1e-3, rtol=1e-3)
    elif name == "spu by class":
        groups = replayed(before, stream)
        assert groups == replayed(tmp_path / "long", whole)
        assert groups == {each: [each] * 2 for each in TRAIN.classes}


@pytest.mark.slow
def test_a_known_class_taught_again_leaves_the_statistics_of_others(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    method, draw, drawn = METHODS["slca"], ClassifierAlignment._draw, []

    def counted(self: ClassifierAlignment, context: TaskContext, label: int, epoch: int) -> Tensor:
        drawn.append((context.task.number, epoch, label))
        return draw(self, context, label, epoch)

    monkeypatch.setattr(ClassifierAlignment, "_draw", counted)
    early = first(model, tmp_path / "march", method, classes(range(3)))
    again = of(TRAIN, range(1, 4)), of(TEST, range(1, 4))  # two that it knows, and a new one
    _, late = onward(model, tmp_path / "march", tmp_path / "april", method, again)
    before, after = statistics(tmp_path / "march", early), statistics(tmp_path / "april", late)
    assert after.keys() == set(TRAIN.classes[:4])
    assert len(drawn) == len(set(drawn)) == 3 + 4, "each class is aligned once"
    assert [torch.equal(before[n], after[n]) for n in TRAIN.classes[:3]] == [True, False, False]


@pytest.mark.slow
def test_a_known_class_taught_again_keeps_its_images_and_those_of_others(
    model: Path, tmp_path: Path
):
    method = METHODS["spu by class"]
    first(model, tmp_path / "march", method, classes(range(3)))
    again = of(TRAIN, range(1, 2)), of(TEST, range(1, 2))
    _, stream = onward(model, tmp_path / "march", tmp_path / "april", method, again)
    assert replayed(tmp_path / "april", stream) == {n: [n] * 4 for n in TRAIN.classes[:3]}
    # A month later more of the same class comes, in fewer images than it may have.
    few = tuple(each.subset(np.arange(2)) for each in again)
    _, stream = onward(model, tmp_path / "april", tmp_path / "may", method, few)
    assert replayed(tmp_path / "may", stream) == {n: [n] * 4 for n in TRAIN.classes[:3]}
