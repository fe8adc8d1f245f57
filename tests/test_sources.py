"""One contract for every source of labelled images, on small fixtures in the official layouts and
on the real data beside the project."""

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

import layouts
import numpy as np
import pytest
from PIL import Image

from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Splits, Stream, read_data, read_pairs
from retouch.data.registry import BENCHMARKS, SOURCE_FORMATS
from retouch.data.sources import tar_shards
from retouch.data.sources.coco import Objects
from retouch.errors import UserError

PIXELS = Preprocess(size=(8, 8), shortest=8)


class Case(NamedTuple):
    """How a fixture is written, and what it is read as: a name, or a path below the folder."""

    write: Callable[[Path], dict[str, dict[str, int]]]
    source: str
    form: str = ""  # of one's own


CASES = {
    "aircraft": Case(layouts.write_aircraft, "aircraft"),
    "birdsnap": Case(layouts.write_birdsnap, "birdsnap"),
    "cars": Case(layouts.write_cars, "cars"),
    "cars-joined": Case(layouts.write_cars_joined, "cars"),
    "cifar100": Case(layouts.write_cifar100, "cifar100"),
    "cub": Case(layouts.write_cub, "cub"),
    "gtsrb": Case(layouts.write_gtsrb, "gtsrb"),
    "gtsrb-fixed": Case(layouts.write_gtsrb_fixed, "gtsrb"),
    "imagenet": Case(layouts.write_imagenet_folders, "imagenet"),
    "imagenet-flat": Case(layouts.write_imagenet_flat, "imagenet"),
    "imagenet-raw": Case(layouts.write_imagenet_flat, "imagenet-raw"),
    "coco": Case(layouts.write_coco, "coco"),
    "csv": Case(layouts.write_csv, "photos.csv", "table"),
    "jsonl": Case(layouts.write_jsonl, "photos.jsonl", "table"),
    "webdataset": Case(layouts.write_webdataset, "own", "webdataset"),
    "huggingface": Case(layouts.write_hf, "hf", "huggingface"),
    "folders": Case(layouts.write_folders, "photos", "folders"),
}
REAL = {"cifar100": (9000, 4000), "gtsrb": (5000, 3000), "cub": (5994, 5794), "imagenet": (0, 5000)}


def read(case: Case, folder: Path) -> Splits:
    return read_data(folder / case.source if case.form else case.source, folder)


def parts(splits: Splits) -> dict[str, Images]:
    found = {"train": splits.train, "test": splits.test}
    return {split: images for split, images in found.items() if images is not None}


def test_every_source_has_a_case():
    assert {c.source for c in CASES.values() if not c.form} == set(BENCHMARKS)
    assert {c.form for c in CASES.values() if c.form} == set(SOURCE_FORMATS)


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


def test_the_contract(case: Case, tmp_path: Path):
    root = tmp_path / "a path with späces"
    root.mkdir()
    written = case.write(root)
    facts = None if case.form else BENCHMARKS[case.source].facts
    found = parts(read(case, root))
    expected = {s: c for s, c in written.items() if s != "missing"}
    if "all" in expected:
        expected = {"train": expected["all"]}
    assert found.keys() == expected.keys()
    for split, images in found.items():
        names = list(facts.classes.values()) if facts else []
        wanted = {
            names[facts.label_of(key)] if facts else key: count
            for key, count in expected[split].items()
        }
        counts = np.bincount(images.labels, minlength=len(images.classes)).tolist()
        assert dict(zip(images.classes, counts, strict=True)) == wanted
        check_pictures(images)
    check_order_and_parts(found, parts(read(case, root)))


def check_pictures(images: Images) -> None:
    assert len(images) == len(images.store) == len(images.labels) > 0
    assert images.labels.dtype == np.int64
    pixels = images.read(np.arange(len(images)), PIXELS)
    assert pixels.shape == (len(images), 8, 8, 3)
    red, green, blue = pixels.mean((0, 1, 2))
    assert red > green > blue, "the fixtures are drawn so"
    assert pixels[:, :, 6:].mean() > pixels[:, :, :2].mean(), "and are brighter to the right"
    assert all("{}" in template for template in [*images.templates, images.prompt])


def check_order_and_parts(found: dict[str, Images], again: dict[str, Images]) -> None:
    places = {split: where(images) for split, images in found.items()}
    assert places == {split: where(images) for split, images in again.items()}
    if len(found) == 2:
        assert found["train"].classes == found["test"].classes
        assert not set(places["train"]) & set(places["test"])


