"""Options of `retouch bench`: each takes effect in every suite, or is refused."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from commands import run
from PIL import Image
from test_bench import bench, tiny_model

from retouch.bench import Bench, Done, load_suite
from retouch.bench import estimate as estimating
from retouch.bench import pareto as curves
from retouch.bench.cell import Options
from retouch.bench.datasets import BenchData
from retouch.bench.estimate import estimate
from retouch.bench.table import tabulate
from retouch.bench.write import write_pareto
from retouch.cli.bench_checks import split_names, split_rates
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import Settings
from retouch.train.cost import work


@pytest.fixture(scope="module")
def field() -> BenchData:
    return BenchData(tiny_model, reference="builtin", small=True)


def cells(suite: str, model: str = "builtin", **options: object) -> list:
    return Bench(load_suite(suite), None, model, Path("x"), Options(**options)).cells


# Learning rates and what else can be chosen.


def test_a_learning_rate_holds_for_every_row_of_a_table():
    made = cells("table1", "openai/clip-vit-base-patch16", lr=(0.25,))
    assert {cell.training.lr for cell in made} == {0.25}
    assert "@" not in made[0].row
    assert made[0].differs == ["lr 0.25 instead of 7.5e-06"]
    assert {cell.training.lr for cell in cells("demo", lr=(0.25,))} == {0.25}
    with pytest.raises(UserError, match=r"--lr 0.1,0.2: every row of table1 is run at one"):
        cells("table1", lr=(0.1, 0.2))


def test_a_pareto_suite_of_ones_own_chooses_its_rates(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: t\nkind: pareto\nlr: [0.5]\nrows: [{name: a, method: er}]\n")
    assert [cell.training.lr for cell in cells(str(file))] == [0.5]
    assert [cell.training.lr for cell in cells(str(file), lr=(0.1, 0.2))] == [0.1, 0.2]
    assert len({cell.training.lr for cell in cells("pareto")}) == 5
    assert len({cell.training.lr for cell in cells("pareto", "x")}) == 5
    file.write_text("title: t\nlr: [0.5]\nrows: [{name: a, method: er}]\n")
    with pytest.raises(UserError, match=r"mine.yaml, lr=\[0.5\] is for a suite of the kind pareto"):
        load_suite(str(file))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("{seed: 3}", "settings.*seed=3.*--seeds"),
        ("{epoch: 3}", "settings.*epoch: there is no such entry"),
        ("{lr: fast}", "settings.*lr='fast'"),
    ],
)
def test_settings_of_a_suite_are_checked_when_it_is_read(
    settings: str, complaint: str, tmp_path: Path
):
    own = tmp_path / "own.yaml"
    row = f"{{name: SPU, method: spu, settings: {settings}}}"
    for text in (
        f"title: T\nsettings: {settings}\nrows: [{{name: SPU, method: spu}}]",
        f"title: T\nrows: [{row}]",
    ):
        own.write_text(text)
        with pytest.raises(UserError, match=complaint):
            load_suite(str(own))


def test_what_is_asked_for_goes_before_the_suite_and_the_suite_before_the_machine(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "title: t\nsettings: {precision: bf16, compile: true}\nrows: [{name: a, method: er}]\n"
    )
    (cell,) = cells(str(file), precision="fp32", compile=False)
    assert (cell.training.precision, cell.training.compile) == ("fp32", False)
    (cell,) = cells(str(file), machine={"precision": "fp32"})
    assert cell.training.precision == "bf16"
    assert cells("demo", machine={"precision": "bf16"})[0].training.precision == "bf16"


EFFICIENCY = "has no effect on efficiency, which counts parameters and trains nothing"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("efficiency --lr 1e-3", f"--lr {EFFICIENCY}"),
        ("efficiency --seeds 1", f"--seeds {EFFICIENCY}"),  # the default, but asked for
        ("efficiency --epochs 2", f"--epochs {EFFICIENCY}"),
        ("efficiency --jobs 2", f"--jobs {EFFICIENCY}"),
        ("efficiency --no-compile", f"--compile {EFFICIENCY}"),
        ("efficiency --datasets builtin,cub", "do not depend on the data set; name one"),
        ("demo --lr fast", "--lr fast: a learning rate is a number above 0"),
        ("demo --lr 0", "--lr 0: a learning rate is a number above 0"),
        ("demo --lr 1e-3,1e-4", "every row of demo is run at one learning rate"),
        ("demo --methods ,", "--methods ',' holds an empty name"),
        ("demo --methods=", "--methods '' holds an empty name"),
        ("demo --datasets cub --quick", "cub has none of those"),
        ("demo --reference builtin", "no row of demo that is run uses images with captions"),
        ("demo --cache x --no-cache", "leave one of them out"),
        ("demo --dry-run --gpus-per-cell 1", "are for --on ray"),
        ("demo --dry-run --on slurm", "--on slurm: say ray"),
    ],
)
def test_an_option_without_effect_is_refused(words: str, complaint: str, tmp_path: Path):
    out = tmp_path / "x"
    done = run("bench", *words.split(), "--model", "builtin", "--out", out, code=1)
    assert complaint in " ".join(done.stderr.split())
    assert not out.exists()


def test_names_count_once():
    assert split_names("--datasets", "cub, gtsrb,cub") == ["cub", "gtsrb"]
    assert split_rates("1e-3,0.001,1e-4") == (1e-3, 1e-4)


def test_skipping_bad_images_without_a_cache(tmp_path: Path):
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (64, 64), (80 * number, 0, 0)).save(folder / f"{number}.png")
    (tmp_path / "train" / "cat" / "broken.png").write_bytes(b"no image")
    field = BenchData(tiny_model, use_cache=False, skip_bad=True)
    (cell,) = cells("demo", datasets=(str(tmp_path),), tasks=1)[-1:]
    assert len(field.stream(cell).train) == 6


def test_deltas_that_were_not_kept_are_missed(field: BenchData, tmp_path: Path):
    made = bench("demo", field, tmp_path, ["frozen"])
    made.run()
    with pytest.raises(UserError, match="was finished without --keep-deltas"):
        replace(made, keep_deltas=True).run()


# Estimates.


def test_an_estimate_takes_one_pass_and_not_a_step_of_every_row(
    field: BenchData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    timed = []
    real = estimating.backward

    def backward(context, batch, keeps):
        timed.append(len(batch.prompt))
        return real(context, batch, keeps)

    monkeypatch.setattr(estimating, "backward", backward)
    made = bench("table1", field, tmp_path)
    began = time.monotonic()
    about = estimate(made)
    assert time.monotonic() - began < 20
    assert (about.cells, len(timed), max(timed)) == (16, 2, 8)
    assert not any(tmp_path.iterdir())


def test_a_row_counts_gradients_only_of_what_it_moves(field: BenchData, tmp_path: Path):
    made = bench("table1", field, tmp_path)
    clip = field.make_model()
    rows = {c.method: estimating.gradients(clip, field.stream(c), c) for c in made.cells}
    first = sum(p.numel() for n, p in clip.model.named_parameters() if n.endswith("fc1.weight"))
    assert rows["frozen"].share == 0
    assert rows["flyp"].share == 1
    assert rows["spu"].share == pytest.approx(first / clip.size)
    assert rows["spu"].delta == pytest.approx(5.2 * first / 10, rel=0.05)
    assert rows["lora-ewc"].share < 0.2
    assert not any(p.grad is not None for p in clip.model.parameters())
    pace = estimating.Throughput(1.0, 0.0)
    speed = estimating.Speed(pace, 2.0)
    cost = {
        c.method: estimating._seconds(made, c, field.stream(c), speed, rows[c.method])
        for c in made.cells
    }
    assert cost["frozen"] < cost["flyp"] < cost["er"] < cost["er+lwf"] < cost["zscl"]
    assert cost["spu"] < cost["er"]


def test_the_work_of_a_run_is_counted(stream: Stream):
    """Three tasks of two classes with 24 images each, in batches of 8: replay doubles the last."""
    method = cells("demo")[2].recipe
    found = work(stream, method, Settings(epochs=2, batch=8), control=stream.test)
    assert found.trained == 24 * 2 + 2 * (24 * 2 * 2)
    assert found.trained_prompts == 3 * 2 * (2 + (2 + 2) + (2 + 4))
    assert (found.judged, found.judged_prompts, found.evaluations) == (48, 12, 4)


def test_a_reference_that_is_missing_shows_in_the_estimate(tmp_path: Path):
    made = bench("table1", BenchData(tiny_model, small=True), tmp_path, ["zscl"])
    with pytest.raises(UserError, match="name some with --reference"):
        estimate(made)


# What a table and a plot say.


def test_only_what_is_a_part_of_the_images_is_called_so(field: BenchData, tmp_path: Path):
    (done,) = bench("demo", field, tmp_path, ["frozen"]).run()
    assert not done.whole  # --quick
    assert "not all images" in tabulate(load_suite("demo"), [done]).notes[0]
    full = replace(field, small=False)
    assert full.is_whole("builtin")
    assert (
        "not all images" not in tabulate(load_suite("demo"), [replace(done, whole=True)]).notes[0]
    )
    assert full.is_whole("/my/photos")


def test_pareto_without_a_control_set_says_what_was_forgotten(field: BenchData, tmp_path: Path):
    done = bench("pareto", field, tmp_path, ["ER"]).run()
    assert "of what it could do before" in _label(done)
    assert json.loads((_written(tmp_path, done)).read_text())["lost"] == "control_drop"
    for row in done[0].results.rows:
        row.control = None
    assert "of the new classes" in _label(done)
    assert curves.areas(done) == {}
    assert curves.points(done)[0].lost == pytest.approx(done[0].results.metrics()["forgetting"])
    assert json.loads((_written(tmp_path, done)).read_text())["lost"] == "forgetting"


def _label(done: list[Done]) -> str:
    return curves.draw(done).axes[0].get_xlabel()


def _written(out: Path, done: list[Done]) -> Path:
    write_pareto(out, done)
    return out / "pareto.json"
