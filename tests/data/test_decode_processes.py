"""Processes that decode give the same cache as threads, to the bit, and the same errors."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from layouts import make_folder

from retouch.clip.preprocess import Preprocess
from retouch.data import Images, cached, read_data
from retouch.data.cache import build as cache_build
from retouch.data.cache.file import PIXELS_FILE
from retouch.data.loading import decode
from retouch.data.loading.processes import DecodeProcesses
from retouch.errors import UserError

PREPROCESS = Preprocess(size=(16, 16), shortest=20, odd_pixel="round")


@pytest.fixture
def images(tmp_path: Path) -> Images:
    make_folder(tmp_path / "photos", {"red kite": 30, "cät": 25})
    return read_data(tmp_path / "photos").evaluation_images()


@pytest.fixture
def three_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three workers, which decode even a few images in processes."""
    before = decode.workers()
    decode.set_workers(3)
    monkeypatch.setattr(cache_build, "MIN_IMAGES", 1)
    yield
    decode.set_workers(before)


def content(cache: Path) -> dict[str, bytes]:
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.slow
def test_processes_and_threads_write_the_same_cache(
    images: Images, tmp_path: Path, request: pytest.FixtureRequest
):
    cached(images, PREPROCESS, tmp_path / "threads")
    request.getfixturevalue("three_processes")
    seen: list[int] = []

    def progress(chunks, description, total):
        for chunk in chunks:
            seen.extend(chunk)
            yield chunk

    copies = cached(images, PREPROCESS, tmp_path / "processes", progress=progress)
    assert content(tmp_path / "threads") == content(tmp_path / "processes")
    assert sorted(seen) == list(range(55))
    indices = np.array([54, 0, 17])
    assert np.array_equal(copies.read(indices, PREPROCESS), images.read(indices, PREPROCESS))


@pytest.mark.slow
@pytest.mark.usefixtures("three_processes")
def test_unreadable_images_are_named_as_by_threads(images: Images, tmp_path: Path):
    first = Path(images.store.location(0))
    first.write_bytes(b"no picture")
    second = Path(images.store.location(40))
    second.unlink()
    with pytest.raises(UserError) as error:
        cached(images, PREPROCESS, tmp_path / "c")
    assert f"{first} cannot be read as an image (it has no known image format)" in str(error.value)
    assert f"{second} cannot be read as an image (there is no such file)" in str(error.value)


@pytest.mark.slow
def test_a_full_disk_and_a_killed_process_are_noticed(images: Images, tmp_path: Path):
    ranges = [images.store.file_range(index) for index in range(3)]
    with DecodeProcesses(Path("/dev/full"), PREPROCESS) as processes:
        with pytest.raises(OSError, match="No space left on device") as error:
            processes.decode(ranges, 0)
        assert error.value.errno == errno.ENOSPC
        processes._local.process.kill()
        processes._local.process.wait()
        assert processes.decode(ranges, 0) is None
    (tmp_path / PIXELS_FILE).write_bytes(b"")
    with DecodeProcesses(tmp_path / PIXELS_FILE, PREPROCESS) as processes:
        block = processes.decode(ranges, 10)
    assert block is not None
    assert block.unreadable == []
    expected = images.read(np.arange(3), PREPROCESS).tobytes()
    assert (tmp_path / PIXELS_FILE).read_bytes() == bytes(10) + expected


@pytest.mark.slow
def test_a_worker_imports_no_torch():
    code = "import sys, retouch.data.loading.worker; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
