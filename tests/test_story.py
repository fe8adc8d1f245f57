"""The page of a run's folder: class by class, where weights moved, how to undo; the command."""

import json
import re
from pathlib import Path

import pytest
from stories import by_class, write_run
from test_report import SIGNS, Page, fake, page_of
from tiny import tiny_clip
from typer.testing import CliRunner

from retouch import checksummed
from retouch.cli import app
from retouch.errors import UserError
from retouch.evaluate.per_class import ClassRow, ConfusionMatrix, PerClass
from retouch.evaluate.results import DataInfo, Results, TaskInfo
from retouch.evaluate.row import Drift
from retouch.report import phrasing, plots, read_run_summary, write_report
from retouch.report.change_by_layer import blocks, farthest
from retouch.report.loss import read_losses, smoothed
from retouch.report.run_names import distinguishing_names
from retouch.report.table import rows
from retouch.sparse import ChangeStats, Delta


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "march", fake(), by_class(SIGNS))


@pytest.fixture(scope="module")
def told(folder: Path) -> Page:
    return Page(write_report(folder, [folder]))


def test_a_page_of_a_folder_tells_more(told: Page) -> None:
    assert "retouch · march What it learned, and what it forgot" in told.text
    assert "Of 6 new classes, 4 gained and 2 lost." in told.text
    assert "Of 2 control classes, 0 gained and 2 lost." in told.text
    parts = "Each task by itself", "Class by class", "Where weights moved", "Settings", "undo"
    places = [told.text.index(part) for part in parts]
    assert places == sorted(places)


def test_results_are_told_with_what_their_own_folder_holds(folder: Path, told: Page) -> None:
    assert write_report(folder, [fake()]).read_text() == told.source
    other = Page(write_report(folder, [fake(accuracy=(80, 70, 65))]))
    write_report(folder, [folder])
    assert "Class by class" not in other.text


def test_classes_that_changed_most_come_with_images(told: Page) -> None:
    gained, lost = told.text.split("New classes that lost most")
    gained = gained.split("New classes that gained most")[1]
    shown = [gained.index(name) for name in SIGNS[:4]]
    assert shown == sorted(shown)
    assert "40.0 % → 90.0 % of 20 images" in gained
    assert "before ✗ give way now ✓ right" in gained
    assert lost.index("bend right") < lost.index("bend left")
    assert lost.index("Control classes that lost most") < lost.index("tench")
    pictures = [v for n, v in told.attributes if n == "src"]
    assert len(pictures) == 3 * 4
    assert all(v and v.startswith("data:image/jpeg;base64,") for v in pictures)
    assert len(told.source) < 400_000


def test_every_class_and_confusion_is_somewhere(told: Page) -> None:
    assert "New classes: all 6" in told.text
    assert "Control classes: all 2" in told.text
    assert re.search(r"roundabout\s*20\s*40.0\s*42.0\s*23.4–63.1\s*\+2.0", told.text)
    assert re.search(r"tench\s*8\s*75.0\s*50.0\s*21.5–78.5\s*−25.0", told.text)
    assert re.search(r"stop\s*give way\s*9 of 20", told.text)


def test_a_model_judged_once_has_no_gains(tmp_path: Path) -> None:
    once = PerClass(classes=[ClassRow(name="stop", images=3, after=66.7)])
    page = Page(write_report(tmp_path, [write_run(tmp_path / "run", fake(), once)]))
    assert "gained most" not in page.text
    assert re.search(r"stop\s*3\s*–\s*66.7\s*20.8–93.9\s*–", page.text)


def test_images_that_were_deleted_are_missed_quietly(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", fake(accuracy=(80,)), by_class(SIGNS))
    for file in (run / "examples").iterdir():
        file.unlink()
    page = Page(write_report(tmp_path, [run]))
    assert "img" not in page.tags
    assert "no image kept" in page.text


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("examples/00.jpg", b"<svg onload=alert(1)>", "examples/00.jpg is no small JPEG"),
        ("examples/00.jpg", b"\xff\xd8\xff" + bytes(10**5), "examples/00.jpg is no small JPEG"),
        ("classes.json", b"{}", "classes.json is damaged"),
        ("results.json", b"{", "results.json is damaged"),
    ],
)
def test_what_is_not_what_it_seems_is_refused(
    tmp_path: Path, file: str, content: bytes, complaint: str
) -> None:
    run = write_run(tmp_path / "run", fake(accuracy=(80,)), by_class(SIGNS))
    (run / file).write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        write_report(tmp_path / "out", [run])
    assert not (tmp_path / "out").exists()


