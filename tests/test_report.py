"""What people read: the table, the sentences, the plots and the page."""

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from rich.console import Console

from retouch.errors import UserError
from retouch.evaluate.results import Results, TaskInfo
from retouch.evaluate.row import Joint, Row
from retouch.report import comparison, phrasing, plots, write_report
from retouch.report.intervals import caution, spread_of, wilson
from retouch.report.label_layout import Box, place_labels, shorten, spread
from retouch.report.table import COLUMNS, rows
from retouch.report.theme import THEME, line_styles, svg

SIGNS = ["stop", "give way", "no entry", "roundabout", "bend left", "bend right"]
HOSTILE = [
    "<script>alert(1)</script>",
    "</style></svg><img src=x onerror=alert(2)>",
    "\"double\" & 'single'",
    "🛑 stop",
    "علامة قف",
    "{{ 7 * 7 }} $x^2$",
]


def fake(
    method: str = "spu",
    accuracy: Sequence[float] = (80, 70, 60),
    control: Sequence[float] | None = (97.5, 95, 93, 91.4),
    *,
    classes: Sequence[str] = SIGNS,
    moved: int = 27,
    notes: Sequence[str] = (),
    model: str = "tiny",
) -> Results:
    """Three tasks of two classes; after task t all learned ones are at `accuracy[t]`."""
    tasks = [TaskInfo(classes=list(classes[i : i + 2]), train=50, test=10) for i in (0, 2, 4)]
    table = [[10.0, 12.0, 14.0]] + [
        [a if i <= t else 10.0 for i in range(3)] for t, a in enumerate(accuracy)
    ]
    kept: Sequence[float | None] = control or [None] * 4
    return Results(
        method=method,
        summary=f"{method} in a sentence",
        model=model,
        tasks=tasks,
        parameters=1000,
        trained=[moved] * len(accuracy),
        rows=[Row(tasks=row, control=c) for row, c in zip(table, kept, strict=False)],
        seconds=[40.0] * len(accuracy),
        fraction_kept=[1.0] * len(accuracy),
        notes=list(notes),
        environment={"python": "3.11"},
    )


FROZEN = fake("frozen", (12, 12, 12), (97.5,) * 4, moved=0)
SEVERAL = [FROZEN, fake("flyp", (90, 60, 35), (97.5, 93, 88, 82.6), moved=1000), fake()]


