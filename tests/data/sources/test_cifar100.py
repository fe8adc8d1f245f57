"""CIFAR-100: its pickles are read and not executed."""

import pickle
from pathlib import Path

import layouts
import pytest

from retouch.data import read_data
from retouch.errors import UserError


class Malicious:
    """Its pickle calls a function."""

    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


@pytest.mark.parametrize("name", ["train", "meta"])
def test_a_pickle_that_calls_a_function_is_refused(name, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layouts.write_cifar100(tmp_path)
    file = tmp_path / "cifar-100-python" / name
    file.write_bytes(pickle.dumps({b"data": Malicious(), b"fine_label_names": Malicious()}))
    with pytest.raises(UserError, match=f"{name} is not a file of CIFAR-100 .*wants to call"):
        read_data("cifar100", tmp_path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps([1]), pickle.dumps({b"x": 1})])
def test_a_broken_pickle_is_refused(content, tmp_path: Path):
    layouts.write_cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(content)
    with pytest.raises(UserError, match="train is not a file of CIFAR-100"):
        read_data("cifar100", tmp_path)
