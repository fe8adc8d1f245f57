"""Decoding: odd pictures, the cache of pixels, reading ahead, and sets that are not whole."""

import multiprocessing
import os
import threading
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from layouts import locations, make_folder
from PIL import Image

from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Stream, cached, read_data
from retouch.data import cache as caches
from retouch.data.array_store import ArrayStore
from retouch.data.check import check_dataset
from retouch.data.composite_stores import ConcatStore, SubsetStore
from retouch.data.decode import DecodeError, decode, parallel_map, set_workers, workers
from retouch.data.prefetch import prefetch
from retouch.data.string_array import StringArray
from retouch.errors import UserError

PIXELS = Preprocess(size=(16, 16), shortest=16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "my photos", {"a": 5, "b": 7, "c": 4})


@pytest.fixture
def images(folder: Path) -> Images:
    return read_data(folder).evaluation_images()


def everything(images: Images, pixels: Preprocess = PIXELS) -> np.ndarray:
    return images.read(np.arange(len(images)), pixels)


# Odd pictures.


def gradient(mode: str) -> Image.Image:
    """Dark above, bright below; the left half darker."""
    grey = np.linspace(0, 200, 40)[:, None] + np.where(np.arange(30) < 15, 0, 55)[None]
    return Image.fromarray(grey.astype(np.uint8)).convert(mode)


def test_every_kind_of_picture_looks_the_same(tmp_path: Path):
    plain = np.asarray(gradient("RGB"), int)
    for mode, name in [
        ("L", "grey.png"),
        ("LA", "grey-alpha.png"),
        ("RGBA", "alpha.png"),
        ("P", "palette.png"),
        ("P", "palette.gif"),
        ("CMYK", "cmyk.jpg"),
        ("CMYK", "cmyk.tif"),
        ("1", "bits.png"),
        ("RGB", "colour.webp"),
    ]:
        gradient(mode).save(tmp_path / name)
        found = decode(tmp_path / name)
        assert found.mode == "RGB"
        far = 130 if mode == "1" else 12
        assert np.abs(np.asarray(found, int) - plain).mean() < far, name


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_sixteen_bits_are_shown_in_eight(name: str, tmp_path: Path):
    grey = np.asarray(gradient("L")).astype(np.uint16) * 257
    Image.fromarray(grey).save(tmp_path / name)
    assert np.abs(np.asarray(decode(tmp_path / name))[..., 0] - np.asarray(gradient("L"))).max() < 2


def test_a_wide_format_with_small_numbers_stays_as_it_is(tmp_path: Path):
    Image.fromarray(np.asarray(gradient("L")).astype(np.int32)).save(tmp_path / "wide.tif")
    found = np.asarray(decode(tmp_path / "wide.tif"))[..., 0]
    assert np.array_equal(found, np.asarray(gradient("L")))


def test_a_picture_is_turned_as_its_camera_says(tmp_path: Path):
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright
    gradient("RGB").rotate(90, expand=True).save(tmp_path / "turned.png", exif=turned)
    found = decode(tmp_path / "turned.png")
    assert found.size == (30, 40)
    assert np.array_equal(np.asarray(found), np.asarray(gradient("RGB")))


def test_of_an_animation_the_first_picture_is_taken(tmp_path: Path):
    others = [Image.new("RGB", (30, 40), colour) for colour in ("red", "blue")]
    for name in ("moving.gif", "moving.webp", "moving.png"):
        options: dict[str, Any] = {"lossless": True} if name.endswith("webp") else {}
        gradient("RGB").save(tmp_path / name, save_all=True, append_images=others, **options)
        found = np.asarray(decode(tmp_path / name), int)
        assert np.abs(found - np.asarray(gradient("RGB"), int)).mean() < 12


def test_a_picture_of_one_pixel_and_a_very_long_one(tmp_path: Path):
    for size in ((1, 1), (1, 300), (300, 1)):
        Image.new("RGB", size, (9, 99, 199)).save(tmp_path / "odd.png")
        assert np.array_equal(
            PIXELS.prepare(decode(tmp_path / "odd.png")), np.full((16, 16, 3), (9, 99, 199))
        )


