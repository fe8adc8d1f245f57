"""Food-101: `meta/train.json` and `meta/test.json` list the images of each class."""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.benchmarks.named_splits import coop_split
from retouch.data.formats.text_files import read_json
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore

MARKER_PATHS = ("meta/train.json",)


def read(folder: Path, facts: DatasetFacts) -> Splits:
    images = folder / "images"
    if facts.split == "coop":
        file = "split_zhou_Food101.json"
        return facts.make_splits(
            *coop_split(folder, images, file, lambda path, _: path.split("/")[0])
        )

    def part(split: str) -> SplitImages:
        listed = read_json(folder / "meta" / f"{split}.json")
        rows = [(name, f"{path}.jpg") for name, paths in listed.items() for path in paths]
        return FileStore(images, [path for _, path in rows]), [name for name, _ in rows]

    return facts.make_splits(part("train"), part("test"))
