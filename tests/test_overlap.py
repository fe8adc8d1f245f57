"""Do tasks share weights: the numbers, the figure, the command, and its place on the page."""

import csv
import json
from contextlib import suppress
from hashlib import sha256
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from backbones import BACKBONES
from commands import run as command
from matplotlib.backends.backend_agg import FigureCanvasAgg
from safetensors import safe_open
from test_report import Page
from tiny import images, tiny_clip

from retouch import checksummed
from retouch.analysis.overlap import Overlap, overlap, read_overlap
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import Settings, recipe
from retouch.report import overlap as drawn
from retouch.report import write_report
from retouch.report.analysis_page import FOLDER, LARGEST, read_analyses
from retouch.report.overlap_text import pick, summary
from retouch.sparse import (
    Selection,
    Snapshot,
    SparseIndex,
    locate,
    read_selection,
    select,
)
from retouch.sparse.delta import delta_file
from retouch.sparse.delta.xor_diff import XorDiff
from retouch.train import teach

NAMES = ["vision_model.encoder.layers.0.mlp.fc1.weight", "text_model.encoder.layers.0.fc1.weight"]


def chosen(shape: tuple[int, ...], positions: list[int]) -> SparseIndex:
    return SparseIndex(shape, torch.tensor(sorted(positions)))


def at_random(seed: int, shapes: dict[str, tuple[int, ...]], rate: float = 0.1) -> Selection:
    rng = torch.Generator().manual_seed(seed)
    return select({name: torch.rand(shape, generator=rng) for name, shape in shapes.items()}, rate)


def learned(folder: Path, method: str = "spu", tasks: int = 3, rate: float = 0.1) -> Path:
    stream = Stream.split(images("train", 6, 12), images("test", 6, 2), tasks=tasks)
    way = recipe(method, {"update.rate": rate} if method == "spu" else {})
    teach(tiny_clip(), stream, way, settings=Settings(epochs=1, batch=6, lr=1e-3), out=folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("runs") / "march")


# The numbers


def test_the_definition_by_hand() -> None:
    tasks = [[0, 1, 2, 3], [2, 3, 4, 5], [3, 9]]
    found = overlap(Selection({NAMES[0]: chosen((4, 5), own)}) for own in tasks)
    (layer,) = found.layers
    assert (found.tasks, layer.tower, layer.name, found.whole) == (3, "image", "1", [])
    both = layer.weights
    assert both.shared == [[4, 2, 1], [2, 4, 1], [1, 1, 2]]
    assert (both.overlap(0, 1), both.overlap(0, 2), both.overlap(2, 0)) == (0.5, 0.25, 0.5)
    assert both.jaccard(0, 1) == 2 / 6
    assert (both.by_chance(0, 2), both.by_chance(2, 0)) == (2 / 20, 4 / 20)
    assert both.mean == pytest.approx((0.5 + 0.25 + 0.5 + 0.25 + 0.5 + 0.5) / 6)
    assert both.chance == pytest.approx((4 + 2 + 4 + 2 + 4 + 4) / 6 / 20)
    assert both.by_tasks == [13, 5, 1, 1]
    assert both.once == 5 / 7


def test_it_is_what_sets_say() -> None:
    """Several tensors in a block, sizes that fill no word, a task that lacks a tensor."""
    shapes = {
        "visual.transformer.resblocks.0.mlp.c_fc.weight": (13, 7),
        "visual.transformer.resblocks.0.mlp.c_proj.weight": (7, 13),
        "visual.transformer.resblocks.1.ln_1.bias": (67,),
        "transformer.resblocks.0.mlp.c_fc.weight": (9, 30),
        "text_projection": (6, 6),
    }
    tasks = [at_random(seed, shapes, 0.3) for seed in range(4)]
    tasks[1] = Selection({name: c for name, c in tasks[1].items() if "ln_1" not in name})
    found = overlap(tasks)
    assert [(layer.tower, layer.name) for layer in found.layers] == [
        ("image", "1"),
        ("image", "2"),
        ("text", "1"),
        ("text", "out"),
    ]
    for layer in found.layers:
        sets = [
            {
                (name, int(k))
                for name in layer.tensors
                if name in task
                for k in task[name].index.tolist()  # type: ignore[union-attr]
            }
            for task in tasks
        ]
        assert layer.weights.shared == [[len(a & b) for b in sets] for a in sets]
        assert layer.weights.size == sum(prod(shapes[name]) for name in layer.tensors)
        assert sum(k * n for k, n in enumerate(layer.weights.by_tasks)) == sum(map(len, sets))
    assert found.layers[1].weights.overlap(1, 0) is None
    assert found.layers[1].weights.overlap(0, 1) == 0
    assert found.layers[1].neurons is None