def test_a_decompression_bomb_is_refused(tmp_path: Path):
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")  # 50 KB on disk, 1.2 GB in RGB
    with pytest.raises(DecodeError, match="has more than 178,956,970 pixels"):
        decode(tmp_path / "bomb.png")


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n1234"])
def test_broken_files(content: bytes, tmp_path: Path):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DecodeError):
        decode(tmp_path / "x")
    with pytest.raises(DecodeError):
        decode(content)
    with pytest.raises(DecodeError, match="no such file"):
        decode(tmp_path / "y")


def test_the_number_of_workers_changes_nothing(images: Images):
    found = []
    for count in (1, 2, 7):
        set_workers(count)
        found.append(everything(images))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    with pytest.raises(UserError, match="0 workers"):
        set_workers(0)


# The cache.


def test_cached_pixels_are_the_decoded_ones(images: Images, tmp_path: Path):
    said = []

    def progress(parts, what, total):
        said.append((what, total))
        return parts

    kept = cached(images, PIXELS, tmp_path / "cache", progress=progress)
    assert np.array_equal(everything(kept), everything(images))
    rng = np.random.default_rng(0).permutation(len(images))[:9]
    assert np.array_equal(kept.read(rng, PIXELS), images.read(rng, PIXELS))
    assert kept.read(rng, PIXELS).flags.writeable
    assert locations(kept) == locations(images)
    assert len(said) == 1
    assert said[0][1] == 16
    assert "0.1 MB" in said[0][0]
    (place,) = (p for p in (tmp_path / "cache").iterdir() if p.is_dir())
    assert "my-photos-16x16-short16-floor-bicubic-" in place.name
    assert place.name.endswith(f"-v{caches.VERSION}")


def test_a_cache_is_built_once_and_anew_when_something_changes(folder: Path, tmp_path: Path):
    built = []

    def progress(parts, what, total):
        built.append(total)
        return parts

    def keep(pixels: Preprocess = PIXELS) -> Images:
        return cached(
            read_data(folder).evaluation_images(), pixels, tmp_path / "c", progress=progress
        )

    keep()
    keep()
    assert len(built) == 1
    keep(Preprocess(size=(16, 16)))
    assert len(built) == 2
    Image.new("RGB", (20, 20), "white").save(folder / "a" / "0.png")
    assert everything(keep())[0].min() == 255
    assert len(built) == 3
    (folder / "a" / "0.png").unlink()
    assert len(keep()) == 15
    assert len(built) == 4


def test_other_pixels_than_the_cached_are_still_right(images: Images, tmp_path: Path):
    kept = cached(images, PIXELS, tmp_path / "c")
    other = Preprocess(size=(8, 12))
    assert np.array_equal(everything(kept, other), everything(images, other))


def test_parts_share_a_cache(folder: Path, tmp_path: Path):
    train, test = read_data(folder).train_and_test(0.3)
    for part in (train, test):
        assert np.array_equal(everything(cached(part, PIXELS, tmp_path / "c")), everything(part))
    assert len([p for p in (tmp_path / "c").iterdir() if p.is_dir()]) == 1


def test_what_is_in_memory_needs_no_cache(tmp_path: Path):
    from tiny import images as in_memory

    plain = in_memory("train", 6, 2)
    assert cached(plain, PIXELS, tmp_path / "c") is plain
    assert not (tmp_path / "c").exists()
    small = Preprocess(size=(8, 8))
    assert np.array_equal(
        everything(cached(plain, small, tmp_path / "c"), small), everything(plain, small)
    )


def test_unreadable_images_are_all_named_or_skipped(folder: Path, tmp_path: Path):
    (folder / "a" / "1.png").write_bytes(b"broken")
    (folder / "c" / "3.png").write_bytes(b"")
    images = read_data(folder).evaluation_images()
    for _ in range(2):  # when it is built, and when it is there
        with pytest.raises(
            UserError, match=r"a/1\.png cannot be read.*c/3\.png cannot.*skip_bad=True"
        ):
            cached(images, PIXELS, tmp_path / "c")
    kept = cached(images, PIXELS, tmp_path / "c", skip_bad=True)
    checked = caches.drop_unreadable(images, PIXELS)
    for found in (kept, checked):
        assert len(found) == 14
        assert not [p for p in locations(found) if p.endswith(("a/1.png", "c/3.png"))]
        assert np.bincount(found.labels).tolist() == [4, 7, 3]
        assert "2 of 16 images skipped" in found.notes[0]
        assert "a/1.png" in found.notes[0]
    assert np.array_equal(everything(kept), everything(checked))


