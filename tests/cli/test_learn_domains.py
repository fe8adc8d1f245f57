"""`retouch learn` with several data sets: each with its prompts, one after the other."""

import json
import re
from pathlib import Path

import pytest
from commands import error_of, run, run_json
from layouts import make_folder
from tiny import tiny_folder

from retouch.evaluate import Results
from retouch.train.run_folder.files import refuse_foreign

FAST = ["--epochs", "1", "--batch", "8", "--lr", "1e-3", "--no-cache", "--set", "replay.size=8"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, two data sets with a class of the same name, and a run over both."""
    home = tmp_path_factory.mktemp("home")
    tiny_folder(home / "model")
    make_folder(home / "paint", {"dark_red": 6, "bright_green": 6})
    make_folder(home / "cloth", {"dark_red": 6, "pale_blue": 6})
    make_folder(home / "other" / "cloth", {"a": 6, "b": 6})
    (home / "names.csv").write_text("folder,name\ndark_red,red\n")
    (home / "order.txt").write_text("dark red\nbright green\n")
    words = ("--model", home / "model", "--tasks", "each", "--out", home / "run")
    text = run("learn", home / "paint", home / "cloth", *words, *FAST).stdout
    assert "4 classes to learn" in text
    assert "In this order: paint, cloth." in text
    assert "among the classes of its own data set" in text
    assert "(Transfer)" in text
    assert "Note: 'dark red' is a class of paint and of cloth" in " ".join(text.split())
    return home


@pytest.mark.slow
def test_results_page_and_classification_know_the_data_sets(home: Path):
    results = Results.read(home / "run")
    assert [task.domain for task in results.tasks] == ["paint", "cloth"]
    page = (home / "run" / "report.html").read_text()
    assert "Each data set by itself" in page
    assert "dark red (cloth)" in page
    image = next((home / "paint" / "dark_red").iterdir())
    answers = run_json("classify", home / "run", image, "--top", "4")["images"][0]["after"]
    names = {answer["name"] for answer in answers}
    assert names == {"dark red (paint)", "bright green", "dark red (cloth)", "pale blue"}
    twins = [a["probability"] for a in answers if a["name"].startswith("dark red")]
    assert twins[0] == pytest.approx(twins[1]), "in prompts, both are called dark red"


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_all_classes_together_and_several_tasks_each(home: Path, tmp_path: Path):
    words = ("--model", home / "model", "--out", tmp_path / "run", "--choices", "all")
    text = run("learn", home / "paint", home / "cloth", "--tasks", "2", *words, *FAST).stdout
    assert "among all 4 classes" in text
    results = Results.read(tmp_path / "run")
    assert [task.domain for task in results.tasks] == ["paint", "paint", "cloth", "cloth"]
    assert results.choices == "all"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{h}/paint --choices all", "choices all are for several data sets, and there is one"),
        (
            "{h}/paint {h}/cloth --names {h}/names.csv",
            "names can be given for one .*--names",
        ),
        (
            "{h}/paint {h}/cloth --order {h}/order.txt",
            "order can be given for one .*--order",
        ),
        ("{h}/paint {h}/paint", "paint is given twice"),
        ("{h}/paint {h}/cloth --tasks some", "--tasks some: use a number of tasks"),
        ("{h}/paint {h}/cloth --tasks 0", "--tasks 0: use a number of tasks"),
        ("{h}/paint {h}/cloth --tasks 3", "2 classes cannot be split into 3 tasks"),
    ],
)
@pytest.mark.slow
def test_what_does_not_fit_is_refused(home: Path, tmp_path: Path, words: str, message: str):
    given = words.format(h=home).split()
    error = error_of("learn", *given, "--model", home / "model", "--out", tmp_path / "run")
    assert re.search(message, error), error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_folders_of_the_same_name_are_called_by_their_paths(home: Path, tmp_path: Path):
    words = ("--model", home / "model", "--out", tmp_path / "run")
    run("learn", home / "cloth", home / "other" / "cloth", *words, *FAST)
    assert Results.read(tmp_path / "run").domains == [
        str(home / "cloth"),
        str(home / "other" / "cloth"),
    ]


@pytest.mark.slow
def test_such_a_run_is_not_continued(home: Path, tmp_path: Path):
    words = ("learn", home / "other" / "cloth", "--from", home / "run", "--out", tmp_path / "run")
    assert "several data sets (paint, cloth)" in error_of(*words)


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_the_overlap_of_an_unfinished_run_is_that_of_its_learned_tasks(home: Path, tmp_path: Path):
    words = ("--model", home / "model", "--tasks", "2", "--out", tmp_path / "run")
    run("learn", home / "paint", home / "cloth", *words, *FAST)
    results = Results.read(tmp_path / "run")
    for learned, named in ((3, True), (2, False)):  # two tasks are both of the first data set
        for values in (results.trained, results.seconds, results.steps, results.fraction_kept):
            del values[learned:]
        del results.rows[learned + 1 :]
        results.write(tmp_path / "run")
        text = run("overlap", tmp_path / "run").stdout
        assert ("two data sets share" in text) is named


@pytest.mark.slow
def test_overlap_names_the_data_sets(home: Path):
    text = " ".join(run("overlap", home / "run").stdout.split())
    assert "two data sets share" in text
    refuse_foreign(home / "run")  # which knows all that was written
    folder = home / "run" / "analysis" / "domains"
    tower = json.loads((folder / "domains.json").read_text())["numbers"][0]
    assert tower["names"] == ["paint", "cloth"]
    shared = tower["shared"]
    assert shared[0][0] is None
    rows = (folder / "domains.csv").read_text().splitlines()
    assert rows[0] == "tower,data set,other,overlap"
    assert rows[1] == f"{tower['tower']},paint,cloth,{shared[0][1]}"
    pairs = (home / "run" / "analysis" / "overlap" / "overlap.csv").read_text().splitlines()
    table = [dict(zip(pairs[0].split(","), row.split(","), strict=True)) for row in pairs[1:]]
    layers = [
        float(row["overlap"])
        for row in table
        if (row["tower"], row["of"], row["task"]) == (tower["tower"], "neurons", "1")
    ]
    assert shared[0][1] == pytest.approx(sum(layers) / len(layers), abs=1e-6)
