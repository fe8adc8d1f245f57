"""The metadata of the benchmarks, and those that are not found."""

import io
from pathlib import Path

import layouts
import pytest
from PIL import Image

from retouch.data import Images, read_data
from retouch.data.registry import BENCHMARKS, find_benchmark
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
    classes |= {"caltech101": 101, "dtd": 47, "eurosat": 10, "flowers102": 102, "food101": 101}
    classes |= {"mnist": 10, "pets": 37, "sun397": 397}
    templates = {"aircraft": 2, "cars": 8, "cifar100": 18, "gtsrb": 3}
    templates |= {"caltech101": 34, "dtd": 8, "eurosat": 3, "sun397": 2}
    templates |= {"imagenet": 80, "imagenet-raw": 80}
    assert len(facts.classes) == classes[name]
    assert len(facts.templates) == templates.get(name, 1)
    assert [facts.label_of(key) for key in facts.classes] == list(range(len(facts.classes)))
    for text in [facts.prompt, *facts.templates]:
        assert text.count("{}") == 1
    if not name.startswith("imagenet"):
        assert len(set(facts.classes.values())) == len(facts.classes)


# As in the tables of MTIL (ZSCL) and of CoOp.
COUNTS = {
    "aircraft:zscl": (3334, 3333),
    "caltech101:zscl": (6941, 1736),
    "cifar100": (50000, 10000),
    "dtd:zscl": (1880, 1880),
    "eurosat:zscl": (21600, 5400),
    "flowers102:zscl": (1020, 6149),
    "food101": (75750, 25250),
    "mnist": (60000, 10000),
    "pets": (3680, 3669),
    "cars": (8144, 8041),
    "sun397:zscl": (87003, 21751),
    "aircraft:coop": (3334, 3333),
    "caltech101:coop": (4128, 2465),
    "cars:coop": (6509, 8041),
    "dtd:coop": (2820, 1692),
    "eurosat:coop": (13500, 8100),
    "flowers102:coop": (4093, 2463),
    "food101:coop": (50500, 30300),
    "pets:coop": (2944, 3669),
    "sun397:coop": (15880, 19850),
}


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(name: str):
    benchmark = find_benchmark(name)
    assert benchmark is not None
    images = benchmark.facts.images
    assert (images["train"], images["test"]) == COUNTS[name]


@pytest.mark.parametrize(
    ("benchmark", "folder"),
    [
        ("cifar100", "cifar100"),
        ("imagenet-raw", "imagenet-val-5k"),
        ("eurosat", "domains/eurosat"),
        ("food101", "domains/food101"),
        ("mnist", "domains/mnist"),
    ],
)
def test_class_names_match_those_of_the_shared_data(benchmark, folder, shared: Path):
    expected = (shared / "data" / folder / "classnames.txt").read_text().splitlines()
    ours = [n.replace("_", " ") for n in BENCHMARKS[benchmark].facts.classes.values()]
    assert ours == expected


def write_shards(folder: Path, names: list[str]) -> None:
    """One image per class in train and in test; the label of an image is its shade of grey."""
    layouts.write_lines(folder / "classnames.txt", names)
    for split in ("train", "test"):
        files = {}
        for label in range(len(names)):
            picture = io.BytesIO()
            Image.new("RGB", (4, 4), (label, label, label)).save(picture, "PNG")
            files |= {f"s{label}.png": picture.getvalue(), f"s{label}.cls": str(label).encode()}
        layouts.write_tar(folder / split / "0.tar", files)


def shades(images: Images | None) -> dict[str, int]:
    """By class, the label that its image had in the shards."""
    assert images is not None
    return {
        images.classes[label]: images.store.image(index).getpixel((0, 0))[0]  # type: ignore[index]
        for index, label in enumerate(images.labels)
    }


def test_shards_in_another_order_are_matched_by_name(tmp_path: Path):
    """CLIP_benchmark's Caltech-101 is sorted by tfds' names and has a class for the background."""
    facts = BENCHMARKS["caltech101"].facts
    ours = list(facts.classes.values())
    names = sorted([*ours, "background"], key=str.lower)
    write_shards(tmp_path / "caltech101", names)
    splits = read_data("caltech101", tmp_path)
    for images in (splits.train, splits.test):
        assert images is not None
        assert images.classes == ours
        assert shades(images) == {name: names.index(name) for name in ours}
        assert any(note.endswith(": left out 1 image of background") for note in images.notes)
        assert any("the split is that of the shards" in note for note in images.notes)


def test_shards_with_other_names_are_matched_by_order(tmp_path: Path):
    names = [f"sign {i}" for i in range(43)]
    write_shards(tmp_path / "gtsrb", names)
    splits = read_data("gtsrb", tmp_path)
    assert list(shades(splits.test).values()) == list(range(43))


def test_shards_that_cannot_be_matched_are_refused(tmp_path: Path):
    ours = list(BENCHMARKS["pets"].facts.classes.values())
    write_shards(tmp_path / "pets", ["tom cat", *reversed(ours[1:])])
    with pytest.raises(UserError, match=r"another order than Oxford-IIIT Pets .*'tom cat'"):
        read_data("pets", tmp_path)


def test_some_classes_of_a_benchmark_are_not_the_benchmark(tmp_path: Path):
    write_shards(tmp_path / "dtd", list(BENCHMARKS["dtd"].facts.classes)[:10])
    with pytest.raises(UserError, match=r"has 10 classes; DTD has 47"):
        read_data("dtd", tmp_path)


def test_shards_have_a_split_of_their_own(tmp_path: Path):
    write_shards(tmp_path / "eurosat", list(BENCHMARKS["eurosat"].facts.classes))
    with pytest.raises(UserError, match=r"has shards, which are split already.*eurosat alone"):
        read_data("eurosat:coop", tmp_path)


@pytest.mark.parametrize(("folder", "classes"), [("dtd10", 10), ("sun23", 23)])
def test_real_subsets_that_are_no_benchmark(folder: str, classes: int, shared: Path):
    """They are read as anybody's shards."""
    images = read_data(shared / "data" / "domains" / folder).evaluation_images()
    assert len(images.classes) == classes
