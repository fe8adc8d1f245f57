"""The same images with the same labels as torchvision's readers, which published numbers use."""

from pathlib import Path
from typing import Any

import domain_layouts
import numpy as np
import pytest
import torch
from layouts import locations

from retouch.data import Images, read_data
from retouch.data.registry import BENCHMARKS
from retouch.torchvision_compat import patch_torchvision

pytestmark = pytest.mark.slow


@pytest.fixture
def datasets() -> Any:
    pytest.importorskip("scipy")
    patch_torchvision()
    return pytest.importorskip("torchvision.datasets")


def samples(images: Images) -> list[tuple[str, str]]:
    """Path and class of each image."""
    classes = [images.classes[label] for label in images.labels]
    return list(zip(locations(images), classes, strict=True))


def named(source: str, rows: list[tuple[Path, str]]) -> list[tuple[str, str]]:
    """torchvision's samples, each with the name that we give to its class."""
    facts = BENCHMARKS[source.partition(":")[0]].facts
    names = list(facts.classes.values())
    return [(str(path), names[facts.label_of(key)]) for path, key in rows]


def rows_of(dataset: Any, keys: list[str] | None = None) -> list[tuple[Path, str]]:
    """Path and class of the samples of a data set that lists its files."""
    keys = keys or dataset.classes
    pairs = zip(dataset._image_files, dataset._labels, strict=True)
    return [(path, keys[label]) for path, label in pairs]


def check(name: str, root: Path, train: list[Any], test: list[Any]) -> None:
    """Both parts are as in torchvision, and in the same order."""
    ours = [samples(images) for images in read_data(name, root).train_and_test()]
    assert ours == [named(name, train), named(name, test)]


def test_dtd_as_in_zscl(datasets: Any, tmp_path: Path):
    domain_layouts.write_dtd(tmp_path)
    train, test = (rows_of(datasets.DTD(tmp_path, split=split)) for split in ("train", "test"))
    check("dtd:zscl", tmp_path, train, test)


def test_flowers102_as_in_zscl(datasets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datasets.Flowers102, "_check_integrity", lambda _: True)  # checksums
    domain_layouts.write_flowers102(tmp_path)
    keys = [str(number) for number in range(1, 103)]
    train, test = (
        rows_of(datasets.Flowers102(tmp_path, split=split), keys) for split in ("train", "test")
    )
    check("flowers102:zscl", tmp_path, train, test)


def test_food101(datasets: Any, tmp_path: Path):
    domain_layouts.write_food101(tmp_path)
    train, test = (rows_of(datasets.Food101(tmp_path, split=split)) for split in ("train", "test"))
    check("food101", tmp_path, train, test)


def test_pets(datasets: Any, tmp_path: Path):
    domain_layouts.write_pets(tmp_path)
    keys = list(BENCHMARKS["pets"].facts.classes)
    train, test = (
        [(path, keys[label]) for path, label in zip(dataset._images, dataset._labels, strict=True)]
        for dataset in (datasets.OxfordIIITPet(tmp_path, split=s) for s in ("trainval", "test"))
    )
    check("pets", tmp_path, train, test)


def test_mnist(datasets: Any, tmp_path: Path):
    domain_layouts.write_mnist(tmp_path)
    splits = read_data("mnist", tmp_path)
    for images, is_train in ((splits.train, True), (splits.test, False)):
        theirs = datasets.MNIST(tmp_path, train=is_train)
        assert images is not None
        assert [int(images.classes[label]) for label in images.labels] == theirs.targets.tolist()
        for index in range(len(theirs)):
            assert np.array_equal(images.store.image(index).convert("L"), theirs[index][0])


def caltech101_rows(dataset: Any) -> list[tuple[Path, str]]:
    folder = Path(dataset.root) / "101_ObjectCategories"
    keys = [dataset.categories[label] for label in dataset.y]
    pairs = zip(keys, dataset.index, strict=True)
    return [(folder / key / f"image_{number:04d}.jpg", key) for key, number in pairs]


def eurosat_rows(dataset: Any) -> list[tuple[Path, str]]:
    return [(Path(path), dataset.classes[label]) for path, label in dataset.samples]


def sun397_rows(dataset: Any) -> list[tuple[Path, str]]:
    """Sorted: torchvision has them in the order of the file system."""
    return sorted(rows_of(dataset))


@pytest.mark.parametrize(
    ("name", "class_name", "rows"),
    [
        ("caltech101", "Caltech101", caltech101_rows),
        ("eurosat", "EuroSAT", eurosat_rows),
        ("sun397", "SUN397", sun397_rows),
    ],
)
def test_zscls_random_split(name: str, class_name: str, rows: Any, datasets: Any, tmp_path: Path):
    getattr(domain_layouts, f"write_{name}")(tmp_path)
    all_rows = named(name, rows(getattr(datasets, class_name)(tmp_path)))
    size = int(0.8 * len(all_rows))
    train, test = torch.utils.data.random_split(
        all_rows, [size, len(all_rows) - size], generator=torch.Generator().manual_seed(42)
    )
    ours = [set(samples(images)) for images in read_data(name, tmp_path).train_and_test()]
    assert ours == [set(train), set(test)]
