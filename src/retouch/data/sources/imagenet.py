"""ImageNet-1k's validation images: a folder a class, or flat with the devkit's ground truth."""

from pathlib import Path

from retouch.data.image_store import FileStore
from retouch.data.sources.benchmark import Facts, Part
from retouch.data.sources.folder import image_names
from retouch.data.sources.matlab import load_mat
from retouch.data.splits import Splits
from retouch.data.text_files import read_lines
from retouch.errors import UserError

MARKS = (
    "val",
    "validation",
    "ILSVRC/Data/CLS-LOC/val",
    "n01440764",
    "ILSVRC2012_val_00000001.JPEG",
)
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def read(folder: Path, facts: Facts) -> Splits:
    images = next((folder / m for m in MARKS[:3] if (folder / m).is_dir()), folder)
    names = sorted(image_names(images))
    if not names:
        raise UserError(f"{images} holds no images; unpack ILSVRC2012_img_val.tar there")
    in_folders = "/" in names[0]
    classes = [name.split("/")[0] for name in names] if in_folders else _flat(images, names)
    part: Part = FileStore(images, names), classes
    return facts.arrange(None, part)


def _flat(images: Path, names: list[str]) -> list[str]:
    """ILSVRC2012_val_00000293.JPEG is of the class on line 293, numbered as meta.mat has it."""
    places = [up / _DEVKIT for up in (images, images.parent, images.parent.parent)]
    kit = next((place for place in places if (place / _TRUTH).is_file()), None)
    if kit is None:
        raise UserError(
            f"{images} has no class folders, so what the images show is in the devkit; unpack "
            f"ILSVRC2012_devkit_t12.tar.gz into {images.parent}"
        )
    wnids = {int(s.ILSVRC2012_ID): str(s.WNID) for s in load_mat(kit / "meta.mat")["synsets"]}
    truth = [int(line) for line in read_lines(kit / _TRUTH)]
    numbers = [int(Path(name).stem.rsplit("_", 1)[-1]) for name in names]
    return [wnids[truth[number - 1]] for number in numbers]
