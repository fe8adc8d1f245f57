"""`retouch datasets`: benchmarks are listed, and images checked."""

from pathlib import Path

import domain_layouts
import layouts
import pytest
from commands import error_of, run
from layouts import make_folder

from retouch.data.registry import BENCHMARKS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root that holds a small GTSRB."""
    root = tmp_path_factory.mktemp("data")
    layouts.write_gtsrb(root)
    return root


def test_benchmarks_are_listed(root: Path):
    text = run("datasets", "--data-root", root).stdout
    for name, benchmark in BENCHMARKS.items():
        assert name in text
        assert benchmark.facts.url in text


def test_splits_are_listed():
    text = run("datasets").stdout
    assert "eurosat      zscl (21,600 train, 5,400 test), coop (13,500 train, 8,100 test)" in text


def test_a_split_is_checked_by_its_own_counts(tmp_path: Path):
    domain_layouts.write_dtd(tmp_path)
    for split, count in (("official", 3760), ("zscl", 1880)):
        text = run("datasets", "check", f"dtd:{split}", "--data-root", tmp_path, code=1).stdout
        assert f" of {count:,} images" in text.splitlines()[0]
    assert "has no split 'x'" in error_of("datasets", "check", "dtd:x", "--data-root", tmp_path)


def test_an_incomplete_benchmark(root: Path):
    text = run("datasets", "check", "gtsrb", "--data-root", root, code=1).stdout
    assert "of 26,640 or 39,209 images" in text
    assert text.endswith("not complete\n")


def test_a_complete_folder(tmp_path: Path):
    text = run("datasets", "check", make_folder(tmp_path / "own", {"a": 2, "b": 3})).stdout
    assert "train: 5 images\nclasses: 2\nunreadable: 0\n" in text
    assert text.endswith("\ncomplete\n")


def test_what_learn_would_refuse_is_not_complete(tmp_path: Path):
    photos = make_folder(tmp_path / "own", {"a": 5})
    text = run("datasets", "check", photos, code=1).stdout
    assert "`retouch learn` would refuse it: there is only one class, 'a'" in text
    assert text.endswith("\nnot complete\n")


def test_unreadable_and_duplicate_images_are_named(tmp_path: Path):
    photos = make_folder(tmp_path / "own", {"a": 2, "b": 2})
    (photos / "a" / "0.png").write_bytes(b"broken")
    (photos / "b" / "1.png").write_bytes((photos / "a" / "1.png").read_bytes())
    lines = run("datasets", "check", photos, code=1).stdout.splitlines()
    assert "unreadable: 1" in lines
    assert lines[lines.index("unreadable: 1") + 1].startswith(f"  {photos / 'a' / '0.png'} cannot")
    assert "in two classes: 1" in lines
    assert f"  {photos / 'a' / '1.png'} is {photos / 'b' / '1.png'}" in lines


def test_a_missing_benchmark(tmp_path: Path):
    assert "was not found" in error_of("datasets", "check", "cars", "--data-root", tmp_path)
