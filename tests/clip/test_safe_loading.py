"""Untrusted files: no code in a model's folder runs, and no pickle is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from backbones import dual, small_open_clip
from safetensors.torch import load_file
from source_cases import time_limit
from tiny import tiny_folder, tiny_tokenizer

import retouch
from retouch.clip.open_clip.model import CONFIG, WEIGHTS, OpenClip, import_open_clip
from retouch.errors import UserError


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that a library put to the user; each is answered with "y"."""
    asked: list[str] = []

    def answer(question: str = "") -> str:
        asked.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    return asked


def change(file: Path, **entries: Any) -> None:
    old = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**old, **entries}))


class Trap:
    """Creates a file when it is unpickled; so does the module that `code` writes."""

    def __init__(self, folder: Path) -> None:
        self.marker = folder / "ran"

    def __reduce__(self) -> Any:
        return open, (str(self.marker), "w")

    def code(self, folder: Path) -> dict[str, str]:
        """Write a module into a folder, and return an `auto_map` that names it."""
        lines = [f"open({str(self.marker)!r}, 'w')", "from transformers import *"]
        lines += ["class Config(PretrainedConfig): model_type = 'new'"]
        lines += ["class Model(CLIPModel): pass", "class Words(PreTrainedTokenizerFast): pass"]
        (folder / "evil.py").write_text("\n".join(lines))
        return {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}

    def refuses(self, name: str, questions: list[str], complaint: str) -> None:
        with pytest.raises(UserError, match=complaint) as why:
            retouch.load(name)
        assert not questions
        assert not self.marker.exists()
        assert "trust_remote_code" not in str(why.value)


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


def evil_folder(folder: Path, trap: Trap) -> Path:
    tiny_folder(folder)
    change(folder / "config.json", model_type="new", auto_map=trap.code(folder))
    return folder


def test_code_in_a_models_folder_is_not_run(tmp_path: Path, trap: Trap, questions: list[str]):
    folder = evil_folder(tmp_path / "m", trap)
    trap.refuses(str(folder), questions, "code")
    # A known type is loaded with the library's class, whatever the folder offers.
    change(folder / "config.json", model_type="clip")
    assert type(retouch.load(str(folder)).model).__name__ == "CLIPModel"
    assert not questions
    assert not trap.marker.exists()
    words = {"AutoTokenizer": [None, "evil.Words"]}
    change(folder / "tokenizer_config.json", tokenizer_class="New", auto_map=words)
    (folder / "tokenizer.json").rename(folder / "words.json")
    trap.refuses(str(folder), questions, "could not be loaded")


