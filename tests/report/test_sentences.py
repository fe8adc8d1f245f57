"""One run in sentences."""

import pytest
from fake_results import (
    FROZEN,
    SIGNS,
    checked_in_part,
    continued_results,
    evaluated_at_the_end,
    fake_results,
)

from retouch.evaluate.results import Results
from retouch.evaluate.row import Drift, Joint
from retouch.report.sentences import (
    compile_sentence,
    control_part_sentence,
    control_sentence,
    drift_sentence,
    joint_sentence,
    learned_earlier_sentence,
    learned_sentence,
    run_sentences,
    total_sentence,
)


@pytest.mark.parametrize(
    ("run", "learned", "control"),
    [
        (
            fake_results(),
            "It learned 6 new classes: 12.0 % → 60.0 % recognized.",
            "Control accuracy 97.5 % → 91.4 %: 6.1 points lost.",
        ),
        (
            fake_results(accuracy=(12, 12, 11), control=(90, 90, 90, 90.4)),
            "It did not learn the 6 new classes: 12.0 % → 11.0 % recognized.",
            "Control accuracy 90.0 % → 90.4 %: 0.4 points gained.",
        ),
        (
            fake_results().model_copy(update={"fraction_kept": [1.0, 0.0, 0.5]}),
            "It learned 4 of 6 new classes, and kept nothing of the others: "
            "12.0 % → 60.0 % recognized.",
            "Control accuracy 97.5 % → 91.4 %: 6.1 points lost.",
        ),
        (
            FROZEN,
            "It learned nothing, as no weight could move: 12.0 % → 12.0 % recognized.",
            "Control accuracy 97.5 % → 97.5 %: unchanged.",
        ),
        (
            fake_results("lda", moved=0).model_copy(update={"class_vectors": 6}),
            "It learned 6 new classes, by vectors that are kept beside the model, which is "
            "unchanged: 12.0 % → 60.0 % recognized.",
            "Control accuracy 97.5 % → 91.4 %: 6.1 points lost.",
        ),
        (
            fake_results(accuracy=(80, 70), control=None),
            "So far it has seen 4 of 6 new classes: 70.0 % recognized.",
            "What it could do before was not measured: the run had no control set.",
        ),
        (
            fake_results(accuracy=()),
            "Nothing learned yet: 12.0 % of the 6 new classes recognized.",
            "Control accuracy 97.5 % before the first task.",
        ),
        (
            fake_results(accuracy=()).model_copy(update={"rows": []}),
            "The run has not begun; it will learn 6 new classes.",
            "What it could do before was not measured: the run had no control set.",
        ),
    ],
)
def test_one_run_in_sentences(run: Results, learned: str, control: str) -> None:
    assert (learned_sentence(run), control_sentence(run)) == (learned, control)


def test_a_continued_run_reports_its_own_tasks_first() -> None:
    """What it taught, what it did to earlier classes and to control; then the total."""
    assert run_sentences(continued_results()) == [
        "In this run it did not learn the 2 new classes: 20.0 % → 20.0 % recognized.",
        "The 4 classes learned before: 77.5 % → 70.0 %, now choosing among 6 classes instead of 4.",
        "Control accuracy in this run 75.0 % → 74.6 %: 0.4 points lost.",
        "In total, since before the first task: 6 new classes, 19.0 % → 50.8 % recognized; "
        "control accuracy 76.0 % → 74.6 %.",
    ]
    better = continued_results(after=(80.0, 60.0))
    assert learned_sentence(better) == (
        "In this run it learned 2 new classes: 20.0 % → 60.0 % recognized."
    )
    again = continued_results(own=[SIGNS[0], SIGNS[5]], after=(80.0, 60.0))
    assert learned_sentence(again).startswith(
        "In this run it learned 2 classes (1 of them taught before): 20.0 % → 60.0 %"
    )
    assert total_sentence(again).startswith("In total, since before the first task: 5 new classes")
    forgotten = continued_results(kept_images=0)
    assert learned_earlier_sentence(forgotten) == (
        "The 4 classes learned before: not measured, as the earlier run kept no images of them."
    )
    assert total_sentence(forgotten).startswith(
        "In total, since before the first task: 6 new classes, of which 2 were measured: "
        "10.0 % → 20.0 % recognized"
    )
    unfinished = continued_results()
    unfinished.rows.pop()
    assert run_sentences(unfinished)[0] == (
        "This run has not learned anything yet: 20.0 % of its 2 new classes recognized."
    )
    assert not learned_earlier_sentence(fake_results())
    assert not total_sentence(fake_results())


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (100.0, 100.0, "In this run the 2 classes it had been taught before stayed at 100.0 %."),
        (
            90.0,
            80.0,
            "In this run it got no better at the 2 classes it had been taught before: "
            "90.0 % → 80.0 % recognized.",
        ),
    ],
)
def test_classes_that_are_taught_again(before: float, after: float, sentence: str) -> None:
    again = continued_results((77.5, before), (77.5, after), own=SIGNS[:2])
    assert learned_sentence(again) == sentence


