"""How one would write it at first: the reference that `speed.py` is compared with.

Every prompt of the batch is encoded, at its full 77 tokens; all weights get a gradient; masks are
multiplied into the gradients of the first MLP layers, and a dense AdamW moves those; float32, with
TF32 products on a GPU. Images are decoded whenever they are needed.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, pad
from torch.utils.data import DataLoader, Dataset

from retouch.clip import Preprocess
from retouch.clip.hf import HuggingFaceClip
from retouch.data import Images, Stream
from retouch.data.image_store import Indices
from retouch.data.replay import ReplayBuffer
from retouch.methods import Settings, recipe
from retouch.sparse import Selection, locate, select


class DenseMasked:
    """A model that learns with masks, the plain way."""

    def __init__(self, clip: HuggingFaceClip, lr: float) -> None:
        self.clip, self.model = clip, clip.model
        self.model.requires_grad_(True)
        self.layers = locate(self.model, "first-mlp")
        self.masks: dict[str, Tensor] = {}
        self.optimizer = torch.optim.AdamW(self.layers.values(), lr=lr, weight_decay=0.2)

    def select(self, selection: Selection) -> None:
        for name, parameter in self.layers.items():
            mask = torch.zeros_like(parameter)
            chosen = selection[name]
            mask.view(-1)[chosen.index if chosen.index is not None else slice(None)] = 1
            self.masks[name] = mask

    def step(self, pixels: Tensor, prompts: Sequence[str], new: int) -> Tensor:
        """One step on pairs, of which the first `new` belong to the task."""
        images, texts = self.features(pixels, prompts)
        scale = self.clip.logit_scale
        loss = clip_loss(images[:new], texts[:new], scale)
        if new < len(images):
            loss = loss + clip_loss(images[new:], texts[new:], scale)
        loss.backward()
        for name, parameter in self.layers.items():
            assert parameter.grad is not None
            parameter.grad *= self.masks[name]
        self.optimizer.step()
        self.model.zero_grad()
        return loss

    def features(self, pixels: Tensor, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids = whole_tokens(self.clip, prompts).to(pixels.device)
        there = self.clip.preprocess.normalize(pixels)
        images = self.clip.encode_images(there)
        return normalize(images, dim=-1), normalize(
            self.clip.encode_texts({"input_ids": ids}), dim=-1
        )


def clip_loss(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    logits = scale * images @ texts.T
    own = torch.arange(len(images), device=images.device)
    return (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2


class OneByOne(Dataset[Tensor]):
    """Each image decoded by itself, every time it is needed."""

    def __init__(self, images: Images, positions: Sequence[int], pixels: Preprocess) -> None:
        self.images, self.positions, self.pixels = images, positions, pixels

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, place: int) -> Tensor:
        picture = self.images.store.image(int(self.positions[place]))
        return torch.from_numpy(self.pixels.prepare(picture).copy())


class StraightRun:
    """Task after task: score, select, train with replay, judge everything."""

    def __init__(
        self, clip: HuggingFaceClip, stream: Stream, control: Images, settings: Settings, cores: int
    ) -> None:
        self.clip, self.stream, self.control = clip, stream, control
        self.settings, self.cores = settings, cores

    def learn(self) -> list[float]:
        """Accuracies on the control set, before the first task and after each."""
        buffer = recipe("spu").replay.buffer(len(self.stream.train), self.settings.seed)
        found = [self.judge()]
        for task in self.stream.tasks:
            dense = DenseMasked(self.clip, self.settings.lr)
            dense.select(self.score(dense, task.train))
            for epoch in range(self.settings.epochs):
                rng = np.random.default_rng([self.settings.seed, task.number, epoch])
                self.epoch(dense, rng.permutation(task.train), buffer, rng)
            buffer.add(task.number, task.train, self.stream.train.labels[task.train])
            found.append(self.judge())
        return found

    def score(self, dense: DenseMasked, positions: Indices) -> Selection:
        """By the gradient on a quarter of the images."""
        quarter = positions[::4]
        for pixels, part in self.batches(self.stream.train, quarter, self.settings.batch):
            images, texts = dense.features(pixels, self.prompts(part))
            clip_loss(images, texts, self.clip.logit_scale).backward()
        gradients = {name: p.grad.abs() for name, p in dense.layers.items() if p.grad is not None}
        dense.model.zero_grad()
        return select(gradients, 0.10)

    def epoch(
        self, dense: DenseMasked, positions: Indices, buffer: ReplayBuffer, rng: np.random.Generator
    ) -> None:
        size = self.settings.batch
        news = np.array_split(positions, -(-len(positions) // size))
        both = [np.concatenate([new, buffer.sample(len(new), rng)]) for new in news]
        parts = self.batches(self.stream.train, np.concatenate(both), 0, [len(b) for b in both])
        for (pixels, part), new in zip(parts, news, strict=True):
            dense.step(pixels, self.prompts(part), len(new))

    def prompts(self, positions: Indices) -> list[str]:
        train = self.stream.train
        return [train.prompt.replace("{}", train.classes[train.labels[i]]) for i in positions]

    @torch.no_grad()
    def judge(self) -> float:
        right = 0.0
        for images in (self.stream.test, self.control):
            texts = self.classifier(images)
            labels = torch.from_numpy(images.labels).to(texts.device)
            found = []
            for pixels, _ in self.batches(images, np.arange(len(images)), 256):
                there = self.clip.encode_images(self.clip.preprocess.normalize(pixels))
                found.append((normalize(there, dim=-1) @ texts.T).argmax(dim=1))
            right = 100 * (torch.cat(found) == labels).double().mean().item()
        return right

    def classifier(self, images: Images) -> Tensor:
        """Class by class, each with all templates."""
        found = []
        for name in images.classes:
            prompts = [template.replace("{}", name) for template in images.templates]
            tokens = whole_tokens(self.clip, prompts).to(self.clip.device)
            each = normalize(self.clip.encode_texts({"input_ids": tokens}), dim=-1)
            found.append(normalize(each.mean(dim=0), dim=-1))
        return torch.stack(found)

    def batches(
        self, images: Images, positions: Indices, size: int, sizes: Sequence[int] = ()
    ) -> Iterator[tuple[Tensor, Indices]]:
        """Decoded by worker processes, as a DataLoader does it."""
        sizes = sizes or [size] * (len(positions) // size) + [len(positions) % size]
        ends = np.cumsum([n for n in sizes if n])
        places = np.split(np.arange(len(positions)), ends[:-1])
        loader = DataLoader(
            OneByOne(images, positions, self.clip.preprocess),
            batch_sampler=[place.tolist() for place in places],
            num_workers=self.cores,
        )
        for pixels, place in zip(loader, places, strict=True):
            yield pixels.to(self.clip.device), positions[place]


def whole_tokens(clip: HuggingFaceClip, prompts: Sequence[str]) -> Tensor:
    """As long as the model can read."""
    ids = clip.tokenize(prompts)["input_ids"]
    context = clip.model.config.text_config.max_position_embeddings
    return pad(ids, (0, context - ids.shape[1]), value=clip.tokenizer.pad_token_id or 0)
