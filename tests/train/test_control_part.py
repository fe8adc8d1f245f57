"""A large control set: a part of it is checked after each task, all of it before and at the end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed_runs import SETTINGS, assert_same_run, train
from rank_processes import run_ranks
from runs import CONTROL, QUICK, Stop, content, method, teach
from tiny import CLASSES, images, tiny_clip

import retouch
from retouch.bench.cell import Cell
from retouch.data import Images, Stream, in_memory
from retouch.data.stores.image_store import Indices
from retouch.errors import UserError
from retouch.evaluate import Row
from retouch.evaluate.predict import predict
from retouch.methods import Method, Settings, recipe
from retouch.train.plan import plan_stream
from retouch.train.work import work

PART = QUICK.model_copy(update={"control_part": 8, "lr": 2e-2})
ALL = PART.model_copy(update={"control_part": "all"})


def known() -> Images:
    """60 pictures with the names that the model gives them, but for every fourth."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3)).astype(np.uint8)
    plain = in_memory("known", CLASSES, np.arange(60) % 6, pixels)
    labels = predict(tiny_clip(), plain)
    labels[::4] = (labels[::4] + 1) % 6
    return replace(plain, labels=labels)


def part_of(
    stream: Stream, control: Images | None, method: Method, settings: Settings
) -> Indices | None:
    return plan_stream(tiny_clip(), stream, method, settings=settings, control=control).control_part


def test_as_many_images_of_each_class_whatever_the_seed(stream: Stream):
    parts = [
        part_of(stream, CONTROL, recipe("spu"), Settings(control_part=8, seed=seed))
        for seed in (0, 1)
    ]
    assert parts[0] is not None
    assert np.bincount(CONTROL.labels[parts[0]]).tolist() == [2, 2, 2, 2]
    np.testing.assert_array_equal(*parts)
    one_each = part_of(stream, CONTROL, recipe("spu"), Settings(control_part=1))
    assert one_each is not None
    assert CONTROL.labels[one_each].tolist() == [0, 1, 2, 3]


def test_when_all_images_are_checked(stream: Stream):
    """Few images, as the user wants, a bound that holds for all of them, nothing in between."""
    spu, few = recipe("spu"), Settings(control_part=8)
    assert part_of(stream, None, spu, few) is None
    assert part_of(stream, CONTROL, spu, Settings()) is None
    assert part_of(stream, CONTROL, spu, Settings(control_part=20)) is None
    assert part_of(stream, CONTROL, spu, Settings(control_part="all")) is None
    assert part_of(stream, CONTROL, recipe("spu-bounded"), few) is None
    one_task = Stream.split(stream.train, stream.test, tasks=1)
    assert part_of(one_task, CONTROL, spu, few) is None


@pytest.mark.parametrize("value", [0, -1, "some", 2.5])
def test_other_values_are_refused(value: Any):
    with pytest.raises(UserError, match="control_part"):
        Settings(control_part=value)


def test_a_bench_checks_all_images():
    cell = Cell("SPU", "spu", "cub", 3, "builtin", 2, "builtin", {}, {"epochs": 1})
    assert cell.training == Settings(epochs=1, seed=3, control_part="all")


def test_the_work_of_a_run_with_a_part(stream: Stream):
    """24 test images and 20 or 8 control images; two evaluations of four are on all."""
    spu = recipe("spu")
    assert work(stream, spu, ALL, control=CONTROL).evaluated == 4 * 44
    plan = plan_stream(tiny_clip(), stream, spu, settings=PART, control=CONTROL)
    assert plan.work.evaluated == 2 * 44 + 2 * 32
    part = plan.control_part
    continued = work(stream, spu, PART, control=CONTROL, part=part, done=1)
    assert continued.evaluated == 3 * 44 + 32