def test_code_of_a_tower_is_not_run(tmp_path: Path, trap: Trap, questions: list[str]):
    dual().save(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    tower = {**config["vision_config"], "model_type": "new", "auto_map": trap.code(tmp_path / "m")}
    change(tmp_path / "m" / "config.json", vision_config=tower)
    trap.refuses(str(tmp_path / "m"), questions, "could not be loaded")


def test_kernels_are_not_downloaded(tmp_path: Path, trap: Trap, questions: list[str]):
    folder = tiny_folder(tmp_path / "m")
    change(folder / "config.json", attn_implementation="kernels-community/flash-attn2")
    trap.refuses(str(folder), questions, "kernels-community/flash-attn2")


def open_clip_folder(folder: Path, **text: object) -> Path:
    """A folder of open_clip with its tokenizer."""
    small = {"context_length": 12, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
    name = small_open_clip("safe", text_cfg={**small, "hf_tokenizer_name": "."})
    config = import_open_clip().get_model_config(name)
    folder.mkdir()
    OpenClip(import_open_clip().create_model(name), tiny_tokenizer()).save(folder)
    assert (folder / WEIGHTS).is_file()
    tiny_tokenizer().save_pretrained(folder)
    config["text_cfg"] |= text
    (folder / CONFIG).write_text(json.dumps({"model_cfg": config}))
    return folder


@pytest.mark.parametrize("trust", [{}, {"tokenizer_kwargs": {"trust_remote_code": True}}])
def test_code_in_an_open_clip_folder_is_not_run(
    tmp_path: Path, trap: Trap, questions: list[str], trust: dict[str, Any]
):
    folder = open_clip_folder(tmp_path / "o", **trust)
    assert retouch.load(str(folder)).name == str(folder)
    evil = evil_folder(tmp_path / "evil", trap)
    named = open_clip_folder(tmp_path / "named", hf_model_name=str(evil), hf_proj_type="mlp")
    trap.refuses(str(named), questions, "code")
    trap.code(folder)
    words = {"AutoTokenizer": ["evil.Words", "evil.Words"]}
    change(folder / "tokenizer_config.json", tokenizer_class="New", auto_map=words)
    (folder / "tokenizer.json").unlink()
    trap.refuses(str(folder), questions, "code|could not be loaded")


def pickled(file: Path, trap: Trap, weights: dict[str, torch.Tensor]) -> None:
    torch.save({**weights, "trap": trap}, file)


def test_an_index_may_only_name_safetensors(tmp_path: Path, trap: Trap, questions: list[str]):
    folder = tiny_folder(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "half.safetensors")

    def index(name: object) -> None:
        names = dict.fromkeys(weights, "half.safetensors") | {min(weights): name}
        content = {"metadata": {}, "weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    index("half.safetensors")
    assert retouch.load(str(folder)).size
    torch.save(weights, folder / "all.bin")  # one that torch considers safe
    torch.save(weights, tmp_path / "outside.safetensors")
    for name in ("all.bin", "../outside.safetensors", "/etc/x.safetensors", 7, None):
        index(name)
        trap.refuses(str(folder), questions, "model.safetensors.index.json")
    for content in ("[]", "{", '{"weight_map": []}', '{"weight_map": {}}', "\udcff"):
        file = folder / "model.safetensors.index.json"
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
        trap.refuses(str(folder), questions, "model.safetensors.index.json")


def test_weights_of_another_name(tmp_path: Path, trap: Trap, questions: list[str]):
    folder = tiny_folder(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "adapter_model.bin")
    change(folder / "config.json", transformers_weights="adapter_model.bin")
    trap.refuses(str(folder), questions, "adapter_model.bin")
    change(folder / "config.json", transformers_weights=None)
    change(folder / "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(folder))
    trap.refuses(str(folder), questions, "adapter")
    (folder / "adapter_config.json").unlink()
    pickled(folder / "pytorch_model.bin", trap, weights)
    (folder / "model.safetensors").rename(folder / "hidden")
    trap.refuses(str(folder), questions, r"no \.bin")
    (folder / "hidden").unlink()
    torch.save(weights, folder / "model.safetensors")
    trap.refuses(str(folder), questions, r"model\.safetensors")


def test_pickles_of_open_clip(tmp_path: Path, trap: Trap, questions: list[str]):
    folder = open_clip_folder(tmp_path / "o")
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(weights, folder / "open_clip_pytorch_model.bin")
    trap.refuses(str(folder), questions, WEIGHTS)
    torch.save(weights, folder / WEIGHTS)
    trap.refuses(str(folder), questions, WEIGHTS)
    trap.refuses(
        f"open_clip:safe@{folder}/open_clip_pytorch_model.bin", questions, "not a safetensors"
    )


def test_every_way_to_a_pickle_or_a_module_is_blocked(tmp_path: Path, trap: Trap):
    """Whichever way a library finds to them."""
    from transformers import dynamic_module_utils

    from retouch.clip.loading.safe_loading import block_remote_code

    pickled(tmp_path / "x.bin", trap, {})
    trap.code(tmp_path)
    original = torch.load
    with block_remote_code("m"), pytest.raises(UserError, match=r"x\.bin"):
        torch.load(tmp_path / "x.bin", weights_only=False)
    with block_remote_code("m"), pytest.raises(UserError, match="code"):
        dynamic_module_utils.get_class_from_dynamic_module("evil.Config", str(tmp_path))
    assert torch.load is original
    assert not trap.marker.exists()


@pytest.mark.slow
def test_code_in_a_data_set_is_not_run(tmp_path: Path, trap: Trap, questions: list[str]):
    (tmp_path / "d").mkdir()
    trap.code(tmp_path / "d")
    (tmp_path / "d" / "evil.py").rename(tmp_path / "d" / "d.py")
    with pytest.raises(UserError):
        retouch.read_data(f"hf:{tmp_path / 'd'}")
    assert not questions
    assert not trap.marker.exists()


def broken(folder: Path, name: str, content: object, complaint: str, model: str = "") -> None:
    """Loading fails with this content in the file, or with these entries changed."""
    file = folder / name
    whole = file.read_bytes()
    if isinstance(content, dict):
        change(file, **content)
    else:
        assert isinstance(content, bytes)
        file.write_bytes(content)
    try:
        with pytest.raises(UserError, match=complaint):
            retouch.load(model or str(folder))
    finally:
        file.write_bytes(whole)


@pytest.mark.slow
def test_broken_files_of_a_model_are_explained(tmp_path: Path):
    folder = tiny_folder(tmp_path / "m")
    weights = (folder / "model.safetensors").read_bytes()
    for length in (0, 100, len(weights) - 1):
        broken(folder, "model.safetensors", weights[:length], "could not be loaded.*complete")
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json"):
        for content in (b"[]", b"{", b'{"a":' * 100_000, b"\xff\xfe"):
            broken(folder, name, content, rf"{name}|loaded")
    for entries in ({"vision_config": 7}, {"projection_dim": "wide"}):
        broken(folder, "config.json", entries, "could not be loaded")
    broken(folder, "config.json", {"model_type": ["clip"]}, "type")
    for content in (b"", b"null", b"{"):
        broken(folder, "preprocessor_config.json", content, "preprocessor_config.json is broken")
    for entries, complaint in [
        ({"image_mean": "grey"}, "mean"),
        ({"image_mean": [0.5]}, "mean"),
        ({"image_std": [1, 0, 1]}, "std"),
        ({"size": "small"}, "size"),
        ({"size": -3}, "size|shortest"),
        ({"size": 12}, "do_center_crop"),
        ({"size": {"shortest_edge": 16}, "do_center_crop": True, "crop_size": []}, "crop_size"),
        ({"resample": "best"}, "Resampling"),
    ]:
        broken(
            folder, "preprocessor_config.json", entries, f"preprocessor_config.json.*{complaint}"
        )


@pytest.mark.parametrize("tower", ["text_config", "vision_config"])
@pytest.mark.parametrize("size", ["num_hidden_layers", "hidden_size", "image_size"])
@pytest.mark.parametrize("light", [True, False])
def test_a_config_that_asks_for_more_than_the_weights_hold(
    tower: str, size: str, light: bool, tmp_path: Path
):
    """Before a model of a billion layers is built."""
    folder = tiny_folder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    change(folder / "config.json", **{tower: {**config[tower], size: 10**9}})
    with time_limit(10), pytest.raises(UserError, match=rf"says {size}=1000000000, .* tensors"):
        retouch.load(folder, light=light)


@pytest.mark.slow
def test_a_config_of_open_clip_that_asks_for_more_than_the_weights_hold(tmp_path: Path):
    folder = open_clip_folder(tmp_path / "o")
    config = json.loads((folder / CONFIG).read_text())["model_cfg"]
    large = {**config, "vision_cfg": {**config["vision_cfg"], "layers": 10**9}}
    with time_limit(10):
        broken(folder, CONFIG, {"model_cfg": large}, r"says layers=1000000000, .* tensors")


@pytest.mark.slow
def test_weights_in_several_files_are_counted_together(tmp_path: Path):
    folder = tmp_path / "m"
    tiny_folder(folder)
    clip = retouch.load(folder)
    (folder / "model.safetensors").unlink()
    clip.model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert retouch.load(folder).size == clip.size
    text = json.loads((folder / "config.json").read_text())["text_config"]
    with time_limit(10):
        large = {"text_config": {**text, "num_hidden_layers": 10**9}}
        broken(folder, "config.json", large, "says num_hidden_layers=1000000000")


def test_a_model_without_its_tokenizer(tmp_path: Path):
    folder = tiny_folder(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="tokenizer"):
        retouch.load(str(folder))
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="no vocabulary"):
        retouch.load(str(folder))


def test_broken_files_of_open_clip_are_explained(tmp_path: Path):
    folder = open_clip_folder(tmp_path / "o")
    weights = (folder / WEIGHTS).read_bytes()
    for length in (0, 100, len(weights) - 1):
        broken(folder, WEIGHTS, weights[:length], "could not be loaded")
    for content in (b"", b"[]", b'{"model_cfg": 7}', b'{"a":' * 100_000, b"\xff"):
        broken(folder, CONFIG, content, "could not be loaded")
        broken(folder, CONFIG, content, "is broken", f"open_clip:safe@{folder / WEIGHTS}")
    for preprocess in (7, {"mean": "grey"}, {"std": [1, 2]}, {"resize_mode": 3}):
        broken(
            folder,
            CONFIG,
            {"preprocess_cfg": preprocess},
            "loaded|preprocessing|resize_mode|mean|std",
        )
