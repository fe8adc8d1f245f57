"""Damage to a cache is found, and the cache rebuilt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from layouts import make_folder
from source_cases import PREPROCESS_16, read_all

from retouch.data import Images, cached, read_data
from retouch.data.cache import file as cache_file
from retouch.data.cache.images import verify_caches


def _replace(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert old in data
    file.write_bytes(data.replace(old, new, 1))


DAMAGE: dict[str, tuple[str, Any]] = {
    "truncated": ("pixels.npy", lambda f: f.write_bytes(f.read_bytes()[:-1])),
    "empty": ("pixels.npy", lambda f: f.write_bytes(b"")),
    "longer": ("pixels.npy", lambda f: f.write_bytes(f.read_bytes() + b"x")),
    "missing": ("pixels.npy", Path.unlink),
    "another shape": ("pixels.npy", lambda f: _replace(f, b"(16, 16, 16, 3)", b"(48, 16, 16, 1)")),
    "another type": ("pixels.npy", lambda f: _replace(f, b"|u1", b"|i1")),
    "another order": ("pixels.npy", lambda f: _replace(f, b"False", b"True ")),
    "changed pixels": ("pixels.npy", lambda f: f.write_bytes(f.read_bytes()[:-9] + b"\x80" * 9)),
    "no index": ("index.json", Path.unlink),
    "not JSON": ("index.json", lambda f: f.write_text("{")),
    "another unreadable image": ("index.json", lambda f: _replace(f, b'"index": 1', b'"index": 2')),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_rebuilt_with_a_warning(
    damage: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (folder / "a" / "1.png").write_bytes(b"broken")
    images, built = read_data(folder).evaluation_images(), []

    def progress(chunks, description, total):
        built.append(total)
        return chunks

    def open_cache() -> Images:
        return cached(images, PREPROCESS_16, tmp_path / "c", skip_bad=True, progress=progress)

    expected = read_all(open_cache())
    name, damage_file = DAMAGE[damage]
    (file,) = (tmp_path / "c").glob(f"*/{name}")
    damage_file(file)
    caplog.clear()
    assert np.array_equal(read_all(open_cache()), expected)
    assert f"the cache {file.parent} is damaged (" in caplog.text
    assert len(built) == 2
    open_cache()
    assert len(built) == 2
    assert not [p for p in (tmp_path / "c").iterdir() if p.suffix in (".old", ".part")]


def test_a_sample_is_checked_when_opened_and_everything_on_request(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_folder(folder, {"d": 60})
    images, checked = read_data(folder).evaluation_images(), []
    monkeypatch.setattr(cache_file, "SAMPLE_BYTES", 16 * 16 * 16 * 3)  # one of five blocks
    checksum = cache_file.checksum
    monkeypatch.setattr(cache_file, "checksum", lambda data: checked.append(1) or checksum(data))
    cached(images, PREPROCESS_16, tmp_path / "c")
    assert not checked
    cached(images, PREPROCESS_16, tmp_path / "c")
    assert len(checked) == 1
    assert list(verify_caches(images, tmp_path / "c").values()) == [""]
    (file,) = (tmp_path / "c").glob("*/pixels.npy")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    monkeypatch.setenv("RETOUCH_CACHE", str(tmp_path / "c"))
    shown = run("datasets", "check", folder).stdout
    assert "damaged (the pixels of images 32 to 47 have changed), removed" in shown
    assert not file.exists()
    assert "damaged" not in run("datasets", "check", folder).stdout
