"""Small data sets in the layouts of the eight that MTIL and X-TAIL add, as `layouts` does it.

Where papers have splits of their own, there is a function for each, by the name of the split.
"""

import gzip
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from layouts import (
    AIRCRAFT,
    CARS,
    Counts,
    alternating,
    by_split,
    pixels,
    save,
    save_mat,
    smallest_integers,
    write_aircraft,
    write_cars,
    write_json,
    write_lines,
)

Entry = tuple[str, int, str]


def zscl_counts(classes: Sequence[str]) -> Counts:
    """How ZSCL's code splits images of these classes, in torchvision's order."""
    size = int(0.8 * len(classes))
    parts = torch.utils.data.random_split(
        list(classes), [size, len(classes) - size], generator=torch.Generator().manual_seed(42)
    )
    counts = {split: Counter(part) for split, part in zip(("train", "test"), parts, strict=True)}
    return {split: {c: count[c] for c in classes} for split, count in counts.items()}


def write_coop_split(
    file: Path, entries: Iterable[Entry], class_of: Callable[[Entry], str]
) -> Counts:
    """CoOp's JSON: lists of path, label and class name; of four images of a class, one is test."""
    lists: dict[str, list[Entry]] = {"train": [], "val": [], "test": []}
    seen: Counter[str] = Counter()
    for entry in entries:
        key = class_of(entry)
        lists[("train", "val", "test", "train")[seen[key] % 4]].append(entry)
        seen[key] += 1
    write_json(file, lists)
    return {s: dict(Counter(class_of(entry) for entry in lists[s])) for s in ("train", "test")}


# Number of images; capitals come first in torchvision's order.
CALTECH101 = {"BACKGROUND_Google": 3, "Faces": 8, "Faces_easy": 8, "accordion": 9, "yin_yang": 10}


def caltech101_images(folder: Path) -> list[str]:
    """Save the images; their paths below 101_ObjectCategories, without the background."""
    root = folder / "caltech101"
    for name, count in CALTECH101.items():
        for number in range(1, count + 1):
            save(root / "101_ObjectCategories" / name / f"image_{number:04d}.jpg")
    (root / "101_ObjectCategories" / "BACKGROUND_Google" / "tmp").write_bytes(b"")
    save_mat(root / "Annotations" / "Faces_2" / "annotation_0001.mat", box_coord=np.eye(2))
    paths = (root / "101_ObjectCategories").glob("*/*.jpg")
    names = (f"{path.parent.name}/{path.name}" for path in paths)
    return sorted(name for name in names if not name.startswith("BACKGROUND"))


def write_caltech101(folder: Path) -> Counts:
    """One folder per class, one of them the background; no split."""
    return zscl_counts([path.split("/")[0] for path in caltech101_images(folder)])


def write_caltech101_coop(folder: Path) -> Counts:
    """CoOp leaves out Faces_easy, numbers the others, and calls Faces "face"."""
    paths = [path for path in caltech101_images(folder) if not path.startswith("Faces_easy")]
    labels = {"Faces": (0, "face"), "accordion": (3, "accordion"), "yin_yang": (99, "yin_yang")}
    entries = [(path, *labels[path.split("/")[0]]) for path in paths]
    file = folder / "caltech101" / "split_zhou_Caltech101.json"
    return write_coop_split(file, entries, lambda entry: entry[0].split("/")[0])


# Number of images in train, val and test of the first partition.
DTD = {"banded": (2, 3, 2), "blotchy": (4, 1, 3), "polka-dotted": (1, 2, 2), "zigzagged": (3, 2, 4)}


def write_dtd(folder: Path, lists: Sequence[str] = ("train", "val")) -> Counts:
    """Lists for ten partitions, three of them here; `lists` are those that are for training."""
    root = folder / "dtd" / "dtd"
    listed: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for name, counts in DTD.items():
        paths = [f"{name}/{name}_{7 * i + 2:04d}.jpg" for i in range(sum(counts))]
        for split, count in zip(listed, counts, strict=True):
            listed[split] += [paths.pop() for _ in range(count)]
    for split, paths in listed.items():
        for path in paths:
            save(root / "images" / path)
        for partition in (1, 2, 10):
            others = sorted(listed[{"train": "test", "test": "val", "val": "train"}[split]])
            chosen = paths if partition == 1 else others
            write_lines(root / "labels" / f"{split}{partition}.txt", chosen)
    write_lines(root / "labels" / "labels_joint_anno.txt", ["banded/banded_0002.jpg banded "])
    (root / "imdb").mkdir()
    (root / "imdb" / "imdb.mat").write_bytes(b"not read")
    train = [path.split("/")[0] for split in lists for path in listed[split]]
    test = [path.split("/")[0] for path in listed["test"]]
    return {"train": dict(Counter(train)), "test": dict(Counter(test))}


def write_dtd_coop(folder: Path) -> Counts:
    write_dtd(folder)
    root = folder / "dtd" / "dtd"
    paths = sorted(f"{p.parent.name}/{p.name}" for p in (root / "images").glob("*/*.jpg"))
    keys = [path.split("/")[0] for path in paths]
    entries = [(path, list(DTD).index(key), key) for path, key in zip(paths, keys, strict=True)]
    file = root / "split_zhou_DescribableTextures.json"
    return write_coop_split(file, entries, lambda entry: entry[2])


