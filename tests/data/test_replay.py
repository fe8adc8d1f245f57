"""The replay buffer: what it stores, and what it draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retouch.data import ReplayBuffer
from retouch.errors import UserError


def add_tasks(buffer: ReplayBuffer, tasks: int = 4, each: int = 50) -> None:
    for task in range(tasks):
        positions = np.arange(task * each, (task + 1) * each)
        buffer.add(task, positions, positions // 10)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(4, 120), tasks=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_task_has_the_same_number_of_images(size, tasks, seed):
    buffer = ReplayBuffer(size, "task", seed)
    add_tasks(buffer, tasks)
    counts = np.bincount(buffer.positions // 50, minlength=tasks)
    assert counts.tolist() == [min(50, size // tasks)] * tasks
    assert len(set(buffer.positions)) == len(buffer.positions) <= size


def test_every_class_has_the_same_number_of_images():
    buffer = ReplayBuffer(45, "class")
    add_tasks(buffer)  # 20 classes of 10
    assert np.bincount(buffer.positions // 10).tolist() == [2] * 20


@pytest.mark.slow
def test_a_reservoir_stores_every_image_with_the_same_probability():
    counts = np.zeros(200)
    for seed in range(400):
        buffer = ReplayBuffer(20, "reservoir", seed)
        add_tasks(buffer)
        assert len(buffer.positions) == 20
        counts[buffer.positions] += 1
    by_task = counts.reshape(4, 50).sum(1) / 400
    assert np.abs(by_task - 5).max() < 0.5


def test_what_is_stored_depends_only_on_the_seed():
    stored = []
    for seed in (1, 1, 2):
        buffer = ReplayBuffer(40, "task", seed)
        add_tasks(buffer)
        stored.append(buffer.positions.tolist())
    assert stored[0] == stored[1] != stored[2]


@pytest.mark.parametrize("balance", ["task", "class", "reservoir"])
def test_a_restored_buffer_continues_identically(balance):
    whole, half = ReplayBuffer(60, balance), ReplayBuffer(60, balance)
    add_tasks(whole, 4)
    add_tasks(half, 2)
    resumed = ReplayBuffer(60, balance)
    resumed.restore(half.state())
    for task in (2, 3):
        positions = np.arange(task * 50, (task + 1) * 50)
        resumed.add(task, positions, positions // 10)
    assert resumed.positions.tolist() == whole.positions.tolist()


def test_sampling_repeats_no_image_before_all_were_drawn():
    buffer = ReplayBuffer(10)
    rng = np.random.default_rng(0)
    assert len(buffer.sample(8, rng)) == 0
    add_tasks(buffer, 1)
    drawn = buffer.sample(25, rng)
    assert len(drawn) == 25
    counts = np.unique(drawn, return_counts=True)[1]
    assert set(counts) <= {2, 3}
    assert len(counts) == 10


@pytest.mark.parametrize(
    ("balance", "message"), [("task", "each of the 3 tasks"), ("class", "each of the 9 classes")]
)
def test_a_buffer_that_is_too_small_is_refused_before_training(balance, message):
    with pytest.raises(UserError, match=message):
        ReplayBuffer(2, balance).check_size(tasks=3, classes=9)
    ReplayBuffer(9, balance).check_size(tasks=3, classes=9)
    ReplayBuffer(0, balance).check_size(tasks=3, classes=9)
    ReplayBuffer(2, "reservoir").check_size(tasks=3, classes=9)
