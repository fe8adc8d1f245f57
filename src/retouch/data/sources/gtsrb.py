"""GTSRB: a folder a class with a CSV of semicolons, and `GT-final_test.csv` for the test images.

Two training sets are in the wild: `Final_Training` of 39,209 images, and `Training` of 26,640,
which the paper used.
"""

from pathlib import Path

from retouch.data.image_store import FileStore
from retouch.data.sources.benchmark import Facts, Part
from retouch.data.splits import Splits
from retouch.data.text_files import read_rows
from retouch.errors import UserError

MARKS = ("Training", "Final_Training", "GTSRB/Training", "GTSRB/Final_Training")
_TEST = "GT-final_test.csv"


def read(folder: Path, facts: Facts) -> Splits:
    inner = folder / "GTSRB" if (folder / "GTSRB").is_dir() else folder
    return facts.arrange(_train(inner), _test(inner))


def _train(folder: Path) -> Part:
    images = next(
        f for f in (folder / "Training", folder / "Final_Training" / "Images") if f.is_dir()
    )
    names, classes = [], []
    for table in sorted(images.glob("*/GT-*.csv")):
        for row in _rows(table):
            names.append(f"{table.parent.name}/{row['Filename']}")
            classes.append(row["ClassId"])
    if not names:
        raise UserError(f"{images} has no class folders with GT-*.csv; unpack the archive again")
    return FileStore(images, names), classes


def _test(folder: Path) -> Part:
    images = folder / "Final_Test" / "Images"
    places = (folder.parent, folder, images)
    table = next((p / _TEST for p in places if (p / _TEST).is_file()), None)
    if table is None:
        raise UserError(
            f"{folder} has no {_TEST}, which says what the test images show; it is in an archive "
            "of its own, GTSRB_Final_Test_GT.zip"
        )
    rows = list(_rows(table))
    return FileStore(images, [row["Filename"] for row in rows]), [row["ClassId"] for row in rows]


def _rows(table: Path) -> list[dict[str, str]]:
    return [row for _, row in read_rows(table, ";")]