def test_files_outside_of_the_run_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(b"\xff\xd8\xff secret")
    run = write_run(tmp_path / "run", fake(accuracy=(80,)), by_class(SIGNS))
    known = by_class(SIGNS)
    known.examples[0].file = "../secret.jpg"
    known.write(run)
    with pytest.raises(UserError, match=r"'../secret.jpg' lies outside"):
        write_report(tmp_path / "out", [run])


def test_where_weights_moved_is_what_the_weights_say(folder: Path, told: Page) -> None:
    """One task of three, measured on the model itself."""
    model = tiny_clip().model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    delta = folder / "deltas" / "task-01.safetensors"
    Delta.load(delta).apply(model)
    first = read_run_summary(folder)
    towers = blocks(list(Delta.load(delta).change_stats), 1)
    assert list(towers) == ["images", "texts"]
    for tower, prefix in (("images", "vision_model"), ("texts", "text_model")):
        assert [block.name for block in towers[tower]] == ["1", "2"]
        for block in towers[tower]:
            name = f"{prefix}.encoder.layers.{int(block.name) - 1}.mlp.fc1.weight"
            old, new = before[name], model.state_dict()[name]
            assert block.far == pytest.approx(100 * ((new - old).norm() / old.norm()).item(), 1e-3)
            assert block.moved == pytest.approx(100 * (new != old).double().mean().item())
    average = blocks(first.change_stats, 3)["images"][1]
    assert average.far == pytest.approx(towers["images"][1].far, rel=0.05)
    assert average.moved == pytest.approx(towers["images"][1].moved)
    assert "In the tower for images, block 2 moved farthest" in told.text
    assert (folder / "plots" / "where-it-moved.png").exists()


def moved(tensor: str, far: float = 0.01) -> ChangeStats:
    return ChangeStats(
        tensor=tensor, size=100, selected=10, moved=10, change=far, weights=1.0, histogram=[0] * 24
    )


@pytest.mark.parametrize(
    ("tensors", "images", "texts"),
    [
        (
            [f"visual.transformer.resblocks.{i}.mlp.c_fc.weight" for i in (11, 2, 0)]
            + ["transformer.resblocks.10.mlp.c_fc.weight", "transformer.resblocks.9.ln_1.bias"],
            ["1", "3", "12"],
            ["10", "11"],
        ),
        (
            [
                "visual.proj",
                "visual.conv1.weight",
                "visual.transformer.resblocks.0.ln_1.weight",
                "positional_embedding",
                "token_embedding.weight",
                "text_projection",
                "logit_scale",
            ],
            ["in", "1", "out"],
            ["in", "out"],
        ),
        (
            [
                "visual_projection.weight",
                "vision_model.embeddings.patch_embedding.weight",
                "text_model.embeddings.token_embedding.weight",
                "text_projection.weight",
            ],
            ["in", "out"],
            ["in", "out"],
        ),
        (
            [
                "visual.layer2.0.conv1.weight",
                "visual.layer1.1.conv1.weight",
                "visual.conv1.weight",
                "visual.layer1.0.conv1.weight",
                "text.transformer.resblocks.0.mlp.c_fc.weight",
            ],
            ["in", "1", "2", "3"],
            ["1"],
        ),
        (["prompts.keys.0", "prompts.pool", "texts.table.weight"], ["prompts"], ["out"]),
        (["images.1.weight", "images.10.weight", "texts.0.weight"], ["2", "11"], ["1"]),
    ],
)
def test_tensors_are_found_in_their_towers(
    tensors: list[str], images: list[str], texts: list[str]
) -> None:
    found = blocks([moved(tensor) for tensor in tensors], 1)
    assert {tower: [b.name for b in every] for tower, every in found.items()} == {
        "images": images,
        "texts": texts,
    }
    assert len(plots.change_by_layer(found).axes) == 4


