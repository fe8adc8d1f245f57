"""GTSRB: one folder per class, each with a CSV file, and `GT-final_test.csv` for the test images.

Two training sets are in circulation: `Final_Training` with 39,209 images, and `Training` with
26,640, which the paper used.
"""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.formats.text_files import read_rows
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore
from retouch.errors import UserError

MARKER_PATHS = ("Training", "Final_Training", "GTSRB/Training", "GTSRB/Final_Training")
_TEST_TABLE = "GT-final_test.csv"


def read(folder: Path, facts: DatasetFacts) -> Splits:
    root = folder / "GTSRB" if (folder / "GTSRB").is_dir() else folder
    return facts.make_splits(_read_train(root), _read_test(root))


def _read_train(folder: Path) -> SplitImages:
    candidates = (folder / "Training", folder / "Final_Training" / "Images")
    images = next(candidate for candidate in candidates if candidate.is_dir())
    names, classes = [], []
    for table in sorted(images.glob("*/GT-*.csv")):
        for row in _read_table(table):
            names.append(f"{table.parent.name}/{row['Filename']}")
            classes.append(row["ClassId"])
    if not names:
        raise UserError(f"{images} has no class folders with GT-*.csv; unpack the archive again")
    return FileStore(images, names), classes


def _read_test(folder: Path) -> SplitImages:
    images = folder / "Final_Test" / "Images"
    candidates = [parent / _TEST_TABLE for parent in (folder.parent, folder, images)]
    table = next((candidate for candidate in candidates if candidate.is_file()), None)
    if table is None:
        raise UserError(
            f"{folder} has no {_TEST_TABLE}, which has the classes of the test images; it comes in "
            "a separate archive, GTSRB_Final_Test_GT.zip"
        )
    rows = _read_table(table)
    return FileStore(images, [row["Filename"] for row in rows]), [row["ClassId"] for row in rows]


def _read_table(table: Path) -> list[dict[str, str]]:
    return [row for _, row in read_rows(table, ";")]
