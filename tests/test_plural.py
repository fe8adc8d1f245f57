"""Text for users counts one thing as one."""

import pytest
from tiny import tiny_clip

from retouch.evaluate.results import Results
from retouch.evaluate.task_info import TaskInfo
from retouch.methods import recipe
from retouch.report.facts import subtitle
from retouch.report.sentences import learned_sentence
from retouch.text.plural import count
from retouch.train.defaults import choose_defaults


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1, "epoch"), "1 epoch"),
        ((0, "epoch"), "0 epochs"),
        ((1200, "image"), "1,200 images"),
        ((1, "new class"), "1 new class"),
        ((2, "new class"), "2 new classes"),
        ((2, "entry", "entries"), "2 entries"),
    ],
)
def test_count(arguments: tuple, text: str):
    assert count(*arguments) == text


def test_one_of_each_is_singular():
    asked = {"epochs": 1, "batch": 2}
    said = choose_defaults(tiny_clip(), recipe("spu"), asked, images=[1], classes=1).notes
    assert said[0].startswith("batches of 2, 1 epoch, learning rate")
    assert said[1].startswith("up to 1 image is kept")
    run = Results(
        method="spu",
        summary="",
        model="m",
        parameters=1,
        tasks=[TaskInfo(classes=["a"], train=1, test=1)],
    )
    assert learned_sentence(run) == "The run has not begun; it will learn 1 new class."
    assert "1 new class in 1 task" in str(subtitle([run]))
