"""Small data sets in the layouts of the official ones.

Each function writes one layout into a folder, which is where you would unpack the official
archives, and returns what a correct reader finds there: how many images each class has in each
split, by the class's name on disk.
"""

import csv
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from PIL import Image

from retouch.data import Images

Counts = dict[str, dict[str, int]]


def pixels(seed: int, height: int, width: int) -> np.ndarray:
    """More red than green than blue, brighter to the right, with noise that depends on the seed."""
    noise = np.random.default_rng(seed).integers(0, 32, (height, width, 3))
    ramp = np.linspace(0, 63, width).astype(int)[None, :, None]
    return (noise + ramp + np.array([150, 80, 10])).astype(np.uint8)


def picture(seed: int) -> Image.Image:
    """An image 12 to 24 pixels wide and 10 to 20 high."""
    return Image.fromarray(pixels(seed, 10 + seed % 11, 12 + seed % 13))


def encoded(seed: int, image_format: str, **options: Any) -> bytes:
    """An image as the bytes of its file."""
    file = io.BytesIO()
    picture(seed).save(file, image_format, **options)
    return file.getvalue()


def save(path: Path) -> tuple[int, int]:
    """Save an image that depends on folder and name, in the format of the extension; its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = picture(crc32("/".join(path.parts[-2:]).encode()))
    image.save(path)
    return image.size


def write_lines(path: Path, lines: Iterable[str], end: str = "\n") -> None:
    """Text with a line break after every line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + end for line in lines), encoding="utf-8", newline="")


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def alternating(counts: dict[str, int]) -> list[str]:
    """Each class `count` times, alternating, so that the list is not sorted by class."""
    rounds = [(number, key) for key, count in counts.items() for number in range(count)]
    return [key for _, key in sorted(rounds, key=lambda pair: pair[0])]


def by_split(table: dict[str, tuple[int, int]]) -> Counts:
    """From (train, test) counts by class to counts by split and class."""
    train = {key: count for key, (count, _) in table.items()}
    return {"train": train, "test": {key: count for key, (_, count) in table.items()}}


# Variant: family, manufacturer, number of images in train, val and test.
AIRCRAFT = {
    "737-200": ("Boeing 737", "Boeing", 2, 1, 3),
    "737-700": ("Boeing 737", "Boeing", 1, 1, 2),
    "Cessna 172": ("Cessna 172", "Cessna", 1, 3, 2),
    "F/A-18": ("F/A-18", "McDonnell Douglas", 2, 2, 4),
}


def write_aircraft(folder: Path) -> Counts:
    """Lists of a seven-digit image, a space, and a label that may contain spaces and slashes.

    Similar lists have the family and the manufacturer of the same images.
    """
    data = folder / "fgvc-aircraft-2013b" / "data"
    variants: dict[str, dict[str, str]] = {"train": {}, "val": {}, "test": {}}
    boxes = []
    for variant, (_, _, *counts) in AIRCRAFT.items():
        for split, count in zip(variants, counts, strict=True):
            for _ in range(count):
                name = f"{34309 + 98765 * len(boxes):07d}"
                width, height = save(data / "images" / f"{name}.jpg")
                boxes.append(f"{name} 1 1 {width} {height}")
                variants[split][name] = variant
    for split, listed in variants.items():
        write_lines(data / f"images_{split}.txt", listed)
    variants["trainval"] = variants["train"] | variants["val"]
    label_aircraft(data, "variant", "variants", {v: v for v in AIRCRAFT}, variants)
    label_aircraft(data, "family", "families", {v: a[0] for v, a in AIRCRAFT.items()}, variants)
    makers = {v: a[1] for v, a in AIRCRAFT.items()}
    label_aircraft(data, "manufacturer", "manufacturers", makers, variants)
    write_lines(data / "images_box.txt", boxes)
    return {
        "train": {v: train + val for v, (_, _, train, val, _) in AIRCRAFT.items()},
        "test": {v: test for v, (*_, test) in AIRCRAFT.items()},
    }


