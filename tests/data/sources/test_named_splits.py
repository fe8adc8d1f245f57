"""Splits that are chosen by their name."""

import json
from pathlib import Path

import domain_layouts
import layouts
import pytest
from layouts import locations

from retouch.data import Splits, read_data
from retouch.data.registry import BENCHMARKS, find_benchmark
from retouch.errors import UserError

WITH_SPLITS = {name: b.facts.splits for name, b in BENCHMARKS.items() if b.facts.splits}


def paths(splits: Splits) -> list[set[str]]:
    return [set(locations(images)) for images in splits.train_and_test()]


@pytest.mark.parametrize("name", WITH_SPLITS)
def test_the_first_split_is_the_default(name: str):
    default, *others = WITH_SPLITS[name]
    facts = BENCHMARKS[name].facts
    assert facts.split == default
    assert facts.images == facts.splits[default].images
    for split in others:
        chosen = find_benchmark(f"{name}:{split}")
        assert chosen is not None
        assert chosen.facts.split == split
        assert chosen.facts.images == facts.splits[split].images
        assert chosen.facts.title == f"{facts.title} ({split})"


@pytest.mark.parametrize("name", ["dtd", "eurosat"])
def test_the_default_by_its_name(name: str, tmp_path: Path):
    getattr(domain_layouts, f"write_{name}")(tmp_path)
    default = BENCHMARKS[name].facts.split
    assert paths(read_data(f"{name}:{default}", tmp_path)) == paths(read_data(name, tmp_path))


def test_splits_of_the_same_files_differ(tmp_path: Path):
    domain_layouts.write_eurosat_coop(tmp_path)
    zscl, coop = (paths(read_data(f"eurosat:{split}", tmp_path)) for split in ("zscl", "coop"))
    assert zscl != coop
    assert sum(map(len, zscl)) == 33, "all images"
    assert sum(map(len, coop)) < 33, "CoOp's val is not used"


def test_train_without_val(tmp_path: Path):
    domain_layouts.write_dtd(tmp_path)
    official, zscl = (paths(read_data(f"dtd:{split}", tmp_path)) for split in ("official", "zscl"))
    assert zscl[0] < official[0]
    assert zscl[1] == official[1]


def test_coops_caltech101_has_a_class_less(tmp_path: Path):
    domain_layouts.write_caltech101_coop(tmp_path)
    benchmark = find_benchmark("caltech101:coop")
    assert benchmark is not None
    assert len(benchmark.facts.classes) == 100
    assert "Faces_easy" not in benchmark.facts.classes
    assert len(BENCHMARKS["caltech101"].facts.classes) == 101


def test_an_unknown_split_is_refused():
    with pytest.raises(UserError, match=r"eurosat has no split 'cop'; choose one of eurosat:zscl"):
        read_data("eurosat:cop")
    with pytest.raises(UserError, match=r"MNIST has a single split; write mnist"):
        read_data("mnist:coop")


def test_a_missing_file_of_coop(tmp_path: Path):
    domain_layouts.write_eurosat(tmp_path)
    with pytest.raises(UserError, match=r"eurosat has no split_zhou_EuroSAT.json, .* put it there"):
        read_data("eurosat:coop", tmp_path)


def test_coops_file_beside_the_folder(tmp_path: Path):
    domain_layouts.write_pets_coop(tmp_path)
    expected = paths(read_data("pets:coop", tmp_path))
    (tmp_path / "oxford-iiit-pet" / "split_zhou_OxfordPets.json").rename(
        tmp_path / "split_zhou_OxfordPets.json"
    )
    assert paths(read_data("pets:coop", tmp_path)) == expected


def test_coops_layout_of_sun397(tmp_path: Path):
    """Its folder sun397 has SUN397 and the lists."""
    domain_layouts.write_sun397_coop(tmp_path)
    expected = [len(part) for part in paths(read_data("sun397:coop", tmp_path))]
    (tmp_path / "data" / "sun397").mkdir(parents=True)
    (tmp_path / "SUN397").rename(tmp_path / "data" / "sun397" / "SUN397")
    for name in ("ClassName.txt", "split_zhou_SUN397.json"):
        nested = tmp_path / "data" / "sun397" / "SUN397" / name
        nested.rename(nested.parents[1] / name)
    for split in ("coop", "zscl"):
        splits = paths(read_data(f"sun397:{split}", tmp_path / "data"))
        assert all((tmp_path / path).is_file() for part in splits for path in part)
    assert [len(part) for part in paths(read_data("sun397:coop", tmp_path / "data"))] == expected


@pytest.mark.parametrize("label", [-1, 196, "x", None])
def test_a_label_that_does_not_exist(label: object, tmp_path: Path):
    domain_layouts.write_cars_coop(tmp_path)
    file = tmp_path / "split_zhou_StanfordCars.json"
    content = json.loads(file.read_text())
    content["train"][0][1] = label
    layouts.write_json(file, content)
    with pytest.raises(UserError, match=r"not consistent with each other as those of Stanford"):
        read_data("cars:coop", tmp_path)
