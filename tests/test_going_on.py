"""A run that goes on from another: the same result as one long run, and nothing lost on the way."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes_for_tests import quick, reference
from test_learn import Stop, content
from tiny import images, tiny_clip, tiny_folder

import retouch
from retouch import checksummed
from retouch.clip import Preprocess
from retouch.data import Images, Stream
from retouch.data.images import concatenate
from retouch.errors import UserError
from retouch.evaluate.drift import drift_between, word_features, words
from retouch.methods import RECIPES, Settings
from retouch.sparse import Delta, fingerprint
from retouch.train import open_run
from retouch.train.extend_stream import COPY, extend_stream
from retouch.train.replay_store import read_stored_images

QUICK = Settings(epochs=2, batch=4, lr=1e-3)
GIVEN = {
    "settings": QUICK,
    "control": images("control", 4, 3),
    "reference": reference(),
    "checkpoint_seconds": 0,
}
PIXELS = Preprocess(size=(16, 16))


def of(images_: Images, labels: range) -> Images:
    """Only these classes, as a folder of its own would hold them."""
    some = images_.subset(images_.of_classes(labels))
    return replace(
        some, classes=[some.classes[i] for i in labels], labels=some.labels - labels.start
    )


def halves() -> tuple[tuple[Images, Images], tuple[Images, Images]]:
    train, test = images("train", 4, 6), images("test", 4, 3)
    early, late = range(2), range(2, 4)
    return (of(train, early), of(test, early)), (of(train, late), of(test, late))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


def march(model: Path, out: Path, name: str = "spu", **more: Any) -> Stream:
    stream = Stream.split(*halves()[0], tasks=1, order=["bright red", "dark red"])
    clip = retouch.load(str(model))
    options = {**GIVEN, **more}
    retouch.teach(clip, stream, quick(name), out=out, **options)
    return stream


def april(model: Path, before: Path, out: Path, name: str = "spu", **more: Any) -> Any:
    run = open_run(before, model=str(model))
    order = ["bright green", "dark green"]
    stream, earlier = extend_stream(run, read_stored_images(before), *halves()[1], order=order)
    options = {**GIVEN, **more}
    results = retouch.teach(run.clip, stream, quick(name), out=out, earlier=earlier, **options)
    return results, run.clip, stream


def test_tensorboard_watches_a_run_that_goes_on_without_stored_images(model: Path, tmp_path: Path):
    """Before the first new task there is no image left to judge the earlier ones by."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from retouch.train.tensorboard_logger import TensorBoard

    march(model, tmp_path / "march")
    run, board = open_run(tmp_path / "march", model=str(model)), tmp_path / "board"
    stream, earlier = extend_stream(run, None, *halves()[1])
    options = {**GIVEN, "out": tmp_path / "april", "earlier": earlier}
    options["callback"] = TensorBoard(board)
    results = retouch.teach(run.clip, stream, quick("spu"), **options)
    events = EventAccumulator(str(board)).Reload()
    found = [(event.step, event.value) for event in events.Scalars("accuracy/new classes")]
    assert found == [(2, pytest.approx(results.metrics()["accuracy"]))]
    control = [event.step for event in events.Scalars("accuracy/control")]
    assert control == [1, 2]


def test_going_on_is_as_one_long_run(model: Path, tmp_path: Path):
    """Replay comes from the stored images alone: the earlier data is not read again."""
    march(model, tmp_path / "march")
    results, clip, _ = april(model, tmp_path / "march", tmp_path / "april")
    whole = retouch.load(str(model))
    order = ["bright red", "dark red", "bright green", "dark green"]
    stream = Stream.split(images("train", 4, 6), images("test", 4, 3), tasks=2, order=order)
    # The same pictures in both: those of `halves` are cut from these.
    control = images("control", 4, 3)
    long = retouch.teach(whole, stream, quick("spu"), settings=QUICK, control=control)
    assert results.done == 2
    for name, tensor in clip.model.state_dict().items():
        torch.testing.assert_close(tensor, whole.model.state_dict()[name], atol=2e-5, rtol=1e-4)
    assert [row.tasks for row in results.rows] == [row.tasks for row in long.rows]
    assert [row.control for row in results.rows] == [row.control for row in long.rows]
    assert results.metrics().keys() == long.metrics().keys()
    assert (results.learned_before, long.learned_before) == (1, 0)
    assert [row.joint for row in results.rows] == [row.joint for row in long.rows]


