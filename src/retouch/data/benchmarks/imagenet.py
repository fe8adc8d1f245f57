"""ImageNet-1k's validation images: one folder per class, or flat with the devkit's labels."""

from pathlib import Path

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.benchmarks.matlab import load_mat
from retouch.data.formats.folder import image_names
from retouch.data.formats.text_files import read_lines
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore
from retouch.errors import UserError

_IMAGE_FOLDERS = ("val", "validation", "ILSVRC/Data/CLS-LOC/val")
MARKER_PATHS = (*_IMAGE_FOLDERS, "n01440764", "ILSVRC2012_val_00000001.JPEG")
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_LABELS_FILE = "ILSVRC2012_validation_ground_truth.txt"


def read(folder: Path, facts: DatasetFacts) -> Splits:
    images = next((folder / name for name in _IMAGE_FOLDERS if (folder / name).is_dir()), folder)
    names = sorted(image_names(images))
    if not names:
        raise UserError(f"{images} has no images; unpack ILSVRC2012_img_val.tar there")
    if "/" in names[0]:
        classes = [name.split("/")[0] for name in names]
    else:
        classes = _classes_from_devkit(images, names)
    part: SplitImages = FileStore(images, names), classes
    return facts.make_splits(None, part)


def _classes_from_devkit(images: Path, names: list[str]) -> list[str]:
    """The class of ILSVRC2012_val_00000293.JPEG is on line 293, numbered as in meta.mat."""
    candidates = [up / _DEVKIT for up in (images, images.parent, images.parent.parent)]
    devkit = next((path for path in candidates if (path / _LABELS_FILE).is_file()), None)
    if devkit is None:
        raise UserError(
            f"{images} has no class folders, so the devkit has to say what the images show; unpack "
            f"ILSVRC2012_devkit_t12.tar.gz into {images.parent}"
        )
    wnids = {int(s.ILSVRC2012_ID): str(s.WNID) for s in load_mat(devkit / "meta.mat")["synsets"]}
    labels = [int(line) for line in read_lines(devkit / _LABELS_FILE)]
    numbers = [int(Path(name).stem.rsplit("_", 1)[-1]) for name in names]
    return [wnids[labels[number - 1]] for number in numbers]