def test_skipping_respects_the_parts(folder: Path, tmp_path: Path):
    (folder / "a" / "1.png").write_bytes(b"broken")
    train, test = read_data(folder).train_and_test(0.3)
    found = [cached(part, PIXELS, tmp_path / "c", skip_bad=True) for part in (train, test)]
    assert len(found[0]) + len(found[1]) == 15
    for images in found:
        assert np.array_equal(everything(images), everything(images.subset(np.arange(len(images)))))
        for i, place in enumerate(locations(images)):
            prepared = PIXELS.prepare(decode(Path(place)))
            assert np.array_equal(images.read(np.array([i]), PIXELS)[0], prepared)


def test_a_class_of_which_nothing_can_be_read(folder: Path, tmp_path: Path):
    for file in (folder / "c").iterdir():
        file.write_bytes(b"x")
    images = cached(
        read_data(folder).evaluation_images(), PIXELS, tmp_path / "cache", skip_bad=True
    )
    with pytest.raises(UserError, match="the class 'c' has no image"):
        Stream.split(images, images, tasks=1)


def test_a_cache_that_does_not_fit_is_refused_before_it_is_begun(images, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(caches.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(UserError, match=r"take 0\.1 MB.*use no cache"):
        cached(images, PIXELS, tmp_path / "c")


def test_a_build_that_fails_leaves_nothing_behind(images: Images, tmp_path: Path):
    def stop(parts, what, total):
        yield from []
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        cached(images, PIXELS, tmp_path / "c", progress=stop)
    assert not [p for p in (tmp_path / "c").iterdir() if p.is_dir()]
    (tmp_path / "c" / ".left-behind.part").mkdir()
    assert len(cached(images, PIXELS, tmp_path / "c")) == 16


def _build(folder: Path, cache: Path, log: Path) -> None:
    def slow(parts, what, total):
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.5)
        return parts

    cached(read_data(folder).evaluation_images(), PIXELS, cache, progress=slow)


def test_processes_that_want_the_same_cache_build_it_once(folder: Path, tmp_path: Path):
    context = multiprocessing.get_context("fork")
    about = (folder, tmp_path / "c", tmp_path / "log")
    all_of_them = [context.Process(target=_build, args=about) for _ in range(3)]
    for process in all_of_them:
        process.start()
    for process in all_of_them:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "log").read_text() == "built\n"


def test_where_caches_go(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RETOUCH_CACHE", raising=False)
    assert caches.cache_folder() == tmp_path / "retouch"
    monkeypatch.setenv("RETOUCH_CACHE", str(tmp_path / "own"))
    assert caches.cache_folder() == tmp_path / "own"


def test_a_cache_of_real_shards(shared: Path, tmp_path: Path):
    images = read_data("gtsrb", shared / "data").evaluation_images()
    kept = cached(images, PIXELS, tmp_path / "c")
    some = np.random.default_rng(0).permutation(len(images))[:50]
    assert np.array_equal(kept.read(some, PIXELS), images.read(some, PIXELS))


def test_every_kind_of_pictures_goes_where_it_is_told(images: Images, tmp_path: Path):
    """To a place that a GPU can reach by itself, say."""
    files, wide = images.store, Preprocess(size=(9, 12))
    arrays = ArrayStore(everything(images))
    kept = cached(images, PIXELS, tmp_path / "cache").store
    some = SubsetStore(kept, np.array([7, 3, 5, 1, 0]))
    kinds = [files, arrays, kept, some, ConcatStore(arrays, some), ConcatStore(files, kept)]
    for pictures in kinds:
        chosen = np.array([4, 0, len(pictures) - 1, 4])
        for pixels in (PIXELS, wide):
            out = np.full((4, *pixels.size, 3), 77, np.uint8)
            found = pictures.read(chosen, pixels, out)
            assert np.shares_memory(found, out)
            assert np.array_equal(out, pictures.read(chosen, pixels))
            assert np.array_equal(out[0], pictures.read(chosen[:1], pixels)[0])
        nothing = np.empty((0, *PIXELS.size, 3), np.uint8)
        assert pictures.read(chosen[:0], PIXELS, nothing).shape == nothing.shape


def test_what_cannot_be_read_is_black_wherever_it_goes(folder: Path):
    (folder / "a" / "1.png").write_bytes(b"broken")
    out = np.full((16, 16, 16, 3), 77, np.uint8)
    found, bad = read_data(folder).evaluation_images().store.try_read(np.arange(16), PIXELS, out)
    assert [b.index for b in bad] == [1]
    assert not found[1].any()
    assert found[0].any()


def test_a_cache_that_is_cut_off_while_it_is_read(images: Images, tmp_path: Path):
    kept = cached(images, PIXELS, tmp_path / "cache")
    (file,) = (tmp_path / "cache").glob("*/pixels.npy")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"pixels.npy was truncated .* start again"):
        everything(kept)
    file.unlink()
    with pytest.raises(UserError, match=r"pixels.npy was truncated or removed"):
        everything(kept)


