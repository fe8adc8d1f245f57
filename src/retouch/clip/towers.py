"""The two towers of a CLIP, and how they run: eagerly or compiled, whole or from a block on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from retouch.clip.fast.compile import Backend, CompileTimer
from retouch.clip.fast.cuda_graphs import GraphRecorder, has_hooks
from retouch.clip.fast.fast_vit import fast_towers
from retouch.clip.fast.graph_capture import ForwardPass
from retouch.clip.fast.padding import pad_rows, padded_num_images, padded_num_prompts
from retouch.clip.frozen.blocks import FrozenBlocks
from retouch.clip.frozen.keyed_images import KeyedImages, Pixels
from retouch.clip.frozen.texts import BatchKey, FrozenTexts
from retouch.clip.memory import encode_in_parts
from retouch.clip.preprocess import NormalizeFn, Preprocess, normalize_pixels
from retouch.clip.text.tokens import Tokens, num_prompts
from retouch.sparse.locate import block_names


class Towers(ABC):
    """A visual and a text encoder, and their normalized features."""

    model: nn.Module
    """The library's model: what is trained, saved and fingerprinted."""
    preprocess: Preprocess
    image_prefix: str
    """What the names of the visual tower's parameters begin with; the rest is the text tower."""
    bf16: bool = False
    """Whether the towers compute in bfloat16; features are float32 either way."""
    compiled: bool = False
    """Whether the towers are compiled at present, see `fast`."""
    frozen: FrozenBlocks | None = None
    """The lower visual blocks that are computed once per image, see `clip.frozen.reuse`."""
    frozen_texts: FrozenTexts | None = None
    """The lower blocks of the text tower that are computed once per prompt that recurs."""
    _most: Mapping[str, int] = MappingProxyType({})
    """How many images and prompts fit into memory without gradients, once more did not."""
    _recorder: GraphRecorder | None = None
    _normalize_pixels: NormalizeFn = staticmethod(normalize_pixels)
    """`normalize_pixels`, or its compiled version inside `fast`."""

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

    def pad_tokens(self, tokens: Tokens) -> Tokens:
        """Pad prompts to one of a few lengths, which does not change their features.

        Args:
            tokens: Tokens, as `tokenize` returns them.
        """
        return tokens

    def image_features(self, pixels: Pixels) -> Tensor:
        """Normalized features of images.

        Args:
            pixels: 8-bit pixels [B, H, W, 3], or images by key.
        """

        def encode(part: slice) -> Tensor:
            return self.run(self._encode_images(pixels[part]))[: part.stop - part.start]

        return self._fitting("images", len(pixels), encode)

    def text_features(self, tokens: Tokens, key: BatchKey | None = None) -> Tensor:
        """Normalized features of prompts.

        Args:
            tokens: Tokens, as `tokenize` returns them.
            key: The batch's owner and number, if it is encoded repeatedly: activations of frozen
                blocks are then kept as long as the owner lives.
        """
        count = num_prompts(tokens)

        def encode(part: slice) -> Tensor:
            whole = part.stop - part.start == count
            some = {name: ids[part] for name, ids in tokens.items()}
            texts = self.text_pass(some, key if whole else None)
            return self.run(texts)[: part.stop - part.start]

        return self._fitting("prompts", count, encode)

    def _fitting(self, what: str, count: int, encode: Callable[[slice], Tensor]) -> Tensor:
        """All rows at once; without gradients, in parts if memory runs out."""
        if torch.is_grad_enabled():
            return encode(slice(0, count))
        most = min(count, self._most.get(what, count))
        features, size = encode_in_parts(self, count, what, encode, most)
        if size < most:
            self._most = {**self._most, what: size}
        return features

    def pair_features(self, pixels: Pixels, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Normalized features of images and of prompts. A GPU may compute them concurrently.

        Args:
            pixels: 8-bit pixels [B, H, W, 3], or images by key.
            tokens: Tokens, as `tokenize` returns them.
        """
        images, texts = self._run([self._encode_images(pixels), self.text_pass(tokens)])
        return images[: len(pixels)], texts[: num_prompts(tokens)]

    def _encode_images(self, images: Pixels) -> ForwardPass:
        frozen, run = self.frozen, self._encode_pixels
        if not isinstance(images, KeyedImages):
            inputs = images
        elif frozen is not None and frozen.usable(self.bf16, self.compiled):
            inputs = frozen.activations(images, self._encode_pixels)
            run = partial(self._encode_upper, frozen)
        else:
            inputs = images.pixels()
        if self.compiled or self.captures:
            inputs = pad_rows(inputs, padded_num_images(len(inputs), self.compiled))
        return ForwardPass(
            "images",
            lambda rows: normalize(run(rows).float(), dim=-1),
            [inputs.to(self.device)],
        )

    def _encode_pixels(self, pixels: Tensor) -> Tensor:
        with self.precision():
            return self.encode_images(self.preprocess.normalize(pixels, self._normalize_pixels))

    def _encode_upper(self, frozen: FrozenBlocks, hidden: Tensor) -> Tensor:
        """Features of images whose lower blocks are computed."""
        with self.precision(), frozen.starting_at(hidden):
            return self.encode_images(frozen.blank)

    def text_pass(self, tokens: Tokens, key: BatchKey | None = None) -> ForwardPass:
        """The forward pass of `text_features`, which may have more rows than there are prompts.

        Args:
            tokens: Tokens, as `tokenize` returns them.
            key: See `text_features`.
        """
        if self.compiled or self.captures:
            rows = padded_num_prompts(num_prompts(tokens))
            tokens = {key: pad_rows(ids, rows) for key, ids in self.pad_tokens(tokens).items()}
        tokens = {name: ids.to(self.device) for name, ids in tokens.items()}
        names, inputs = list(tokens), list(tokens.values())

        def run(*values: Tensor) -> Tensor:
            with self.precision():
                features = self.encode_texts(dict(zip(names, values, strict=True)))
                return normalize(features.float(), dim=-1)

        frozen = self.frozen_texts
        if key is None or frozen is None or not frozen.usable(self.bf16, self.compiled):
            return ForwardPass("texts", run, inputs)

        def run_upper(hidden: Tensor, *values: Tensor) -> Tensor:
            with frozen.starting_at(hidden):
                return run(*values)

        with self.precision():
            encode = partial(self.encode_texts, tokens)
            hidden = frozen.activations(key, inputs[0].shape, encode)
        return ForwardPass("texts", run_upper, [hidden, *inputs])

    def run(self, forward_pass: ForwardPass) -> Tensor:
        """The output of a pass. A GPU captures one that recurs, with its backward pass.

        Args:
            forward_pass: As of `text_pass`.
        """
        return self._run([forward_pass])[0]

    def unchanged(self) -> AbstractContextManager[None]:
        """Inside, the model's modules and what is trained stay as they are; weights may move."""
        return nullcontext() if self._recorder is None else self._recorder.unchanged()

    def _run(self, passes: Sequence[ForwardPass]) -> Sequence[Tensor]:
        if self._recorder is None:
            return [forward() for forward in passes]
        return self._recorder(passes)

    @contextmanager
    def fast(
        self, backend: Backend | None = "inductor", *, cuda_graphs: bool = False
    ) -> Iterator[CompileTimer]:
        """Inside this context the towers are compiled, at the first batch of each shape.

        Yields the time that compiling has taken so far. On a GPU, passes that recur are also
        captured (see `clip.fast.cuda_graphs`). Nothing changes if modules have forward hooks.

        Args:
            backend: The backend of `torch.compile`. None: do not compile.
            cuda_graphs: On a GPU, capture towers that are not compiled, too.
        """
        cuda = self.device.type == "cuda"
        off = backend is None and not (cuda_graphs and cuda)
        if off or self.compiled or self.captures or has_hooks(self.model):
            yield CompileTimer()
            return
        try:
            with fast_towers(self.model, self.image_prefix, backend) as (timer, normalize_fn):
                self.compiled, self._normalize_pixels = backend is not None, normalize_fn
                self._recorder = GraphRecorder(self.model) if cuda else None
                yield timer
        finally:
            self.compiled, self._recorder = False, None
            self._normalize_pixels = normalize_pixels

    @property
    def captures(self) -> bool:
        """Whether passes are captured as CUDA graphs at present."""
        return self._recorder is not None

    def drop_kept(self) -> bool:
        """Drop the stored activations and store none from now on; False if there were none."""
        images = self.frozen is not None and self.frozen.close()
        texts = self.frozen_texts is not None and self.frozen_texts.close()
        return images or texts

    def limit_rows(self, most: int) -> None:
        """Run the whole visual tower, if its lower blocks take more images at a time than fit.

        Args:
            most: How many images fit into memory.
        """
        if self.frozen is not None and most < self.frozen.batch_size:
            self.frozen = None

    def release_memory(self) -> None:
        """Free the memory of captured passes, and torch's cached memory."""
        if self._recorder is not None:
            self._recorder.clear()
        torch.cuda.empty_cache()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def blocks(self) -> dict[str, list[str]]:
        """The names of each tower's transformer blocks, from input to output."""
        names = block_names(self.model)
        image = [name for name in names if name.startswith(self.image_prefix)]
        return {"image": image, "text": [name for name in names if name not in image]}

    def text_parameters(self, names: Iterable[str]) -> list[str]:
        """Those of these parameters that do not belong to the visual tower.

        Args:
            names: Names of parameters.
        """
        return [name for name in names if not name.startswith(self.image_prefix)]

    def precision(self) -> torch.autocast:
        """A context that computes in bfloat16 if `bf16` is set."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)
