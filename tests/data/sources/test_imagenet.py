"""ImageNet."""

from pathlib import Path

import layouts

from retouch.data import read_data


def test_raw_class_names(tmp_path: Path):
    layouts.write_imagenet_flat(tmp_path)
    raw, plain = (
        read_data(name, tmp_path).evaluation_images() for name in ("imagenet-raw", "imagenet")
    )
    assert raw.labels.tolist() == plain.labels.tolist()
    assert raw.classes != plain.classes