def label_aircraft(
    data: Path, one: str, many: str, label: dict[str, str], variants: dict[str, dict[str, str]]
) -> None:
    """One level of the labels: the file that lists them, and the lists of labeled images."""
    write_lines(data / f"{many}.txt", sorted(set(label.values())))
    for split, listed in variants.items():
        rows = (f"{name} {label[variant]}" for name, variant in listed.items())
        write_lines(data / f"images_{one}_{split}.txt", rows)


# Common name, scientific name, folder, number of images in train and test: the first four of the
# 500, which are not sorted by name.
BIRDSNAP = [
    ("Cooper's Hawk", "Accipiter cooperii", "Coopers_Hawk", 4, 2),
    ("Northern Goshawk", "Accipiter gentilis", "Northern_Goshawk", 2, 3),
    ("Sharp-shinned Hawk", "Accipiter striatus", "Sharp_shinned_Hawk", 3, 2),
    ("Golden Eagle", "Aquila chrysaetos", "Golden_Eagle", 2, 4),
]
BIRD_PARTS = (
    "back beak belly breast crown forehead left_cheek left_eye left_leg left_wing nape right_cheek "
    "right_eye right_leg right_wing tail throat"
)


def write_birdsnap(folder: Path) -> Counts:
    """Lists of links, many of them dead; get_birdsnap.py downloads the others to download/images.

    Paths are capitalized, but `dir` in species.txt is not. Train is what test_images.txt does not
    list. A file with a wrong MD5 stays in download/temp and does not count.
    """
    root = folder / "birdsnap"
    listed: dict[str, int] = {}
    tests = []
    for species, (_, _, directory, train, test) in enumerate(BIRDSNAP, 1):
        paths = [f"{directory}/{561 + 97 * (len(listed) + i):04d}.jpg" for i in range(train + test)]
        listed |= dict.fromkeys(paths, species)
        tests += paths[train:]
    dead, changed = next(iter(listed)), tests[-1]
    for path in listed.keys() - {dead, changed}:
        save(root / "download" / "images" / path)
    unavailable = root / "download" / "temp" / changed
    unavailable.parent.mkdir(parents=True, exist_ok=True)
    unavailable.write_bytes(encoded(0, "GIF"))
    list_birdsnap(root, listed, tests)
    counts = {
        "train": {common: train for common, _, _, train, _ in BIRDSNAP},
        "test": {common: test for common, _, _, _, test in BIRDSNAP},
        "missing": {"train": 1, "test": 1},
    }
    counts["train"]["Cooper's Hawk"] -= 1
    counts["test"]["Golden Eagle"] -= 1
    return counts


def list_birdsnap(root: Path, listed: dict[str, int], tests: list[str]) -> None:
    """Tab-separated tables with a header; a part of the bird that is not visible is null."""
    rows = ["\t".join(["id", "common", "scientific", "dir"])]
    for species, (common, scientific, directory, *_) in enumerate(BIRDSNAP, 1):
        rows.append("\t".join([str(species), common, scientific, directory.lower()]))
    write_lines(root / "species.txt", rows)
    box = ["bb_x1", "bb_y1", "bb_x2", "bb_y2"]
    parts = [f"{part}_{axis}" for part in BIRD_PARTS.split() for axis in "xy"]
    rows = ["\t".join(["url", "md5", "path", "species_id", *box, *parts])]
    for number, (path, species) in enumerate(listed.items()):
        file = root / "download" / "images" / path
        md5 = hashlib.md5(file.read_bytes() if file.exists() else path.encode()).hexdigest()
        link = f"https://farm7.staticflickr.com/6135/59522493{number:02d}_o.jpg"
        places = ["5", "6", *["null"] * (len(parts) - 2)]
        rows.append("\t".join([link, md5, path, str(species), "1", "1", "11", "9", *places]))
    write_lines(root / "images.txt", rows)
    write_lines(root / "test_images.txt", ["path", *tests])


# Number of images in train and test. Classes are numbered from 1, in the order of class_names.
CARS = {
    "AM General Hummer SUV 2000": (3, 2),
    "Acura RL Sedan 2012": (2, 4),
    "Acura TL Type-S 2008": (4, 3),
    "Ram C/V Cargo Van Minivan 2012": (2, 2),
}
CAR_BOX = {"bbox_x1": 2, "bbox_y1": 1, "bbox_x2": 300, "bbox_y2": 9}


