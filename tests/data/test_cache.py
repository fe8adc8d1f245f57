"""Caches of pixels: what they hold, when they are built, and what is skipped."""

import multiprocessing
import shutil
import tarfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from layouts import locations
from PIL import Image
from source_cases import PREPROCESS_16, read_all

from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Stream, cached, read_data
from retouch.data.cache import images as cache_module
from retouch.data.cache.images import VERSION, cache_folder, drop_unreadable
from retouch.data.loading.decode import decode
from retouch.errors import UserError


def test_cached_pixels_equal_decoded_ones(images: Images, tmp_path: Path):
    calls = []

    def progress(chunks, description, total):
        calls.append((description, total))
        return chunks

    cached_images = cached(images, PREPROCESS_16, tmp_path / "cache", progress=progress)
    assert np.array_equal(read_all(cached_images), read_all(images))
    some = np.random.default_rng(0).permutation(len(images))[:9]
    assert np.array_equal(cached_images.read(some, PREPROCESS_16), images.read(some, PREPROCESS_16))
    assert cached_images.read(some, PREPROCESS_16).flags.writeable
    assert locations(cached_images) == locations(images)
    ((description, total),) = calls
    assert total == 16
    assert "0.1 MB" in description
    (folder,) = (p for p in (tmp_path / "cache").iterdir() if p.is_dir())
    assert "my-photos-16x16-short16-floor-bicubic-" in folder.name
    assert folder.name.endswith(f"-v{VERSION}")


def test_a_cache_is_rebuilt_only_when_something_changes(folder: Path, tmp_path: Path):
    built = []

    def progress(chunks, description, total):
        built.append(total)
        return chunks

    def open_cache(preprocess: Preprocess = PREPROCESS_16) -> Images:
        images = read_data(folder).evaluation_images()
        return cached(images, preprocess, tmp_path / "c", progress=progress)

    open_cache()
    open_cache()
    assert len(built) == 1
    open_cache(Preprocess(size=(16, 16)))
    assert len(built) == 2
    Image.new("RGB", (20, 20), "white").save(folder / "a" / "0.png")
    assert read_all(open_cache())[0].min() == 255
    assert len(built) == 3
    (folder / "a" / "0.png").unlink()
    assert len(open_cache()) == 15
    assert len(built) == 4


def test_another_preprocess_than_the_cached_one_is_decoded(images: Images, tmp_path: Path):
    cached_images = cached(images, PREPROCESS_16, tmp_path / "c")
    other = Preprocess(size=(8, 12))
    assert np.array_equal(read_all(cached_images, other), read_all(images, other))


def test_splits_share_a_cache(folder: Path, tmp_path: Path):
    train, test = read_data(folder).train_and_test(0.3)
    for part in (train, test):
        assert np.array_equal(read_all(cached(part, PREPROCESS_16, tmp_path / "c")), read_all(part))
    assert len([p for p in (tmp_path / "c").iterdir() if p.is_dir()]) == 1


def test_images_in_memory_need_no_cache(tmp_path: Path):
    from tiny import images as in_memory

    plain = in_memory("train", 6, 2)
    assert cached(plain, PREPROCESS_16, tmp_path / "c") is plain
    assert not (tmp_path / "c").exists()
    small = Preprocess(size=(8, 8))
    assert np.array_equal(
        read_all(cached(plain, small, tmp_path / "c"), small), read_all(plain, small)
    )


def test_unreadable_images_are_all_named_or_skipped(folder: Path, tmp_path: Path):
    (folder / "a" / "1.png").write_bytes(b"broken")
    (folder / "c" / "3.png").write_bytes(b"")
    images = read_data(folder).evaluation_images()
    for _ in range(2):  # when it is built, and when it exists
        with pytest.raises(
            UserError, match=r"a/1\.png cannot be read.*c/3\.png cannot.*skip_bad=True"
        ):
            cached(images, PREPROCESS_16, tmp_path / "c")
    from_cache = cached(images, PREPROCESS_16, tmp_path / "c", skip_bad=True)
    decoded = drop_unreadable(images, PREPROCESS_16)
    for readable in (from_cache, decoded):
        assert len(readable) == 14
        assert not [p for p in locations(readable) if p.endswith(("a/1.png", "c/3.png"))]
        assert np.bincount(readable.labels).tolist() == [4, 7, 3]
        assert "2 of 16 images skipped" in readable.notes[0]
        assert "a/1.png" in readable.notes[0]
    assert np.array_equal(read_all(from_cache), read_all(decoded))


