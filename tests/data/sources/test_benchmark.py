"""The metadata of the benchmarks, and those that are not found."""

from pathlib import Path

import pytest

from retouch.data import read_data
from retouch.data.registry import BENCHMARKS
from retouch.errors import UserError


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_missing_benchmark_says_where_to_get_it(name: str, tmp_path: Path):
    with pytest.raises(UserError) as why:
        read_data(name, tmp_path)
    facts = BENCHMARKS[name].facts
    for part in (facts.title, facts.url, str(tmp_path / facts.folders[0]), "RETOUCH_DATA"):
        assert part in str(why.value)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_facts(name: str):
    facts = BENCHMARKS[name].facts
    classes = {"aircraft": 100, "birdsnap": 500, "cars": 196, "cifar100": 100, "cub": 200}
    classes |= {"gtsrb": 43, "imagenet": 1000, "imagenet-raw": 1000, "coco": 80}
    templates = {"aircraft": 2, "cars": 8, "cifar100": 18, "gtsrb": 3}
    templates |= {"imagenet": 80, "imagenet-raw": 80}
    assert len(facts.classes) == classes[name]
    assert len(facts.templates) == templates.get(name, 1)
    assert [facts.label_of(key) for key in facts.classes] == list(range(len(facts.classes)))
    for text in [facts.prompt, *facts.templates]:
        assert text.count("{}") == 1
    if not name.startswith("imagenet"):
        assert len(set(facts.classes.values())) == len(facts.classes)


@pytest.mark.parametrize(
    ("benchmark", "folder"), [("cifar100", "cifar100"), ("imagenet-raw", "imagenet-val-5k")]
)
def test_class_names_match_those_of_the_shared_data(benchmark, folder, shared: Path):
    expected = (shared / "data" / folder / "classnames.txt").read_text().splitlines()
    ours = [n.replace("_", " ") for n in BENCHMARKS[benchmark].facts.classes.values()]
    assert ours == expected