def _header(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert old in data
    file.write_bytes(data.replace(old, new, 1))


DAMAGE: dict[str, tuple[str, Any]] = {
    "cut off": ("pixels.npy", lambda f: f.write_bytes(f.read_bytes()[:-1])),
    "empty": ("pixels.npy", lambda f: f.write_bytes(b"")),
    "longer": ("pixels.npy", lambda f: f.write_bytes(f.read_bytes() + b"x")),
    "gone": ("pixels.npy", Path.unlink),
    "another shape": ("pixels.npy", lambda f: _header(f, b"(16, 16, 16, 3)", b"(48, 16, 16, 1)")),
    "another type": ("pixels.npy", lambda f: _header(f, b"|u1", b"|i1")),
    "another order": ("pixels.npy", lambda f: _header(f, b"False", b"True ")),
    "a bit": ("pixels.npy", lambda f: f.write_bytes(f.read_bytes()[:-9] + b"\x80" * 9)),
    "no index": ("index.json", Path.unlink),
    "no JSON": ("index.json", lambda f: f.write_text("{")),
    "no more bad ones": ("index.json", lambda f: _header(f, b'"index": 1', b'"index": 2')),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_built_again_and_said(
    damage: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (folder / "a" / "1.png").write_bytes(b"broken")
    images, built = read_data(folder).evaluation_images(), []

    def progress(parts, what, total):
        built.append(total)
        return parts

    def keep() -> Images:
        return cached(images, PIXELS, tmp_path / "c", skip_bad=True, progress=progress)

    expected = everything(keep())
    name, spoil = DAMAGE[damage]
    (file,) = (tmp_path / "c").glob(f"*/{name}")
    spoil(file)
    caplog.clear()
    assert np.array_equal(everything(keep()), expected)
    assert f"the cache {file.parent} is damaged (" in caplog.text
    assert len(built) == 2
    keep()
    assert len(built) == 2
    assert not [p for p in (tmp_path / "c").iterdir() if p.suffix in (".old", ".part")]


def test_of_a_large_cache_a_sample_is_checked_and_all_on_request(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from retouch.data import cache_file

    make_folder(folder, {"d": 60})
    images, looked = read_data(folder).evaluation_images(), []
    monkeypatch.setattr(cache_file, "SAMPLE_BYTES", 16 * 16 * 16 * 3)  # one of five blocks
    real = cache_file._checksum
    monkeypatch.setattr(cache_file, "_checksum", lambda data: looked.append(1) or real(data))
    cached(images, PIXELS, tmp_path / "c")
    assert len(looked) == 5
    cached(images, PIXELS, tmp_path / "c")
    assert len(looked) == 6
    assert list(caches.verify_caches(images, tmp_path / "c").values()) == [""]
    (file,) = (tmp_path / "c").glob("*/pixels.npy")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    said = run("datasets", "check", folder, "--cache", tmp_path / "c").stdout
    assert "damaged (the pixels of images 32 to 47 have changed), removed" in said
    assert not file.exists()
    assert "damaged" not in run("datasets", "check", folder, "--cache", tmp_path / "c").stdout


def test_neighbours_are_read_at_once(images: Images, tmp_path: Path, monkeypatch):
    """However they are asked for, and however little the system reads at a time."""
    kept, whole = cached(images, PIXELS, tmp_path / "cache"), everything(images)
    calls: list[int] = []

    def preadv(file: int, places: list[Any], start: int, most: int = 2**31) -> int:
        calls.append(start)
        return system(file, [places[0][:most]], start)

    system = os.preadv
    monkeypatch.setattr(os, "preadv", preadv)
    orders = {(0, 1, 2, 3): 1, (5, 6, 2, 3, 4, 15): 3, (3, 3, 4): 2, (2, 1, 0): 3, (): 0}
    for order, times in orders.items():
        calls.clear()
        chosen = np.array(order, np.int64)
        assert np.array_equal(kept.read(chosen, PIXELS), whole[chosen])
        assert len(calls) == times
    monkeypatch.setattr(os, "preadv", partial(preadv, most=1000))
    assert np.array_equal(everything(kept), whole)


# Reading ahead.


def test_ahead_keeps_the_order_and_is_ahead():
    loaded = []
    found = prefetch(lambda i: loaded.append(i) or i * i, iter(range(20)), depth=3)
    assert next(found) == (0, 0)
    deadline = time.monotonic() + 5
    while len(loaded) < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert loaded == [0, 1, 2, 3]
    assert list(found) == [(i, i * i) for i in range(1, 20)]


def test_ahead_begins_before_anybody_asks():
    begun = threading.Event()
    found = prefetch(lambda _: begun.set(), range(3))
    assert begun.wait(5)
    assert len(list(found)) == 3


def test_ahead_passes_errors_on_and_ends_its_thread():
    def load(i: int) -> int:
        if i == 3:
            raise UserError("no more")
        return i

    got = []
    with pytest.raises(UserError, match="no more"):
        got += [i for i, _ in prefetch(load, range(10))]
    found = prefetch(load, range(3))
    next(found)
    found.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]


# Is it whole?


def test_check_finds_what_is_wrong(tmp_path: Path):
    for part, each in (("train", {"a": 3, "b": 2}), ("test", {"a": 2, "b": 2})):
        make_folder(tmp_path / part, each, size=20 if part == "train" else 31)
    (tmp_path / "test" / "b" / "1.png").write_bytes(b"broken")
    copy = (tmp_path / "train" / "a" / "2.png").read_bytes()
    (tmp_path / "test" / "a" / "copy.png").write_bytes(copy)
    found = check_dataset(read_data(tmp_path))
    assert found.images == {"train": 5, "test": 5}
    assert found.classes == 2
    assert [Path(bad.location).name for bad in found.unreadable] == ["1.png"]
    ((train, test),) = found.train_test_duplicates
    assert train.endswith("train/a/2.png")
    assert test.endswith("test/a/copy.png")
    assert not found.complete
    (tmp_path / "test" / "b" / "1.png").unlink()
    assert check_dataset(read_data(tmp_path)).complete


def test_check_knows_how_many_there_should_be(tmp_path: Path):
    import layouts

    from retouch.data.registry import BENCHMARKS

    layouts.write_cub(tmp_path)
    found = check_dataset(read_data("cub", tmp_path), BENCHMARKS["cub"].facts)
    assert found.expected_images == {"train": (5994,), "test": (5794,)}
    assert found.expected_classes == 200
    assert not found.complete
    assert not found.unreadable


# Very many.


def test_names_take_little_memory_and_come_back_as_they_were():
    odd = ["plain.png", "", "é☆.png", b"\xff\xfe.png".decode(errors="surrogateescape")]
    names = StringArray(odd)
    assert list(names) == odd
    assert names[-1] == odd[-1]
    assert list(names[1:3]) == odd[1:3]
    assert list(names.subset(np.array([3, 0]))) == [odd[3], odd[0]]
    with pytest.raises(IndexError):
        _ = names[4]


def test_very_many_files_are_listed_without_much_memory(tmp_path: Path):
    """`benchmarks/data.py` does this with a million."""
    for number in range(100):
        (tmp_path / f"class {number}").mkdir()
        for image in range(500):
            (tmp_path / f"class {number}" / f"{image:07d}.jpg").touch()
    tracemalloc.start()
    stream = Stream.split(*read_data(tmp_path).train_and_test(), tasks=10)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(len(task.train) + len(task.test) for task in stream.tasks) == 50_000
    assert held < 100 * 50_000
    assert peak < 150 * 50_000


def test_a_forked_process_decodes_with_threads_of_its_own():
    def double(number: int) -> int:
        return 2 * number

    assert parallel_map(double, 3) == [0, 2, 4]
    before = workers()
    context = multiprocessing.get_context("fork")
    hears, says = context.Pipe(duplex=False)
    child = context.Process(target=lambda: says.send((parallel_map(double, 3), workers())))
    child.start()
    assert hears.poll(20), "it hangs"
    assert hears.recv() == ([0, 2, 4], before)
    child.join()