def write_cars(folder: Path) -> Counts:
    """Three archives, devkit, cars_train and cars_test, and a file with the test labels.

    The devkit has annotations of the test images too, but without the class.
    """
    devkit = folder / "devkit"
    save_mat(devkit / "cars_meta.mat", class_names=cells(CARS))
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for split, counts in by_split(CARS).items():
        for number, name in enumerate(alternating(counts), 1):
            file = f"{number:05d}.jpg"
            save(folder / f"cars_{split}" / file)
            rows[split].append(CAR_BOX | {"class": list(CARS).index(name) + 1, "fname": file})
    bare = [{key: row[key] for key in row if key != "class"} for row in rows["test"]]
    save_mat(devkit / "cars_train_annos.mat", annotations=struct_array(rows["train"]))
    save_mat(devkit / "cars_test_annos.mat", annotations=struct_array(bare))
    save_mat(folder / "cars_test_annos_withlabels.mat", annotations=struct_array(rows["test"]))
    return by_split(CARS)


def write_cars_joined(folder: Path) -> Counts:
    """One folder with all images, and one file in which `test` is 0 or 1."""
    rows = []
    for class_id, name in enumerate(CARS, 1):
        for test, count in enumerate(CARS[name]):
            for _ in range(count):
                path = f"car_ims/{len(rows) + 1:06d}.jpg"
                save(folder / path)
                rows.append(
                    {"relative_im_path": path} | CAR_BOX | {"class": class_id, "test": test}
                )
    annotations = struct_array(rows)
    save_mat(folder / "cars_annos.mat", annotations=annotations, class_names=cells(CARS))
    return by_split(CARS)


def save_mat(path: Path, **variables: np.ndarray) -> None:
    """A compressed MATLAB 5 file, as MATLAB writes it."""
    from scipy.io import savemat

    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, variables, do_compression=True)


def cells(names: Iterable[str]) -> np.ndarray:
    """A 1×N cell array of strings."""
    return np.array(list(names), dtype=object)[None]


