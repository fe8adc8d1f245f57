"""Runs that are exported, one for each library."""

from pathlib import Path

import pytest
from backbones import open_clip
from domains import domain_run
from exports import teach_two_tasks
from tiny import tiny_folder

import retouch


@pytest.fixture(scope="session")
def hf_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a CLIPModel of transformers."""
    folder = tmp_path_factory.mktemp("transformers")
    return teach_two_tasks(retouch.load(str(tiny_folder(folder / "my model"))), folder / "run")


@pytest.fixture(scope="session")
def two_sets_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over two data sets, each with its prompts, that have classes of the same name."""
    return domain_run(tmp_path_factory.mktemp("two data sets"))[0]


@pytest.fixture(scope="session")
def open_clip_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a CLIP of open_clip, with one layer per tower: ONNX takes seconds per layer."""
    folder = tmp_path_factory.mktemp("open_clip")
    vision = {"image_size": 16, "layers": 1, "width": 64, "head_width": 32, "patch_size": 8}
    text = {"width": 32, "heads": 2, "layers": 1}
    open_clip(name="one-layer", vision_cfg=vision, text_cfg=text).save(folder)
    clip = retouch.load(f"open_clip:one-layer@{folder / 'open_clip_model.safetensors'}")
    return teach_two_tasks(clip, folder / "run")