# Number of images; numbers in names are not padded, so 10 comes before 2.
EUROSAT = {"AnnualCrop": 12, "Forest": 11, "SeaLake": 10}


def eurosat_images(folder: Path) -> list[str]:
    paths = [f"{name}/{name}_{i}.jpg" for name, n in EUROSAT.items() for i in range(1, n + 1)]
    for path in paths:
        save(folder / "eurosat" / "2750" / path)
    return sorted(paths)


def write_eurosat(folder: Path) -> Counts:
    """One folder per class, no split."""
    return zscl_counts([path.split("/")[0] for path in eurosat_images(folder)])


def write_eurosat_coop(folder: Path) -> Counts:
    names = {"AnnualCrop": (0, "Annual Crop Land"), "Forest": (1, "Forest")}
    names["SeaLake"] = (9, "Sea or Lake")
    entries = [(path, *names[path.split("/")[0]]) for path in eurosat_images(folder)]
    file = folder / "eurosat" / "split_zhou_EuroSAT.json"
    return write_coop_split(file, entries, lambda entry: entry[0].split("/")[0])


# The number of the class: number of images in train, val and test.
FLOWERS102 = {"1": (2, 1, 3), "77": (1, 2, 4), "102": (2, 2, 2)}


def write_flowers102(folder: Path, lists: Sequence[str] = ("train", "val")) -> Counts:
    """Labels and splits as 1×N matrices; images and classes are numbered from 1."""
    root = folder / "flowers-102"
    ids: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    labels: list[str] = []
    for label, counts in FLOWERS102.items():
        for split, count in zip(("test", "val", "train"), reversed(counts), strict=True):
            for _ in range(count):
                labels.append(label)
                ids[split].append(len(labels))
                save(root / "jpg" / f"image_{len(labels):05d}.jpg")
    numbers = [int(label) for label in labels]
    save_mat(root / "imagelabels.mat", labels=smallest_integers(numbers))
    keys = {"train": "trnid", "val": "valid", "test": "tstid"}
    save_mat(root / "setid.mat", **{keys[s]: smallest_integers(ids[s]) for s in ids})
    chosen = {"train": [number for split in lists for number in ids[split]], "test": ids["test"]}
    return {s: dict(Counter(labels[number - 1] for number in chosen[s])) for s in chosen}


def write_flowers102_coop(folder: Path) -> Counts:
    """CoOp numbers the classes from 0."""
    write_flowers102(folder)
    labels = [label for label, counts in FLOWERS102.items() for _ in range(sum(counts))]
    names = {"1": "pink primrose", "77": "passion flower", "102": "blackberry lily"}
    entries = [
        (f"image_{number:05d}.jpg", int(label) - 1, names[label])
        for number, label in enumerate(labels, 1)
    ]
    file = folder / "flowers-102" / "split_zhou_OxfordFlowers.json"
    return write_coop_split(file, entries, lambda entry: str(entry[1] + 1))


# Number of images in train and test.
FOOD101 = {"apple_pie": (4, 2), "cup_cakes": (3, 3), "waffles": (2, 4)}


def write_food101(folder: Path) -> Counts:
    """JSON with the images of each class, without their extension; the same as text."""
    root = folder / "food-101"
    for split, counts in by_split(FOOD101).items():
        numbers = {name: [1005649 + 97 * i for i in range(n)] for name, n in counts.items()}
        prefix = "" if split == "train" else "2"
        listed = {c: [f"{c}/{prefix}{number}" for number in numbers[c]] for c in numbers}
        for path in (path for paths in listed.values() for path in paths):
            save(root / "images" / f"{path}.jpg")
        write_json(root / "meta" / f"{split}.json", dict(reversed(listed.items())))
        lines = (path for paths in listed.values() for path in paths)
        write_lines(root / "meta" / f"{split}.txt", lines)
    write_lines(root / "meta" / "classes.txt", FOOD101)
    write_lines(root / "meta" / "labels.txt", ["Apple pie", "Cup cakes", "Waffles"])
    return by_split(FOOD101)


def write_food101_coop(folder: Path) -> Counts:
    write_food101(folder)
    images = sorted((folder / "food-101" / "images").glob("*/*.jpg"))
    entries = [
        (f"{path.parent.name}/{path.name}", list(FOOD101).index(path.parent.name), path.parent.name)
        for path in images
    ]
    file = folder / "food-101" / "split_zhou_Food101.json"
    return write_coop_split(file, entries, lambda entry: entry[2])


# Number of images in train and test.
MNIST = {"0": (3, 2), "3": (2, 4), "9": (4, 2)}