def test_new_classes_that_were_recognised_before() -> None:
    known = continued_results((77.5, 100.0), (77.5, 100.0))
    assert learned_sentence(known) == "In this run the 2 new classes stayed at 100.0 %."


def test_how_much_of_the_control_set_was_checked() -> None:
    run = checked_in_part()
    assert control_part_sentence(fake_results()) == ""
    assert control_part_sentence(run) == (
        "While it learned, 1,000 of the 5,000 control images were checked after each task; all of "
        "them at the end."
    )
    assert control_part_sentence(run) in run_sentences(run)
    run.rows.pop()
    assert control_part_sentence(run) == (
        "So far control accuracy is an estimate: 1,000 of the 5,000 control images are checked "
        "after each task, all of them at the end."
    )


def test_new_and_control_classes_at_once() -> None:
    run = fake_results()
    run.rows[0].joint = Joint(classes=162, new=50.0, control=95.0, overall=88.0)
    run.rows[-1].joint = Joint(classes=162, new=86.9, control=94.0, overall=93.5)
    assert joint_sentence(run) == (
        "Choosing among all 162 classes, new and control: new classes 50.0 % → 86.9 %, "
        "control 95.0 % → 94.0 %, both together 88.0 % → 93.5 %."
    )
    assert joint_sentence(run) in run_sentences(run)
    run.rows.pop()
    assert joint_sentence(run) == ""
    assert joint_sentence(fake_results()) == ""


def test_drift_is_weaker_evidence() -> None:
    run = fake_results(control=None)
    run.rows[-1].drift = Drift(moved=0.0123, neighbours=91.6)
    assert drift_sentence(run) == (
        "Everyday words: 91.6 % are still nearest to the same word; they moved by 0.012 "
        "(1 − cosine) on average. Weaker evidence than a control set: it covers only texts, of "
        "words that the method may hold where they were."
    )
    run.rows[-1].drift = Drift(moved=0.0, neighbours=100.0)
    assert drift_sentence(run).startswith("Everyday words mean the same to it as before. ")
    assert drift_sentence(fake_results()) == ""


def test_the_time_for_compiling() -> None:
    run = fake_results()
    assert compile_sentence(run) == ""
    run.environment["compiling"] = "41 s"
    assert compile_sentence(run).startswith("41 s went into compiling the model; ")


def test_a_run_that_is_evaluated_at_its_end() -> None:
    run = evaluated_at_the_end(fake_results())
    assert run_sentences(run) == run_sentences(fake_results())
    del run.rows[-1]
    assert run_sentences(run) == [
        "It has seen 4 of 6 new classes; how many it recognizes was not measured yet.",
        "Control accuracy was 97.5 % before; it was not measured again.",
    ]


def test_a_continued_run_that_is_evaluated_at_its_end() -> None:
    run = continued_results()
    run.tasks.append(run.tasks[1].model_copy(update={"classes": ["a"]}))
    for row in run.rows:
        row.tasks.append(10.0)
    run.rows[-1].tasks = [None, None, None]
    assert learned_sentence(run) == (
        "In this run it has seen 2 of 3 classes; how many it recognizes was not measured yet."
    )
    assert learned_earlier_sentence(run) == (
        "The 4 classes learned before: not measured again yet."
    )