@pytest.mark.parametrize("name", RECIPES)
def test_every_method_can_go_on_and_be_interrupted(name: str, model: Path, tmp_path: Path):
    """What a part remembers from task to task travels from run to run."""
    march(model, tmp_path / "march", name)
    _, whole, _ = april(model, tmp_path / "march", tmp_path / "whole", name)
    if name != "frozen":  # which takes no steps
        stop = Stop(4, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            april(model, tmp_path / "march", tmp_path / "april", name, callback=stop)
    results, clip, _ = april(model, tmp_path / "march", tmp_path / "april", name)
    assert fingerprint(clip.model) == fingerprint(whole.model)
    shutil.rmtree(tmp_path / "march")  # the new run needs the old one no more
    run = open_run(tmp_path / "april", model=str(model))
    assert fingerprint(run.load_task().model) == fingerprint(clip.model)
    assert run.classes == ["bright red", "dark red", "bright green", "dark green"]
    assert len(results.rows) == 3
    assert all(value is not None for row in results.rows for value in row.tasks)


@pytest.mark.parametrize("after", [1, 3, 6])
def test_interrupted_anywhere_it_ends_with_the_same_bits(after: int, model: Path, tmp_path: Path):
    march(model, tmp_path / "march")
    april(model, tmp_path / "march", tmp_path / "whole")
    stop = {"callback": Stop(after, ZeroDivisionError())}
    with pytest.raises(ZeroDivisionError):
        april(model, tmp_path / "march", tmp_path / "cut", **stop)
    # The run before is gone; what is needed of it lies in the new folder.
    shutil.rmtree(tmp_path / "march")
    april(model, tmp_path / "cut" / COPY, tmp_path / "cut")
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_a_third_run_goes_on_from_the_second(model: Path, tmp_path: Path):
    march(model, tmp_path / "march")
    april(model, tmp_path / "march", tmp_path / "april")
    run = open_run(tmp_path / "april", model=str(model))
    again = of(images("train", 4, 6), range(1, 2)), of(images("test", 4, 3), range(1, 2))
    more, earlier = extend_stream(
        run, read_stored_images(run.folder), *again
    )  # more images of a known class
    assert more.names(more.classes) == ["bright red", "dark red", "bright green", "dark green"]
    third = retouch.teach(
        run.clip, more, quick("spu"), settings=QUICK, out=tmp_path / "may", earlier=earlier
    )
    assert [task.classes for task in third.tasks][-1] == ["bright red"]
    assert third.rows[1].tasks[2] is None  # nobody knew of it then
    assert third.rows[0].control is None  # not judged by the same control set, nor by any
    assert third.finished
    assert len(Delta.load(tmp_path / "may" / "deltas" / "task-03.safetensors").changes) > 0


def test_without_stored_images_earlier_classes_are_not_judged(model: Path, tmp_path: Path):
    march(model, tmp_path / "march")
    run = open_run(tmp_path / "march", model=str(model))
    stream, earlier = extend_stream(run, None, *halves()[1])
    more = {"settings": QUICK, "earlier": earlier}
    results = retouch.teach(run.clip, stream, "flyp", out=tmp_path / "april", **more)
    assert [row.tasks[0] for row in results.rows][0::2] == [None, None]
    assert results.metrics()["accuracy"] == results.rows[-1].tasks[1]
    with pytest.raises(UserError, match="needs a folder of its own"):
        retouch.teach(run.clip, stream, "flyp", **more)


def test_an_unfinished_run_is_not_gone_on_from(model: Path, tmp_path: Path):
    stop = {"callback": Stop(2, ZeroDivisionError())}
    with pytest.raises(ZeroDivisionError):
        march(model, tmp_path / "march", **stop)
    run = open_run(tmp_path / "march", model=str(model))
    with pytest.raises(UserError, match="not finished"):
        extend_stream(run, None, *halves()[1])


def test_stored_images_are_exactly_those_of_the_buffer(model: Path, tmp_path: Path):
    stream = march(model, tmp_path / "march")
    kept = read_stored_images(tmp_path / "march")
    results = retouch.Results.read(tmp_path / "march")
    positions = np.array(results.replay["groups"]["0"])
    everything = np.arange(len(positions))
    expected = stream.train.read(positions, PIXELS)
    assert np.array_equal(kept.replay.read(everything, PIXELS), expected)
    wider = Preprocess(
        size=(16, 16), shortest=20
    )  # would cut the middle out of what is cut already
    assert np.array_equal(kept.replay.read(everything, wider), expected)
    names = [stream.train.classes[label] for label in stream.train.labels[positions]]
    assert [kept.replay.classes[label] for label in kept.replay.labels] == names
    assert len(kept.test) == len(stream.test)
    assert kept.groups == {"0": list(range(len(positions)))}


def _spoil(folder: Path, change: Any) -> None:
    """As somebody would who puts the checksum right."""
    index = checksummed.read_json(folder / "index.json", "")
    change(index)
    checksummed.write_json(folder / "index.json", index)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda f: (f / "replay-000001.png").write_bytes(b"x"), "replay-000001.png was changed"),
        (lambda f: (f / "judge-000000.png").unlink(), "judge-000000.png cannot be read"),
        (lambda f: (f / "index.json").write_text("{"), "index.json is damaged"),
        (lambda f: checksummed.write_json(f / "index.json", {"format": "x"}), "of another version"),
        (lambda f: _spoil(f, lambda i: i["groups"]["0"].append(99)), "groups do not hold each"),
        (lambda f: _spoil(f, lambda i: i["test"][0].update(file="../x.png")), "does not lie"),
        (lambda f: _spoil(f, lambda i: i["replay"][0].pop("task")), "an entry is missing"),
        (lambda f: (f / "index.json").unlink(), "holds no images to go on from"),
    ],
)
def test_a_changed_buffer_is_refused(damage: Any, complaint: str, model: Path, tmp_path: Path):
    march(model, tmp_path / "march")
    damage(tmp_path / "march" / "images")
    with pytest.raises(UserError, match=complaint):
        read_stored_images(tmp_path / "march")


