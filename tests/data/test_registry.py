"""One contract for every source: on small fixtures in the official layouts, and on real data."""

from pathlib import Path

import layouts
import numpy as np
import pytest
from layouts import locations, make_folder
from source_cases import CASES, PREPROCESS, Case, read_case, splits_of

from retouch.data import Images, read_data
from retouch.data.registry import BENCHMARKS, SOURCE_FORMATS, find_benchmark
from retouch.errors import UserError

REAL_COUNTS = {
    "cifar100": (9000, 4000),
    "gtsrb": (5000, 3000),
    "cub": (5994, 5794),
    "imagenet": (0, 5000),
}
REAL_DOMAINS = {
    "caltech101": (1010, 606),
    "eurosat": (2280, 1370),
    "food101": (1818, 1010),
    "mnist": (2500, 1500),
    "pets": (1073, 629),
}


def test_every_source_and_split_has_a_case():
    expected = set(BENCHMARKS)
    for name, benchmark in BENCHMARKS.items():
        expected |= {f"{name}:{split}" for split in list(benchmark.facts.splits)[1:]}
    assert {c.source for c in CASES.values() if not c.source_format} == expected
    assert {c.source_format for c in CASES.values() if c.source_format} == set(SOURCE_FORMATS)


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


def test_contract(case: Case, tmp_path: Path):
    root = tmp_path / "a path with späces"
    root.mkdir()
    written = case.write(root)
    benchmark = None if case.source_format else find_benchmark(case.source)
    facts = benchmark and benchmark.facts
    splits = splits_of(read_case(case, root))
    expected = {s: c for s, c in written.items() if s != "missing"}
    if "all" in expected:
        expected = {"train": expected["all"]}
    assert splits.keys() == expected.keys()
    for split, images in splits.items():
        names = list(facts.classes.values()) if facts else []
        expected_classes = {
            names[facts.label_of(key)] if facts else key: count
            for key, count in expected[split].items()
        }
        counts = np.bincount(images.labels, minlength=len(images.classes)).tolist()
        assert dict(zip(images.classes, counts, strict=True)) == expected_classes
        check_images(images, case.is_grey)
    check_order_and_splits(splits, splits_of(read_case(case, root)))


def check_images(images: Images, is_grey: bool = False) -> None:
    assert len(images) == len(images.store) == len(images.labels) > 0
    assert images.labels.dtype == np.int64
    pixels = images.read(np.arange(len(images)), PREPROCESS)
    assert pixels.shape == (len(images), 8, 8, 3)
    red, green, blue = pixels.mean((0, 1, 2))
    assert (red == green == blue) if is_grey else (red > green > blue), "as fixtures are drawn"
    assert pixels[:, :, 6:].mean() > pixels[:, :, :2].mean(), "and are brighter to the right"
    assert all("{}" in template for template in [*images.templates, images.prompt])


def check_order_and_splits(first: dict[str, Images], again: dict[str, Images]) -> None:
    """Reading again gives the same order; train and test are disjoint."""
    paths = {split: locations(images) for split, images in first.items()}
    assert paths == {split: locations(images) for split, images in again.items()}
    if len(first) == 2:
        assert first["train"].classes == first["test"].classes
        assert not set(paths["train"]) & set(paths["test"])


IN_FIXTURE_ORDER = [
    "cars",
    "cifar100",
    "mnist",
    "mnist-packed",
    "pets",
    "imagenet-flat",
    "imagenet-raw",
    "csv",
    "jsonl",
    "webdataset",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*IN_FIXTURE_ORDER, "huggingface"])
def test_labels_match_the_order_of_the_fixture(name, tmp_path):
    case = CASES[name]
    written = case.write(tmp_path)
    for split, images in splits_of(read_case(case, tmp_path)).items():
        counts = written.get(split) or written["all"]
        names = {} if case.source_format else BENCHMARKS[case.source].facts.classes
        expected_classes = [names.get(key, key) for key in layouts.alternating(counts)]
        assert [images.classes[label] for label in images.labels] == expected_classes


IN_CLASS_FOLDERS = ["cub", "imagenet", "folders", "birdsnap", "gtsrb", "gtsrb-fixed"]
IN_CLASS_FOLDERS += [
    f"{name}{split}"
    for name in ("caltech101", "dtd", "eurosat", "food101", "sun397")
    for split in ("", "-coop")
]


@pytest.mark.parametrize("name", IN_CLASS_FOLDERS)
def test_labels_match_the_folders(name: str, tmp_path: Path):
    case = CASES[name]
    case.write(tmp_path)
    images = read_case(case, tmp_path).train or read_case(case, tmp_path).evaluation_images()
    benchmark = None if case.source_format else find_benchmark(case.source)
    facts = benchmark and benchmark.facts
    for label, location in zip(images.labels, locations(images), strict=True):
        folder = Path(location).parent.name
        if name.startswith("sun397"):
            folder = location.rpartition("SUN397/")[2].partition("/")[2].rpartition("/")[0]
        key = str(int(folder)) if name.startswith("gtsrb") else folder
        expected = list(facts.classes.values())[facts.label_of(key)] if facts else key
        assert images.classes[label] == expected


@pytest.mark.parametrize("name", [*REAL_COUNTS, *REAL_DOMAINS])
def test_contract_on_real_data(name: str, shared: Path):
    root = shared / "data" / ("domains" if name in REAL_DOMAINS else "")
    splits = splits_of(read_data(name, root))
    counts = tuple(len(splits[split]) if split in splits else 0 for split in ("train", "test"))
    assert counts == (REAL_COUNTS | REAL_DOMAINS)[name]
    facts = BENCHMARKS[name].facts
    for images in splits.values():
        assert images.classes == list(facts.classes.values())
        assert images.templates == facts.templates
        assert len(set(images.labels.tolist())) == len(images.classes)
        some = np.random.default_rng(0).permutation(len(images))[:32]
        assert images.read(some, PREPROCESS).std() > 10
    check_order_and_splits(splits, splits_of(read_data(name, root)))


def test_the_root_of_benchmarks(tmp_path: Path, monkeypatch):
    layouts.write_cub(tmp_path)
    monkeypatch.setenv("RETOUCH_DATA", str(tmp_path))
    assert len(read_data("cub").evaluation_images())
    assert len(read_data("cub", tmp_path / "CUB_200_2011").evaluation_images())


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(
        UserError, match=r"cubb: there is no such file or folder.*Did you mean cub\?"
    ):
        read_data("cubb")


def test_a_misspelt_path_is_refused_with_a_suggestion(tmp_path: Path):
    make_folder(tmp_path / "photos", {"a": 1})
    with pytest.raises(UserError, match=r"Did you mean .*/photos\?"):
        read_data(tmp_path / "photo")
    (tmp_path / "photos.zip").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"photos\.zip cannot be read as images with labels"):
        read_data(tmp_path / "photos.zip")
