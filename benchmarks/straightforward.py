"""A straightforward implementation: the baseline of `speed.py`.

Every prompt of the batch is encoded, at its full 77 tokens; all weights get a gradient; the
gradients of the first MLP layers are multiplied by masks, and a dense AdamW updates those layers;
float32, with TF32 matrix products on a GPU. Images are decoded whenever they are needed.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, pad
from torch.utils.data import DataLoader, Dataset

from retouch.clip import Preprocess
from retouch.clip.hf.model import HuggingFaceClip
from retouch.data import Images, Stream
from retouch.data.replay import ReplayBuffer
from retouch.data.stores.image_store import Indices
from retouch.methods import Settings, recipe
from retouch.sparse import Selection, locate, select


class DenseMasked:
    """Training with dense masks."""

    def __init__(self, clip: HuggingFaceClip, lr: float) -> None:
        self.clip, self.model = clip, clip.model
        self.model.requires_grad_(True)
        self.layers = locate(self.model, "first-mlp")
        self.masks: dict[str, Tensor] = {}
        self.optimizer = torch.optim.AdamW(self.layers.values(), lr=lr, weight_decay=0.2)

    def select(self, selection: Selection) -> None:
        for name, parameter in self.layers.items():
            mask = torch.zeros_like(parameter)
            entries = selection[name]
            mask.view(-1)[entries.index if entries.index is not None else slice(None)] = 1
            self.masks[name] = mask

    def step(self, pixels: Tensor, prompts: Sequence[str], new: int) -> Tensor:
        """One step on image–prompt pairs, of which the first `new` belong to the task."""
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
        ids = full_length_tokens(self.clip, prompts).to(pixels.device)
        images = self.clip.encode_images(self.clip.preprocess.normalize(pixels))
        texts = self.clip.encode_texts({"input_ids": ids})
        return normalize(images, dim=-1), normalize(texts, dim=-1)


def clip_loss(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    logits = scale * images @ texts.T
    target = torch.arange(len(images), device=images.device)
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


class DecodedImages(Dataset[Tensor]):
    """Each image is decoded every time it is needed."""

    def __init__(self, images: Images, positions: Sequence[int], preprocess: Preprocess) -> None:
        self.images, self.positions, self.preprocess = images, positions, preprocess

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Tensor:
        image = self.images.store.image(int(self.positions[index]))
        return torch.from_numpy(self.preprocess.prepare(image).copy())


class StraightforwardRun:
    """For each task: score, select, train with replay, evaluate."""

    def __init__(
        self,
        clip: HuggingFaceClip,
        stream: Stream,
        control: Images,
        settings: Settings,
        workers: int,
    ) -> None:
        self.clip, self.stream, self.control = clip, stream, control
        self.settings, self.workers = settings, workers

    def learn(self) -> list[float]:
        """Accuracies on the control set, before the first task and after each."""
        buffer = recipe("spu").replay.buffer(self.stream, self.settings.seed)
        accuracies = [self.evaluate()]
        for task in self.stream.tasks:
            dense = DenseMasked(self.clip, self.settings.lr)
            dense.select(self.score(dense, task.train))
            for epoch in range(self.settings.epochs):
                rng = np.random.default_rng([self.settings.seed, task.number, epoch])
                self.epoch(dense, rng.permutation(task.train), buffer, rng)
            buffer.add(task.number, task.train, self.stream.train.labels[task.train])
            accuracies.append(self.evaluate())
        return accuracies

    def score(self, dense: DenseMasked, positions: Indices) -> Selection:
        """Select by the gradient on a quarter of the images."""
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
        new_batches = np.array_split(positions, -(-len(positions) // size))
        batches = [np.concatenate([new, buffer.sample(len(new), rng)]) for new in new_batches]
        sizes = [len(batch) for batch in batches]
        loaded = self.batches(self.stream.train, np.concatenate(batches), 0, sizes)
        for (pixels, batch), new in zip(loaded, new_batches, strict=True):
            dense.step(pixels, self.prompts(batch), len(new))

    def prompts(self, positions: Indices) -> list[str]:
        train = self.stream.train
        return [train.prompt.replace("{}", train.classes[train.labels[i]]) for i in positions]

    @torch.no_grad()
    def evaluate(self) -> float:
        accuracy = 0.0
        for images in (self.stream.test, self.control):
            texts = self.classifier(images)
            labels = torch.from_numpy(images.labels).to(texts.device)
            predictions = []
            for pixels, _ in self.batches(images, np.arange(len(images)), 256):
                features = self.clip.encode_images(self.clip.preprocess.normalize(pixels))
                predictions.append((normalize(features, dim=-1) @ texts.T).argmax(dim=1))
            accuracy = 100 * (torch.cat(predictions) == labels).double().mean().item()
        return accuracy

    def classifier(self, images: Images) -> Tensor:
        """One class at a time, with all templates."""
        features = []
        for name in images.classes:
            prompts = [template.replace("{}", name) for template in images.templates]
            tokens = full_length_tokens(self.clip, prompts).to(self.clip.device)
            encoded = normalize(self.clip.encode_texts({"input_ids": tokens}), dim=-1)
            features.append(normalize(encoded.mean(dim=0), dim=-1))
        return torch.stack(features)

    def batches(
        self, images: Images, positions: Indices, size: int, sizes: Sequence[int] = ()
    ) -> Iterator[tuple[Tensor, Indices]]:
        """Batches decoded by the worker processes of a DataLoader."""
        sizes = sizes or [size] * (len(positions) // size) + [len(positions) % size]
        ends = np.cumsum([n for n in sizes if n])
        indices = np.split(np.arange(len(positions)), ends[:-1])
        loader = DataLoader(
            DecodedImages(images, positions, self.clip.preprocess),
            batch_sampler=[index.tolist() for index in indices],
            num_workers=self.workers,
        )
        for pixels, index in zip(loader, indices, strict=True):
            yield pixels.to(self.clip.device), positions[index]


def full_length_tokens(clip: HuggingFaceClip, prompts: Sequence[str]) -> Tensor:
    """Prompts padded to the model's context."""
    ids = clip.tokenize(prompts)["input_ids"]
    context = clip.model.config.text_config.max_position_embeddings
    return pad(ids, (0, context - ids.shape[1]), value=clip.tokenizer.pad_token_id or 0)
