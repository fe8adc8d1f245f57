"""Several data sets in words and as a matrix."""

from pathlib import Path

import pytest
from fake_results import fake_results
from matplotlib.patches import Rectangle
from report_pages import page_of

from retouch.evaluate.results import Results
from retouch.report.charts.accuracy_matrix import accuracy_matrix
from retouch.report.sentences import domain_sentence, run_sentences


def three_domains(choices: str = "domain") -> Results:
    run = fake_results().model_copy(deep=True, update={"choices": choices})
    for task, name in zip(run.tasks, ("cars", "flowers", "digits"), strict=True):
        task.domain = name
    return run


def texts(run: Results) -> list[str]:
    return [text.get_text() for text in accuracy_matrix(run).axes[0].texts]


def test_transfer_average_and_last_in_words():
    sentence = domain_sentence(three_domains())
    assert "among the classes of its own data set." in sentence
    assert "13.0 % → 10.0 % (Transfer)" in sentence  # (12 + 14) / 2 at the start
    assert "47.8 % (Average)" in sentence  # (80 + 10 + 10 + 70 + 70 + 10 + 60 + 60 + 60) / 9
    assert "All 3 data sets at the end: 12.0 % → 60.0 % (Last)." in sentence
    assert "all classes of all data sets" in domain_sentence(three_domains("all"))
    assert sentence in run_sentences(three_domains())


def test_a_single_data_set_or_an_unfinished_run_has_no_such_sentence():
    assert domain_sentence(fake_results()) == ""
    unfinished = three_domains()
    unfinished.rows.pop()
    assert domain_sentence(unfinished) == ""


def test_the_matrix_has_a_column_per_data_set_and_colors_all_cells():
    run = three_domains()
    shown = texts(run)
    assert shown[:3] == ["cars", "flowers", "digits"]
    assert {"before", "after cars", "after flowers", "after digits"} <= set(shown)
    assert "Recognized of each data set, %" in shown
    boxes = [patch for patch in accuracy_matrix(run).axes[0].patches if patch.get_fill()]
    assert len([box for box in boxes if isinstance(box, Rectangle)]) == 12
    italics = [t for t in accuracy_matrix(run).axes[0].texts if t.get_style() == "italic"]
    assert len(italics) == 6


def test_a_data_set_of_several_tasks_is_learned_with_its_last():
    run = three_domains()
    run.tasks[1].domain = "cars"
    shown = accuracy_matrix(run).axes[0].texts
    assert [t.get_text() for t in shown[:2]] == ["cars", "digits"]
    assert "after task 2" in [t.get_text() for t in shown]
    italics = [t for t in shown if t.get_style() == "italic"]
    assert len(italics) == 2 + 2 + 1


def test_the_matrix_of_tasks_is_as_before():
    shown = texts(fake_results())
    assert shown[:3] == ["task 1", "task 2", "task 3"]
    assert "Recognized of each task, %" in shown


@pytest.mark.slow
def test_the_page_shows_every_data_set(tmp_path: Path):
    page = page_of(tmp_path / "domains", three_domains(), drawn=True)
    for text in ("Data set by data set", "Each data set by itself", "flowers", "(Transfer)"):
        assert text in page.text
    assert "Each task by itself" in page_of(tmp_path / "tasks", fake_results()).text
