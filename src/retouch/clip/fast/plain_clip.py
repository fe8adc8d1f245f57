"""CLIP in plain torch, with the parameter names of `transformers.CLIPModel`.

It exists so that `retouch learn` and `retouch classify` start quickly, without importing
transformers (see `clip.fast.light`). The same operations in the same order give the same features
(tests/clip/fast/test_light.py) and the same trained weights (tests/train/test_same_result.py), to
the bit. What is saved or exported is the transformers model itself (`clip.hf.model`).
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from retouch.clip.fast.attention import attention


class _SkipInit(TorchFunctionMode):
    """Inside this context, layers are not initialized at random: their weights come from a file.

    The layers themselves are torch's own, so whatever looks for an `nn.Linear` finds them.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


class _QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Attention over all tokens, or over earlier ones."""

    fused: bool = False
    """Whether to compute it with `fast.attention`."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.num_heads, self.causal = heads, causal
        self.head_dim = width // heads
        self.scale = self.head_dim**-0.5
        self.k_proj, self.v_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.q_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Returns a pair, as in transformers: learned prompts rely on that."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in layers
        )
        if self.fused and not self.causal:
            out = attention(query, key, value, self.scale)
        else:
            causal = self.causal and x.shape[1] > 1
            options = {"is_causal": causal, "scale": self.scale}
            out = scaled_dot_product_attention(query, key, value, **options)
        return self.out_proj(out.transpose(1, 2).contiguous().flatten(2)), None


class _MLP(nn.Module):
    def __init__(self, width: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.activation_fn = _QuickGELU() if activation == "quick_gelu" else nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.activation_fn(self.fc1(x)))
        return out


class _Block(nn.Module):
    def __init__(self, config: Mapping[str, Any], causal: bool) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.self_attn = Attention(width, config["num_attention_heads"], causal)
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.mlp = _MLP(width, config["intermediate_size"], config["hidden_act"])
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Tensor, mask: None = None) -> Tensor:
        """The signature is that of a block of transformers; here the mask is always None."""
        x = x + self.self_attn(self.layer_norm1(x))[0]
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class _Encoder(nn.Module):
    def __init__(self, config: Mapping[str, Any], causal: bool) -> None:
        super().__init__()
        blocks = [_Block(config, causal) for _ in range(config["num_hidden_layers"])]
        self.layers = nn.ModuleList(blocks)

    def forward(self, x: Tensor, mask: None = None) -> Tensor:
        for block in self.layers:
            x = block(x, mask)
        return x


class _TextEmbeddings(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.position_embedding = nn.Embedding(
            config["max_position_embeddings"], config["hidden_size"]
        )

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        out: Tensor = self.token_embedding(ids) + self.position_embedding(positions)
        return out


class _TextTower(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.embeddings, self.encoder = _TextEmbeddings(config), _Encoder(config, causal=True)
        width = config["hidden_size"]
        self.final_layer_norm = nn.LayerNorm(width, eps=config["layer_norm_eps"])
        self.eos_id: int = config["eos_token_id"]

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.final_layer_norm(self.encoder(self.embeddings(ids)))
        # Old configs say 2; transformers then takes the largest token for the end token.
        end = ids if self.eos_id == 2 else ids == self.eos_id
        return x[torch.arange(len(x), device=x.device), end.int().argmax(dim=-1)]


class _ImageEmbeddings(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, patch = config["hidden_size"], config["patch_size"]
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.patch_embedding = nn.Conv2d(
            config["num_channels"], width, kernel_size=patch, stride=patch, bias=False
        )
        self.size: int = config["image_size"]
        self.num_positions = (self.size // patch) ** 2 + 1
        self.position_embedding = nn.Embedding(self.num_positions, width)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        class_token = self.class_embedding.expand(len(pixels), 1, -1)
        positions = torch.arange(self.num_positions, device=pixels.device)[None]
        tokens = torch.cat([class_token, patches], dim=1)
        out: Tensor = tokens + self.position_embedding(positions)
        return out


class ImageTower(nn.Module):
    """A vision transformer that is pooled at its class token."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.embeddings = _ImageEmbeddings(config)
        self.pre_layrnorm = nn.LayerNorm(width, eps=eps)  # transformers' spelling
        self.encoder = _Encoder(config, causal=False)
        self.post_layernorm = nn.LayerNorm(width, eps=eps)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.encoder(self.pre_layrnorm(self.embeddings(pixels)))
        pooled: Tensor = self.post_layernorm(x[:, 0])
        return pooled


class PlainCLIP(nn.Module):
    """`transformers.CLIPModel` with the same parameter names."""

    def __init__(self, text: Mapping[str, Any], image: Mapping[str, Any], width: int) -> None:
        super().__init__()
        with _SkipInit():
            self.text_model, self.vision_model = _TextTower(text), ImageTower(image)
            self.visual_projection = nn.Linear(image["hidden_size"], width, bias=False)
            self.text_projection = nn.Linear(text["hidden_size"], width, bias=False)
        self.logit_scale = nn.Parameter(torch.empty(()))
        # The part of the transformers config that `HuggingFaceClip` reads.
        text_config = SimpleNamespace(max_position_embeddings=text["max_position_embeddings"])
        self.config = SimpleNamespace(model_type="clip", text_config=text_config)