def where(images: Images) -> list[str]:
    return [images.store.location(i) for i in range(len(images))]


IN_TURNS = ["cars", "cifar100", "imagenet-flat", "imagenet-raw", "csv", "jsonl", "webdataset"]


@pytest.mark.parametrize("name", [*IN_TURNS, "huggingface"])
def test_labels_belong_to_their_pictures_where_the_fixture_takes_classes_in_turns(name, tmp_path):
    case = CASES[name]
    written = case.write(tmp_path)
    for split, images in parts(read(case, tmp_path)).items():
        counts = written.get(split) or written["all"]
        names = {} if case.form else BENCHMARKS[case.source].facts.classes
        wanted = [names.get(key, key) for key in layouts.mixed(counts)]
        assert [images.classes[label] for label in images.labels] == wanted


@pytest.mark.parametrize("name", ["cub", "imagenet", "folders", "birdsnap", "gtsrb", "gtsrb-fixed"])
def test_labels_belong_to_their_pictures_where_a_folder_says_so(name: str, tmp_path: Path):
    case = CASES[name]
    case.write(tmp_path)
    images = read(case, tmp_path).train or read(case, tmp_path).evaluation_images()
    facts = None if case.form else BENCHMARKS[case.source].facts
    for label, place in zip(images.labels, where(images), strict=True):
        folder = Path(place).parent.name
        key = str(int(folder)) if name.startswith("gtsrb") else folder
        named = list(facts.classes.values())[facts.label_of(key)] if facts else key
        assert images.classes[label] == named


def test_labels_of_aircraft_are_those_of_its_lists(tmp_path: Path):
    layouts.write_aircraft(tmp_path)
    lists = (tmp_path / "fgvc-aircraft-2013b" / "data").glob("images_variant_t*.txt")
    lines = {line for file in lists for line in file.read_text().splitlines()}
    for images in parts(read_data("aircraft", tmp_path)).values():
        for label, place in zip(images.labels, where(images), strict=True):
            assert f"{Path(place).stem} {images.classes[label]}" in lines


@pytest.mark.parametrize("name", REAL)
def test_the_contract_on_real_data(name: str, shared: Path):
    found = parts(read_data(name, shared / "data"))
    counts = tuple(len(found[split]) if split in found else 0 for split in ("train", "test"))
    assert counts == REAL[name]
    facts = BENCHMARKS[name].facts
    for images in found.values():
        assert images.classes == list(facts.classes.values())
        assert images.templates == facts.templates
        assert len(set(images.labels.tolist())) == len(images.classes)
        some = np.random.default_rng(0).permutation(len(images))[:32]
        assert images.read(some, PIXELS).std() > 10
    check_order_and_parts(found, parts(read_data(name, shared / "data")))


def test_coco_on_real_data(shared: Path):
    objects = read_data("coco", shared / "data").test
    assert isinstance(objects, Objects)
    said = json.loads((shared / "data" / "coco-val-200" / "instances.json").read_text())
    assert len(objects) == sum(not a["iscrowd"] for a in said["annotations"])
    for i in range(0, len(objects), 97):
        width, height = objects.store.image(i).size
        left, top, wide, high = objects.boxes[i]
        assert 0 <= left < left + wide <= width + 1
        assert 0 <= top < top + high <= height + 1
    some = objects.subset(np.array([3, 1]))
    assert np.array_equal(some.boxes, objects.boxes[[3, 1]])


def test_cars_in_both_layouts_and_names_that_differ_on_disk(tmp_path: Path):
    layouts.write_cars(tmp_path)
    assert "Acura TL Type-S 2008" in read_data("cars", tmp_path).evaluation_images().classes
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(UserError, match=r"no cars_test_annos_withlabels\.mat"):
        read_data("cars", tmp_path)


def test_missing_images_of_birdsnap_are_counted(tmp_path: Path):
    missing = layouts.write_birdsnap(tmp_path)["missing"]
    found = read_data("birdsnap", tmp_path).evaluation_images()
    assert found.notes[0].startswith(f"Birdsnap: {sum(missing.values())} of ")
    assert found.notes[1] == "Birdsnap: 4 of 500 classes found"


def test_raw_names_of_imagenet(tmp_path: Path):
    layouts.write_imagenet_flat(tmp_path)
    raw, plain = (
        read_data(name, tmp_path).evaluation_images() for name in ("imagenet-raw", "imagenet")
    )
    assert raw.labels.tolist() == plain.labels.tolist()
    assert raw.classes != plain.classes