def test_neurons_that_tasks_use() -> None:
    """Two tasks that chose whole neurons, of which they share one; a third that chose evenly."""
    rows = [[0, 1], [1, 2], None]
    shape = (20, 10)
    every = [
        [10 * r + c for r in own for c in range(10)]
        if own
        else [10 * r + r % 10 for r in range(20)]
        for own in rows
    ]
    found = overlap(Selection({NAMES[0]: chosen(shape, own)}) for own in every[:2])
    neurons = found.layers[0].neurons
    assert neurons is not None
    assert neurons.leading.shared == [[2, 1], [1, 2]]
    assert (neurons.leading.mean, neurons.leading.chance) == (0.5, 0.1)
    assert neurons.touched == [17, 2, 1]
    assert neurons.held == 1.0
    assert 0.1 < neurons.held_by_chance < 0.4
    assert neurons.explains == found.layers[0].weights.mean == 0.5
    even = overlap(Selection({NAMES[0]: chosen(shape, own)}) for own in (every[2], every[0]))
    assert even.layers[0].neurons is not None
    assert even.layers[0].neurons.explains == pytest.approx(0.1)


def test_a_task_of_vit_b_16_is_stored_in_less_than_6_mb(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    towers = {"vision_model": (3072, 768), "text_model": (2048, 512)}
    files = []
    for task in range(2):
        changes = {}
        for tower, shape in towers.items():
            for block in range(12):
                size = prod(shape)
                some = np.flatnonzero(rng.random(size, np.float32) < 0.1)
                own = SparseIndex(shape, torch.from_numpy(some))
                change = XorDiff(own, torch.bfloat16, torch.zeros(len(some), dtype=torch.int16))
                changes[f"{tower}.encoder.layers.{block}.mlp.fc1.weight"] = change
        files.append(tmp_path / f"{task}.safetensors")
        delta_file.write(files[-1], changes, {"before": "a", "after": "b"})
    with safe_open(files[0], "np") as file:
        names = file.keys()
        where = [file.get_tensor(name).nbytes for name in names if name.endswith(":where")]
    assert len(where) == 24
    assert 3.5e6 < sum(where) < 6e6
    found = overlap(map(read_selection, files))
    assert len(found.tower("image")) == len(found.tower("text")) == 12
    for layer in found.layers:
        assert layer.weights.factor == pytest.approx(1, abs=0.03)
        assert layer.weights.chance == pytest.approx(0.1, abs=0.002)
        assert layer.neurons is not None
        assert layer.neurons.held == pytest.approx(layer.neurons.held_by_chance, abs=0.003)


# Reading a run


def test_the_positions_of_a_delta_and_no_others(tmp_path: Path) -> None:
    model = tiny_clip().model
    some = select({name: p.detach().abs() for name, p in locate(model).items()}, 0.1)
    file = tmp_path / "d.safetensors"
    Snapshot(model, some).delta().save(file)
    found = read_selection(file)
    assert list(found) == list(some)
    assert all(torch.equal(found[n].index, some[n].index) for n in some)  # type: ignore[arg-type]
    data = bytearray(file.read_bytes())
    data[-3] ^= 1  # of the last tensor's positions or change: the counts are as they were
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"d\.safetensors is damaged"):
        read_selection(file)
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"d\.safetensors is damaged"):
        read_selection(file)


@pytest.mark.parametrize("name", ["open_clip", "transformers dual encoder", "builtin"])
def test_layers_are_those_of_the_model(name: str) -> None:
    clip = BACKBONES[name]()
    parameters = locate(clip.model)
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    found = overlap(at_random(seed, shapes) for seed in range(2))
    for tower in ("image", "text"):
        blocks = clip.blocks[tower]
        assert [layer.name for layer in found.tower(tower)] == [
            str(i + 1) for i in range(len(blocks))
        ]
        for block, layer in zip(blocks, found.tower(tower), strict=True):
            assert all(tensor.startswith(f"{block}.") for tensor in layer.tensors)


def test_what_a_run_chose_is_what_its_deltas_say(run: Path) -> None:
    found = read_overlap(run)
    assert (found.tasks, found.towers, len(found.layers)) == (3, ["image", "text"], 4)
    for layer in found.layers:
        assert layer.weights.chance == pytest.approx(0.1, abs=0.001)
        assert layer.weights.mean > 1.2 * layer.weights.chance  # similar pictures, similar weights


