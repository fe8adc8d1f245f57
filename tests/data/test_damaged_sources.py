"""Every source, damaged in many ways by a seed, is read or explained: no traceback."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from source_cases import CASES, damaged, is_image, read_case, read_everything, time_limit

from retouch.data.class_names import read_class_names
from retouch.data.formats.text_files import read_lines
from retouch.errors import UserError


def test_a_pipe_in_place_of_any_file_does_not_block(tmp_path: Path):
    """Any file that a reader opens may be a pipe."""
    names = ("aircraft", "birdsnap", "cars", "cifar100", "cub", "webdataset", "coco")
    for name in (*names, "eurosat-coop", "flowers102", "food101", "mnist", "mnist-packed", "pets"):
        case, root = CASES[name], tmp_path / name
        root.mkdir()
        case.write(root)
        for file in (f for f in sorted(root.rglob("*")) if f.is_file() and not is_image(f)):
            original = file.read_bytes()
            file.unlink()
            os.mkfifo(file)
            with time_limit(10), suppress(UserError):
                read_everything(read_case(case, root))
            file.unlink()
            file.write_bytes(original)


def files_to_damage(root: Path) -> list[Path]:
    """All files that describe the images, and one image."""
    files = [file for file in sorted(root.rglob("*")) if file.is_file()]
    images = [file for file in files if is_image(file)]
    return [file for file in files if file not in images] + images[:1]


# Other splits are read by the same code.
TO_DAMAGE = [name for name, case in CASES.items() if ":" not in case.source]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TO_DAMAGE, "eurosat-coop", "cars-coop"])
def test_damaged_sources(name: str, tmp_path: Path):
    case = CASES[name]
    case.write(tmp_path)
    rng = np.random.default_rng(len(name))
    with time_limit(100):
        files = files_to_damage(tmp_path)
        for file in files:
            original = file.read_bytes()
            for _ in range(max(3, 30 // len(files))):
                file.write_bytes(damaged(original, rng))
                with suppress(UserError):
                    read_everything(read_case(case, tmp_path))
            file.write_bytes(original)
    read_everything(read_case(case, tmp_path))


@pytest.mark.parametrize("reader", [read_class_names, read_lines])
def test_damaged_lists(reader: Callable[[Path], object], tmp_path: Path):
    rng = np.random.default_rng(6)
    original = "n01,golden retriever\nn02,Käse\n".encode()
    for _ in range(100):
        (tmp_path / "list.txt").write_bytes(damaged(original, rng))
        with suppress(UserError):
            reader(tmp_path / "list.txt")
