"""The page: what it says, that it needs nothing else, and that names do no harm."""

import re
from pathlib import Path

import pytest
from fake_results import (
    HOSTILE,
    SEVERAL,
    SIGNS,
    checked_in_part,
    continued_results,
    evaluated_at_the_end,
    fake_results,
    results_with_gaps,
)
from report_pages import Page, page_of
from run_folders import by_class, write_run

from retouch.errors import UserError
from retouch.evaluate.row import Drift
from retouch.evaluate.task_info import DataInfo, TaskInfo
from retouch.plotting.theme import THEME
from retouch.report import write_report
from retouch.report.compare import comparison_sentences
from retouch.report.facts import shared_settings
from retouch.report.run_metrics import metrics
from retouch.report.sentences import (
    control_sentence,
    drift_sentence,
    learned_sentence,
    run_sentences,
)
from retouch.report.table import rows


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(
        tmp_path_factory.mktemp("one"), fake_results(notes=["few images of 'stop'"]), drawn=True
    )


@pytest.fixture(scope="module")
def several_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tmp_path_factory.mktemp("several"), SEVERAL).parent


@pytest.mark.slow
def test_a_page_of_one_run(one: Page) -> None:
    for sentence in (learned_sentence(fake_results()), control_sentence(fake_results())):
        assert sentence in one.text
    assert "What spu learned, and what it forgot" in one.text
    assert "few images of 'stop'" in one.text
    assert 'retouch.Delta.load("deltas/task-03.safetensors").undo(clip.model)' in one.text
    assert one.tags.count("svg") == 4 + 3  # bars; two panels and the matrix
    assert "not finished" not in one.text


@pytest.mark.slow
def test_a_page_of_several_runs(several_folder: Path) -> None:
    page = Page(several_folder / "report.html")
    for row in rows(SEVERAL):
        assert all(cell in page.text for cell in row.values())
    for sentence in comparison_sentences(SEVERAL):
        assert sentence in page.text
    assert page.tags.count("details") == len(SEVERAL) + 1


@pytest.mark.slow
def test_the_page_of_a_continued_run(tmp_path: Path) -> None:
    page = page_of(tmp_path, continued_results(), drawn=True)
    for sentence in run_sentences(continued_results()):
        assert sentence in page.text
    assert "before 20.0 %" in page.text, "the bars are about this run"
    assert "before 75.0 %" in page.text


@pytest.mark.slow
def test_pages_of_runs_that_were_evaluated_at_their_end(tmp_path: Path) -> None:
    run = evaluated_at_the_end(fake_results())
    for sentence in run_sentences(run):
        assert sentence in page_of(tmp_path / "one", run).text
    without = evaluated_at_the_end(fake_results(control=None))
    write_report(tmp_path / "both", [without, without])
    plots = {file.stem for file in (tmp_path / "both" / "plots").iterdir()}
    assert plots == {"over-time", "matrix-01", "matrix-02"}, "what was forgotten is not known"


@pytest.mark.slow
def test_the_page_says_how_much_of_the_control_set_was_checked(tmp_path: Path) -> None:
    sentence = "While it learned, 1,000 of the 5,000 control images were checked after each task"
    hint = "Between its ends the control curve is an estimate"
    text = page_of(tmp_path / "part", checked_in_part()).text
    assert sentence in text
    assert hint in text
    assert "control images checked after each task1,000" in text
    assert hint in page_of(tmp_path / "both", *SEVERAL, checked_in_part()).text
    text = page_of(tmp_path / "all", fake_results()).text
    assert sentence not in text
    assert hint not in text
    half = checked_in_part(part=100)
    half.rows.pop()  # the interval is that of the images that were checked
    for values in (half.trained, half.seconds, half.steps, half.fraction_kept):
        values.pop()
    assert "from 100 control images" in page_of(tmp_path / "half", half).text


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


@pytest.mark.slow
def test_a_page_without_a_control_set(tmp_path: Path) -> None:
    page = page_of(tmp_path, fake_results(control=None), drawn=True)
    assert "the run had no control set" in page.text
    assert "Control accuracy, %" not in page.text


@pytest.mark.slow
def test_a_page_of_an_unfinished_run(tmp_path: Path) -> None:
    page = page_of(tmp_path, fake_results(accuracy=(80, 70)), drawn=True)
    assert "The run is not finished: 2 of 3 tasks are learned" in page.text
    assert "deltas/task-02.safetensors" in page.text
    assert "12.0 %" not in page.text  # of all classes, which two tasks cannot be compared with


