"""Splits that papers made of benchmarks, where none is official or theirs differs: ZSCL's, CoOp's.

ZSCL: Zheng et al., "Preventing Zero-Shot Transfer Degradation in Continual Learning of
Vision-Language Models". CoOp: Zhou et al., "Learning to Prompt for Vision-Language Models".
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from retouch.data.benchmarks.dataset_facts import DatasetFacts, SplitImages
from retouch.data.formats.folder import image_names
from retouch.data.formats.text_files import read_json
from retouch.data.splits import Splits
from retouch.data.stores.file import FileStore
from retouch.errors import UserError

_SEED, _TRAIN_SHARE = 42, 0.8


def read_named_split(
    facts: DatasetFacts,
    folder: Path,
    images: Path,
    coop_file: str,
    class_of: Callable[[str], str],
    keep: Callable[[str], bool] = lambda name: True,
) -> Splits:
    """CoOp's split or ZSCL's, of images whose class follows from their path below `images`.

    `keep` tells which of the files there are images of the benchmark.
    """
    if facts.split == "coop":
        parts = coop_split(folder, images, coop_file, lambda path, _: class_of(path))
    else:
        parts = zscl_split(images, sorted(filter(keep, image_names(images))), class_of)
    return facts.make_splits(*parts)


def zscl_split(
    images: Path, names: Sequence[str], class_of: Callable[[str], str]
) -> tuple[SplitImages, SplitImages]:
    """80 % for training, as `torch.utils.data.random_split` with ZSCL's seed chooses them.

    `names` are the paths of all images below `images`, in torchvision's order, which both parts
    keep.
    """
    shuffled = torch.randperm(len(names), generator=torch.Generator().manual_seed(_SEED)).numpy()

    def part(positions: np.ndarray) -> SplitImages:
        chosen = [names[i] for i in np.sort(positions)]
        return FileStore(images, chosen), [class_of(name) for name in chosen]

    train_size = int(_TRAIN_SHARE * len(names))
    return part(shuffled[:train_size]), part(shuffled[train_size:])


def coop_split(
    folder: Path, images: Path, file_name: str, class_of: Callable[[str, int], str]
) -> tuple[SplitImages, SplitImages]:
    """The train and test of CoOp's JSON file, which is in or beside the benchmark's folder.

    An entry is a path below `images`, a label and a name; `class_of` gets the first two.
    """
    candidates = (folder / file_name, folder.parent / file_name)
    file = next((candidate for candidate in candidates if candidate.exists()), None)
    if file is None:
        raise UserError(
            f"{folder} has no {file_name}, which has CoOp's split; download it (the DATASETS.md of "
            "KaiyangZhou/CoOp has the link) and put it there"
        )
    content = read_json(file)

    def part(split: str) -> SplitImages:
        entries = [(path, int(label)) for path, label, _ in content[split]]
        return FileStore(images, [path for path, _ in entries]), [class_of(*e) for e in entries]

    return part("train"), part("test")