def test_what_moved_farthest_in_words() -> None:
    names = [
        "visual.proj",
        "transformer.resblocks.3.ln_1.bias",
        "transformer.resblocks.4.ln_1.bias",
    ]
    found = blocks([moved(names[0], 0.5), moved(names[1], 0.01), moved(names[2], 0.0)], 1)
    assert farthest(found) == [
        "In the tower for images, what lies behind the blocks moved farthest: "
        "by 16 % of its weights.",
        "In the tower for texts, block 4 moved farthest: by 0.32 % of its weights.",
    ]
    assert farthest(blocks([moved("visual.proj", 0.0)], 1)) == []


def test_a_delta_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", fake(accuracy=(80,)))
    (run / "deltas" / "task-01.safetensors").write_bytes(b"damaged")
    page = Page(write_report(run, [run]))
    assert "This cannot be shown:" in page.text
    assert "task-01.safetensors is damaged" in page.text


def test_undo_as_commands_that_name_what_there_is(told: Page, tmp_path: Path) -> None:
    assert "retouch delta undo . deltas/task-03.safetensors -o ../after-task-2" in told.text
    assert "retouch delta undo . . -o ../as-it-was" in told.text
    run = write_run(tmp_path / "run", fake(accuracy=(80,)))
    page = Page(write_report(run, [run]))
    assert "undo . deltas/task-01.safetensors -o ../as-it-was" in page.text
    (run / "deltas" / "task-01.safetensors").unlink()
    assert "were not kept" in Page(write_report(run, [run])).text


# What people know from other tools


def logged(folder: Path, tasks: int = 3, steps: int = 40) -> Path:
    """The losses of a run, as a run writes them; the last line was cut off."""
    lines = [
        {"task": t + 1, "epoch": 1, "step": s + 1, "loss": 3 - t - s / steps, "lr": 1e-3}
        for t in range(tasks)
        for s in range(steps)
    ]
    content = b"".join(checksummed.to_line(line) for line in lines)
    (folder / "metrics.jsonl").write_bytes(content + b'{"task": 3, "lo')
    return folder


def test_the_loss_of_every_step_is_drawn_and_told(tmp_path: Path) -> None:
    run = logged(write_run(tmp_path / "run", fake(), by_class(SIGNS)))
    steps = read_losses(run)
    assert [steps[0].step, steps[-1].step, len(steps)] == [1, 120, 120]
    axes = plots.loss_curve(steps).axes[0]
    assert len([line for line in axes.lines if len(line.get_xdata()) == 40]) == 2 * 3
    assert [text.get_text() for text in axes.texts] == ["task 1", "task 2", "task 3"]
    page = Page(write_report(run, [run]))
    assert "While it learned" in page.text
    assert re.search(r"task 2\s*40\s*2\s*1.03[78]\s*0.001", page.text)
    assert any(v and v.startswith("Training loss over 120 steps") for _, v in page.attributes)
    assert (run / "plots" / "loss.png").exists()
    bare = write_run(tmp_path / "bare", fake())
    assert "While it learned" not in Page(write_report(bare, [bare])).text


def test_many_steps_are_averaged_and_damaged_lines_refused(tmp_path: Path) -> None:
    steps = read_losses(logged(write_run(tmp_path / "run", fake()), tasks=1, steps=5000))
    lines = plots.loss_curve(steps).axes[0].lines
    assert max(len(line.get_xdata()) for line in lines) <= 1250
    file = tmp_path / "run" / "metrics.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"loss": 2.9', b'"loss": 0.9', 1))
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        write_report(tmp_path / "run", [tmp_path / "run"])
    only = read_losses(logged(tmp_path / "run", tasks=1, steps=1))[0]
    for draw in (plots.loss_curve, plots.rate_curve):
        assert draw([only]).axes
    assert smoothed([1, 2, 3, 4, 5, 6], 1) == [1, 2, 3, 4, 5, 5.5]
    assert read_losses(tmp_path / "nowhere") == read_losses(None) == []


