"""`retouch delta`: deltas are shown, applied, undone, merged and made from two checkpoints."""

import io
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from backbones import saved_open_clip
from commands import run, run_json
from rich.console import Console
from tiny import images, tiny_clip, tiny_folder

import retouch
from retouch.clip import load
from retouch.sparse import Delta, Selection, Snapshot, fingerprint, locate, read_header
from retouch.train import open_run

QUICK = retouch.Settings(epochs=1, batch=8, lr=1e-2)


def delta(*words: object, code: int = 0) -> str:
    """What `retouch delta` prints, with single spaces."""
    return " ".join(run("delta", *words, code=code).output.split())


def delta_json(*words: object) -> dict[str, Any]:
    return run_json("delta", *words)


def weights(name: object) -> str:
    return fingerprint(load(str(name)).model)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("a model"))


def teach(model: Path, folder: Path, order: int, method: str = "spu") -> Path:
    stream = retouch.Stream.split(images("a", 6, 6), images("b", 6, 2), tasks=3, order=order)
    recipe = retouch.recipe(method, {"replay.size": 6})
    retouch.teach(load(str(model)), stream, recipe, settings=QUICK, out=folder)
    return folder


@pytest.fixture(scope="module")
def march(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return teach(model, tmp_path_factory.mktemp("runs") / "march", 0)


@pytest.fixture(scope="module")
def april(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody else's run, from the same model."""
    return teach(model, tmp_path_factory.mktemp("runs") / "april", 1)


def task(folder: Path, number: int) -> Path:
    return folder / "deltas" / f"task-{number:02}.safetensors"


@pytest.mark.slow
def test_show_a_delta(march: Path):
    text = delta("show", task(march, 2))
    header = read_header(task(march, 2))
    for part in (header.before, header.after, "spu: selective parameter update", "task 2", "kB"):
        assert part in text
    for name in header.metadata["classes"]:
        assert name in text
    assert "4, mlp.fc1.weight of each block" in text
    assert "vision_model.encoder.layers.1 204 204 10.0 % " in text
    assert "total 816 816" in text
    assert any(bar in text for bar in "▂▃▄▅▆▇█")
    by_tensor = delta("show", task(march, 2), "--tensors")
    assert "vision_model.encoder.layers.1.mlp.fc1.weight" in by_tensor


@pytest.mark.parametrize("tensors", [False, True])
def test_rows_differ_in_a_narrow_terminal_and_are_whole_in_a_pipe(
    march: Path, monkeypatch: pytest.MonkeyPatch, tensors: bool
):
    """On a real model's numbers: counts of seven digits leave little room for names."""
    words = ["--tensors"] if tensors else []
    end = ".mlp.fc1.weight" if tensors else ""
    header = read_header(task(march, 2))
    for stats in header.change_stats:
        stats.selected, stats.moved, stats.size = 12_345_678, 12_345_678, 123_456_789
    monkeypatch.setattr("retouch.train.run_folder.deltas.headers_in", lambda files: [header])
    names = {}
    for terminal in (True, False):
        console = Console(width=80, force_terminal=terminal, color_system=None, file=io.StringIO())
        monkeypatch.setattr(sys.modules["retouch.cli.delta.command"], "out", console)
        delta("show", task(march, 2), *words)
        text = console.file.getvalue()
        names[terminal] = [line.split()[0] for line in text.splitlines() if "12,345,678" in line]
        assert not terminal or max(map(len, text.splitlines())) <= 80
    every = [f"{t}_model.encoder.layers.{n}{end}" for t in ("vision", "text") for n in (0, 1)]
    assert sorted(names[False]) == sorted(every)
    assert len(set(names[True])) == 4
    assert {name.split("…")[0] for name in names[True]} == {"vision_model", "text_model"}


def test_show_a_run_and_json(march: Path):
    text = delta("show", march)
    assert all(f"task-0{n}.safetensors" in text for n in (1, 2, 3))
    assert "total 2,448 2,448" in text
    facts = delta_json("show", march)["deltas"]
    assert [part["metadata"]["task"] for part in facts] == [1, 2, 3]
    assert facts[0]["bytes"] == task(march, 1).stat().st_size
    layer = facts[1]["tensors"]["text_model.encoder.layers.0.mlp.fc1.weight"]
    assert (layer["shape"], layer["moved"], len(layer["histogram"])) == ([64, 32], 204, 24)


@pytest.mark.slow
def test_apply_and_undo_are_exact_through_folders(model: Path, march: Path, tmp_path: Path):
    """The fingerprint survives being saved and loaded; the order of the files does not matter."""
    mixed = [task(march, n) for n in (3, 1, 2)]
    facts = delta_json("apply", model, *mixed, "-o", tmp_path / "new")
    assert facts["written"] == facts["model"] == str(tmp_path / "new")
    last = read_header(task(march, 3)).after
    assert facts["weights"] == last == weights(tmp_path / "new")
    text = delta("undo", tmp_path / "new", *mixed, "-o", tmp_path / "old")
    assert "Undid 3 deltas" in text
    assert weights(tmp_path / "old") == weights(model)
    saved = [(folder / "model.safetensors").read_bytes() for folder in (model, tmp_path / "old")]
    assert saved[0] == saved[1]
    delta("undo", tmp_path / "new", task(march, 3), "-o", tmp_path / "two")
    assert weights(tmp_path / "two") == read_header(task(march, 2)).after
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_a_run_can_be_given_instead_of_a_model(model: Path, march: Path, tmp_path: Path):
    delta("apply", march, march, "-o", tmp_path / "all")
    twice = ("delta", "apply", tmp_path / "all", march, "-o", tmp_path / "twice")
    assert "nothing to apply: the model has" in " ".join(run(*twice, code=1).stderr.split())
    text = delta("apply", march, task(march, 3), "-o", tmp_path / "last")
    assert f"Applied 1 delta to {march} after its first 2 tasks;" in text
    assert weights(tmp_path / "all") == weights(tmp_path / "last")
    assert delta_json("apply", march, task(march, 1), "-o", tmp_path / "1")["tasks_before"] == 0
    text = delta("apply", march, task(march, 1), "-o", tmp_path / "first")
    assert f"Applied 1 delta to the model before the first task of {march};" in text
    text = delta("apply", model, task(march, 1), "-o", tmp_path / "plain")
    assert "Applied 1 delta; the weights are now" in text
    delta("undo", march, march, "-o", tmp_path / "none")
    assert weights(tmp_path / "none") == weights(model)
    delta("undo", march, task(march, 3), task(march, 2), "-o", tmp_path / "one")
    assert weights(tmp_path / "one") == read_header(task(march, 1)).after


def test_an_earlier_task_is_not_undone_without_the_later_ones(march: Path, tmp_path: Path):
    for files, missing in (
        ([1], "task-02.safetensors, task-03.safetensors"),
        ([2], "task-03.safetensors"),
        ([2, 1], "task-03.safetensors"),
    ):
        deltas = [task(march, n) for n in files]
        text = delta("undo", march, *deltas, "-o", tmp_path / "new", code=1)
        assert f"learned more after {deltas[0]}: undo {missing} as well" in text.replace("\n", " ")
        assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_learned_prompts_are_part_of_the_model(model: Path, tmp_path: Path):
    """L2P adds parameters to the model: the run knows which model it started from."""
    out = teach(model, tmp_path / "run", 0, "l2p")
    delta("apply", out, out, "-o", tmp_path / "new")
    assert weights(tmp_path / "new") == read_header(task(out, 3)).after
    delta("undo", tmp_path / "new", out, "-o", tmp_path / "old")
    assert weights(tmp_path / "old") == read_header(task(out, 1)).before
    text = delta("show", out)
    assert "prompts" in text


@pytest.mark.slow
def test_a_model_of_open_clip(tmp_path: Path):
    base = f"open_clip:tiny@{saved_open_clip(tmp_path / 'base')}"
    clip = load(base)
    snapshot = Snapshot(clip.model, Selection.whole(locate(clip.model)))
    for parameter in locate(clip.model).values():
        parameter.data.mul_(1.5)
    snapshot.delta().save(tmp_path / "d.safetensors")
    facts = delta_json("apply", base, tmp_path / "d.safetensors", "-o", tmp_path / "new")
    assert weights(facts["model"]) == facts["weights"] == fingerprint(clip.model)
    facts = delta_json("undo", facts["model"], tmp_path / "d.safetensors", "-o", tmp_path / "old")
    assert weights(facts["model"]) == weights(base)


@pytest.mark.slow
def test_a_run_that_changed_nothing(model: Path, tmp_path: Path):
    stream = retouch.Stream.split(images("a", 6, 6), images("b", 6, 2), tasks=2)
    retouch.teach(load(str(model)), stream, "frozen", settings=QUICK, out=tmp_path / "run")
    text = delta("show", task(tmp_path / "run", 1))
    assert "none: nothing changes" in text
    delta("show", tmp_path / "run")
    facts = delta_json("apply", model, tmp_path / "run", "-o", tmp_path / "m")
    assert facts["weights"] == weights(model)


@pytest.mark.slow
def test_a_run_with_class_vectors_says_where_they_are(model: Path, tmp_path: Path):
    stream = retouch.Stream.split(images("a", 6, 6), images("b", 6, 2), tasks=2)
    retouch.teach(load(str(model)), stream, "lda", settings=QUICK, out=tmp_path / "run")
    file = tmp_path / "run" / "class-vectors" / "task-01.safetensors"
    assert file.exists()
    text = delta("show", task(tmp_path / "run", 1))
    assert f"nothing changes; what was learned is in {file}" in " ".join(text.split())
    text = delta("apply", model, tmp_path / "run", "-o", tmp_path / "m")
    assert "does not have the class vectors of the run" in text


@pytest.mark.slow
def test_merge_deltas_that_follow_each_other(model: Path, march: Path, tmp_path: Path):
    facts = delta_json("merge", task(march, 2), task(march, 1), "-o", tmp_path / "12.safetensors")
    assert (facts["deltas"], facts["chain"]) == (2, True)
    assert facts["after"] == read_header(task(march, 2)).after
    text = delta("merge", march, "-o", tmp_path / "all.safetensors")
    assert "Merged 3 deltas that follow each other, by sum." in text
    delta("apply", model, tmp_path / "all.safetensors", "-o", tmp_path / "new")
    assert weights(tmp_path / "new") == read_header(task(march, 3)).after
    shown = delta("show", tmp_path / "all.safetensors")
    assert "made of 3 deltas, one after the other" in shown
    assert "unknown for deltas that were merged without their model" in shown
    delta("merge", march, "-o", tmp_path / "known.safetensors", "--base", model)
    assert "unknown" not in delta("show", tmp_path / "known.safetensors")
    largest = delta_json("merge", march, "--how", "magmax", "-o", tmp_path / "largest.safetensors")
    assert largest["before"] == facts["before"]
    assert largest["after"] != read_header(task(march, 3)).after


@pytest.mark.slow
def test_merge_runs_that_start_from_the_same_model(
    model: Path, march: Path, april: Path, tmp_path: Path
):
    file = tmp_path / "deep" / "both.safetensors"
    facts = delta_json("merge", march, april, "--how", "mean", "-o", file)
    assert (facts["deltas"], facts["chain"], facts["how"]) == (2, False, "mean")
    delta("apply", model, file, "-o", tmp_path / "new")
    states = [load(str(place)).model.state_dict() for place in (model, tmp_path / "new")] + [
        open_run(folder).load_task().model.state_dict() for folder in (march, april)
    ]
    for name, base in states[0].items():
        mean = (states[2][name].double() + states[3][name].double()) / 2
        assert (states[1][name].double() - mean).abs().max() < 1e-7, name
        assert base.shape == mean.shape
    about = Delta.load(file).metadata
    assert about["model"] == str(model)
    assert len(about["classes"]) == 6
    # For single files, the model is the one that they name, or the one given.
    pair = [task(march, 1), task(april, 1)]
    delta("merge", *pair, "-o", tmp_path / "named.safetensors")
    delta("merge", *pair, "-o", tmp_path / "given.safetensors", "--base", march)
    assert (tmp_path / "named.safetensors").read_bytes() == (
        tmp_path / "given.safetensors"
    ).read_bytes()


@pytest.mark.slow
def test_tasks_that_merged_runs_share_are_left_out(march: Path, tmp_path: Path):
    clip = open_run(march).load_task(2)
    other = tmp_path / "other"
    shutil.copytree(march, other)
    parameters = locate(clip.model)
    snapshot = Snapshot(clip.model, Selection.whole(parameters))
    for parameter in parameters.values():
        parameter.data.mul_(1.01)
    snapshot.delta().save(task(other, 3))
    facts = delta_json("merge", march, other, "-o", tmp_path / "both.safetensors")
    assert facts["before"] == read_header(task(march, 2)).after
    assert not facts["chain"]
    delta("apply", march, tmp_path / "both.safetensors", "-o", tmp_path / "new")


def test_merge_asks_for_the_model_if_it_needs_it(tmp_path: Path):
    files = []
    for seed, about in enumerate([{}, {"model": str(tmp_path / "gone")}]):
        clip = tiny_clip()
        snapshot = Snapshot(clip.model, Selection.whole(locate(clip.model)))
        for parameter in locate(clip.model).values():
            parameter.data.add_(seed + 1)
        snapshot.delta(about).save(tmp_path / f"{seed}.safetensors")
        files.append(tmp_path / f"{seed}.safetensors")
    out = tmp_path / "both.safetensors"
    text = delta("merge", *files, "-o", out, code=1)
    assert "does not say which model it begins at" in text
    assert "name the model (--base)" in text
    text = delta("merge", *reversed(files), "-o", out, code=1)
    assert "Say where that model is (--base)" in text
    text = delta("merge", *files, "-o", out, "--base", tiny_folder(tmp_path / "m", seed=5), code=1)
    assert "give the model that the deltas begin at" in text
    assert not out.exists()


@pytest.mark.slow
def test_diff(model: Path, march: Path, tmp_path: Path):
    file = tmp_path / "d.safetensors"
    facts = delta_json("diff", model, march, "-o", file)
    assert facts["after"] == read_header(task(march, 3)).after
    assert 816 <= facts["moved"] <= 3 * 816
    assert facts["bytes"] == file.stat().st_size
    delta("apply", model, file, "-o", tmp_path / "new")
    assert weights(tmp_path / "new") == facts["after"]
    text = delta("diff", march, tmp_path / "new", "-o", tmp_path / "none.safetensors")
    assert "Nothing differs" in text
    assert delta_json("diff", model, model, "-o", tmp_path / "none.safetensors")["written"] is None
    assert not (tmp_path / "none.safetensors").exists()
    text = delta("diff", model, "builtin", "-o", tmp_path / "none.safetensors", code=1)
    assert "not of the same architecture" in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show", "{tmp}/none"], "none does not exist"),
        (["show", "{tmp}"], "holds no delta"),
        (["show", "{cut}"], "cut.safetensors is damaged"),
        (["show", "{model}/model.safetensors"], "not a delta written by retouch"),
        (["apply", "{model}", "{one}", "-o", "{march}"], "exists already"),
        (["apply", "{model}", "{two}", "-o", "{tmp}/x"], "task-02.safetensors belongs to weights"),
        (["apply", "{model}", "{one}", "{edited}", "-o", "{tmp}/x"], "does not match its checksum"),
        (["apply", "{model}", "{march}", "{april}", "-o", "{tmp}/x"], "both begin at"),
        (["apply", "no/such/model", "{one}", "-o", "{tmp}/x"], "no folder no/such/model"),
        (["undo", "{model}", "{one}", "-o", "{tmp}/x"], "nothing to undo: the model has"),
        (["undo", "{model}", "{march}", "-o", "{tmp}/x"], "nothing to undo: the model has"),
        (["merge", "{one}", "-o", "{tmp}/x"], "nothing to merge"),
        (["merge", "{one}", "{one}", "-o", "{tmp}/x"], "hold the same deltas; give each of them"),
        (["merge", "{march}", "{march}", "-o", "{tmp}/x"], "hold the same deltas"),
        (["merge", "{march}", "{one}", "-o", "{tmp}/x"], "march continues "),
        (["merge", "{one}", "{march}", "-o", "{tmp}/x"], "alone to merge all that it learned"),
        (["merge", "{one}", "{two}", "-o", "{one}"], "exists already"),
    ],
)
def test_errors_write_nothing(
    words: list[str], complaint: str, model: Path, march: Path, april: Path, tmp_path: Path
):
    content = bytearray(task(march, 2).read_bytes())
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "cut.safetensors").write_bytes(content[:-9])
    content[-1] ^= 1
    (broken / "edited.safetensors").write_bytes(content)
    names = {"tmp": tmp_path, "model": model, "march": march, "april": april}
    files = {"one": task(march, 1), "two": task(march, 2)}
    files |= {name: broken / f"{name}.safetensors" for name in ("cut", "edited")}
    text = delta(*(word.format(**names, **files) for word in words), code=1)
    assert complaint in text
    assert {path.name for path in tmp_path.iterdir()} == {"broken"}


