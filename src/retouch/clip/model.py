"""One small interface over every CLIP, whichever library it comes from."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from retouch.clip.fast.compile import (
    Backend,
    Stopwatch,
    compiled,
    pad_rows,
    padded_batch_size,
    padded_eval_batch_size,
    timed,
)
from retouch.clip.fast.cuda_graphs import ForwardPass, GraphRecorder, has_hooks
from retouch.clip.fast.fast_vit import compile_with, fast_vit
from retouch.clip.preprocess import Preprocess, Scale, scaled
from retouch.clip.truncation import TruncatedPrompts
from retouch.sparse.locate import block_names

Tokens = dict[str, Tensor]
"""A batch of prompts as the text tower takes them, no longer than the longest of them."""

_ONE_AT_A_TIME = RLock()  # a tokenizer of transformers changes its settings with every call
"""One thread may ask twice: an own pair of encoders may cut prompts as another model does."""


class Clip(ABC):
    """Two encoders into one space. Features are of length one, prompts are cut at the longest."""

    name: str
    model: nn.Module
    """The library's own model: what is trained, saved and fingerprinted."""
    preprocess: Preprocess
    image_prefix: str
    """How the names of the visual tower's parameters begin; the rest is the text tower's."""
    projections: Mapping[str, str] = {}
    """The parameters that project each tower (`image`, `text`) into the common space, if any."""
    bf16: bool = False
    """Whether the towers compute in bfloat16; features are float32 either way."""
    compiled: bool = False
    """Whether the towers are compiled now, see `fast`."""
    _recorder: GraphRecorder | None = None
    _scale: Scale = staticmethod(scaled)
    """How 8-bit pixels become the model's, compiled or not."""

    @abstractmethod
    def encode_images(self, pixels: Tensor) -> Tensor:
        """Features of images, not normalized.

        Args:
            pixels: Normalized pixels [B, 3, H, W].
        """

    @abstractmethod
    def encode_texts(self, tokens: Tokens) -> Tensor:
        """Features of prompts, not normalized.

        Args:
            tokens: Tokens, as `tokenize` returns them.
        """

    @abstractmethod
    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        """What `tokenize` says, while nobody else asks for it."""

    def tokenize(self, prompts: Sequence[str]) -> Tokens:
        """Prompts as tokens. A prompt that is too long is truncated, and the log names it.

        Args:
            prompts: The prompts, such as "a photo of a cat".
        """
        with _ONE_AT_A_TIME:
            return self._tokenize(prompts)

    @cached_property
    def truncated_prompts(self) -> TruncatedPrompts:
        """The prompts that were truncated so far."""
        return TruncatedPrompts()

    def lengths(self, tokens: Tokens) -> Tensor | None:
        """How many tokens of each prompt are read; the rest may be cut off. None: all are read.

        Args:
            tokens: Tokens, as `tokenize` returns them.
        """
        return None

    @property
    @abstractmethod
    def logit_scale(self) -> Tensor:
        """What similarities are multiplied by (100 in OpenAI's models), with its gradient."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write a plain model that its own library loads without `retouch`.

        Args:
            folder: The folder to write.
        """

    def image_features(self, pixels: Tensor) -> Tensor:
        """Normalized features of images.

        Args:
            pixels: 8-bit pixels [B, H, W, 3].
        """
        return self._run([self._encode_images(pixels)])[0][: len(pixels)]

    def text_features(self, tokens: Tokens) -> Tensor:
        """Normalized features of prompts.

        Args:
            tokens: Tokens, as `tokenize` returns them.
        """
        return self._run([self._encode_texts(tokens)])[0][: num_prompts(tokens)]

    def pair_features(self, pixels: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Normalized features of images and of prompts. A GPU may compute them side by side.

        Args:
            pixels: 8-bit pixels [B, H, W, 3].
            tokens: Tokens, as `tokenize` returns them.
        """
        images, texts = self._run([self._encode_images(pixels), self._encode_texts(tokens)])
        return images[: len(pixels)], texts[: num_prompts(tokens)]

    def _encode_images(self, pixels: Tensor) -> ForwardPass:
        if self.compiled:
            pixels = pad_rows(pixels, padded_batch_size(len(pixels)))

        def run(there: Tensor) -> Tensor:
            with self.precision():
                normal = self.preprocess.normalize(there, self._scale)
                return normalize(self.encode_images(normal).float(), dim=-1)

        return ForwardPass("images", run, [pixels.to(self.device)])

    def _encode_texts(self, tokens: Tokens) -> ForwardPass:
        if self.compiled:
            rows = (padded_batch_size if torch.is_grad_enabled() else padded_eval_batch_size)(
                num_prompts(tokens)
            )
            tokens = {key: pad_rows(each, rows) for key, each in self.pad_tokens(tokens).items()}

        def run(*there: Tensor) -> Tensor:
            with self.precision():
                found = self.encode_texts(dict(zip(tokens, there, strict=True)))
                return normalize(found.float(), dim=-1)

        return ForwardPass("texts", run, [value.to(self.device) for value in tokens.values()])

    def _run(self, passes: Sequence[ForwardPass]) -> Sequence[Tensor]:
        return [each() for each in passes] if self._recorder is None else self._recorder(passes)

    def pad_tokens(self, tokens: Tokens) -> Tokens:
        """Pad prompts to a length that others have too. Their features stay the same.

        Args:
            tokens: Tokens, as `tokenize` returns them.
        """
        return tokens

    @contextmanager
    def fast(self, backend: Backend | None = "inductor") -> Iterator[Stopwatch]:
        """While this context lasts, the towers are compiled; yields how long that took.

        On a GPU, frequent passes are captured as CUDA graphs as well. Towers that take visual
        prompts stay as they are.

        Args:
            backend: The backend of `torch.compile`. None: do not compile.
        """
        if backend is None or has_hooks(self.model):
            yield Stopwatch()
            return
        names = [name for tower in self.blocks.values() for name in tower]
        compiling = compile_with(backend)
        self.compiled, self._scale = True, compiling(scaled)
        self._recorder = GraphRecorder(self.model) if self.device.type == "cuda" else None
        try:
            blocks = [self.model.get_submodule(name) for name in names]
            short = fast_vit(self.model, self.image_prefix, compiling)
            with timed() as watch, compiled(blocks, backend), short:
                yield watch
        finally:
            self.compiled, self._recorder, self._scale = False, None, scaled

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def size(self) -> int:
        """How many parameters the model has."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def blocks(self) -> dict[str, list[str]]:
        """The names of the transformer blocks of each tower, from the input to the output."""
        names = block_names(self.model)
        image = [name for name in names if name.startswith(self.image_prefix)]
        return {"image": image, "text": [name for name in names if name not in image]}

    def precision(self) -> torch.autocast:
        """What the towers compute in while this lasts."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def to(self, device: torch.device | str) -> "Clip":
        """Move the model to a device, and return it.

        Args:
            device: Such as `cpu` or `cuda:1`.
        """
        self.model.to(device)
        return self

    def frozen_copy(self) -> Self:
        """A frozen copy, to compare with later."""
        tokenizer = getattr(self, "tokenizer", None)
        shared = {id(each): each for each in (tokenizer, self.truncated_prompts)}
        other = copy.deepcopy(self, {**shared, id(self._recorder): None})
        other.model.requires_grad_(False)
        return other


class DualEncoder(Clip):
    """A CLIP made of two encoders of your own.

    Args:
        images: Maps normalized pixels [B, 3, H, W] to features [B, D].
        texts: Maps the tensors that `tokenize` returns, as keyword arguments, to features [B, D].
        tokenize: Turns prompts into tensors by name.
        pixels: The size and normalization of images that `images` expects.
        logit_scale: What similarities are multiplied by.
        name: The name of the model in results and reports.
    """

    image_prefix = "images."

    def __init__(
        self,
        images: nn.Module,
        texts: nn.Module,
        tokenize: Callable[[Sequence[str]], Mapping[str, Tensor]],
        pixels: Preprocess,
        *,
        logit_scale: float = 100.0,
        name: str = "own pair of encoders",
    ) -> None:
        self.name = name
        self.model = nn.ModuleDict({"images": images, "texts": texts}).eval()
        log_scale = torch.tensor(float(logit_scale)).log()
        self.model.register_parameter("logit_scale", nn.Parameter(log_scale))
        self.preprocess = pixels
        self._own_tokenise = tokenize

    def encode_images(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.model.get_submodule("images")(pixels)
        return features

    def encode_texts(self, tokens: Tokens) -> Tensor:
        features: Tensor = self.model.get_submodule("texts")(**tokens)
        return features

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        return dict(self._own_tokenise(prompts))

    @property
    def logit_scale(self) -> Tensor:
        return self.model.get_parameter("logit_scale").exp()

    def save(self, folder: str | Path) -> None:
        from safetensors.torch import save_file

        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file(savable(self.model), Path(folder) / "model.safetensors")


def savable(model: nn.Module) -> dict[str, Tensor]:
    """The model's state as safetensors takes it: contiguous, and no two tensors share memory."""
    state: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        own = tensor.contiguous()
        place = own.untyped_storage().data_ptr()
        state[name] = own.clone() if place in seen else own
        seen.add(place)
    return state


def num_prompts(tokens: Tokens) -> int:
    """Prompts in a batch of them."""
    return len(next(iter(tokens.values())))