def test_reopening_refuses_another_model_and_damaged_settings(model: Path, tmp_path: Path):
    march(model, tmp_path / "march")
    with pytest.raises(UserError, match="began with weights"):
        open_run(tmp_path / "march", model=str(tiny_folder(tmp_path / "other", seed=1)))
    run = open_run(tmp_path / "march", model=str(model))
    with pytest.raises(UserError, match="has learned 1 task, not 2"):
        run.load_task(2)
    before = fingerprint(run.clip.model)
    run.load_task(1)
    assert fingerprint(run.clip.model) != before
    assert fingerprint(run.load_task(0).model) == before
    config = tmp_path / "march" / "config.yaml"
    told = config.read_text()
    config.write_text(told.replace("lr: 0.001", "lr: 0.002"))
    with pytest.raises(UserError, match=r"config\.yaml is damaged or was changed by hand"):
        open_run(tmp_path / "march")
    checksummed.write_yaml(
        config, {"weights": "0" * 64, "places": {}, "method": [], "settings": {}}
    )
    with pytest.raises(UserError, match="of another version of retouch: 'method' is missing"):
        open_run(tmp_path / "march")
    config.write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        open_run(tmp_path / "march")


def test_a_run_moved_with_its_data_resumes(model: Path, tmp_path: Path):
    """Where images and model lie is no setting: only what they are counts."""
    stop = {"callback": Stop(3, ZeroDivisionError())}
    with pytest.raises(ZeroDivisionError):
        march(model, tmp_path / "here", **stop)
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = shutil.copytree(model, tmp_path / "model")
    march(moved, tmp_path / "there")
    assert retouch.Results.read(tmp_path / "there").finished


def test_images_joined_keep_their_classes_captions_and_order():
    (a, _), (b, _) = halves()
    both = concatenate(a, b)
    assert both.classes == ["dark red", "bright red", "dark green", "bright green"]
    order = np.array([20, 1, 13, 0])
    pixels = both.read(order, PIXELS)
    assert np.array_equal(pixels[0], b.read(np.array([8]), PIXELS)[0])
    assert np.array_equal(pixels[1], a.read(np.array([1]), PIXELS)[0])
    assert both.store.location(12) == b.store.location(0)
    assert both.store.version() != concatenate(b, a).store.version()
    said = replace(b, captions=retouch.data.string_array.Names(["x"] * len(b)))
    assert list(concatenate(a, said).captions or [])[11:13] == ["", "x"]


def test_words_drift_when_the_text_tower_moves_and_only_then():
    clip = tiny_clip()
    before = word_features(clip)
    assert drift_between(before, word_features(clip)).moved == 0
    with torch.no_grad():
        clip.model.vision_model.encoder.layers[0].mlp.fc1.weight.mul_(2)
    assert drift_between(before, word_features(clip)).neighbours == 100
    with torch.no_grad():
        clip.model.text_projection.weight.normal_()
    found = drift_between(before, word_features(clip))
    assert found.moved > 0.1
    assert found.neighbours < 100
    assert len(words()) == len(set(words())) > 400


def test_a_run_tells_the_drift_of_words(model: Path, tmp_path: Path):
    march(model, tmp_path / "march")
    rows = json.loads((tmp_path / "march" / "results.json").read_text())["rows"]
    assert rows[0]["drift"] is None  # of itself there is none
    assert rows[1]["drift"]["moved"] > 0