@pytest.mark.slow
def test_import_an_adapter(model: Path, march: Path, tmp_path: Path):
    """What was exported for peft comes back as the same change."""
    run("export", march, "--to", "peft", "-o", tmp_path / "adapter")
    file = tmp_path / "new" / "change.safetensors"
    text = delta("import", tmp_path / "adapter", "--model", model, "-o", file)
    assert f"A Super-Tuning adapter, as a delta for {model}." in text
    header, last = read_header(file), read_header(task(march, 3))
    assert (header.before, header.after) == (read_header(task(march, 1)).before, last.after)
    assert "Super-Tuning (peft)" in delta("show", file)
    step = tmp_path / "step.safetensors"
    one = delta("apply", model, task(march, 1), "-o", tmp_path / "one")
    assert "Applied 1 delta" in one
    second = delta_json(
        "import", tmp_path / "adapter" / "task-02", "--model", tmp_path / "one", "-o", step
    )
    assert second["after"] == read_header(task(march, 2)).after
    assert (second["adapter"], second["named"]) == ("Super-Tuning", None)


@pytest.mark.slow
def test_import_names_what_is_wrong(model: Path, march: Path, tmp_path: Path):
    run("export", march, "--to", "peft", "--task", 1, "-o", tmp_path / "adapter")
    file = tmp_path / "x.safetensors"
    assert "--model" in delta("import", tmp_path / "adapter", "-o", file, code=1)
    assert "no adapter" in delta("import", model, "-o", file, code=1)
    wrong = delta("import", tmp_path / "adapter", "--model", "builtin", "-o", file, code=1)
    assert "does not fit this model" in wrong
    config = tmp_path / "adapter" / "adapter_config.json"
    named = '"base_model_name_or_path": "evil.py:load"'
    config.write_text(config.read_text().replace('"base_model_name_or_path": null', named))
    refused = delta("import", tmp_path / "adapter", "-o", file, code=1)
    assert "is not run unless you name it" in refused
    assert not file.exists()
