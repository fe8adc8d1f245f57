"""Stanford Cars, in both layouts that are in the wild.

The first has `devkit/cars_train_annos.mat` beside `cars_train/` and `cars_test/`; the second one
`cars_annos.mat` beside `car_ims/`. Classes are counted from 1.
"""

from pathlib import Path
from typing import Any

from retouch.data.image_store import FileStore
from retouch.data.sources.benchmark import Facts, Part
from retouch.data.sources.matlab import load_mat
from retouch.data.splits import Splits
from retouch.errors import UserError

MARKS = ("cars_annos.mat", "devkit/cars_meta.mat", "car_devkit/devkit/cars_meta.mat")


def read(folder: Path, facts: Facts) -> Splits:
    """By the images that are there: `cars_annos.mat` numbers those of `car_ims/` alone."""
    joined, kit = folder / MARKS[0], any((folder / mark).is_file() for mark in MARKS[1:])
    if kit and not (joined.is_file() and (folder / "car_ims").is_dir()):
        return _read_parts(folder, facts)
    if not (folder / "car_ims").is_dir():
        raise UserError(
            f"{folder} has no car_ims/, whose images cars_annos.mat describes. With cars_train/ "
            "and cars_test/ instead, add the devkit (car_devkit.tgz, unpacked as devkit/) and "
            "cars_test_annos_withlabels.mat, or unpack car_ims.tgz there"
        )
    return _read_joined(joined, facts)


def _read_joined(file: Path, facts: Facts) -> Splits:
    found = load_mat(file)
    names, cars = found["class_names"], found["annotations"]

    def part(test: int) -> Part:
        own = [car for car in cars if car.test == test]
        return FileStore(file.parent, [car.relative_im_path for car in own]), _classes(own, names)

    return facts.arrange(part(0), part(1))


def _read_parts(folder: Path, facts: Facts) -> Splits:
    kit = next(folder / m for m in MARKS[1:] if (folder / m).is_file()).parent
    names = load_mat(kit / "cars_meta.mat")["class_names"]

    def part(images: str, annotations: str) -> Part:
        file = next((f / annotations for f in (kit, folder) if (f / annotations).is_file()), None)
        if file is None:
            raise UserError(f"{folder} has no {annotations}; it belongs into {kit}")
        cars = load_mat(file)["annotations"]
        twice = folder / images / images  # as Kaggle unpacks it
        inside = twice if twice.is_dir() else folder / images
        return FileStore(inside, [car.fname for car in cars]), _classes(cars, names)

    return facts.arrange(
        part("cars_train", "cars_train_annos.mat"),
        part("cars_test", "cars_test_annos_withlabels.mat"),
    )


def _classes(cars: Any, names: Any) -> list[str]:
    return [str(names[getattr(car, "class") - 1]) for car in cars]