def test_a_confusion_matrix_is_a_table_of_its_own(tmp_path: Path) -> None:
    found = by_class(SIGNS)
    counts = [[20 if i == j else 0 for j in range(6)] for i in range(6)]
    counts[1] = [5, 15, 0, 0, 0, 0]
    found.matrices = [ConfusionMatrix(classes=SIGNS, counts=counts)]
    run = write_run(tmp_path / "run", fake(), found)
    page = Page(write_report(run, [run]))
    assert "Confusion matrix of the new classes" in page.text
    titles = [value for name, value in page.attributes if name == "title"]
    assert "5 (25 %) of give way → stop" in titles
    assert 'class="miss" style="--p: 25"' in page.source
    assert 'class="hit deep" style="--p: 75"' in page.source


def test_it_says_where_it_came_from(tmp_path: Path) -> None:
    results = fake()
    results.command = "retouch learn 'my <photos>' --out run"
    results.started = "2026-03-01T08:05:00+00:00"
    results.data = {
        "train": DataInfo(name="my <photos>", classes=6, images=150),
        "control": DataInfo(name="imagenet", classes=1000, images=500),
    }
    run = write_run(tmp_path / "run", results)
    page = Page(write_report(run, [run]))
    line = "Data: my <photos> · Control set: imagenet · 1 March 2026, 08:05 UTC · learned in"
    assert line in page.text
    assert page.text.count(results.command) == 1
    assert "imagenet: 500 images of 1,000 classes" in page.text
    assert "95 % interval 42.3–75.4 %, from 30 test images." in page.text
    assert "from 500 control images" in page.text
    assert "60.0 % (95 % interval 31.3–83.2) of 10 test images" in page.text


# Numbers that are missing, and weaker evidence


def test_drift_is_shown_as_weaker_evidence(tmp_path: Path) -> None:
    run = fake(control=None)
    run.rows[-1].drift = Drift(moved=0.0123, neighbours=91.6)
    said = phrasing.drift_sentence(run)
    assert said == (
        "Everyday words: 91.6 % are still nearest to the same word; they moved by 0.012 "
        "(1 − cosine) on average. Weaker evidence than a control set, as it is about texts alone."
    )
    page = page_of(tmp_path, run)
    assert said in page.text
    assert "words 91.6 %" in page.text
    run.rows[-1].drift = Drift(moved=0.0, neighbours=100.0)
    assert "they mean to it what they meant before" in phrasing.drift_sentence(run)
    assert phrasing.drift_sentence(fake()) == ""


def gappy() -> Results:
    """The first task can no longer be judged, the last was not known yet at first."""
    run = fake()
    run.tasks[0].test = 0
    for row in run.rows:
        row.tasks[0] = None
    run.rows[1].tasks[2] = None
    run.rows[2].control = None
    return run


def test_what_could_not_be_judged_is_a_gap(tmp_path: Path) -> None:
    run = gappy()
    assert phrasing.learned_sentence(run) == "It learned 6 new classes: 13.0 % → 60.0 % recognised."
    cells = [text.get_text() for text in plots.accuracy_matrix(run).axes[0].texts]
    assert cells.count("–") == 4 + 1
    lines = plots.kept_over_time([run]).axes[0].lines
    assert [y == y for y in lines[0].get_ydata()] == [True, True, False, True]
    page = page_of(tmp_path, run)
    assert "nan" not in page.text
    assert rows([run])[0]["new classes"] == "60.0"


def test_a_run_without_images_to_judge_by(tmp_path: Path) -> None:
    run = gappy()
    for task in run.tasks:
        task.test = 0
    for row in run.rows:
        row.tasks = [None] * 3
    assert "no images to judge by" in phrasing.learned_sentence(run)
    page = page_of(tmp_path, run, fake())
    assert "nan" not in page.text
    page_of(tmp_path, run)


def test_a_run_that_goes_on_and_was_not_judged_yet(tmp_path: Path) -> None:
    run = fake()
    run.tasks.append(TaskInfo(classes=["new"], train=5, test=5))
    assert phrasing.numbers(run) == {}
    assert "3 of 4 tasks are learned" in page_of(tmp_path, run).text


