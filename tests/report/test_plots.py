"""The plots of results."""

import pytest
from fake_results import FROZEN, evaluated_at_the_end, fake_results, results_with_gaps
from matplotlib.figure import Figure

from retouch.evaluate.results import Results
from retouch.plotting.rendering import to_svg
from retouch.report import charts as plots


@pytest.mark.slow
@pytest.mark.parametrize(
    "runs", [[fake_results()], [FROZEN, *(fake_results(f"m{i}") for i in range(15))]]
)
def test_every_run_is_named_in_the_plots(runs: list[Results]) -> None:
    for figure in (plots.learned_and_forgot(runs), plots.over_time(runs)):
        assert isinstance(figure, Figure)
        svg = to_svg(figure, "test")
        assert len(runs) == 1 or all(f"{run.method}</text>" in svg for run in runs)


def test_without_control_sets_one_panel_is_left_out() -> None:
    assert len(plots.over_time([fake_results(control=None)]).axes) == 1
    assert len(plots.over_time([fake_results(control=None), fake_results()]).axes) == 2
    assert (
        "of the new classes"
        in plots.learned_and_forgot([fake_results(control=None)]).axes[0].get_xlabel()
    )


def test_markers_are_at_their_values_and_accuracy_axes_end_at_100():
    """Labels that would touch are moved apart; their leader lines have no markers."""
    ends = (96.8, 97.0, 96.5)
    runs = [fake_results(f"m{i}", (80, 90, end), (97.5, 97, 97, end)) for i, end in enumerate(ends)]
    for figure in (plots.over_time(runs), plots.learned_and_forgot(runs)):
        for axes in figure.axes:
            low, high = axes.get_ylim()
            assert 0 <= low < high <= 100
            marked = [line for line in axes.lines if line.get_marker() not in (None, "None", "")]
            assert marked
            assert all(line.get_transform() == axes.transData for line in marked)
    axes = plots.control_over_time(runs).axes[0]
    leaders = [line for line in axes.lines if line.get_transform() == axes.transAxes]
    starts = [(axes.transAxes - axes.transData).transform(line.get_xydata()[0]) for line in leaders]
    assert sorted(y for _, y in starts) == pytest.approx(sorted(ends))
    floor = plots.control_over_time([fake_results(control=(100, 50, 0, 0))]).axes[0]
    assert floor.get_ylim() == (0, 100)


def test_the_matrix_marks_what_was_not_learned_yet() -> None:
    cells = {
        t.get_text(): t.get_style() for t in plots.accuracy_matrix(fake_results()).axes[0].texts
    }
    assert (cells["60.0"], cells["10.0"], cells["14.0"]) == ("normal", "italic", "italic")


def test_each_task_has_a_line_in_the_page_of_one_run() -> None:
    names = [text.get_text() for text in plots.learned_over_time([fake_results()]).axes[0].texts]
    assert sorted(names) == ["60.0 all", "60.0 task 1", "60.0 task 2", "60.0 task 3"]


def test_one_task_is_drawn_from_before_it() -> None:
    run = fake_results(accuracy=(80,)).model_copy()
    run.tasks = run.tasks[:1]
    for row in run.rows:
        row.tasks = row.tasks[:1]
    assert plots.learned_over_time([run]).axes[0].lines[0].get_xydata().tolist() == [
        [0, 10],
        [1, 80],
    ]


def test_gaps_in_the_measurements() -> None:
    run = results_with_gaps()
    cells = [text.get_text() for text in plots.accuracy_matrix(run).axes[0].texts]
    assert cells.count("–") == 4 + 1
    lines = plots.control_over_time([run]).axes[0].lines
    assert [y == y for y in lines[0].get_ydata()] == [True, True, False, True]


def test_rows_without_measurements_are_not_in_the_matrix() -> None:
    run = evaluated_at_the_end(fake_results())
    texts = [text.get_text() for text in plots.accuracy_matrix(run).axes[0].texts]
    assert {"before", "after task 3"} <= set(texts)
    assert not {"after task 1", "after task 2", "–"} & set(texts)
    styles = {t.get_text(): t.get_style() for t in plots.accuracy_matrix(run).axes[0].texts}
    assert (styles["60.0"], styles["14.0"]) == ("normal", "italic")


def test_lines_of_a_run_that_was_evaluated_at_its_end() -> None:
    runs = [evaluated_at_the_end(fake_results()), fake_results("er")]
    learned, control = plots.over_time(runs).axes
    assert [y == y for y in learned.lines[0].get_ydata()] == [False, False, True]
    assert [y == y for y in control.lines[0].get_ydata()] == [True, False, False, True]
    names = [text.get_text() for text in plots.learned_over_time(runs[:1]).axes[0].texts]
    assert sorted(names) == ["60.0 all", "60.0 task 1", "60.0 task 2", "60.0 task 3"]