def write_mnist(folder: Path, packed: bool = False) -> Counts:
    """Big-endian idx files: two zeros, 8 for bytes, the number of dimensions, and their sizes."""
    root = folder / "MNIST" / "raw"
    root.mkdir(parents=True)
    for split, counts in by_split(MNIST).items():
        labels = alternating(counts)
        images = [pixels(crc32(f"{split}{i}".encode()), 28, 28)[..., 0] for i in range(len(labels))]
        prefix = {"train": "train", "test": "t10k"}[split]
        content = {
            f"{prefix}-images-idx3-ubyte": struct.pack(">HBB3I", 0, 8, 3, len(labels), 28, 28)
            + np.stack(images).tobytes(),
            f"{prefix}-labels-idx1-ubyte": struct.pack(">HBBI", 0, 8, 1, len(labels))
            + bytes(map(int, labels)),
        }
        for name, raw in content.items():
            file = root / (f"{name}.gz" if packed else name)
            file.write_bytes(gzip.compress(raw, mtime=0) if packed else raw)
    return by_split(MNIST)


# Number of images in train and test; the official order ignores capitals.
PETS = {"Abyssinian": (2, 3), "american_bulldog": (4, 2), "Bengal": (3, 2), "pug": (2, 4)}
PET_IDS = {"Abyssinian": "1 1 1", "american_bulldog": "2 2 1", "Bengal": "6 1 2", "pug": "26 2 18"}


def write_pets(folder: Path) -> Counts:
    """Lines of an image, its class id, its species and its breed id."""
    root = folder / "oxford-iiit-pet"
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for split, counts in by_split(PETS).items():
        for name in alternating(counts):
            number = sum(line.startswith(name) for rows in lines.values() for line in rows) + 100
            save(root / "images" / f"{name}_{number}.jpg")
            lines[split].append(f"{name}_{number} {PET_IDS[name]}")
    write_lines(root / "annotations" / "trainval.txt", lines["train"])
    write_lines(root / "annotations" / "test.txt", lines["test"])
    header = ["#Image CLASS-ID SPECIES BREED ID", "#SPECIES: 1:Cat 2:Dog"]
    write_lines(root / "annotations" / "list.txt", header + sorted(lines["train"] + lines["test"]))
    return by_split(PETS)


def write_pets_coop(folder: Path) -> Counts:
    """CoOp's class names have no capitals."""
    write_pets(folder)
    images = sorted(p.name for p in (folder / "oxford-iiit-pet" / "images").glob("*.jpg"))
    keys = [name.rpartition("_")[0] for name in images]
    entries = [
        (name, int(PET_IDS[key].split()[0]) - 1, key.lower())
        for name, key in zip(images, keys, strict=True)
    ]
    file = folder / "oxford-iiit-pet" / "split_zhou_OxfordPets.json"
    return write_coop_split(file, entries, lambda entry: entry[0].rpartition("_")[0])


# Number of images.
SUN397 = {"/a/abbey": 10, "/a/apartment_building/outdoor": 9, "/t/theater/indoor_seats": 11}


def sun397_images(folder: Path) -> list[str]:
    """Save the images; their paths below SUN397, sorted."""
    root = folder / "SUN397"
    paths = []
    for name, count in SUN397.items():
        paths += [f"{name[1:]}/sun_{crc32(f'{name}{i}'.encode()):08x}.jpg" for i in range(count)]
    for path in paths:
        save(root / path)
    write_lines(root / "ClassName.txt", SUN397)
    write_lines(root / "README.txt", ["SUN397"])
    return sorted(paths)


def write_sun397(folder: Path) -> Counts:
    """One folder per class below its first letter; some are two levels deep. No split."""
    return zscl_counts(["/".join(path.split("/")[1:-1]) for path in sun397_images(folder)])


def write_sun397_coop(folder: Path) -> Counts:
    """CoOp puts the last folder of a class first: outdoor apartment_building."""
    entries = []
    for path in sun397_images(folder):
        key = "/" + path.rpartition("/")[0]
        words = key.split("/")[2:]
        entries.append((path, list(SUN397).index(key), " ".join(reversed(words))))
    file = folder / "SUN397" / "split_zhou_SUN397.json"
    return write_coop_split(file, entries, lambda entry: "/".join(entry[0].split("/")[1:-1]))


# The official label of each class of `CARS`, from 0.
CAR_LABELS = [0, 1, 3, 173]


def write_cars_coop(folder: Path) -> Counts:
    """CoOp's paths begin with cars_train or cars_test; the year comes first in its names."""
    write_cars(folder)
    entries: list[Entry] = []
    for split, counts in by_split(CARS).items():
        for number, name in enumerate(alternating(counts), 1):
            *words, year = name.split()
            label = CAR_LABELS[list(CARS).index(name)]
            entries.append((f"cars_{split}/{number:05d}.jpg", label, " ".join([year, *words])))
    file = folder / "split_zhou_StanfordCars.json"
    return write_coop_split(file, entries, lambda e: list(CARS)[CAR_LABELS.index(e[1])])


def write_aircraft_train(folder: Path) -> Counts:
    """ZSCL and CoOp train on the official train alone."""
    test = write_aircraft(folder)["test"]
    return {"train": {v: train for v, (_, _, train, _, _) in AIRCRAFT.items()}, "test": test}
