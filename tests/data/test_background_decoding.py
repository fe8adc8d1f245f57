"""A cache that is built in the background holds the same pixels and refuses the same images."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import make_folder
from tiny import tiny_clip

import retouch
from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Stream, cached, read_data
from retouch.data.cache import build as cache_build
from retouch.data.loading import decode
from retouch.errors import UserError
from retouch.train.callbacks.callback import Callback

PREPROCESS = Preprocess(size=(16, 16), shortest=16)
SETTINGS = retouch.Settings(epochs=1, batch=8, lr=1e-3)


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two workers, which decode even a few images in processes."""
    before = decode.workers()
    decode.set_workers(2)
    monkeypatch.setattr(cache_build, "MIN_WORKERS", 2)
    monkeypatch.setattr(cache_build, "MIN_IMAGES", 1)
    yield
    decode.set_workers(before)


@pytest.fixture
def images(tmp_path: Path) -> Images:
    make_folder(tmp_path / "photos", {"red kite": 30, "cat": 25})
    return read_data(tmp_path / "photos").evaluation_images()


@pytest.mark.slow
def test_reading_waits_for_the_pixels(images: Images, tmp_path: Path):
    said: list[str] = []
    copies = cached(images, PREPROCESS, tmp_path / "c", background=said.append)
    indices = np.array([54, 0, 17])
    assert np.array_equal(copies.read(indices, PREPROCESS), images.read(indices, PREPROCESS))
    assert list(copies.store.identifiers(indices)) == list(images.store.identifiers(indices))
    assert copies.store.is_preprocessed(PREPROCESS)
    assert said == [f"Decoding {images.name} once (0.1 MB in {tmp_path / 'c'})"]
    cached(images, PREPROCESS, tmp_path / "c", background=said.append).store.wait()
    assert len(said) == 1


@pytest.mark.slow
def test_a_wait_shows_how_far_it_is(images: Images, tmp_path: Path):
    seen: dict[str, int] = {}

    def progress(chunks: Any, what: str, total: int) -> Iterator[Any]:
        for chunk in chunks:
            seen[what] = seen.get(what, 0) + len(chunk)
            yield chunk
        assert total == 55

    part = cached(images, PREPROCESS, tmp_path / "c", background=print).subset(np.arange(5))
    part.store.wait(progress)
    assert list(seen) == [f"Decoding {images.name}"]
    part.store.wait(progress)  # nothing is left to wait for


@pytest.mark.slow
def test_unreadable_images_are_refused_before_anything_is_learned(images: Images, tmp_path: Path):
    broken = Path(images.store.location(3))
    broken.write_bytes(b"no picture")
    with pytest.raises(UserError) as expected:
        cached(images, PREPROCESS, tmp_path / "a")
    copies = cached(images, PREPROCESS, tmp_path / "b", background=print)
    with pytest.raises(UserError) as error:
        copies.store.wait()
    assert str(error.value) == str(expected.value)

    class Steps(Callback):
        taken = 0

        def on_step(self, step: int, epoch: int, loss: float) -> None:
            self.taken += 1

    steps = Steps()
    test = images.subset(np.arange(10, 55))
    train = cached(images, PREPROCESS, tmp_path / "b", background=print)
    stream = Stream.split(train, test, tasks=2)
    options = {"settings": SETTINGS, "callback": steps, "out": tmp_path / "run"}
    with pytest.raises(UserError, match="cannot be read as an image"):
        retouch.teach(tiny_clip(), stream, "er", **options)
    assert steps.taken == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_images_that_are_skipped_are_known_at_once(images: Images, tmp_path: Path):
    Path(images.store.location(3)).write_bytes(b"no picture")
    copies = cached(images, PREPROCESS, tmp_path / "c", background=print, skip_bad=True)
    assert len(copies) == 54


@pytest.mark.slow
def test_a_run_is_the_same_to_the_bit(images: Images, tmp_path: Path):
    weights = []
    for background in (None, print):
        clip, folder = tiny_clip(), tmp_path / f"cache {len(weights)}"
        part = cached(images, clip.preprocess, folder, background=background)
        stream = Stream.split(part, part, tasks=2)
        retouch.teach(clip, stream, "spu", settings=SETTINGS)
        weights.append(retouch.fingerprint(clip.model))
    assert weights[0] == weights[1]
