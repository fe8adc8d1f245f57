"""The figure of a frontier: what is drawn where, and that nothing covers anything else."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from bench_for_tests import fake_done
from fake_results import evaluated_at_the_end
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from retouch.bench import CellResult
from retouch.bench.pareto.figure import draw
from retouch.bench.tables.write import write_pareto


def made_up(
    datasets: tuple[str, ...] = ("signs", "birds"), seeds: tuple[int, ...] = (1, 2, 3)
) -> list[CellResult]:
    """Two methods at three rates: ER loses 2, 4 and 8 points, SPU 0.1, 0.4 and 1.6."""
    return [
        fake_done(
            f"{name}@{rate}",
            factor * loss + 0.1 * seed,
            40 + 10 * step + seed,
            dataset=dataset,
            seed=seed,
        )
        for name, factor in (("ER", 20), ("SPU", 4))
        for step, (rate, loss) in enumerate(((1e-6, 0.1), (1e-5, 0.2), (1e-4, 0.4)))
        for dataset in datasets
        for seed in seeds
    ]


def markers(axes: Axes) -> dict[tuple[float, float], float]:
    """Where markers are, without rings, and how large."""
    lines = [line for line in axes.lines if line.get_marker() not in ("", "None", None)]
    return {
        tuple(line.get_xydata()[0].round(3).tolist()): line.get_markersize()
        for line in lines
        if line.get_fillstyle() != "none"
    }


def rings(axes: Axes) -> list[list[float]]:
    lines = [line for line in axes.lines if line.get_fillstyle() == "none"]
    return [line.get_xydata()[0].round(3).tolist() for line in lines]


def texts(figure: Figure) -> list[str]:
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return legends + [text.get_text() for text in figure.texts]


def test_a_panel_per_data_set_and_one_legend():
    figure = draw(made_up(("signs", "birds", "/data/a very long name of a folder")))
    assert [axes.get_title(loc="left") for axes in figure.axes][:2] == ["signs", "birds"]
    assert figure.axes[0].get_title(loc="right") == "12.0 % before training"
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert all(axes.get_legend() is None for axes in figure.axes)
    assert texts(figure).count("ER") == 1
    assert {"1e-6", "1e-5", "1e-4", "learning rate", "frontier"} <= set(texts(figure))


def test_markers_are_means_and_bars_span_the_seeds_in_both_directions():
    axes = draw(made_up()).axes[0]
    assert (2.2, 42.0) in markers(axes)  # ER at its lowest rate: 2 + 0.1 · seed, 40 + seed
    paths = [path.vertices.round(3).tolist() for c in axes.collections for path in c.get_paths()]
    assert [[2.1, 42.0], [2.3, 42.0]] in paths
    assert [[2.2, 41.0], [2.2, 43.0]] in paths


def test_the_size_of_a_marker_tells_the_learning_rate():
    sizes = markers(draw(made_up()).axes[0])
    at_rate = [sizes[0.6, 42.0], sizes[1.0, 52.0], sizes[1.8, 62.0]]
    assert at_rate == sorted(at_rate)
    assert at_rate[0] < at_rate[1] < at_rate[2]
    assert sizes[2.2, 42.0] == at_rate[0], "the same for all methods"


def test_the_best_rate_within_the_bound_has_a_ring():
    assert rings(draw(made_up()).axes[0]) == []
    figure = draw(made_up(), max_drop=1)
    assert rings(figure.axes[0]) == [[1.0, 52.0]]
    assert "best while losing at most 1 point" in texts(figure)
    frozen = [fake_done("Frozen@0.1", 0, 12, method="frozen")]
    assert rings(draw(frozen).axes[0]) == [], "there is no rate to choose"


def test_the_caption_names_the_seeds_and_a_logarithmic_axis():
    caption = " ".join(texts(draw(made_up())))
    assert "Means over seeds 1, 2, 3; thin lines span the lowest and the highest." in caption
    assert "logarithmic beyond 1 point" in caption
    assert "missing" not in caption
    unfinished = " ".join(texts(draw(made_up()[:-1])))
    assert "Some seeds are missing at 1 of" in unfinished
    mild = [done for done in made_up(seeds=(7,)) if done.cell.row.startswith("SPU")]
    caption = " ".join(texts(draw(mild)))
    assert "One run each, with seed 7." in caption
    assert "logarithmic" not in caption


def test_without_a_control_set_the_axis_says_so():
    done = made_up()
    assert "of what it could do before" in draw(done).axes[0].get_xlabel()
    for each in done:
        for row in each.results.rows:
            row.control = None
    figure = draw(done)
    assert "of the new classes (no control set)" in figure.axes[0].get_xlabel()
    assert figure.axes[0].get_xscale() == "linear"
    assert rings(figure.axes[0]) == []


@pytest.mark.slow
def test_the_files(tmp_path: Path):
    done = made_up(("signs",))
    assert write_pareto(tmp_path, done) == "control_drop"
    assert (tmp_path / "pareto.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "pareto.svg").read_text()
    content = json.loads((tmp_path / "pareto.json").read_text())
    assert content["lost"] == "control_drop"
    assert set(content["areas"]["signs"]) == {"ER", "SPU", "all together"}
    first = content["points"][0]
    assert (first["name"], first["dataset"], first["seeds"]) == ("ER", "signs", [1, 2, 3])
    assert first["learned_range"] == [41.0, 43.0]
    for each in done:
        evaluated_at_the_end(each.results)
        each.results.rows[0].control = None
    assert write_pareto(tmp_path / "none", done) == "", "what was lost is not known"
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize("panels", [1, 2, 3, 6])
@pytest.mark.parametrize("methods", [2, 11])
def test_nothing_covers_anything_else_or_leaves_the_figure(panels: int, methods: int):
    datasets = tuple(f"data set {i}" for i in range(panels))
    done = made_up(datasets)
    for i in range(methods - 2):
        done += [fake_done(f"a method with number {i}@{10.0**-i}", i, 30 + i, dataset=datasets[0])]
    figure = draw(done)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    parts = [*figure.axes, *figure.legends, *figure.texts]
    boxes = [part.get_tightbbox(renderer) for part in parts]
    for (one, box), (other, second) in combinations(zip(parts, boxes, strict=True), 2):
        both = Bbox.intersection(box, second)
        assert both is None or min(both.width, both.height) < 1, (one, other)
    inside = figure.bbox.padded(8)
    assert all(inside.containsx(box.x0) and inside.containsx(box.x1) for box in boxes)
    assert all(inside.containsy(box.y0) and inside.containsy(box.y1) for box in boxes)
