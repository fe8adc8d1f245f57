"""Stanford Cars."""

import shutil
from pathlib import Path

import layouts
import numpy as np
import pytest
from layouts import locations
from source_cases import PREPROCESS

from retouch.data import read_data
from retouch.errors import UserError


def test_missing_test_labels_are_refused(tmp_path: Path):
    layouts.write_cars(tmp_path)
    assert "Acura TL Type-S 2008" in read_data("cars", tmp_path).evaluation_images().classes
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(UserError, match=r"no cars_test_annos_withlabels\.mat"):
        read_data("cars", tmp_path)


def test_both_annotation_files_in_one_folder(tmp_path: Path):
    """`cars_annos.mat` comes with both layouts, and only numbers the images of `car_ims`."""
    devkit_layout = tmp_path / "devkit layout"
    layouts.write_cars(devkit_layout)
    layouts.write_cars_joined(tmp_path / "joined layout")
    shutil.copy(tmp_path / "joined layout" / "cars_annos.mat", devkit_layout)
    splits = read_data("cars", devkit_layout)
    assert {Path(location).parent.name for location in locations(splits.train)} == {"cars_train"}
    assert not splits.train.store.try_read(np.arange(len(splits.train)), PREPROCESS)[1]
    for split in ("cars_train", "cars_test"):  # as Kaggle unpacks it
        shutil.move(devkit_layout / split, devkit_layout / "inner")
        shutil.move(devkit_layout / "inner", devkit_layout / split / split)
    splits = read_data("cars", devkit_layout)
    assert not splits.train.store.try_read(np.arange(len(splits.train)), PREPROCESS)[1]
    shutil.rmtree(devkit_layout / "devkit")
    with pytest.raises(UserError, match=r"no car_ims/.*add the devkit"):
        read_data("cars", devkit_layout)
