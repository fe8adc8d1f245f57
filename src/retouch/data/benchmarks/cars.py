"""Stanford Cars, in both layouts that are in circulation.

The first has `devkit/cars_train_annos.mat` beside `cars_train/` and `cars_test/`; the second has a
single `cars_annos.mat` beside `car_ims/`. Classes are numbered from 1.
"""

from pathlib import Path
from typing import Any

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.benchmarks.matlab import load_mat
from retouch.data.benchmarks.named_splits import coop_split
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore
from retouch.errors import UserError

_ALL_ANNOTATIONS = "cars_annos.mat"
_DEVKIT_META = ("devkit/cars_meta.mat", "car_devkit/devkit/cars_meta.mat")
MARKER_PATHS = (_ALL_ANNOTATIONS, *_DEVKIT_META)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    """The layout that the image folders have: `cars_annos.mat` only numbers those of `car_ims/`."""
    if facts.split == "coop":
        classes = dict(enumerate(facts.classes))
        file = "split_zhou_StanfordCars.json"
        return facts.make_splits(*coop_split(folder, folder, file, lambda _, i: classes[i]))
    annotations, has_images = folder / _ALL_ANNOTATIONS, (folder / "car_ims").is_dir()
    has_devkit = any((folder / meta).is_file() for meta in _DEVKIT_META)
    if has_devkit and not (annotations.is_file() and has_images):
        return _read_devkit(folder, facts)
    if not has_images:
        raise UserError(
            f"{folder} has no car_ims/, whose images cars_annos.mat describes. With cars_train/ "
            "and cars_test/ instead, add the devkit (car_devkit.tgz, unpacked as devkit/) and "
            "cars_test_annos_withlabels.mat, or unpack car_ims.tgz there"
        )
    return _read_all_annotations(annotations, facts)


def _read_all_annotations(file: Path, facts: DatasetFacts) -> Splits:
    content = load_mat(file)
    names, all_cars = content["class_names"], content["annotations"]

    def part(test: int) -> SplitImages:
        cars = [car for car in all_cars if car.test == test]
        return FileStore(file.parent, [car.relative_im_path for car in cars]), _classes(cars, names)

    return facts.make_splits(part(0), part(1))


def _read_devkit(folder: Path, facts: DatasetFacts) -> Splits:
    devkit = next(folder / meta for meta in _DEVKIT_META if (folder / meta).is_file()).parent
    names = load_mat(devkit / "cars_meta.mat")["class_names"]

    def part(images: str, annotations: str) -> SplitImages:
        candidates = (devkit / annotations, folder / annotations)
        file = next((file for file in candidates if file.is_file()), None)
        if file is None:
            raise UserError(f"{folder} has no {annotations}; it belongs in {devkit}")
        cars = load_mat(file)["annotations"]
        nested = folder / images / images  # as Kaggle unpacks it
        root = nested if nested.is_dir() else folder / images
        return FileStore(root, [car.fname for car in cars]), _classes(cars, names)

    return facts.make_splits(
        part("cars_train", "cars_train_annos.mat"),
        part("cars_test", "cars_test_annos_withlabels.mat"),
    )


def _classes(cars: Any, names: Any) -> list[str]:
    return [str(names[getattr(car, "class") - 1]) for car in cars]