# What CIFAR's pickles may hold.


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


@pytest.mark.parametrize("which", ["train", "meta"])
def test_a_pickle_that_calls_something_is_refused(which, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layouts.write_cifar100(tmp_path)
    file = tmp_path / "cifar-100-python" / which
    file.write_bytes(pickle.dumps({b"data": Bomb(), b"fine_label_names": Bomb()}))
    with pytest.raises(UserError, match=f"{which} is not a file of CIFAR-100 .*wants to call"):
        read_data("cifar100", tmp_path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps([1]), pickle.dumps({b"x": 1})])
def test_a_broken_pickle(content, tmp_path: Path):
    layouts.write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(content)
    with pytest.raises(UserError, match="train is not a file of CIFAR-100"):
        read_data("cifar100", tmp_path)


# Mistakes.


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_that_is_not_there(name: str, tmp_path: Path):
    with pytest.raises(UserError) as why:
        read_data(name, tmp_path)
    facts = BENCHMARKS[name].facts
    for part in (facts.title, facts.url, str(tmp_path / facts.folders[0]), "RETOUCH_DATA"):
        assert part in str(why.value)


def test_where_benchmarks_lie(tmp_path: Path, monkeypatch):
    layouts.write_cub(tmp_path)
    monkeypatch.setenv("RETOUCH_DATA", str(tmp_path))
    assert len(read_data("cub").evaluation_images())
    assert len(read_data("cub", tmp_path / "CUB_200_2011").evaluation_images())


def test_something_that_is_no_data():
    with pytest.raises(UserError, match=r"cubb is an unknown data set or path.*Did you mean cub"):
        read_data("cubb")


def test_a_control_set_has_nothing_to_learn_from(tmp_path: Path):
    layouts.write_imagenet_folders(tmp_path)
    with pytest.raises(UserError, match=r"ImageNet.* has no images to learn from"):
        read_data("imagenet", tmp_path).train_and_test()


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.csv", "path,label\nx.png,\n", "x.png has no label"),
        ("a.csv", "file name,label\nx.png,cat\n", "line 2: has no path of an image.*column `path`"),
        ("a.csv", "path,label,split\nx.png,cat,some\n", "line 2: the split 'some'"),
        ("a.csv", "path,label,split\nx,a,train\ny,a,\n", "a line has no split"),
        ("a.csv", "path,label\n", "lists no images"),
        ("a.jsonl", "{\n", "line 1 is not JSON"),
        ("a.jsonl", "[1]\n", "line 1: write"),
    ],
)
def test_bad_tables(name, text, complaint, tmp_path: Path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_data(tmp_path / name)


def test_bad_shards(tmp_path: Path):
    layouts.write_webdataset(tmp_path)
    own = tmp_path / "own"
    (own / "train" / "nshards.txt").write_text("3")
    with pytest.raises(UserError, match=r"has 2 shards, but its nshards\.txt says 3"):
        read_data(own)
    (own / "train" / "nshards.txt").unlink()
    whole = (own / "train" / "1.tar").read_bytes()
    (own / "train" / "1.tar").write_bytes(b"no tar at all" * 60)
    with pytest.raises(UserError, match=r"1.tar cannot be read as a tar file"):
        read_data(own)
    (own / "train" / "1.tar").write_bytes(whole)
    (own / "classnames.txt").write_text("only one\n")
    with pytest.raises(
        UserError, match=r"\.cls says '.'; it must be the number of a class, 0 to 0"
    ):
        read_data(own)
    layouts.write_tar(own / "train" / "1.tar", {"a.webp": b"x", "b.cls": b"0"})
    with pytest.raises(UserError, match=r"a.webp has no a.cls beside it"):
        read_data(own)


@pytest.mark.parametrize("kind", ["USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT"])
def test_files_of_a_tar_are_found_as_tarfile_finds_them(kind: str, tmp_path: Path):
    path = tmp_path / "0.tar"
    long = "a/" * 70 + "long.webp"
    with tarfile.open(path, "w", format=getattr(tarfile, kind)) as tar:
        for name in ("0.webp", "in/0.cls", "empty.webp", long, "ö.webp", "link", "folder", "z.cls"):
            member = tarfile.TarInfo(name)
            member.type = {"link": tarfile.SYMTYPE, "folder": tarfile.DIRTYPE}.get(name, b"0")
            content = b"x" * (0 if member.type != b"0" or name == "empty.webp" else 700)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar if m.isfile()]
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as there:
        assert list(tar_shards._files(there)) == expected
    assert len(expected) == 6