# The command


def test_it_writes_figure_and_data(run: Path, tmp_path: Path) -> None:
    shown = command("overlap", run, "--layers", "2,1").stdout
    assert "image      1" in shown
    assert "10.0 %" in shown
    place = run / "analysis" / "overlap"
    assert sorted(p.name for p in place.iterdir()) == [f"overlap.{e}" for e in sorted(ENDINGS)]
    rows = list(csv.DictReader((place / "overlap.csv").open()))
    found = read_overlap(run)
    assert len(rows) == 4 * 2 * 6
    row = rows[1]
    both = found.layers[0].weights
    assert (row["tower"], row["layer"], row["task"], row["other"]) == ("image", "1", "1", "3")
    assert int(row["shared"]) == both.shared[0][2]
    assert float(row["overlap"]) == pytest.approx(both.overlap(0, 2), abs=1e-6)
    assert float(row["jaccard"]) == pytest.approx(both.jaccard(0, 2), abs=1e-6)
    told = json.loads((place / "overlap.json").read_text())
    assert told["numbers"] == summary(found)
    assert "3 tasks of march" in told["caption"]
    drawing = (place / "overlap.svg").read_text()
    for text in ("Image tower, layer 2", "Text tower, layer 1", "by chance", "mean "):
        assert text in drawing
    command("overlap", run, "--layers", "2,1", "--out", tmp_path)
    for ending in ENDINGS:
        name = f"overlap.{ending}"
        assert (tmp_path / name).read_bytes() == (place / name).read_bytes()


ENDINGS = ("png", "svg", "csv", "json")


def test_json_and_one_tower(run: Path, tmp_path: Path) -> None:
    told = json.loads(
        command("overlap", run, "--tower", "text", "--out", tmp_path, "--json").stdout
    )
    assert {layer["tower"] for layer in told["layers"]} == {"text"}
    assert [Path(file).name for file in told["files"]] == [f"overlap.{e}" for e in ENDINGS]
    drawing = (tmp_path / "overlap.svg").read_text()
    assert "Text tower" in drawing
    assert "Image tower" not in drawing


def test_what_cannot_be_compared_is_said(run: Path, tmp_path: Path) -> None:
    said = command("overlap", run, "--layers", "1,7", code=1).stderr
    assert "the image tower has no layer 7 to show; its layers are 1 to 2" in said
    assert "no list of numbers" in command("overlap", run, "--layers", "first", code=1).stderr
    assert "holds no run" in command("overlap", tmp_path, code=1).stderr
    one = learned(tmp_path / "one", tasks=1)
    assert "has learned 1 task; at least two" in command("overlap", one, code=1).stderr
    everything = learned(tmp_path / "er", "er")
    said = command("overlap", everything, code=1).stderr
    assert "share everything: er lets each of them move all" in said
    assert not (everything / "analysis").exists()
    assert "Looking inside" not in Page(write_report(everything, [everything])).text
    (everything / "deltas" / "task-02.safetensors").unlink()
    said = command("overlap", everything, code=1).stderr
    assert "deltas/task-02.safetensors was not kept" in said
    assert "retouch bench --keep-deltas" in said


# The figure


def deep(image: int, text: int, tasks: int = 2, rate: float = 0.1) -> Overlap:
    shapes = {f"vision_model.layers.{i}.mlp.fc1.weight": (30, 10) for i in range(image)}
    shapes |= {f"text_model.layers.{i}.mlp.fc1.weight": (20, 10) for i in range(text)}
    return overlap(at_random(seed, shapes, rate) for seed in range(tasks))


@pytest.mark.parametrize(
    ("image", "text", "shown"),
    [
        (12, 12, ["image 5", "text 5", "image 10", "text 10"]),
        (24, 12, ["image 5", "text 5", "image 10", "text 10"]),
        (6, 4, ["image 2", "text 2", "image 5", "text 3"]),
        (1, 2, ["image 1", "text 1", "text 2"]),
        (12, 0, ["image 5", "image 10"]),
    ],
)
def test_the_layers_of_the_paper_or_as_deep(image: int, text: int, shown: list[str]) -> None:
    assert [f"{layer.tower} {layer.name}" for layer in pick(deep(image, text))] == shown


