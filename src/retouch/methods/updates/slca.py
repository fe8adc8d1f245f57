"""SLCA (Zhang et al. 2023): a slow learner with classifier alignment.

SLCA trains a vision transformer with a linear classifier. CLIP has no classifier; as the SPU
paper's appendix says, its two projections into the joint space take that place: they train at the
full learning rate and the backbone slowly, and the alignment trains only them.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.nn.functional import normalize

from retouch.clip import Clip
from retouch.clip.losses import classification
from retouch.data.pairs import Pairs
from retouch.data.stream import Task
from retouch.errors import UserError
from retouch.methods.parts import AfterTask, Update
from retouch.methods.schedule import Cosine
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.methods.updates.projection import (
    Projection,
    check_has_projections,
    check_projection_is_last,
    unprojected_features,
    unprojected_texts,
)
from retouch.random_streams import RandomStream
from retouch.sparse import Selection

log = logging.getLogger("retouch")


class SlowBackbone(Update):
    """Which parameters are trained? All: the projections at the full rate, the rest slowly."""

    backbone_lr_factor: Annotated[float, Field(ge=0)] = 0.2
    """Factor on the backbone's learning rate; the paper has 1.5e-6 with 7.5e-6 for the head."""

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        check_has_projections(clip)

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, adamw = context.clip.model, context.settings.adamw
        projections = set(context.clip.projections.values())
        parameters = dict(model.named_parameters())

        def optimizer(stack: ExitStack) -> torch.optim.Optimizer:
            head = [p for name, p in parameters.items() if name in projections]
            backbone = [p for name, p in parameters.items() if name not in projections]
            groups = [
                {"params": head},
                {"params": backbone, "lr": adamw["lr"] * self.backbone_lr_factor},
            ]
            return torch.optim.AdamW(groups, fused=True, **adamw)

        return TaskUpdate(model, Selection.whole(parameters, context.clip.size), optimizer)