@pytest.mark.slow
def test_a_run_with_a_part_learns_the_same_and_resumes_to_the_same_bits(tmp_path: Path):
    control, third = known(), PART.model_copy(update={"control_part": 20})
    whole, weights = teach(tmp_path / "all", settings=ALL, control=control)
    part, part_weights = teach(tmp_path / "part", settings=third, control=control)
    assert part_weights == weights
    assert part.metrics() == whole.metrics()
    assert [row.tasks for row in part.rows] == [row.tasks for row in whole.rows]
    first, *between, last = part.rows
    assert first.control == 75
    assert first.control_part is not None
    assert first.control_part.accuracy != first.control
    assert first.model_copy(update={"control_part": None}) == whole.rows[0]
    assert last == whole.rows[-1]
    for row in between:
        assert row.control_part is not None
        assert row.joint is None
        lost = first.control_part.accuracy - row.control_part.accuracy
        assert lost > 0
        assert row.control == first.control - lost

    with pytest.raises(ZeroDivisionError):
        teach(
            tmp_path / "cut",
            settings=third,
            control=control,
            callback=Stop(12, ZeroDivisionError()),
        )
    other = third.model_copy(update={"control_part": 12})
    with pytest.raises(UserError, match="control_part: 20 in that run, 12 now"):
        teach(tmp_path / "cut", settings=other, control=control)
    teach(tmp_path / "cut", settings=third, control=control)
    assert content(tmp_path / "cut") == content(tmp_path / "part")


@pytest.mark.slow
def test_a_small_control_set_is_always_checked_whole(tmp_path: Path):
    default, weights = teach(tmp_path / "default", control=CONTROL)
    every = QUICK.model_copy(update={"control_part": "all"})
    whole, whole_weights = teach(tmp_path / "all", settings=every, control=CONTROL)
    assert default.rows == whole.rows
    assert all(row.control_part is None for row in default.rows)
    assert weights == whole_weights


@pytest.mark.slow
def test_a_bounded_run_checks_all_images():
    """So what it keeps is within the bound on all of them, not on a part."""
    bounded, _ = teach(name="spu-bounded", settings=PART, control=known())
    assert all(row.control_part is None for row in bounded.rows)
    assert min(bounded.fraction_kept) < 1
    assert bounded.metrics()["control_drop"] <= 1


@pytest.mark.slow
def test_a_continued_run_begins_with_all_images(tmp_path: Path):
    """What it began with is compared with its end; earlier estimates stay as they were."""
    earlier, _ = teach(tmp_path / "march", settings=PART, control=CONTROL)
    new = images("more", 4, 6), images("more test", 4, 3)

    def go_on(out: str, control: Images) -> list[Row]:
        options = {"model": tiny_clip(), "out": tmp_path / out, "control": control}
        return retouch.continue_run(tmp_path / "march", *new, tasks=2, **options).rows

    rows = go_on("april", CONTROL)
    assert [row.control for row in rows[:4]] == [row.control for row in earlier.rows]
    assert [row.control_part is not None for row in rows] == [True, True, True, False, True, False]
    assert all(row.control is not None for row in rows)
    other = go_on("other", images("other", 4, 7))
    assert [row.control_part is not None for row in other] == [True] + [False] * 3 + [True, False]
    assert [row.control is not None for row in other] == [True, False, False, True, True, True]


@pytest.mark.slow
def test_a_stream_of_several_data_sets(tmp_path: Path):
    """All its own images are tested after each task, so Transfer and the others stay the same."""
    values = []
    for settings in (PART, ALL):
        joined = Stream.join({name: stream_of(name) for name in ("one", "two")}, "domain")
        options = {"settings": settings, "control": CONTROL}
        results = retouch.teach(tiny_clip(), joined, method(), **options)
        values.append((results.domain_matrix, results.metrics()))
    assert values[0] == values[1]
    assert "transfer" in values[0][1]


def stream_of(name: str) -> Stream:
    return Stream.split(images(name, 4, 6), images(f"{name} test", 4, 3), tasks=2)


def train_with_part() -> dict[str, Any]:
    settings = SETTINGS.model_copy(update={"control_part": 8})
    return train("spu", settings=settings, control=CONTROL)


@pytest.mark.slow
def test_three_ranks_give_the_result_of_one():
    assert_same_run(train_with_part(), run_ranks(3, train_with_part), 1e-12)