def test_skipping_in_a_subset(folder: Path, tmp_path: Path):
    (folder / "a" / "1.png").write_bytes(b"broken")
    train, test = read_data(folder).train_and_test(0.3)
    subsets = [cached(part, PREPROCESS_16, tmp_path / "c", skip_bad=True) for part in (train, test)]
    assert len(subsets[0]) + len(subsets[1]) == 15
    for images in subsets:
        assert np.array_equal(read_all(images), read_all(images.subset(np.arange(len(images)))))
        for i, location in enumerate(locations(images)):
            expected = PREPROCESS_16.prepare(decode(Path(location)))
            assert np.array_equal(images.read(np.array([i]), PREPROCESS_16)[0], expected)


def test_a_class_without_readable_images_is_refused(folder: Path, tmp_path: Path):
    for file in (folder / "c").iterdir():
        file.write_bytes(b"x")
    images = cached(
        read_data(folder).evaluation_images(), PREPROCESS_16, tmp_path / "cache", skip_bad=True
    )
    with pytest.raises(UserError, match="the class 'c' has no image"):
        Stream.split(images, images, tasks=1)


def test_a_cache_that_does_not_fit_on_the_disk_is_refused(images, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match=r"take 0\.1 MB.*every time.* \(leave out cached\)"):
        cached(images, PREPROCESS_16, tmp_path / "c")


def test_a_cache_that_cannot_be_written_is_refused(images: Images, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=r"file/c cannot hold decoded images .*RETOUCH_CACHE"):
        cached(images, PREPROCESS_16, tmp_path / "file" / "c")


def test_a_failed_build_leaves_nothing_behind(images: Images, tmp_path: Path):
    def stop(chunks, description, total):
        yield from []
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        cached(images, PREPROCESS_16, tmp_path / "c", progress=stop)
    assert not [p for p in (tmp_path / "c").iterdir() if p.is_dir()]
    (tmp_path / "c" / ".left-behind.part").mkdir()
    assert len(cached(images, PREPROCESS_16, tmp_path / "c")) == 16


def _build(folder: Path, cache: Path, log: Path) -> None:
    def slow(chunks, description, total):
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.5)
        return chunks

    cached(read_data(folder).evaluation_images(), PREPROCESS_16, cache, progress=slow)


@pytest.mark.slow
def test_concurrent_processes_build_a_cache_once(folder: Path, tmp_path: Path):
    context = multiprocessing.get_context("fork")
    arguments = (folder, tmp_path / "c", tmp_path / "log")
    processes = [context.Process(target=_build, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "log").read_text() == "built\n"


def test_cache_folder(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RETOUCH_CACHE", raising=False)
    assert cache_folder() == tmp_path / "retouch"
    monkeypatch.setenv("RETOUCH_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_a_user_without_a_home_folder(monkeypatch, tmp_path: Path):
    """As in a container that is started for a user whom its system does not know."""
    for name in ("HOME", "XDG_CACHE_HOME", "RETOUCH_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    with pytest.raises(UserError, match=r"the user 54321; set HOME, or RETOUCH_CACHE, to a folder"):
        cache_folder()
    monkeypatch.setenv("RETOUCH_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


def test_a_cache_of_real_shards(shared: Path, tmp_path: Path):
    """The first 200 images of a real shard."""
    real, part = shared / "data" / "gtsrb", tmp_path / "gtsrb" / "test" / "0.tar"
    part.parent.mkdir(parents=True)
    shutil.copy(real / "classnames.txt", tmp_path / "gtsrb")
    with tarfile.open(real / "test" / "0.tar") as source, tarfile.open(part, "w") as target:
        for member in islice(source, 400):
            target.addfile(member, source.extractfile(member))
    images = read_data(tmp_path / "gtsrb").evaluation_images()
    cached_images = cached(images, PREPROCESS_16, tmp_path / "c")
    assert len(images) == 200
    some = np.random.default_rng(0).permutation(len(images))[:50]
    assert np.array_equal(cached_images.read(some, PREPROCESS_16), images.read(some, PREPROCESS_16))