class ClassifierAlignment(AfterTask):
    """What happens when a task ends? The projections are trained to tell all classes so far apart.

    No image is stored. For each class, the mean and covariance of its visual features before the
    projection are stored when the class is learned. Samples of these Gaussians are classified by
    the prompts of all classes so far. Both projections are trained; the prompts' features before
    the text projection are those of the current text tower, which is frozen meanwhile.
    """

    epochs: Annotated[int, Field(ge=0)] = 5
    """Epochs of the alignment after a task."""
    samples: Annotated[int, Field(gt=0)] = 256
    """Samples per class and epoch; also the batch size."""
    temperature: Annotated[float, Field(gt=0)] | None = 0.1
    """Logits are divided by their norm and by this; None leaves them as CLIP scales them. A model
    with a sigmoid loss is aligned by its own scores: there, this has no effect."""
    ridge: Annotated[float, Field(ge=0)] = 1e-4
    """Added to the diagonal of a covariance, which is singular for classes of few images."""

    # By class: mean [D] and a root R [rows, D] of the covariance RᵀR, on the CPU.
    _gaussians: dict[int, tuple[Tensor, Tensor]] = PrivateAttr(default_factory=dict)

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        check_has_projections(clip)
        check_projection_is_last(clip)
        if clip.logit_bias is not None and self.temperature is not None:
            log.warning(
                "%s has a sigmoid loss: its own scores are aligned, and the temperature of the "
                "alignment has no effect",
                clip.name,
            )

    def state(self) -> dict[str, Tensor]:
        means = {f"mean:{label}": mean for label, (mean, _) in self._gaussians.items()}
        return means | {f"root:{label}": root for label, (_, root) in self._gaussians.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        labels = [int(key.removeprefix("mean:")) for key in state if key.startswith("mean:")]
        self._gaussians = {c: (state[f"mean:{c}"], state[f"root:{c}"]) for c in labels}

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        for name in context.clip.projections.values():
            if name not in update.selection or update.selection[name].index is not None:
                raise UserError(
                    f"the alignment trains {name}, which the method's update does not; combine it "
                    "with SlowBackbone or FullFinetune"
                )
        labels = context.stream.train.labels[context.task.train]
        for label in context.task.classes:
            features = unprojected_features(context, context.task.train[labels == label])
            self._gaussians[label] = gaussian(features)
        self._align(context)

    def _align(self, context: TaskContext) -> None:
        """Train only the projections, with the task's learning rate and a cosine schedule."""
        clip, tasks = context.clip, context.stream.tasks[: context.task.number + 1]
        seen, sizes = _classes_by_task(tasks)
        images, texts = Projection(clip, "image"), Projection(clip, "text")
        distinct, prompt = context.stream.train.distinct_prompts(seen)
        prompts, of_class = unprojected_texts(clip, distinct), torch.from_numpy(prompt)
        weights = [p.weight for p in (images, texts) if p.weight is not None]
        optimizer = torch.optim.AdamW(weights, **context.settings.adamw)
        scale = clip.logit_scale.detach()
        for factor, features, targets in self._batches(context, seen):
            image_features = normalize(images(features.to(clip.device)), dim=-1)
            logits = scale * image_features @ normalize(texts(prompts), dim=-1).T
            self._loss(clip, logits, of_class, targets, sizes).backward()
            for group in optimizer.param_groups:
                group["lr"] = context.settings.lr * factor
            optimizer.step()
            optimizer.zero_grad()

    def _loss(
        self, clip: Clip, logits: Tensor, prompt: Tensor, targets: Tensor, sizes: Sequence[int]
    ) -> Tensor:
        """The cross-entropy over classes; of each prompt by itself if the model has a sigmoid.

        `logits` are of the distinct prompts, and `prompt` is the index of each class's.
        """
        if clip.logit_bias is None:
            of_classes = logits[:, prompt.to(logits.device)]
            return classification(self._scaled(of_classes, sizes), targets.to(logits.device), None)
        return classification(logits, prompt[targets].to(logits.device), clip.logit_bias.detach())

    def _scaled(self, logits: Tensor, sizes: Sequence[int]) -> Tensor:
        """Logits scaled so that their norm per task, averaged over tasks, is 1/temperature.

        `sizes` are the numbers of classes that each task added.
        """
        if self.temperature is None:
            return logits
        norms = [part.norm(dim=1) for part in logits.split(list(sizes), dim=1)]
        return logits / (torch.stack(norms).mean(dim=0)[:, None] + 1e-7) / self.temperature

    def _batches(
        self, context: TaskContext, seen: Sequence[int]
    ) -> Iterator[tuple[float, Tensor, Tensor]]:
        """The learning-rate factor, samples, and the index of each sample's class in `seen`."""
        steps, cosine = self.epochs * len(seen), Cosine(warmup=0.0)
        for epoch in range(self.epochs):
            samples = torch.cat([self._draw(context, label, epoch) for label in seen])
            rng = context.rng(RandomStream.SLCA_SHUFFLE, epoch)
            order = torch.from_numpy(rng.permutation(len(samples)))
            for number, batch in enumerate(order.split(self.samples)):
                factor = cosine.factor(epoch * len(seen) + number, steps, self.epochs)
                yield factor, samples[batch], batch // self.samples

    def _draw(self, context: TaskContext, label: int, epoch: int) -> Tensor:
        """Samples of a class's Gaussian, with `ridge` added to the diagonal of its covariance."""
        mean, root = self._gaussians[label]
        rng = context.rng(RandomStream.SLCA_SAMPLES, epoch, label)
        coordinates = rng.standard_normal((self.samples, len(root)), np.float32)
        noise = rng.standard_normal((self.samples, len(mean)), np.float32) * self.ridge**0.5
        return mean + torch.from_numpy(coordinates) @ root + torch.from_numpy(noise)


def _classes_by_task(tasks: Sequence[Task]) -> tuple[list[int], list[int]]:
    """Each class once, and how many each task added; a class may be taught again later."""
    seen: list[int] = []
    sizes = []
    for task in tasks:
        new = [label for label in task.classes if label not in seen]
        seen += new
        sizes += [len(new)] if new else []
    return seen, sizes


def gaussian(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean [D] of features [N, D] and a root R of their covariance RᵀR, with min(N, D) rows."""
    exact = features.double()
    mean = exact.mean(dim=0)
    centered = (exact - mean) / max(len(exact) - 1, 1) ** 0.5
    return mean.float(), torch.linalg.qr(centered, mode="r").R.float().contiguous()