@pytest.mark.parametrize("length", [0, 100, 1024, 3000])
def test_half_a_shard_is_said(length: int, tmp_path: Path):
    layouts.write_tar(tmp_path / "0.tar", {"0.webp": bytes(2000), "0.cls": b"0"})
    whole = (tmp_path / "0.tar").read_bytes()
    (tmp_path / "0.tar").write_bytes(whole[:length])
    with pytest.raises(UserError, match=r"0.tar(: 0.webp has no| cannot be read as a tar)"):
        tar_shards.scan_shards([tmp_path / "0.tar"], "cls")


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path: Path):
    for number in (0, 2, 10):
        files = {f"{number}.cls": b"0", f"{number}.png": layouts.encoded(number, "PNG")}
        layouts.write_tar(tmp_path / "test" / f"{number}.tar", files)
    (tmp_path / "classnames.txt").write_text("thing\n")
    found = read_data(tmp_path).evaluation_images()
    assert [Path(place.split(":")[0]).stem for place in where(found)] == ["0", "2", "10"]


def test_a_saved_data_set_without_labels(tmp_path: Path):
    import datasets

    datasets.Dataset.from_dict({"a": [1]}).save_to_disk(tmp_path / "d")
    with pytest.raises(UserError, match="no column of images, only a; cast one"):
        read_data(tmp_path / "d")


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the tries
    with pytest.raises(UserError, match="hf:nobody/nothing cannot be loaded"):
        read_data("hf:nobody/nothing")


# Class order, captions and pairs.


def test_the_order_of_the_classes_is_a_list_or_a_seed(tmp_path: Path):
    layouts.write_cub(tmp_path)
    train, test = read_data("cub", tmp_path).train_and_test()
    names = train.classes[::-1]
    stream = Stream.split(train, test, tasks=2, order=names)
    assert stream.names(stream.classes) == names


def test_captions_take_the_place_of_prompts(tmp_path: Path):
    for name in ("1.png", "2.png", "3.png", "4.png"):
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    rows = "1.png,cat,a cat asleep\n2.png,cat,\n3.png,dog,my dog\n4.png,cat,a cat asleep\n"
    (tmp_path / "own.csv").write_text("path,label,caption\n" + rows)
    images = read_data(tmp_path / "own.csv").evaluation_images()
    texts, which = images.texts(np.arange(4))
    assert [texts[w] for w in which] == ["a cat asleep", "a photo of cat", "my dog", "a cat asleep"]
    assert len(texts) == 3
    texts, which = images.subset(np.array([2, 1])).texts(np.arange(2))
    assert [texts[w] for w in which] == ["my dog", "a photo of cat"]


@pytest.mark.parametrize(
    ("write", "place"),
    [
        (layouts.write_captions_webdataset, "cc12m"),
        (layouts.write_captions_tsv, "captions.tsv"),
    ],
)
def test_images_with_captions(write, place, tmp_path: Path):
    captions = write(tmp_path)
    pairs = read_pairs(tmp_path / place)
    assert pairs.texts(np.arange(len(pairs))) == captions
    assert pairs.read(np.array([4, 0]), PIXELS).shape == (2, 8, 8, 3)
    assert len({pairs.store.location(i) for i in range(len(pairs))}) == len(captions)


def test_captions_of_coco(tmp_path: Path, shared: Path):
    layouts.write_coco(tmp_path)
    pairs = read_pairs(tmp_path / "coco")
    assert pairs.texts(np.array([0, 1])) == ["Picture 139.", "A picture that is number 139"]
    real = read_pairs(shared / "data" / "coco-val-200")
    assert len(real) >= 1000
    assert real.read(np.array([7]), PIXELS).std() > 10


def test_no_captions(tmp_path: Path):
    with pytest.raises(UserError, match="has no images with captions"):
        read_pairs(tmp_path)
    layouts.write_jsonl(tmp_path)
    with pytest.raises(UserError, match="has no caption"):
        read_pairs(tmp_path / "photos.jsonl")


# The facts.


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_facts_of_a_benchmark(name: str):
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
def test_the_names_agree_with_those_beside_the_project(benchmark, folder, shared: Path):
    said = (shared / "data" / folder / "classnames.txt").read_text().splitlines()
    ours = [n.replace("_", " ") for n in BENCHMARKS[benchmark].facts.classes.values()]
    assert ours == said
