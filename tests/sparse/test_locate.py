"""Finding layers by kind in the architectures that people use."""

from collections.abc import Callable

import pytest
import torch
from tiny import tiny_clip
from torch import nn

from retouch.errors import UserError
from retouch.sparse import KINDS, block_names, locate, neuron_axis, select

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {**SMALL, "num_attention_heads": 2}


def hf(name: str, **config: object) -> nn.Module:
    import transformers

    config_class = getattr(transformers, name.replace("Model", "Config"))
    return getattr(transformers, name)(config_class(**config))


def dual() -> nn.Module:
    from transformers import VisionTextDualEncoderModel

    vision = hf("CLIPVisionModel", **HEADS, image_size=16, patch_size=8)
    return VisionTextDualEncoderModel(vision_model=vision, text_model=hf("BertModel", **HEADS))


def open_clip() -> nn.Module:
    from retouch.clip.open_clip.model import import_open_clip

    vision = {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16}
    text = {"context_length": 16, "vocab_size": 100, "width": 32, "heads": 2, "layers": 2}
    return import_open_clip().model.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text)


def timm() -> nn.Module:
    import timm as library

    return library.models.VisionTransformer(
        img_size=32, patch_size=16, embed_dim=32, depth=2, num_heads=2, num_classes=5
    )


def two_towers(name: str) -> nn.Module:
    """A model of transformers with an image and a text tower."""
    text = {**HEADS, "vocab_size": 50, "max_position_embeddings": 12}
    text |= {"bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0}
    return hf(name, text_config=text, vision_config={**HEADS, "image_size": 16, "patch_size": 8})


def timm_variant(name: str) -> nn.Module:
    import timm as library

    return library.create_model(name, embed_dim=32, depth=2, num_heads=2, img_size=32)


GATED = {"llama", "aimv2", "eva02", "qwen 3"}
"""Their first MLP layer is two matrices."""
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    # each with the number of its blocks
    "hf clip": (lambda: tiny_clip().model, 4),
    "hf dual encoder": (dual, 4),
    "open_clip": (open_clip, 4),
    "timm vit": (timm, 2),
    "hf vit": (lambda: hf("ViTModel", **HEADS, image_size=16, patch_size=8), 2),
    "bert": (lambda: hf("BertModel", **HEADS), 2),
    "gpt2": (lambda: hf("GPT2Model", n_embd=32, n_layer=2, n_head=2, vocab_size=50), 2),
    "siglip": (lambda: two_towers("SiglipModel"), 4),
    "metaclip 2": (lambda: two_towers("MetaClip2Model"), 4),
    "aimv2": (lambda: two_towers("Aimv2Model"), 4),
    "timm siglip": (lambda: timm_variant("vit_base_patch16_siglip_224"), 2),
    "pe-core": (lambda: timm_variant("vit_pe_core_tiny_patch16_384"), 2),
    "eva02": (lambda: timm_variant("eva02_base_patch16_clip_224"), 2),
    "phi-3": (lambda: hf("Phi3Model", **HEADS, vocab_size=50, pad_token_id=0), 2),
    "gpt-neox": (lambda: hf("GPTNeoXModel", **HEADS, vocab_size=50), 2),
    "falcon": (lambda: hf("FalconModel", **HEADS, vocab_size=50), 2),
    "gpt-j": (lambda: hf("GPTJModel", n_embd=32, n_layer=2, n_head=2, rotary_dim=8), 2),
    "opt": (lambda: hf("OPTModel", **SMALL, ffn_dim=64, num_attention_heads=2, vocab_size=50), 2),
    "qwen 3": (lambda: hf("Qwen3Model", **HEADS, vocab_size=50, num_key_value_heads=2), 2),
    "llama": (lambda: hf("LlamaModel", **HEADS, vocab_size=50, num_key_value_heads=2), 2),
}


@pytest.fixture(params=MODELS)
def architecture(request: pytest.FixtureRequest) -> tuple[str, nn.Module, int]:
    make, blocks = MODELS[request.param]
    return request.param, make(), blocks


