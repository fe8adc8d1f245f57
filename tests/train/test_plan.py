"""A plan: what `retouch learn` does takes a few lines of Python, with the same choices and bits."""

from dataclasses import replace
from pathlib import Path

import pytest
from commands import run
from image_folders import to_folder
from runs import CONTROL, QUICK
from tiny import images, tiny_clip

import retouch
from retouch.builtin import control_images, sign_images
from retouch.data import Images, Splits, Stream
from retouch.errors import UserError
from retouch.train import Plan
from retouch.train.plan import MACHINE, plan_stream


def few_signs(per_class: int, labels: range) -> Images:
    signs = sign_images("train", per_class)
    subset = signs.subset(signs.of_classes(labels))
    names = [signs.classes[label] for label in labels]
    return replace(subset, classes=names, labels=subset.labels - labels[0])


def deltas(folder: Path) -> list[dict[str, object]]:
    """What each task of a run changed, as text and bytes."""
    files = sorted((folder / "deltas").iterdir())
    return [{file.name: file.read_bytes()} for file in files]


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_the_command_line_and_a_few_lines_of_python_give_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    to_folder(few_signs(5, range(2)), Path("photos"))
    to_folder(few_signs(5, range(2, 4)), Path("more"))
    control = control_images(1)
    known = control.subset(control.of_classes(range(6)))
    to_folder(replace(known, classes=control.classes[:6]), Path("known"))

    run("learn", "photos", "--model", "builtin", "--control", "known", "--out", "a/march")
    plan = retouch.plan("photos", "builtin", control="known")
    results = retouch.teach(plan, out="b/march")
    assert deltas(Path("a/march")) == deltas(Path("b/march"))
    assert results.rows == retouch.Results.read(Path("a/march")).rows

    short = ("--control", "known", "--epochs", "1", "--max-drop", "50", "--out", "a/april")
    run("learn", "more", "--from", "a/march", *short)
    more = {"control": "known", "settings": {"epochs": 1}, "max_drop": 50.0}
    retouch.teach(retouch.plan("more", earlier="b/march", **more), out="b/april")
    assert len(deltas(Path("a/april"))) == 2
    assert deltas(Path("a/april")) == deltas(Path("b/april"))


def test_a_stream_and_a_model_make_the_same_plan(stream: Stream):
    clip = tiny_clip()
    named = retouch.plan(stream, clip, "spu", control=CONTROL, settings={"epochs": 2})
    given = plan_stream(
        clip, stream, retouch.recipe("spu"), control=CONTROL, settings={"epochs": 2}
    )
    assert isinstance(named, Plan)
    assert (named.method, named.settings, named.notes) == (
        given.method,
        given.settings,
        given.notes,
    )
    assert named.settings.epochs == 2
    assert named.settings.batch == 8  # 24 images a task
    assert named.work == given.work


def test_all_settings_are_taken_as_they_are(stream: Stream):
    plan = retouch.plan(stream, tiny_clip(), "er", settings=QUICK)
    assert plan.settings == QUICK
    assert plan.method.replay == retouch.recipe("er").replay
    assert plan.hardware is None
    assert not plan.chosen


def test_settings_that_suit_the_machine_are_taken_as_they_are(stream: Stream):
    chosen = retouch.plan(stream, tiny_clip(), "er", settings={"precision": "auto"})
    assert chosen.chosen == {"precision", "compile", "cuda_graphs", "micro_batch"}
    for asked in ({"precision": "bf16"}, {"compile": True}, {"cuda_graphs": True}):
        plan = retouch.plan(stream, tiny_clip(), "er", settings=asked)
        for name in MACHINE:
            expected = asked.get(name, getattr(chosen.settings, name))
            assert getattr(plan.settings, name) == getattr(plan.hardware, name) == expected
        captures = {"cuda_graphs"} if "compile" in asked else set()  # instead of compiling
        assert plan.chosen == chosen.chosen - asked.keys() - captures


def test_a_plan_says_what_it_is(stream: Stream):
    text = str(retouch.plan(stream, tiny_clip(), "spu"))
    assert text.startswith("6 classes from 72 images in 3 tasks, taught to tiny by spu.\n")
    assert "Batches of 8, 20 epochs" in text
    assert "Computes on the CPU" in text


def test_several_data_sets_and_splits(tmp_path: Path):
    known = to_folder(images("known", 4, 3), tmp_path / "known")
    splits = Splits(images("train", 4, 4), images("test", 4, 2))
    plan = retouch.plan([known, splits], tiny_clip(), "spu", choices="all")
    assert [domain.name for domain in plan.stream.train.domains] == ["known", "test"]
    assert plan.stream.choices == "all"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"settings": {"epoch": 1}}, "epoch: there is no such entry"),
        ({"choices": "all"}, "choices all are for several data sets, and there is one"),
        ({"settings": {"precision": "fp8"}}, "unknown precision 'fp8'"),
        ({"settings": {"shard": True}}, "several processes, and there is only one"),
        ({"replay": 0}, "replay=0: give a number of images"),
        ({"replay": "none", "change": {"replay.size": 3}}, "contradict each other"),
        ({"method": "frozen", "replay": 3}, "frozen replays no images"),
        ({"settings": {"control_part": 8}}, "there is no control set"),
        ({"templates": ["a photo"]}, "a photo"),
        ({"earlier": "nowhere"}, "nowhere"),
        ({"model": None}, "no model given; name one, or a run to continue"),
        ({"model": "nowhere"}, "nowhere"),
        ({"method": "spu-bounded"}, "control"),
    ],
)
def test_what_cannot_be_planned(given: dict[str, object], complaint: str, tmp_path: Path):
    data = to_folder(images("photos", 4, 3), tmp_path / "photos")
    with pytest.raises(UserError, match=complaint):
        retouch.plan(data, **{"model": "builtin", **given})  # type: ignore[arg-type]


def test_a_run_is_no_model_and_the_control_set_is_not_learned(tmp_path: Path, stream: Stream):
    retouch.teach(tiny_clip(), stream, "frozen", settings=QUICK, out=tmp_path / "run")
    data = to_folder(images("photos", 4, 3), tmp_path / "photos")
    with pytest.raises(UserError, match="is a run, not a model; continue it"):
        retouch.plan(data, tmp_path / "run")
    with pytest.raises(UserError, match="is what is to be learned"):
        retouch.plan(data, "builtin", control=data)


def test_a_plan_has_its_own_arguments(stream: Stream):
    plan = retouch.plan(stream, tiny_clip(), "spu", settings=QUICK)
    with pytest.raises(UserError, match="the plan has its own control"):
        retouch.teach(plan, control=CONTROL)
    with pytest.raises(UserError, match=r"nothing to learn; .*Stream\.split"):
        retouch.teach(tiny_clip())


def test_a_resumed_run_computes_as_it_began(tmp_path: Path, stream: Stream):
    """The choice may depend on a measurement, which may come out differently."""
    began = retouch.plan(stream, tiny_clip(), "frozen")
    retouch.teach(began, out=tmp_path)
    now = replace(began.with_settings(precision="bf16"), chosen=frozenset({"precision"}))
    assert now.resuming(tmp_path).settings.precision == "fp32"
    asked = replace(now, chosen=frozenset())
    assert asked.resuming(tmp_path).settings.precision == "bf16"