def struct_array(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """A 1×N struct array; MATLAB stores an integer in as few bytes as possible."""
    array = np.empty((1, len(rows)), dtype=[(name, object) for name in rows[0]])
    for column, row in enumerate(rows):
        array[0, column] = tuple(
            v if isinstance(v, str) else smallest_integers(v) for v in row.values()
        )
    return array


def smallest_integers(value: int | list[int]) -> np.ndarray:
    """A matrix with one row, of the smallest integer type."""
    row = np.atleast_2d(np.array(value, dtype=np.int64))
    return row.astype(np.min_scalar_type(row.max(initial=0)))


# Number of images in train and test of the first four fine classes, and their coarse classes.
CIFAR = {"apple": (3, 2), "aquarium_fish": (2, 3), "baby": (4, 2), "bear": (2, 4)}
CIFAR_COARSE = ["fruit_and_vegetables", "fish", "people", "large_carnivores"]


def write_cifar100(folder: Path) -> Counts:
    """Three Python 2 pickles; a row of `data` is 1024 red values, then green, then blue."""
    root = folder / "cifar-100-python"
    root.mkdir(parents=True, exist_ok=True)
    labels = {"train": "training batch 1 of 1", "test": "testing batch 1 of 1"}
    for split, counts in by_split(CIFAR).items():
        names = alternating(counts)
        fine = [list(CIFAR).index(name) for name in names]
        rows = [pixels(crc32(f"{split}{i}".encode()), 32, 32) for i in range(len(names))]
        batch = {
            "filenames": [f"{name}_s_{i:06d}.png" for i, name in enumerate(names)],
            "batch_label": labels[split],
            "fine_labels": fine,
            "coarse_labels": [sorted(CIFAR_COARSE).index(CIFAR_COARSE[label]) for label in fine],
            "data": np.stack(rows).transpose(0, 3, 1, 2).reshape(len(rows), 3072),
        }
        (root / split).write_bytes(Python2Pickle().dump(batch))
    meta = {"fine_label_names": list(CIFAR), "coarse_label_names": sorted(CIFAR_COARSE)}
    (root / "meta").write_bytes(Python2Pickle().dump(meta))
    return by_split(CIFAR)


class Python2Pickle:
    """Protocol 2 as Python 2 wrote it: its `str` has opcodes that Python 3 reads but never writes.

    With encoding="bytes", such a string is read as bytes. The array is of numpy.core.multiarray.
    """

    def __init__(self) -> None:
        self.memo_size = 0

    def dump(self, value: Any) -> bytes:
        return b"\x80\x02" + self.write(value) + b"."

    def memoize(self) -> bytes:
        """BINPUT or LONG_BINPUT, which follows nearly every value."""
        self.memo_size += 1
        short = self.memo_size < 256
        return (
            b"q" + bytes([self.memo_size]) if short else b"r" + self.memo_size.to_bytes(4, "little")
        )

    def write(self, value: Any) -> bytes:
        if isinstance(value, str):
            return self.string(value.encode())
        if isinstance(value, int):
            return b"K" + bytes([value]) if value < 256 else b"M" + value.to_bytes(2, "little")
        if isinstance(value, list):
            return b"]" + self.memoize() + b"(" + b"".join(map(self.write, value)) + b"e"
        if isinstance(value, dict):
            pairs = (self.write(part) for pair in value.items() for part in pair)
            return b"}" + self.memoize() + b"(" + b"".join(pairs) + b"u"
        return self.array(value)

    def string(self, value: bytes) -> bytes:
        """SHORT_BINSTRING or BINSTRING."""
        size = len(value)
        head = b"U" + bytes([size]) if size < 256 else b"T" + size.to_bytes(4, "little")
        return head + value + self.memoize()

    def array(self, value: np.ndarray) -> bytes:
        """A two-dimensional array of bytes: its constructor, its dtype's constructor, its state."""
        code = b"cnumpy.core.multiarray\n_reconstruct\n" + self.memoize()
        code += b"cnumpy\nndarray\n" + self.memoize() + b"K\x00\x85" + self.memoize()
        code += self.string(b"b") + b"\x87" + self.memoize() + b"R" + self.memoize() + b"(K\x01"
        code += b"".join(map(self.write, value.shape)) + b"\x86" + self.memoize()
        code += b"cnumpy\ndtype\n" + self.memoize() + self.string(b"u1") + b"K\x00K\x01\x87"
        code += self.memoize() + b"R" + self.memoize() + b"(K\x03" + self.string(b"|") + b"NNN"
        code += b"J\xff\xff\xff\xff" * 2 + b"K\x00t" + self.memoize() + b"b\x89"
        return code + self.string(value.tobytes()) + b"t" + self.memoize() + b"b"


# Number of images in train and test. File names have capitals that class names do not have.
CUB = {
    "001.Black_footed_Albatross": (3, 2),
    "002.Laysan_Albatross": (2, 4),
    "003.Sooty_Albatross": (4, 3),
    "004.Groove_billed_Ani": (2, 2),
}


def write_cub(folder: Path) -> Counts:
    """Four lists by the id of the image or the class, from 1; 1 is train and 0 is test.

    attributes.txt is beside the folder, bounding_boxes.txt in it.
    """
    root = folder / "CUB_200_2011"
    images, labels, splits, boxes = [], [], [], []
    for class_id, (name, (train, test)) in enumerate(CUB.items(), 1):
        bird = "_".join(word.capitalize() for word in name[4:].split("_"))
        for split in alternating({"0": test, "1": train}):
            number = len(images) + 1
            file = f"{bird}_{number:04d}_{190 - number}.jpg"
            width, height = save(root / "images" / name / file)
            images.append(f"{number} {name}/{file}")
            labels.append(f"{number} {class_id}")
            splits.append(f"{number} {split}")
            boxes.append(f"{number} 1.0 1.0 {width - 2}.0 {height - 2}.0")
    write_lines(root / "images.txt", images)
    write_lines(root / "image_class_labels.txt", labels)
    write_lines(root / "train_test_split.txt", splits)
    write_lines(root / "bounding_boxes.txt", boxes)
    write_lines(
        root / "classes.txt", (f"{class_id} {name}" for class_id, name in enumerate(CUB, 1))
    )
    write_lines(folder / "attributes.txt", ["1 has_bill_shape::curved_(up_or_down)"])
    return by_split(CUB)


# Number of images in train and test of three of the 43 classes; as text, their keys sort
# differently.
GTSRB = {"0": (3, 2), "2": (2, 4), "14": (4, 3)}
GTSRB_FIELDS = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"


def write_gtsrb(folder: Path) -> Counts:
    """The final training set of 39,209 images and the final test set of 12,630."""
    return signs(folder, folder / "GTSRB" / "Final_Training" / "Images")


def write_gtsrb_fixed(folder: Path) -> Counts:
    """The training set of 26,640 images that torchvision uses, with the same test set."""
    return signs(folder, folder / "GTSRB" / "Training")


def signs(folder: Path, training: Path) -> Counts:
    """Tables with semicolons: one in each class folder, one for test beside the folder GTSRB.

    The archive of the test images has its own table, without the class.
    """
    for key, (count, _) in GTSRB.items():
        class_folder = training / f"{int(key):05d}"
        rows = [
            sign(class_folder / f"{i // 2:05d}_{i % 2:05d}.ppm") + f";{key}" for i in range(count)
        ]
        write_lines(class_folder / f"GT-{int(key):05d}.csv", [GTSRB_FIELDS, *rows], end="\r\n")
    images = folder / "GTSRB" / "Final_Test" / "Images"
    tests = alternating(by_split(GTSRB)["test"])
    rows = [sign(images / f"{i:05d}.ppm") for i in range(len(tests))]
    bare = [GTSRB_FIELDS.removesuffix(";ClassId"), *rows]
    write_lines(images / "GT-final_test.test.csv", bare, end="\r\n")
    rows = [f"{row};{key}" for row, key in zip(rows, tests, strict=True)]
    write_lines(folder / "GT-final_test.csv", [GTSRB_FIELDS, *rows], end="\r\n")
    return by_split(GTSRB)


def sign(path: Path) -> str:
    """Save an image; its name, its size, and the box of the sign."""
    width, height = save(path)
    return f"{path.name};{width};{height};1;1;{width - 2};{height - 2}"


# Classes in the order of their ILSVRC2012_ID, not of their WNIDs: words, number of images in val.
IMAGENET = {
    "n02119789": ("kit fox, Vulpes macrotis", 2),
    "n02100735": ("English setter", 4),
    "n02110185": ("Siberian husky", 3),
    "n02096294": ("Australian terrier", 2),
}
# Their parents in WordNet: words, and the IDs below.
IMAGENET_ABOVE = {
    "n00001740": ("entity", [1002]),
    "n02083346": ("canine, canid", [1, 1003]),
    "n02084071": ("dog, domestic dog, Canis familiaris", [2, 3, 4]),
}


def write_imagenet_folders(folder: Path) -> Counts:
    """The validation images, sorted into one folder per WNID, as most people store them."""
    counts = {wnid: count for wnid, (_, count) in IMAGENET.items()}
    for number, wnid in enumerate(alternating(counts), 1):
        save(folder / "ILSVRC2012" / "val" / wnid / f"ILSVRC2012_val_{number:08d}.JPEG")
    return {"test": counts}


def write_imagenet_flat(folder: Path) -> Counts:
    """The validation images as in the archive; the devkit has one ID per line for them.

    meta.mat has the WNID of each ID; of its N×1 synsets only those without children are classes.
    """
    root = folder / "ILSVRC2012"
    data = root / "ILSVRC2012_devkit_t12" / "data"
    counts = {wnid: count for wnid, (_, count) in IMAGENET.items()}
    truth = []
    for number, wnid in enumerate(alternating(counts), 1):
        save(root / "val" / f"ILSVRC2012_val_{number:08d}.JPEG")
        truth.append(str(list(IMAGENET).index(wnid) + 1))
    write_lines(data / "ILSVRC2012_validation_ground_truth.txt", truth)
    rows = [synset(i, wnid, words, []) for i, (wnid, (words, _)) in enumerate(IMAGENET.items(), 1)]
    for number, (wnid, (words, below)) in enumerate(IMAGENET_ABOVE.items(), 1001):
        rows.append(synset(number, wnid, words, below))
    save_mat(data / "meta.mat", synsets=struct_array(rows).T)
    return {"test": counts}


def synset(number: int, wnid: str, words: str, below: list[int]) -> dict[str, Any]:
    """One row of meta.mat; IDs over 1000 are parents of classes in WordNet and have no images."""
    row = {"ILSVRC2012_ID": number, "WNID": wnid, "words": words, "gloss": f"what {words} is"}
    row |= {"num_children": len(below), "children": below, "wordnet_height": len(below)}
    return row | {"num_train_images": 0 if below else 1300}


# Ids and names; the official ids have gaps, and one category has no object here.
COCO = {1: "person", 18: "dog", 62: "chair", 90: "toothbrush"}
# Objects by image id, each a category id and whether it is a crowd. One image has none.
COCO_OBJECTS = {
    139: [(1, 0), (62, 0), (62, 0)],
    285: [(18, 0), (1, 0), (1, 1)],
    632: [],
    724: [(1, 0), (62, 0)],
}


def write_coco(folder: Path) -> Counts:
    """val2017: a file of objects and a file of captions for the same images."""
    root = folder / "coco"
    images, objects, captions = [], [], []
    for image, inside in COCO_OBJECTS.items():
        name = f"{image:012d}.jpg"
        width, height = save(root / "val2017" / name)
        images.append({"license": 1, "file_name": name, "height": height, "width": width})
        images[-1] |= {"id": image, "coco_url": f"http://images.cocodataset.org/val2017/{name}"}
        objects += [coco_object(image, width, height, i, *about) for i, about in enumerate(inside)]
        for caption in (f"Picture {image}.", f"A picture that is number {image}"):
            captions.append({"image_id": image, "id": len(captions) + 1, "caption": caption})
    shared = {"info": {"year": 2017}, "licenses": [{"id": 1, "name": ""}], "images": images}
    categories = [{"supercategory": "thing", "id": i, "name": name} for i, name in COCO.items()]
    instances = shared | {"annotations": objects, "categories": categories}
    write_json(root / "annotations" / "instances_val2017.json", instances)
    write_json(root / "annotations" / "captions_val2017.json", shared | {"annotations": captions})
    present = [str(o["category_id"]) for o in objects if not o["iscrowd"]]
    return {"test": {key: present.count(key) for key in map(str, COCO) if key in present}}


def coco_object(
    image: int, width: int, height: int, position: int, category: int, crowd: int
) -> dict[str, Any]:
    """Boxes are [x, y, width, height] in pixels; crowds are masks in run lengths."""
    x, y, box_width, box_height = 0.5 + position, 1.25, 5.5, 4.5 + position
    outline: Any = [[x, y, x + box_width, y, x + box_width, y + box_height, x, y + box_height]]
    if crowd:
        outline = {"counts": [height, 4, height * (width - 1) - 4], "size": [height, width]}
    annotation = {
        "segmentation": outline,
        "area": box_width * box_height,
        "iscrowd": crowd,
        "image_id": image,
    }
    number = 900100000000 + image if crowd else 10 * image + position
    return annotation | {
        "bbox": [x, y, box_width, box_height],
        "category_id": category,
        "id": number,
    }


# Number of images in train and test.
OWN = {"golden retriever": (4, 2), "tabby cat": (3, 2), "fire truck": (2, 3)}


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    """A shard: the files of a sample are adjacent and differ only in their extensions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_webdataset(folder: Path) -> Counts:
    """CLIP_benchmark's layout: KEY.cls has the line of the class in classnames.txt, from 0."""
    root = folder / "own"
    write_lines(root / "classnames.txt", OWN)
    templates = ["a photo of a {c}.", "a blurry photo of the {c}."]
    write_lines(root / "zeroshot_classification_templates.txt", templates)
    for split, shards in {"train": 2, "test": 1}.items():
        labels = [str(list(OWN).index(name)) for name in alternating(by_split(OWN)[split])]
        for shard in range(shards):
            files = {}
            for i in np.array_split(range(len(labels)), shards)[shard]:
                files[f"s{i:07d}.cls"] = labels[i].encode()
                seed = crc32(f"{split}{i}".encode())
                files[f"s{i:07d}.webp"] = encoded(seed, "WEBP", lossless=True)
            write_tar(root / split / f"{shard}.tar", files)
        write_lines(root / split / "nshards.txt", [str(shards)])
    return by_split(OWN)


CAPTIONS = [
    "A very typical bus station",
    "<PERSON>, who plays the piano, in a café",
    'a sign that says "open"',
    "two dogs on a beach",
    "night falls over the harbour",
]


def write_captions_webdataset(folder: Path) -> list[str]:
    """img2dataset's layout: shards of KEY.jpg, KEY.json and KEY.txt, without failed downloads."""
    root = folder / "cc12m"
    for shard, captions in enumerate([CAPTIONS[:3], CAPTIONS[3:]]):
        files = {}
        for i, caption in enumerate(captions):
            key = f"{shard:05d}{2 * i:04d}"
            about = {"caption": caption, "url": f"https://example.org/{key}", "key": key}
            about |= {"status": "success", "error_message": None, "exif": "{}"}
            files[f"{key}.jpg"] = encoded(int(key), "JPEG")
            files[f"{key}.json"] = json.dumps(about, indent=4).encode()
            files[f"{key}.txt"] = caption.encode()
        write_tar(root / f"{shard:05d}.tar", files)
        write_json(root / f"{shard:05d}_stats.json", {"count": 2 * len(captions)})
    return CAPTIONS


def write_captions_tsv(folder: Path) -> list[str]:
    """open_clip's layout: tabs, columns filepath and title; paths relative to the table."""
    paths = [f"images/{i // 2}/{i}.jpg" for i in range(len(CAPTIONS))]
    for path in paths:
        save(folder / path)
    rows = [("filepath", "title"), *zip(paths, CAPTIONS, strict=True)]
    write_table(folder / "captions.tsv", rows, delimiter="\t")
    return CAPTIONS


def write_table(path: Path, rows: Iterable[Sequence[str]], delimiter: str) -> None:
    """Values that contain a quote or the delimiter are quoted."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)


def own_photos(folder: Path, split: str) -> list[tuple[str, str]]:
    """Save photos; the path, relative to the folder, and the class of each."""
    counts = by_split(OWN)[split]
    photos = [(f"{split} photos/{i:03d}.jpg", name) for i, name in enumerate(alternating(counts))]
    for path, _ in photos:
        save(folder / path)
    return photos


def write_csv(folder: Path) -> Counts:
    """A table of your own; paths are relative to its folder."""
    rows = [("path", "label", "caption", "split")]
    for split in ("train", "test"):
        photos = own_photos(folder, split)
        rows += [(path, name, f"a {name}, at home", split) for path, name in photos]
    write_table(folder / "photos.csv", rows, delimiter=",")
    return by_split(OWN)


def write_jsonl(folder: Path) -> Counts:
    """One object per line, with no split; paths are relative to its folder."""
    photos = own_photos(folder, "train")
    rows = (json.dumps({"path": path, "label": name}) for path, name in photos)
    write_lines(folder / "photos.jsonl", rows)
    return {"all": by_split(OWN)["train"]}


def write_folders(folder: Path) -> Counts:
    """One folder per class, with no split."""
    for name in OWN:
        for number in range(10):
            ending = ("jpg", "png", "JPG")[number % 3]
            save(folder / "photos" / name / f"IMG_{number:04d}.{ending}")
    return {"all": dict.fromkeys(OWN, 10)}


def write_hf(folder: Path) -> Counts:
    """A DatasetDict of Hugging Face as save_to_disk writes it."""
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(OWN))}
    )
    splits = {}
    for split, counts in by_split(OWN).items():
        names = alternating(counts)
        images = [picture(crc32(f"{split}{i}".encode())) for i in range(len(names))]
        columns = {"image": images, "label": [list(OWN).index(name) for name in names]}
        splits[split] = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(splits).save_to_disk(folder / "hf")
    return by_split(OWN)


def make_folder(folder: Path, classes: dict[str, int], size: int = 20) -> Path:
    """A folder per class, with this many plain images in each; images of a class differ."""
    for label, (name, count) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            color = (40 * label % 256, 30 * number % 256, 99)
            Image.new("RGB", (size, size + number), color).save(folder / name / f"{number}.png")
    return folder


def locations(images: Images) -> list[str]:
    return [images.store.location(i) for i in range(len(images))]