def test_each_task_has_a_line_in_the_page_of_one_run() -> None:
    names = [text.get_text() for text in plots.learned_over_time([fake()]).axes[0].texts]
    assert sorted(names) == ["60.0 all", "60.0 task 1", "60.0 task 2", "60.0 task 3"]


def test_one_task_is_drawn_from_before_it() -> None:
    run = fake(accuracy=(80,)).model_copy()
    run.tasks = run.tasks[:1]
    for row in run.rows:
        row.tasks = row.tasks[:1]
    assert plots.learned_over_time([run]).axes[0].lines[0].get_xydata().tolist() == [
        [0, 10],
        [1, 80],
    ]


# The command


def report(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["report", *map(str, words)])
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one method."""
    place = tmp_path_factory.mktemp("two")
    write_run(place / "march", fake())
    write_run(place / "april", fake(accuracy=(90, 85, 80)))
    return place


def test_the_command_writes_the_page_of_a_run_anew(two: Path, tmp_path: Path) -> None:
    code, said, errors = report(two / "march")
    assert (code, errors) == (0, "")
    assert "91.4" in said
    page = two / "march" / "report.html"
    assert str(page) in said.replace("\n", "")
    assert report(two / "march", "-o", tmp_path)[0] == 0
    assert (tmp_path / "report.html").read_bytes() == page.read_bytes()


def test_the_command_compares_runs_by_their_folders(two: Path) -> None:
    write_report(two / "march", [two / "march"])
    (two / "april" / "report.html").unlink(missing_ok=True)
    code, said, _ = report(two / "march", two / "april", two / "march")
    assert code == 0
    assert re.search(r"march +60\.0.*\n *april +80\.0", said)
    page = Page(two / "report.html")
    assert "april learned most: 80.0 %" in page.text
    assert "What 2 runs learned" in page.text
    assert "april</text>" in page.source
    links = [value for name, value in page.attributes if name == "href" and value[0] not in "#d"]
    assert set(links) == {"march/report.html"}, "april has no page yet"
    write_report(two / "april", [two / "april"])
    elsewhere = two / "a folder" / "b"
    assert report(two / "march", two / "april", "-o", elsewhere)[0] == 0
    links = [v for n, v in Page(elsewhere / "report.html").attributes if n == "href"]
    assert {"../../march/report.html", "../../april/report.html"} <= set(links)
    assert all((elsewhere / link).is_file() for link in links if link.startswith(".."))


def test_json_is_one_object(two: Path, tmp_path: Path) -> None:
    code, said, errors = report(two / "march", two / "april", "--json", "-o", tmp_path)
    assert (code, errors) == (0, "")
    found = json.loads(said)
    assert found["page"] == str(tmp_path / "report.html")
    assert [run["metrics"]["accuracy"] for run in found["runs"]] == [60.0, 80.0]
    assert found["runs"][0]["run"] == str(two / "march")


def test_the_command_refuses_what_is_no_run(two: Path, tmp_path: Path) -> None:
    for words_, complaint in [
        ([two], f"{two} holds no run: results.json is missing there; name the runs in it, such as"),
        ([tmp_path], f"{tmp_path} holds no run"),
        ([tmp_path / "none"], "there is no folder"),
        ([two / "march" / "results.json"], "is a file; name the folder of a run"),
        ([two / "march", two / "april", "-o", two / "march"], "a page of its own"),
        ([two / "march", "-o", two / "april"], "a page of its own"),
    ]:
        code, said, errors = report(*words_)
        assert (code, said) == (1, "")
        assert complaint in errors


def test_folders_are_called_by_what_tells_them_apart() -> None:
    cells = [Path(f"/b/cells/{m}/{d}/seed-0/run") for m, d in (("spu", "cub"), ("spu", "cars"))]
    assert distinguishing_names(cells) == ["cub", "cars"]
    assert distinguishing_names([Path("/r/march"), Path("/r/april")]) == ["march", "april"]
    assert distinguishing_names([Path("/r"), Path("/r/a")]) == ["r", "r/a"]
    assert distinguishing_names([Path("/r/a/run"), Path("/r/run")]) == ["a/run", "run"]
