"""What the page shows about classes, and which files it refuses to show."""

import re
from pathlib import Path

import pytest
from fake_results import SIGNS, continued_results, fake_results
from report_pages import Page, page_of
from run_folders import by_class, write_run

from retouch.errors import UserError
from retouch.evaluate.per_class import ClassRow, ConfusionMatrix, PerClass
from retouch.report import write_report
from retouch.report.answers import answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        tmp_path_factory.mktemp("runs") / "march", fake_results(), by_class(SIGNS), deltas=False
    )


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return page_of(folder, folder)


@pytest.mark.slow
def test_classes_that_changed_most_come_with_images(page: Page) -> None:
    gained, lost = page.text.split("New classes that lost most")
    gained = gained.split("New classes that gained most")[1]
    shown = [gained.index(name) for name in SIGNS[:4]]
    assert shown == sorted(shown)
    assert "40.0 % → 90.0 % of 20 images" in gained
    assert "before ✗ give way now ✓ right" in gained
    assert lost.index("bend right") < lost.index("bend left")
    assert lost.index("Control classes that lost most") < lost.index("tench")
    pictures = [v for n, v in page.attributes if n == "src"]
    assert len(pictures) == 3 * 4
    assert all(v and v.startswith("data:image/jpeg;base64,") for v in pictures)
    assert len(page.source) < 400_000


def test_every_class_and_confusion_is_listed(page: Page) -> None:
    assert "New classes: all 6" in page.text
    assert "Control classes: all 2" in page.text
    assert re.search(r"roundabout\s*20\s*40.0\s*42.0\s*23.4–63.1\s*\+2.0", page.text)
    assert re.search(r"tench\s*8\s*75.0\s*50.0\s*21.5–78.5\s*−25.0", page.text)
    assert re.search(r"stop\s*give way\s*9 of 20", page.text)


@pytest.mark.slow
def test_a_model_evaluated_once_has_no_gains(tmp_path: Path) -> None:
    once = PerClass(classes=[ClassRow(name="stop", images=3, after=66.7)])
    page = Page(
        write_report(tmp_path, [write_run(tmp_path / "run", fake_results(), once, deltas=False)])
    )
    assert "gained most" not in page.text
    assert re.search(r"stop\s*3\s*–\s*66.7\s*20.8–93.9\s*–", page.text)


@pytest.mark.slow
def test_deleted_images_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", fake_results(accuracy=(80,)), by_class(SIGNS), deltas=False)
    for file in (run / "examples").iterdir():
        file.unlink()
    page = page_of(tmp_path, run)
    assert "img" not in page.tags
    assert "no image kept" in page.text


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("examples/00.jpg", b"<svg onload=alert(1)>", "examples/00.jpg is not a small JPEG"),
        ("examples/00.jpg", b"\xff\xd8\xff" + bytes(10**5), "examples/00.jpg is not a small JPEG"),
        ("classes.json", b"{}", "classes.json is damaged"),
        ("results.json", b"{", "results.json is damaged"),
    ],
)
def test_damaged_files_are_refused(
    tmp_path: Path, file: str, content: bytes, complaint: str
) -> None:
    run = write_run(tmp_path / "run", fake_results(accuracy=(80,)), by_class(SIGNS), deltas=False)
    (run / file).write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        write_report(tmp_path / "out", [run])
    assert not (tmp_path / "out").exists()


def test_files_outside_of_the_run_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(b"\xff\xd8\xff secret")
    run = write_run(tmp_path / "run", fake_results(accuracy=(80,)), by_class(SIGNS), deltas=False)
    known = by_class(SIGNS)
    known.examples[0].file = "../secret.jpg"
    known.write(run)
    with pytest.raises(UserError, match=r"'../secret.jpg' lies outside"):
        write_report(tmp_path / "out", [run])


@pytest.mark.slow
def test_a_confusion_matrix_is_a_table_of_its_own(tmp_path: Path) -> None:
    found = by_class(SIGNS)
    counts = [[20 if i == j else 0 for j in range(6)] for i in range(6)]
    counts[1] = [5, 15, 0, 0, 0, 0]
    found.matrices = [ConfusionMatrix(classes=SIGNS, counts=counts)]
    run = write_run(tmp_path / "run", fake_results(), found, deltas=False)
    page = page_of(run, run)
    assert "Confusion matrix of the new classes" in page.text
    titles = [value for name, value in page.attributes if name == "title"]
    assert "5 (25 %) of give way → stop" in titles
    assert 'class="miss" style="--p: 25"' in page.source
    assert 'class="hit deep" style="--p: 75"' in page.source


def test_of_a_continued_run_the_counts_of_classes_say_since_when() -> None:
    learned, control = answers(continued_results(), by_class(SIGNS))[:2]
    since = "Since before the first task: of "
    for answer in (learned, control):
        assert next(remark for remark in answer.remarks if "lost" in remark).startswith(since)
    assert "Since before" not in str(answers(fake_results(), by_class(SIGNS)))