def in_and_out_features(model: nn.Module, name: str, weight: torch.Tensor) -> tuple[int, int]:
    """Inputs and outputs of a layer, however it stores them."""
    return (weight.shape[0], weight.shape[1])[:: -1 if neuron_axis(model, name) == 0 else 1]


def test_every_kind_in_every_architecture(architecture: tuple[str, nn.Module, int]):
    name, model, blocks = architecture
    located = {kind: locate(model, kind) for kind in KINDS}
    gates = 2 if name in GATED else 1
    assert len(located["first-mlp"]) == blocks * gates
    assert len(located["second-mlp"]) == blocks
    assert located["both-mlp"].keys() == located["first-mlp"].keys() | located["second-mlp"].keys()
    assert not located["attention"].keys() & located["both-mlp"].keys()
    assert len(located["attention"]) % blocks == 0
    assert located["everything"].keys() == dict(model.named_parameters()).keys()
    for layer, weight in located["first-mlp"].items():
        inputs, outputs = in_and_out_features(model, layer, weight)
        assert outputs > inputs, "the first MLP layer widens"
    for layer, weight in located["second-mlp"].items():
        inputs, outputs = in_and_out_features(model, layer, weight)
        assert outputs < inputs, "the second narrows"


def test_every_matrix_of_a_block_has_one_kind(architecture: tuple[str, nn.Module, int]):
    _, model, _ = architecture
    blocks = tuple(f"{name}." for name in block_names(model))
    matrices = {n for n, p in model.named_parameters() if p.ndim == 2 and n.startswith(blocks)}
    assert matrices == locate(model, "both-mlp").keys() | locate(model, "attention").keys()


def test_blocks_are_named_in_order(architecture: tuple[str, nn.Module, int]):
    _, model, count = architecture
    names = block_names(model)
    assert len(names) == count
    assert [name.rpartition(".")[2] for name in names][:2] == ["0", "1"]
    assert all(isinstance(model.get_submodule(name), nn.Module) for name in names)


class UnknownArchitecture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(4, 4 + i) for i in (8, 8, 16))
        self.head = nn.Linear(4, 2)


def test_patterns_name_parameters_or_modules():
    model = UnknownArchitecture()
    assert list(locate(model, "stages.*.weight")) == [f"stages.{i}.weight" for i in range(3)]
    assert list(locate(model, ["head", "stages.0"])) == [
        "stages.0.weight",
        "stages.0.bias",
        "head.weight",
        "head.bias",
    ]


def test_an_unknown_architecture_is_explained():
    with pytest.raises(UserError) as error:
        locate(UnknownArchitecture(), "first-mlp")
    text = str(error.value)
    assert "stages.*  12×4  (2 of them)" in text
    assert "head  2×4  (1 of them)" in text
    assert "where='stages.*'" in text
    assert len(locate(UnknownArchitecture(), "stages.*")) == 6  # what the message proposes works
    with pytest.raises(UserError, match="'second mlp'"):
        locate(UnknownArchitecture(), "second mlp")


def test_gpt2_neurons_are_columns():
    model = MODELS["gpt2"][0]()
    name = "h.0.mlp.c_fc.weight"
    weight = locate(model, "first-mlp")[name]
    axes = {name: neuron_axis(model, name)}
    index = select({name: torch.rand(weight.shape)}, 0.1, "neuron", axes=axes)[name].index
    columns = torch.zeros(weight.shape).flatten().index_fill(0, index, 1).view(weight.shape)
    assert ((columns.sum(0) == 0) | (columns.sum(0) == weight.shape[0])).all()
    assert (columns.sum(0) > 0).sum() == int(0.1 * weight.shape[1])


def test_convolutions_are_no_matrices():
    """FastViT, the visual tower of MobileCLIP-S, calls its convolutions `mlp.fc1`."""

    class Block(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.mlp = nn.ModuleDict({"fc1": layer})

    model = nn.ModuleDict(
        {
            "stages": nn.ModuleList([Block(nn.Conv2d(4, 8, 1))]),
            "blocks": nn.ModuleList([Block(nn.Linear(4, 8))]),
        }
    )
    assert list(locate(model)) == ["blocks.0.mlp.fc1.weight"]
    assert block_names(model) == ["blocks.0"]
