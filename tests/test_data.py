"""Streams, folders and the replay buffer."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import locations, make_folder
from tiny import CLASSES, images

from retouch.clip.preprocess import Preprocess
from retouch.data import Images, ReplayBuffer, Stream, in_memory, read_data
from retouch.errors import UserError
from retouch.methods import Settings, TaskContext


def many(classes: int, each: int = 3) -> Images:
    labels = np.repeat(np.arange(classes), each)
    names = [f"class {i}" for i in range(classes)]
    return in_memory("many", names, labels, np.zeros((len(labels), 4, 4, 3), np.uint8))


@settings(max_examples=50, deadline=None)
@given(classes=st.integers(1, 30), data=st.data())
def test_tasks_are_disjoint_and_hold_every_class_once(classes, data):
    tasks = data.draw(st.integers(1, classes))
    stream = Stream.split(
        many(classes), many(classes, 2), tasks, order=data.draw(st.integers(0, 9))
    )
    assert sorted(stream.classes) == list(range(classes))
    sizes = [len(task.classes) for task in stream.tasks]
    assert max(sizes) - min(sizes) <= 1
    for task in stream.tasks:
        assert set(stream.train.labels[task.train]) == set(task.classes)
        assert set(stream.test.labels[task.test]) == set(task.classes)
    assert sum(len(task.train) for task in stream.tasks) == 3 * classes


def test_order_by_seed_or_given_and_unequal_sizes():
    one, two, other = (Stream.split(many(8), many(8), 4, order=seed).classes for seed in (1, 1, 2))
    assert one == two != other
    names = [f"class {i}" for i in (3, 1, 2, 0)]
    stream = Stream.split(many(4), many(4), [1, 3], order=names)
    assert [stream.names(task.classes) for task in stream.tasks] == [names[:1], names[1:]]


@pytest.mark.parametrize(
    ("tasks", "order", "complaint"),
    [
        (5, 0, "4 classes cannot be split into 5 tasks"),
        (0, 0, "4 classes cannot be split into 0 tasks"),
        ([2, 3], 0, "do not add up to the 4"),
        ([4, 0], 0, "every task needs at least one"),
        (2, ["class 0", "class 1"], "differ in 'class 2'"),
    ],
)
def test_impossible_streams(tasks, order, complaint):
    with pytest.raises(UserError, match=complaint):
        Stream.split(many(4), many(4), tasks, order)


# Folders.


def test_a_folder_with_a_share_held_out(tmp_path: Path):
    folder = make_folder(tmp_path / "my photos", {"red_kite": 10, "étoile ☆": 5, "b": 2})
    train, test = read_data(folder).train_and_test(0.2)
    assert train.classes == test.classes == ["b", "red kite", "étoile ☆"]
    assert np.bincount(train.labels).tolist() == [1, 8, 4]
    assert np.bincount(test.labels).tolist() == [1, 2, 1]
    assert not set(locations(train)) & set(locations(test))
    again, _ = read_data(folder).train_and_test(0.2)
    assert locations(again) == locations(train)
    pixels = train.read(np.array([0, 3]), Preprocess(size=(16, 16), shortest=16))
    assert pixels.shape == (2, 16, 16, 3)


def test_a_folder_with_train_and_test(tmp_path: Path):
    make_folder(tmp_path / "train", {"a": 3, "b": 2})
    make_folder(tmp_path / "test", {"a": 1, "b": 1})
    train, test = read_data(tmp_path).train_and_test()
    assert (len(train), len(test)) == (5, 2)
    make_folder(tmp_path / "test", {"c": 1})
    with pytest.raises(UserError, match="'c' is missing in train or in test"):
        read_data(tmp_path).train_and_test()


def test_bad_folders(tmp_path: Path):
    with pytest.raises(UserError, match="nowhere is an unknown data set or path"):
        read_data(tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no subfolders"):
        read_data(tmp_path).train_and_test()
    make_folder(tmp_path, {"a": 3, "empty": 0})
    with pytest.raises(UserError, match="the class 'empty' has no image"):
        read_data(tmp_path).train_and_test()
    make_folder(tmp_path, {"empty": 1})
    with pytest.raises(UserError, match="'empty' has a single image"):
        read_data(tmp_path).train_and_test()
    assert len(read_data(tmp_path).evaluation_images()) == 4
    with pytest.raises(UserError, match=r"holdout=1\.5"):
        read_data(tmp_path).train_and_test(1.5)


def test_an_unreadable_image_is_named(tmp_path: Path):
    folder = make_folder(tmp_path, {"a": 2, "b": 2})
    (folder / "a" / "0.png").write_bytes(b"no image at all")
    (folder / "b" / "1.png").write_bytes((folder / "b" / "0.png").read_bytes()[:40])
    found = read_data(folder).evaluation_images()
    for number, name in ((0, "a/0.png"), (3, "b/1.png")):
        with pytest.raises(UserError, match=f"{name} cannot be read"):
            found.read(np.array([number]), Preprocess(size=(8, 8)))


def test_names_that_stand_there_twice(tmp_path: Path):
    make_folder(tmp_path, {"red_kite": 1, "red kite": 1})
    with pytest.raises(UserError, match="two classes have the name 'red kite'"):
        read_data(tmp_path)


# Replay.


def learn(buffer: ReplayBuffer, tasks: int = 4, each: int = 50) -> None:
    for task in range(tasks):
        positions = np.arange(task * each, (task + 1) * each)
        buffer.add(task, positions, positions // 10)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(4, 120), tasks=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_task_keeps_the_same_number(size, tasks, seed):
    buffer = ReplayBuffer(size, "task", seed)
    learn(buffer, tasks)
    kept = np.bincount(buffer.positions // 50, minlength=tasks)
    assert kept.tolist() == [min(50, size // tasks)] * tasks
    assert len(set(buffer.positions)) == len(buffer.positions) <= size


def test_every_class_keeps_the_same_number():
    buffer = ReplayBuffer(45, "class")
    learn(buffer)  # 20 classes of 10
    assert np.bincount(buffer.positions // 10).tolist() == [2] * 20


def test_a_reservoir_keeps_every_image_with_the_same_chance():
    counts = np.zeros(200)
    for seed in range(400):
        buffer = ReplayBuffer(20, "reservoir", seed)
        learn(buffer)
        assert len(buffer.positions) == 20
        counts[buffer.positions] += 1
    by_task = counts.reshape(4, 50).sum(1) / 400
    assert np.abs(by_task - 5).max() < 0.5


def test_what_is_kept_depends_on_the_seed_alone():
    kept = []
    for seed in (1, 1, 2):
        buffer = ReplayBuffer(40, "task", seed)
        learn(buffer)
        kept.append(buffer.positions.tolist())
    assert kept[0] == kept[1] != kept[2]


@pytest.mark.parametrize("balance", ["task", "class", "reservoir"])
def test_a_restored_buffer_goes_on_as_if_nothing_had_happened(balance):
    whole, half = ReplayBuffer(60, balance), ReplayBuffer(60, balance)
    learn(whole, 4)
    learn(half, 2)
    resumed = ReplayBuffer(60, balance)
    resumed.restore(half.state())
    for task in (2, 3):
        positions = np.arange(task * 50, (task + 1) * 50)
        resumed.add(task, positions, positions // 10)
    assert resumed.positions.tolist() == whole.positions.tolist()


def test_draws_as_many_as_asked_for_and_none_twice_before_all_were_drawn():
    buffer = ReplayBuffer(10)
    rng = np.random.default_rng(0)
    assert len(buffer.sample(8, rng)) == 0
    learn(buffer, 1)
    drawn = buffer.sample(25, rng)
    assert len(drawn) == 25
    counts = np.unique(drawn, return_counts=True)[1]
    assert set(counts) <= {2, 3}
    assert len(counts) == 10


@pytest.mark.parametrize(
    ("balance", "complaint"), [("task", "each of the 3 tasks"), ("class", "each of the 9 classes")]
)
def test_a_buffer_too_small_is_refused_at_the_start(balance, complaint):
    with pytest.raises(UserError, match=complaint):
        ReplayBuffer(2, balance).check_size(tasks=3, classes=9)
    ReplayBuffer(9, balance).check_size(tasks=3, classes=9)
    ReplayBuffer(0, balance).check_size(tasks=3, classes=9)
    ReplayBuffer(2, "reservoir").check_size(tasks=3, classes=9)


# Batches.


def context(count: int, batch: int, drop_last: bool = False) -> TaskContext:
    train = many(1, count)
    stream = Stream.split(train, train, 1)
    chosen = Settings(batch=batch, epochs=2)
    return TaskContext(None, stream, stream.tasks[0], chosen, None, drop_last)


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 400), batch=st.integers(2, 130))
def test_an_epoch_shows_every_image_once_and_drops_no_task(count, batch):
    plan = context(count, batch)
    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        shown = [plan.new_images(step) for step in steps]
        assert sorted(np.concatenate(shown)) == list(range(count))
        sizes = [len(part) for part in shown]
        assert max(sizes) <= max(batch, 3), "three where pairs would leave one image over"
        assert min(sizes) >= 2 or count == 1
        if batch > 2:  # as it always was
            expected = np.array_split(np.arange(count), -(-count // batch))
            assert sizes == [len(part) for part in expected]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, 60),
    batch=st.integers(2, 9),
    share=st.floats(0.01, 1),
    batches=st.none() | st.integers(1, 9),
    drop_last=st.booleans(),
)
def test_a_score_is_never_taken_of_a_single_image(count, batch, share, batches, drop_last):
    groups = context(count, batch).scoring_batches(share, batches, drop_last=drop_last)
    assert min(len(group) for group in groups) >= 2


def test_the_authors_batches_drop_the_last_but_never_a_task():
    assert [len(context(300, 128, True).new_images(step)) for step in range(2)] == [128, 128]
    assert context(300, 128, True).steps == 4
    assert len(context(100, 128, True).new_images(0)) == 100


def test_tiny_images_are_what_the_tests_think():
    found = images("train", 6, 2)
    assert found.classes == CLASSES
    assert found.read(np.arange(2), Preprocess(size=(8, 8))).shape == (2, 8, 8, 3)
    with pytest.raises(UserError, match="3 images, 2 labels"):
        in_memory("x", ["a"], [0, 0], np.zeros((3, 4, 4, 3), np.uint8))