class Page(HTMLParser):
    """A page as a browser understands it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.source = file.read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(folder: Path, *runs: Results) -> Page:
    return Page(write_report(folder, runs))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(tmp_path_factory.mktemp("one"), fake(notes=["few images of 'stop'"]))


@pytest.fixture(scope="module")
def several_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tmp_path_factory.mktemp("several"), SEVERAL).parent


def test_rows_say_what_was_learned_and_lost() -> None:
    assert rows([fake()]) == [
        {
            "method": "spu",
            "new classes": "60.0",
            "forgot of them": "15.0",
            "control accuracy": "91.4",
            "forgot of that": "6.1",
            "weights that moved": "2.7 %",
            "time": "2.0 min",
        }
    ]
    assert rows([FROZEN])[0]["weights that moved"] == "0 %"


def test_rows_leave_out_what_is_not_known() -> None:
    unjudged = rows([fake(control=None)])[0]
    assert (unjudged["control accuracy"], unjudged["forgot of that"]) == ("–", "–")
    assert set(rows([fake(accuracy=())])[0].values()) == {"spu (0 of 3 tasks)", "–"}
    assert rows([fake(accuracy=(80,))])[0]["forgot of them"] == "–"
    assert rows([fake().model_copy(update={"rows": []})])[0]["new classes"] == "–"


def test_runs_of_one_method_are_numbered() -> None:
    assert phrasing.labels([fake(), FROZEN, fake()]) == ["spu 1", "frozen", "spu 2"]


def test_the_terminal_shows_every_row_and_explains_every_column() -> None:
    console = Console(file=StringIO(), width=80)
    console.print(comparison([fake("[red]er"), *SEVERAL]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]er" in shown
    assert "35.0" in shown
    for column in COLUMNS[1:]:
        assert f"{column.name}: " in shown


@pytest.mark.parametrize(
    ("run", "learned", "kept"),
    [
        (
            fake(),
            "It learned 6 new classes: 12.0 % → 60.0 % recognised.",
            "Control accuracy 97.5 % → 91.4 %: 6.1 points lost.",
        ),
        (
            fake(accuracy=(12, 12, 11), control=(90, 90, 90, 90.4)),
            "It did not learn the 6 new classes: 12.0 % → 11.0 % recognised.",
            "Control accuracy 90.0 % → 90.4 %: 0.4 points gained.",
        ),
        (
            fake().model_copy(update={"kept": [1.0, 0.0, 0.5]}),
            "It learned 4 of 6 new classes, and kept nothing of the others: "
            "12.0 % → 60.0 % recognised.",
            "Control accuracy 97.5 % → 91.4 %: 6.1 points lost.",
        ),
        (
            FROZEN,
            "It learned nothing, as no weight could move: 12.0 % → 12.0 % recognised.",
            "Control accuracy 97.5 % → 97.5 %: unchanged.",
        ),
        (
            fake(accuracy=(80, 70), control=None),
            "So far it has seen 4 of 6 new classes: 70.0 % recognised.",
            "What it could do before was not measured: the run had no control set.",
        ),
        (
            fake(accuracy=()),
            "Nothing is learned yet: 12.0 % of the 6 new classes recognised.",
            "Control accuracy 97.5 % before the first task.",
        ),
        (
            fake(accuracy=()).model_copy(update={"rows": []}),
            "The run has not begun; it will learn 6 new classes.",
            "What it could do before was not measured: the run had no control set.",
        ),
    ],
)
def test_one_run_in_words(run: Results, learned: str, kept: str) -> None:
    assert (phrasing.learned_sentence(run), phrasing.control_sentence(run)) == (learned, kept)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (
            SEVERAL,
            [
                "spu learned most: 60.0 % of the new classes recognised, 12.0 % before.",
                "Of those that train, spu forgot least of what the model could do before: "
                "6.1 points; flyp forgot most: 14.9 points.",
            ],
        ),
        (
            [fake("a", control=None), fake("b", control=None), fake("c", (9, 9, 9), None)],
            ["a and b learned most: 60.0 % of the new classes recognised, 12.0 % before."],
        ),
        (
            [fake("a", (12, 12, 12)), fake("b", (9, 9, 9))],
            [
                "No run learned the new classes; the best is a: 12.0 % of the new classes "
                "recognised, 12.0 % before.",
                "a and b forgot 6.1 points of what the model could do before.",
            ],
        ),
        (
            [fake("a", control=(90, 90, 90, 92)), fake("b", control=(90, 90, 90, 91))],
            [
                "a and b learned most: 60.0 % of the new classes recognised, 12.0 % before.",
                "a gained 2.0 points in what the model could do before; b gained 1.0 point.",
            ],
        ),
        (
            [FROZEN, fake(), fake("er", (99, 99))],
            [
                "spu learned: 60.0 % of the new classes recognised, 12.0 % before.",
                "spu forgot 6.1 points of what the model could do before.",
            ],
        ),
        ([FROZEN, fake(accuracy=(80,))], ["No run that trains is finished yet."]),
        ([fake(), fake(model="another")], []),
    ],
)
def test_several_runs_in_words_that_the_numbers_support(
    runs: list[Results], said: list[str]
) -> None:
    assert phrasing.comparison_sentences(runs) == said


def continued(
    accuracy: Sequence[float] = (77.5, 20.0),
    after: Sequence[float] = (70.0, 20.0),
    *,
    before: Sequence[str] = SIGNS[:4],
    own: Sequence[str] = SIGNS[4:],
    kept_images: int = 40,
) -> Results:
    """A run that goes on from another: one task was learned before, and one is its own."""
    run = fake(accuracy=(), control=(76.0,))
    run.tasks = [
        TaskInfo(classes=list(before), train=50, test=kept_images),
        TaskInfo(classes=list(own), train=50, test=25),
    ]
    first, *values = ([24.6, 10.0], accuracy, after)
    judged = [[old if kept_images else None, new] for old, new in values]
    control = (75.0, 74.6)
    run.rows = [Row(tasks=[first[0] if kept_images else None, first[1]], control=76.0)]
    run.rows += [Row(tasks=row, control=c) for row, c in zip(judged, control, strict=True)]
    run.learned_before, run.trained, run.seconds = 1, [27, 27], [40.0, 20.0]
    return run


def test_a_run_that_goes_on_tells_its_own_step_first() -> None:
    """What the step taught, what it did to earlier classes and to control; then the total."""
    assert phrasing.verdict(continued()) == [
        "In this step it did not learn the 2 new classes: 20.0 % → 20.0 % recognised.",
        "The 4 classes learned before: 77.5 % → 70.0 %, now chosen among 6 classes instead of 4.",
        "Control accuracy in this step 75.0 % → 74.6 %: 0.4 points lost.",
        "In all, since before the first task: 6 new classes, 19.0 % → 50.8 % recognised; "
        "control accuracy 76.0 % → 74.6 %.",
    ]
    better = continued(after=(80.0, 60.0))
    assert phrasing.learned_sentence(better) == (
        "In this step it learned 2 new classes: 20.0 % → 60.0 % recognised."
    )
    again = continued(own=[SIGNS[0], SIGNS[5]], after=(80.0, 60.0))
    assert phrasing.learned_sentence(again).startswith(
        "In this step it learned 2 classes (1 of them taught before): 20.0 % → 60.0 %"
    )
    assert phrasing.total_sentence(again).startswith(
        "In all, since before the first task: 5 new classes"
    )
    forgotten = continued(kept_images=0)
    assert phrasing.learned_earlier_sentence(forgotten) == (
        "The 4 classes learned before: not measured, as the earlier run kept no images of them."
    )
    under_way = continued()
    under_way.rows.pop()
    assert phrasing.verdict(under_way)[0] == (
        "Nothing of this step is learned yet: 20.0 % of its 2 new classes recognised."
    )
    assert not phrasing.learned_earlier_sentence(fake())
    assert not phrasing.total_sentence(fake())


def test_the_page_of_a_run_that_goes_on(tmp_path: Path) -> None:
    page = page_of(tmp_path, continued())
    for sentence in phrasing.verdict(continued()):
        assert sentence in page.text
    assert "before 20.0 %" in page.text, "the bars are about this step"
    assert "before 75.0 %" in page.text


def test_new_and_control_classes_at_once() -> None:
    run = fake()
    run.rows[0].joint = Joint(classes=162, new=50.0, control=95.0, overall=88.0)
    run.rows[-1].joint = Joint(classes=162, new=86.9, control=94.0, overall=93.5)
    assert phrasing.joint_sentence(run) == (
        "Choosing among all 162 classes, new and control: new classes 50.0 % → 86.9 %, "
        "control 95.0 % → 94.0 %, both together 88.0 % → 93.5 %."
    )
    assert phrasing.joint_sentence(run) in phrasing.verdict(run)
    run.rows.pop()
    assert phrasing.joint_sentence(run) == ""
    assert phrasing.joint_sentence(fake()) == ""


def test_intervals_are_wilsons() -> None:
    """Against values from the literature (Wilson's interval without continuity correction)."""
    assert wilson(50, 10) == pytest.approx((23.66, 76.34), abs=0.01)
    assert wilson(0, 10) == pytest.approx((0, 27.75), abs=0.01)
    assert wilson(100, 16) == pytest.approx((80.64, 100), abs=0.01)
    assert spread_of(93.75, 32) == "79.9–98.3"
    assert spread_of(50, 1000) == ""
    assert caution(100, 1, "test") == "95 % interval 20.7–100.0 %, from 1 test image."


def test_numbers_are_for_people() -> None:
    assert [phrasing.number(x) for x in (-0.04, -1.25, 100)] == ["0.0", "−1.2", "100.0"]
    assert [phrasing.share(x, 10**6) for x in (0, 12, 27_000, 10**6)] == [
        "0 %",
        "0.0012 %",
        "2.7 %",
        "100 %",
    ]
    assert [phrasing.duration(x) for x in (4.4, 90, 5400)] == ["4 s", "1.5 min", "1.5 h"]


def test_a_page_of_one_run(one: Page) -> None:
    for sentence in (phrasing.learned_sentence(fake()), phrasing.control_sentence(fake())):
        assert sentence in one.text
    assert "What spu learned, and what it forgot" in one.text
    assert "few images of 'stop'" in one.text
    assert 'retouch.Delta.load("deltas/task-03.safetensors").undo(clip.model)' in one.text
    assert one.tags.count("svg") == 4 + 3  # bars; two panels and the matrix
    assert "not finished" not in one.text


def test_a_page_of_several_runs(several_folder: Path) -> None:
    page = Page(several_folder / "report.html")
    for row in rows(SEVERAL):
        assert all(cell in page.text for cell in row.values())
    for sentence in phrasing.comparison_sentences(SEVERAL):
        assert sentence in page.text
    assert page.tags.count("details") == len(SEVERAL) + 1


def test_the_plots_are_files_too(several_folder: Path) -> None:
    names = ["learned-and-forgot", "matrix-01", "matrix-02", "matrix-03", "over-time"]
    files = sorted((several_folder / "plots").iterdir())
    assert [file.name for file in files] == [
        f"{n}.{kind}" for n in names for kind in ("png", "svg")
    ]
    for file in files:
        start = b"\x89PNG" if file.suffix == ".png" else b"<?xml"
        assert file.read_bytes().startswith(start)
        assert file.stat().st_size > 2000


def test_the_page_needs_nothing_else(one: Page, several_folder: Path) -> None:
    for page in (one, Page(several_folder / "report.html")):
        assert "://" not in page.source
        assert not {"script", "link", "img", "iframe"} & set(page.tags) - {"link"}
        links = [value for name, value in page.attributes if name in ("href", "src")]
        assert all(value and value.startswith(("#", "data:")) for value in links)


def test_the_drawings_follow_light_and_dark(one: Page) -> None:
    drawings = re.findall(r"<figure>.*?</figure>", one.source, re.DOTALL)
    assert drawings
    for drawing in drawings:
        assert "var(--ink)" in drawing
        assert not re.search(r"#[0-9a-f]{6}", drawing)
    assert all(f"--{name}: {dark}" in one.source for name, (_, dark) in THEME.items())


def test_a_page_without_a_control_set(tmp_path: Path) -> None:
    page = page_of(tmp_path, fake(control=None))
    assert "the run had no control set" in page.text
    assert "Control accuracy, %" not in page.text


def test_a_page_of_an_unfinished_run(tmp_path: Path) -> None:
    page = page_of(tmp_path, fake(accuracy=(80, 70)))
    assert "The run is not finished: 2 of 3 tasks are learned" in page.text
    assert "deltas/task-02.safetensors" in page.text
    assert "12.0 %" not in page.text  # of all classes, which two tasks cannot be compared with


@pytest.mark.parametrize("rows_", [0, 1])
def test_a_page_of_a_run_that_learned_nothing_yet(tmp_path: Path, rows_: int) -> None:
    run = fake(accuracy=())
    page = page_of(tmp_path, run.model_copy(update={"rows": run.rows[:rows_]}))
    assert "nothing to undo" in page.text


@pytest.mark.filterwarnings("error")
def test_hostile_names_do_no_harm(tmp_path: Path) -> None:
    evil = fake(HOSTILE[0], classes=HOSTILE, notes=[HOSTILE[1]], model=HOSTILE[1])
    evil.environment["python"] = HOSTILE[0]
    page = page_of(tmp_path, evil, evil.model_copy(update={"method": HOSTILE[5]}))
    assert not {"script", "img"} & set(page.tags)  # not even of those that are named so
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    for name in HOSTILE:
        assert name in page.text
        assert name not in page.source or not set(name) & set("<>&\"'")
    assert page.tags.count("style") == 1


def test_the_same_runs_give_the_same_bytes(several_folder: Path, tmp_path: Path) -> None:
    write_report(tmp_path, SEVERAL)
    there = [file for file in several_folder.rglob("*") if file.is_file()]
    assert len(there) == 11
    for file in there:
        assert (tmp_path / file.relative_to(several_folder)).read_bytes() == file.read_bytes()


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run"):
        write_report(tmp_path, [])


@pytest.mark.parametrize("runs", [[fake()], [FROZEN, *(fake(f"m{i}") for i in range(15))]])
def test_every_run_is_named_in_the_plots(runs: list[Results]) -> None:
    for figure in (plots.learned_and_forgot(runs), plots.over_time(runs)):
        assert isinstance(figure, Figure)
        drawn = svg(figure, "test")
        assert len(runs) == 1 or all(f"{run.method}</text>" in drawn for run in runs)


def test_without_control_sets_one_panel_is_left_out() -> None:
    assert len(plots.over_time([fake(control=None)]).axes) == 1
    assert len(plots.over_time([fake(control=None), fake()]).axes) == 2
    assert (
        "of the new classes" in plots.learned_and_forgot([fake(control=None)]).axes[0].get_xlabel()
    )


def test_the_matrix_marks_what_was_not_learned_yet() -> None:
    cells = {t.get_text(): t.get_style() for t in plots.accuracy_matrix(fake()).axes[0].texts}
    assert (cells["60.0"], cells["10.0"], cells["14.0"]) == ("normal", "italic", "italic")


def test_looks_differ_without_colour() -> None:
    found = line_styles([FROZEN, *(fake(f"m{i}") for i in range(15))])
    assert len({(look.marker, look.line) for look in found}) == 16


def test_long_names_are_shortened_in_plots() -> None:
    assert shorten("short") == "short"
    assert len(shorten("x" * 99)) == 14


@given(st.lists(st.floats(0, 200), min_size=1, max_size=16))
def test_labels_at_line_ends_never_touch(wanted: list[float]) -> None:
    found = spread(wanted, 12, 0, 200)
    assert all(b - a > 11.99 for a, b in zip(sorted(found), sorted(found)[1:], strict=False))
    assert min(found) >= -1e-6
    assert max(found) <= 200 + 1e-6
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert [found[i] for i in order] == sorted(found)


def test_labels_of_points_keep_apart() -> None:
    points = [(50.0 + 8 * i, 100.0) for i in range(4)]
    labels = place_labels(points, ["name"] * 4, Box(0, 0, 300, 200))
    boxes = [Box(x, y - 6, x + 25, y + 6) for x, y, _ in labels]
    for i, box in enumerate(boxes):
        assert not any(box.overlap(other) for other in boxes[:i])


def test_a_mark_stands_at_its_value_and_the_axis_of_an_accuracy_ends_at_100():
    """Labels that would touch are moved apart; what leads to them looks like no data point."""
    ends = (96.8, 97.0, 96.5)
    runs = [fake(f"m{i}", (80, 90, end), (97.5, 97, 97, end)) for i, end in enumerate(ends)]
    for figure in (plots.over_time(runs), plots.learned_and_forgot(runs)):
        for axes in figure.axes:
            low, high = axes.get_ylim()
            assert 0 <= low < high <= 100
            marked = [line for line in axes.lines if line.get_marker() not in (None, "None", "")]
            assert marked
            assert all(line.get_transform() == axes.transData for line in marked)
    axes = plots.kept_over_time(runs).axes[0]
    leaders = [line for line in axes.lines if line.get_transform() == axes.transAxes]
    starts = [(axes.transAxes - axes.transData).transform(line.get_xydata()[0]) for line in leaders]
    assert sorted(y for _, y in starts) == pytest.approx(sorted(ends))
    floor = plots.kept_over_time([fake(control=(100, 50, 0, 0))]).axes[0]
    assert floor.get_ylim() == (0, 100)