@pytest.mark.parametrize("rows_", [0, 1])
def test_a_page_of_a_run_that_learned_nothing_yet(tmp_path: Path, rows_: int) -> None:
    run = fake_results(accuracy=())
    page = page_of(tmp_path, run.model_copy(update={"rows": run.rows[:rows_]}), drawn=True)
    assert "nothing to undo" in page.text


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_hostile_names_do_no_harm(tmp_path: Path) -> None:
    evil = fake_results(HOSTILE[0], classes=HOSTILE, notes=[HOSTILE[1]], model=HOSTILE[1])
    evil.environment["python"] = HOSTILE[0]
    page = page_of(tmp_path, evil, evil.model_copy(update={"method": HOSTILE[5]}), drawn=True)
    assert not {"script", "img"} & set(page.tags)  # not even of those that are named so
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    for name in HOSTILE:
        assert name in page.text
        assert name not in page.source or not set(name) & set("<>&\"'")
    assert page.tags.count("style") == 1


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(several_folder: Path, tmp_path: Path) -> None:
    write_report(tmp_path, SEVERAL)
    files = [file for file in several_folder.rglob("*") if file.is_file()]
    assert len(files) == 11
    for file in files:
        assert (tmp_path / file.relative_to(several_folder)).read_bytes() == file.read_bytes()


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run"):
        write_report(tmp_path, [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "march", fake_results(), by_class(SIGNS))


@pytest.fixture(scope="module")
def page_of_folder(folder: Path) -> Page:
    return page_of(folder, folder)


@pytest.mark.slow
def test_a_page_of_a_folder_has_more_sections(page_of_folder: Page) -> None:
    assert "retouch · march What it learned, and what it forgot" in page_of_folder.text
    assert "Of 6 new classes, 4 gained and 2 lost." in page_of_folder.text
    assert "Of 2 control classes, 0 gained and 2 lost." in page_of_folder.text
    parts = "Each task by itself", "Class by class", "Where weights moved", "Settings", "undo"
    places = [page_of_folder.text.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.slow
def test_results_are_told_with_what_their_own_folder_holds(
    folder: Path, page_of_folder: Page
) -> None:
    assert page_of(folder, fake_results()).source == page_of_folder.source
    other = page_of(folder, fake_results(accuracy=(80, 70, 65)))
    assert "Class by class" not in other.text


@pytest.mark.slow
def test_undo_as_commands_that_name_what_there_is(page_of_folder: Page, tmp_path: Path) -> None:
    assert (
        "retouch delta undo . deltas/task-03.safetensors -o ../after-task-2" in page_of_folder.text
    )
    assert "retouch delta undo . . -o ../as-it-was" in page_of_folder.text
    run = write_run(tmp_path / "run", fake_results(accuracy=(80,)))
    page = page_of(run, run)
    assert "undo . deltas/task-01.safetensors -o ../as-it-was" in page.text
    (run / "deltas" / "task-01.safetensors").unlink()
    assert "were not kept" in page_of(run, run).text


@pytest.mark.slow
def test_data_date_and_command_are_shown(tmp_path: Path) -> None:
    results = fake_results()
    results.command = "retouch learn 'my <photos>' --out run"
    results.started = "2026-03-01T08:05:00+00:00"
    results.data = {
        "train": DataInfo(name="my <photos>", classes=6, images=150),
        "control": DataInfo(name="imagenet", classes=1000, images=500),
    }
    run = write_run(tmp_path / "run", results)
    page = page_of(run, run)
    line = "Data: my <photos> · Control set: imagenet · 1 March 2026, 08:05 UTC · learned in"
    assert line in page.text
    assert page.text.count(results.command) == 1
    assert "imagenet: 500 images of 1,000 classes" in page.text
    assert "95 % interval 42.3–75.4 %, from 30 test images." in page.text
    assert "from 500 control images" in page.text
    assert "60.0 % (95 % interval 31.3–83.2) of 10 test images" in page.text


@pytest.mark.slow
def test_drift_on_the_page(tmp_path: Path) -> None:
    run = fake_results(control=None)
    run.rows[-1].drift = Drift(moved=0.0123, neighbours=91.6)
    page = page_of(tmp_path, run)
    assert drift_sentence(run) in page.text
    assert "words 91.6 %" in page.text


@pytest.mark.slow
def test_what_was_not_measured_is_a_gap(tmp_path: Path) -> None:
    run = results_with_gaps()
    assert learned_sentence(run) == "It learned 6 new classes: 13.0 % → 60.0 % recognized."
    page = page_of(tmp_path, run, drawn=True)
    assert "nan" not in page.text
    assert rows([run])[0]["new classes"] == "60.0"


@pytest.mark.slow
def test_a_run_without_test_images(tmp_path: Path) -> None:
    run = results_with_gaps()
    for task in run.tasks:
        task.test = 0
    for row in run.rows:
        row.tasks = [None] * 3
    assert "no test images to measure" in learned_sentence(run)
    page = page_of(tmp_path, run, fake_results(), drawn=True)
    assert "nan" not in page.text
    page_of(tmp_path, run, drawn=True)


@pytest.mark.slow
def test_a_continued_run_that_was_not_evaluated_yet(tmp_path: Path) -> None:
    run = fake_results()
    run.tasks.append(TaskInfo(classes=["new"], train=5, test=5))
    assert metrics(run) == {}
    assert "3 of 4 tasks are learned" in page_of(tmp_path, run).text


def test_settings_are_shown_as_a_reader_would_write_them():
    run = fake_results()
    values = {"compile": False, "betas": [0.9, 0.999], "steps": None, "domain_lr": {}}
    shown = shared_settings([run.model_copy(update={"settings": values})])
    assert (shown["compile"], shown["betas"]) == ("no", "0.9, 0.999")
    assert not {"steps", "domain lr"} & shown.keys()
    rates = {"domain_lr": {"aircraft": 5e-5, "mnist": 1e-4}}
    shown = shared_settings([run.model_copy(update={"settings": rates})])
    assert shown["domain lr"] == "5e-05 for aircraft, 0.0001 for mnist"


def test_the_page_says_how_many_steps_each_task_had():
    run = fake_results()
    assert "steps in each task" not in shared_settings([run]), "all had the same"
    early = run.model_copy(update={"steps": [60, 25, 60]})
    assert shared_settings([early])["steps in each task"] == "60, 25, 60"
    skipped = run.model_copy(update={"steps": [0, 0, 0]})
    expected = "none, none, none; none: teaching the text tower alone was enough"
    assert shared_settings([skipped])["steps in each task"] == expected
