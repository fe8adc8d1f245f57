"""Decoding: unusual, large and broken images, and threads."""

import multiprocessing
import struct
import tracemalloc
import warnings
from pathlib import Path
from typing import Any
from zlib import crc32

import layouts
import numpy as np
import pytest
from layouts import make_folder
from PIL import Image
from source_cases import PREPROCESS, read_all

from retouch.data import Images, read_data
from retouch.data.loading.decode import (
    HAS_AVIF,
    DecodeError,
    decode,
    parallel_map,
    set_workers,
    workers,
)
from retouch.errors import UserError


def gradient(mode: str) -> Image.Image:
    """Dark above, bright below; the left half darker."""
    gray = np.linspace(0, 200, 40)[:, None] + np.where(np.arange(30) < 15, 0, 55)[None]
    return Image.fromarray(gray.astype(np.uint8)).convert(mode)


def test_every_mode_is_converted_to_rgb(tmp_path: Path):
    expected = np.asarray(gradient("RGB"), int)
    for mode, name in [
        ("L", "gray.png"),
        ("LA", "gray-alpha.png"),
        ("RGBA", "alpha.png"),
        ("P", "palette.png"),
        ("P", "palette.gif"),
        ("CMYK", "cmyk.jpg"),
        ("CMYK", "cmyk.tif"),
        ("1", "bits.png"),
        ("RGB", "color.webp"),
    ]:
        gradient(mode).save(tmp_path / name)
        decoded = decode(tmp_path / name)
        assert decoded.mode == "RGB"
        tolerance = 130 if mode == "1" else 12
        assert np.abs(np.asarray(decoded, int) - expected).mean() < tolerance, name


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_sixteen_bits_are_scaled_to_eight(name: str, tmp_path: Path):
    gray = np.asarray(gradient("L")).astype(np.uint16) * 257
    Image.fromarray(gray).save(tmp_path / name)
    assert np.abs(np.asarray(decode(tmp_path / name))[..., 0] - np.asarray(gradient("L"))).max() < 2


def test_a_32_bit_image_with_8_bit_values_is_unchanged(tmp_path: Path):
    Image.fromarray(np.asarray(gradient("L")).astype(np.int32)).save(tmp_path / "wide.tif")
    decoded = np.asarray(decode(tmp_path / "wide.tif"))[..., 0]
    assert np.array_equal(decoded, np.asarray(gradient("L")))


def test_exif_rotation_is_applied(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    gradient("RGB").rotate(90, expand=True).save(tmp_path / "turned.png", exif=exif)
    decoded = decode(tmp_path / "turned.png")
    assert decoded.size == (30, 40)
    assert np.array_equal(np.asarray(decoded), np.asarray(gradient("RGB")))


def test_the_first_frame_of_an_animation_is_used(tmp_path: Path):
    others = [Image.new("RGB", (30, 40), color) for color in ("red", "blue")]
    for name in ("moving.gif", "moving.webp", "moving.png"):
        options: dict[str, Any] = {"lossless": True} if name.endswith("webp") else {}
        gradient("RGB").save(tmp_path / name, save_all=True, append_images=others, **options)
        decoded = np.asarray(decode(tmp_path / name), int)
        assert np.abs(decoded - np.asarray(gradient("RGB"), int)).mean() < 12


def test_extreme_aspect_ratios(tmp_path: Path):
    for size in ((1, 1), (1, 300), (300, 1)):
        Image.new("RGB", size, (9, 99, 199)).save(tmp_path / "image.png")
        assert np.array_equal(
            PREPROCESS.prepare(decode(tmp_path / "image.png")), np.full((8, 8, 3), (9, 99, 199))
        )


def test_a_decompression_bomb_is_refused(tmp_path: Path):
    """Its header says 20,000 × 20,000 pixels, which take 1.2 GB in RGB."""
    size = b"IHDR" + struct.pack(">2I5B", 20_000, 20_000, 1, 0, 0, 0, 0)
    header = struct.pack(">I", 13) + size + struct.pack(">I", crc32(size))
    data = struct.pack(">I", 9) + b"IDAT"
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + data)
    with pytest.raises(DecodeError, match="has more than 178,956,970 pixels"):
        decode(tmp_path / "bomb.png")


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n1234"])
def test_broken_files_raise_decode_error(content: bytes, tmp_path: Path):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DecodeError):
        decode(tmp_path / "x")
    with pytest.raises(DecodeError):
        decode(content)
    with pytest.raises(DecodeError, match="no such file"):
        decode(tmp_path / "y")


@pytest.mark.skipif(not HAS_AVIF, reason="this Pillow has no AVIF")
def test_avif_is_decoded(tmp_path: Path):
    folder = make_folder(tmp_path, {"cat": 3, "dog": 2})
    layouts.picture(3).save(folder / "cat" / "new.avif")
    images = read_data(folder).evaluation_images()
    assert len(images) == 6
    assert not images.store.try_read(np.arange(6), PREPROCESS)[1]


def test_images_that_are_too_large(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    image = Image.fromarray(layouts.pixels(1, 110, 120))
    for name in ("big.png", "big.jpg", "progressive.jpg"):
        image.save(tmp_path / name, progressive=name == "progressive.jpg")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert decode(tmp_path / "big.jpg").size == (60, 55)
        for name in ("big.png", "progressive.jpg"):
            with pytest.raises(
                DecodeError, match="it has 120 × 110 pixels, and the limit is 10,000"
            ):
                decode(tmp_path / name)
    assert not caught
    Image.fromarray(layouts.pixels(1, 90, 100)).save(tmp_path / "right.jpg")
    assert decode(tmp_path / "right.jpg").size == (100, 90)


def test_a_large_image_takes_little_more_memory_than_its_pixels(tmp_path: Path):
    gray = np.zeros((3000, 3000), np.uint16)
    Image.fromarray(gray).save(tmp_path / "deep.png")
    tracemalloc.start()
    decode(tmp_path / "deep.png")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * gray.size  # once it was 24 bytes per pixel in NumPy alone


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"no image at all", "it has no known image format"),
        (b"<!DOCTYPE html><html>", "it is a web page"),
        (b"\0\0\0\x18ftypheic" + bytes(20), "it is a HEIC image; install pillow-heif"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no known image format"),
    ],
)
def test_the_error_says_why_an_image_cannot_be_read(content: bytes, why: str, tmp_path: Path):
    (tmp_path / "x.jpg").write_bytes(content)
    for source in (tmp_path / "x.jpg", content):
        with pytest.raises(DecodeError, match=why) as raised:
            decode(source)
        assert "'it'" not in str(raised.value)
        assert "BytesIO" not in str(raised.value)


def test_the_number_of_workers_does_not_change_the_result(images: Images):
    results = []
    for count in (1, 2, 7):
        set_workers(count)
        results.append(read_all(images))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    with pytest.raises(UserError, match="0 workers"):
        set_workers(0)


@pytest.mark.slow
def test_a_forked_process_has_its_own_threads():
    def double(number: int) -> int:
        return 2 * number

    assert parallel_map(double, 3) == [0, 2, 4]
    before = workers()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send((parallel_map(double, 3), workers())))
    child.start()
    assert receiver.poll(20), "it hangs"
    assert receiver.recv() == ([0, 2, 4], before)
    child.join()
