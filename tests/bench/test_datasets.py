"""What cells are run on: images that cannot be read, and whether a data set is complete."""

from pathlib import Path

from bench_for_tests import tiny_bench, tiny_model
from PIL import Image

from retouch.bench import Bench, load_suite
from retouch.bench.cells import Options
from retouch.bench.datasets import BenchData
from retouch.bench.tables.table import tabulate


def test_unreadable_images_are_skipped_without_a_cache(tmp_path: Path, caplog):
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (64, 64), (80 * number, 0, 0)).save(folder / f"{number}.png")
    (tmp_path / "train" / "cat" / "broken.png").write_bytes(b"no image")
    data = BenchData(tiny_model, use_cache=False, skip_bad=True)
    options = Options(datasets=(str(tmp_path),), tasks=1)
    cell = Bench(load_suite("demo"), data, "builtin", Path("x"), options).cells[-1]
    assert len(data.stream(cell).train) == 6
    (said,) = [record.getMessage() for record in caplog.records]
    assert "1 of 7 images skipped" in said


def test_a_part_of_the_images_is_noted(tmp_path: Path):
    (done,) = tiny_bench("demo", tmp_path, ["frozen"]).run()
    assert not done.all_images  # the few pictures of `small`
    assert "not all images" in tabulate(load_suite("demo"), [done]).notes[0]
    done.all_images = True
    assert "not all images" not in tabulate(load_suite("demo"), [done]).notes[0]
    data = BenchData(tiny_model)
    assert data.has_all_images("builtin")
    assert data.has_all_images("/my/photos")
