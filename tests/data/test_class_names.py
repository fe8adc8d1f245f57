"""Other names for classes."""

from pathlib import Path

import pytest
from tiny import images as tiny_images

from retouch.data.class_names import read_class_names, rename_classes, uninformative_names
from retouch.errors import UserError


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "it is empty"), ("a\n", "write FOLDER,NAME"), ("a,\n", "write FOLDER,NAME")],
)
def test_invalid_files_of_class_names_are_refused(text: str, message: str, tmp_path: Path):
    (tmp_path / "names.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_class_names(tmp_path / "names.csv")


def test_two_classes_cannot_get_the_same_name():
    images = tiny_images("train", 6, 2)
    with pytest.raises(UserError, match="two classes have the name"):
        rename_classes(images, {"dark red": "bright green"})


def test_codes_are_uninformative_names():
    codes = ["n02099601", "0042", "12-7", "d41d8cd98f00b204e9800998ecf8427e"]
    assert uninformative_names([*codes, "A320", "golden retriever", "7-eleven"]) == codes