@pytest.mark.parametrize("tasks", [2, 20])
def test_every_number_fits_its_cell(tasks: int) -> None:
    """Three digits at most, where tasks share everything."""
    whole = deep(1, 0, tasks).layers[0]
    same = whole.weights.model_copy(update={"shared": [[30] * tasks] * tasks})
    figure = drawn.heat_map(whole.model_copy(update={"weights": same}), 1.0)
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    cell = axes.get_window_extent().width / tasks
    numbers = [text for text in axes.texts if text.get_text() == "100"]
    assert len(numbers) == tasks * (tasks - 1)
    assert numbers[0].get_window_extent().width < cell
    assert cell > 0.25 * figure.dpi


def test_no_text_covers_another_or_leaves_the_figure() -> None:
    found = deep(12, 4, 5)
    figure = drawn.figure(found, pick(found))
    FigureCanvasAgg(figure).draw()
    texts = [t for axes in figure.axes for t in [*axes.texts, axes.xaxis.label, axes.yaxis.label]]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert len(boxes) > 4 * 20
    assert all(figure.bbox.contains(*box.min) and figure.bbox.contains(*box.max) for box in boxes)
    assert {box.count_overlaps(boxes) for box in boxes} == {1}  # itself


def test_very_many_tasks_are_a_picture() -> None:
    figure = drawn.heat_map(deep(2, 0, 40).layers[0], 0.5)
    (axes, _) = figure.axes
    assert len(axes.images) == 1
    assert not [text for text in axes.texts if text.get_text().isdigit()]


# The page


def analysis(run: Path, name: str, told: str, picture: bytes) -> Path:
    folder = run / FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(told)
    with suppress(ValueError):
        content = {**json.loads(told), "picture": sha256(picture).hexdigest()}
        checksummed.write_json(folder / f"{name}.json", content)
    (folder / f"{name}.png").write_bytes(picture)
    return folder


PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


def test_the_page_shows_overlap_and_what_was_made(run: Path) -> None:
    analysis(run, "cam", '{"title": "<i>Cam</i>", "caption": "3 & more", "numbers": {}}', PNG)
    page = Page(write_report(run, [run]))
    assert "Looking inside" in page.text
    means = [100 * layer.weights.mean for layer in read_overlap(run).tower("image")]
    assert f"two tasks share {min(means):.1f} to {max(means):.1f}" in page.text.replace("\xa0", " ")
    assert "<i>Cam</i>" in page.text  # as text
    assert "3 & more" in page.text
    shown = [value for name, value in page.attributes if name == "src" and "image/png" in value]
    assert len(shown) == 1
    assert (run / "plots" / "overlap.svg").exists()
    assert write_report(run, [run]).read_text() == page.source
    assert "Looking inside" not in Page(write_report(run.parent, [run, run])).text


@pytest.mark.parametrize(
    ("told", "picture", "said"),
    [
        ("not json", PNG, "trace.json is damaged"),
        ('{"title": 7}', PNG, "trace.json is damaged"),
        ('{"title": "t"}', b"<svg onload='alert(1)'/>", "trace.png is no picture"),
        ('{"title": "t"}', PNG + b"0" * LARGEST, "trace.png is too large"),
    ],
)
def test_what_is_no_figure_is_named_and_not_shown(
    tmp_path: Path, told: str, picture: bytes, said: str
) -> None:
    analysis(tmp_path, "trace", told, picture)
    (made,) = read_analyses(tmp_path)
    assert said in made.trouble
    assert made.picture == ""


def test_a_figure_outside_of_the_run_is_not_read(tmp_path: Path) -> None:
    folder = analysis(tmp_path / "run", "trace", '{"title": "t"}', PNG)
    assert read_analyses(tmp_path / "run")[0].picture.startswith("data:image/png;base64,")
    (folder / "trace.png").rename(tmp_path / "secret.png")
    assert "trace.png is missing" in read_analyses(tmp_path / "run")[0].trouble
    (folder / "trace.png").symlink_to(tmp_path / "secret.png")
    assert "leads out of the run" in read_analyses(tmp_path / "run")[0].trouble


def test_what_is_damaged_is_named_on_the_page(tmp_path: Path) -> None:
    run = learned(tmp_path / "run", tasks=2)
    analysis(run, "trace", "no json <script>alert(1)</script>", PNG)
    file = run / "deltas" / "task-02.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    page = Page(write_report(run, [run]))
    assert "What tasks share cannot be shown" in page.text
    assert "task-02.safetensors is damaged" in page.text
    assert "trace.json is damaged or was changed by hand" in page.text
    assert "alert" not in page.source
