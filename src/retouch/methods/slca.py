"""SLCA: a slow backbone, and the projections aligned over all classes when a task ends.

Zhang et al. 2023, whose classifier is a linear layer on a vision transformer. CLIP has none: what
stands between its towers and the classes are the two projections into the common space. As the
paper's appendix says, they take the classifier's place: they learn at the full rate and the rest
slowly, and the alignment trains them alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, linear, normalize

from retouch.clip import Clip
from retouch.clip.zero_shot import fill_template
from retouch.data.image_store import Indices
from retouch.data.pairs import Pairs
from retouch.data.prefetch import prefetch, read_to_device
from retouch.data.stream import Task
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.method import AfterTask, Cosine, TaskUpdate, Update
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.random_streams import RandomStream
from retouch.sparse import Selection


class SlowBackbone(Update):
    """Which parameters move? All: the projections at the full learning rate, the rest slowly."""

    slow: Annotated[float, Field(ge=0)] = 0.2
    """The backbone's share of the learning rate; the paper has 1.5e-6 beside 7.5e-6."""

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        _need_projections(clip)

    def begin(self, context: TaskContext) -> TaskUpdate:
        model, adamw = context.clip.model, context.settings.adamw
        fast = set(context.clip.projections.values())
        parameters = dict(model.named_parameters())

        def optimizer(end: ExitStack) -> torch.optim.Optimizer:
            head = [p for name, p in parameters.items() if name in fast]
            rest = [p for name, p in parameters.items() if name not in fast]
            groups = [{"params": head}, {"params": rest, "lr": adamw["lr"] * self.slow}]
            return torch.optim.AdamW(groups, fused=True, **adamw)

        return TaskUpdate(model, Selection.whole(parameters, context.clip.size), optimizer)


class ClassifierAlignment(AfterTask):
    """What happens when a task ends? The projections learn to tell all classes seen so far apart.

    No image is kept. Of every class the mean and the covariance of its visual features are, as they
    stood before the projection when the class was learned; samples drawn from these Gaussians are
    classified by the prompts of all classes seen. Both projections learn: the features of the
    prompts before the text projection are those of the text tower as it is now, at rest meanwhile.
    """

    epochs: Annotated[int, Field(ge=0)] = 5
    samples: Annotated[int, Field(gt=0)] = 256
    """Drawn of each class in an epoch, and as many make a batch."""
    temperature: Annotated[float, Field(gt=0)] | None = 0.1
    """Logits are divided by their length, and by this; None leaves them as CLIP scales them."""
    ridge: Annotated[float, Field(ge=0)] = 1e-4
    """Added to the diagonal of a covariance, which few images leave with empty directions."""

    # By class: mean [D] and a root R [rows, D] of the covariance, RᵀR, on the CPU.
    _gaussians: dict[int, tuple[Tensor, Tensor]] = PrivateAttr(default_factory=dict)

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        _need_projections(clip)
        _check(clip)

    def state(self) -> dict[str, Tensor]:
        both = self._gaussians.items()
        return {f"mean:{c}": mean for c, (mean, _) in both} | {f"root:{c}": r for c, (_, r) in both}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        labels = [int(key.removeprefix("mean:")) for key in state if key.startswith("mean:")]
        self._gaussians = {c: (state[f"mean:{c}"], state[f"root:{c}"]) for c in labels}

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        for name in context.clip.projections.values():
            if name not in update.selection or update.selection[name].index is not None:
                raise UserError(
                    f"the alignment moves {name}, but what trains may not; take SlowBackbone or "
                    "Everything beside it"
                )
        labels = context.stream.train.labels[context.task.train]
        for label in context.task.classes:
            features = _before(context, context.task.train[labels == label])
            self._gaussians[label] = gaussian(features)
        self._align(context)

    def _align(self, context: TaskContext) -> None:
        """Train the projections alone, at the task's learning rate and with a cosine."""
        clip, tasks = context.clip, context.stream.tasks[: context.task.number + 1]
        seen, sizes = _first_seen(tasks)
        images, texts = Projection(clip, "image"), Projection(clip, "text")
        prompts = _texts(
            clip, fill_template(context.stream.train.prompt, context.stream.names(seen))
        )
        moving = [p.weight for p in (images, texts) if p.weight is not None]
        optimizer = torch.optim.AdamW(moving, **context.settings.adamw)
        scale = clip.logit_scale.detach()
        for factor, features, targets in self._batches(context, seen):
            drawn = normalize(images(features.to(clip.device)), dim=-1)
            logits = scale * drawn @ normalize(texts(prompts), dim=-1).T
            cross_entropy(self._scaled(logits, sizes), targets.to(clip.device)).backward()
            for group in optimizer.param_groups:
                group["lr"] = context.settings.lr * factor
            optimizer.step()
            optimizer.zero_grad()

    def _scaled(self, logits: Tensor, sizes: Sequence[int]) -> Tensor:
        """Logits of one length: the mean over the tasks, whose classes are so many, is 1/τ."""
        if self.temperature is None:
            return logits
        lengths = [part.norm(dim=1) for part in logits.split(list(sizes), dim=1)]
        return logits / (torch.stack(lengths).mean(dim=0)[:, None] + 1e-7) / self.temperature

    def _batches(
        self, context: TaskContext, seen: Sequence[int]
    ) -> Iterator[tuple[float, Tensor, Tensor]]:
        """The learning rate's factor, samples, and the place of each one's class in `seen`."""
        steps, cosine = self.epochs * len(seen), Cosine(warmup=0.0)
        for epoch in range(self.epochs):
            drawn = torch.cat([self._draw(context, label, epoch) for label in seen])
            order = torch.from_numpy(
                context.rng(RandomStream.SLCA_SHUFFLE, epoch).permutation(len(drawn))
            )
            for number, batch in enumerate(order.split(self.samples)):
                factor = cosine.factor(epoch * len(seen) + number, steps, self.epochs)
                yield factor, drawn[batch], batch // self.samples

    def _draw(self, context: TaskContext, label: int, epoch: int) -> Tensor:
        mean, root = self._gaussians[label]
        rng = context.rng(RandomStream.SLCA_SAMPLES, epoch, label)
        along = rng.standard_normal((self.samples, len(root)), np.float32)
        around = rng.standard_normal((self.samples, len(mean)), np.float32) * self.ridge**0.5
        return mean + torch.from_numpy(along) @ root + torch.from_numpy(around)


class Projection:
    """One tower's projection, apart from its tower; of a tower that has none, nothing."""

    def __init__(self, clip: Clip, tower: str) -> None:
        name = clip.projections.get(tower)
        self.weight = None if name is None else clip.model.get_parameter(name)
        owner, _, self._place = (name or "").rpartition(".")
        self._owner: Any = clip.model.get_submodule(owner)
        self._linear = isinstance(self._owner, nn.Linear)

    def __call__(self, features: Tensor) -> Tensor:
        if self.weight is None:
            return features
        if self._linear:
            bias = self._owner.bias
            return linear(features, self.weight, None if bias is None else bias.detach())
        return features @ self.weight

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Meanwhile the tower ends before it: the identity stands in its place."""
        own = self._owner._parameters
        if self.weight is None:
            yield
            return
        wide = self.weight.shape[1 if self._linear else 0]
        kept = dict(own)
        own[self._place] = nn.Parameter(torch.eye(wide).to(self.weight))
        if self._linear:
            own["bias"] = None
        try:
            yield
        finally:
            own.update(kept)


def _first_seen(tasks: Sequence[Task]) -> tuple[list[int], list[int]]:
    """Each class once, and how many each task brought; a class may be taught again later."""
    seen: list[int] = []
    sizes = []
    for task in tasks:
        new = [label for label in task.classes if label not in seen]
        seen += new
        sizes += [len(new)] if new else []
    return seen, sizes


def gaussian(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean [D] of features [N, D] and a root of their covariance, of as few rows as it needs.

    RᵀR is the covariance, as of a Cholesky factor; of few images, R has few rows.
    """
    exact = features.double()
    mean = exact.mean(dim=0)
    centred = (exact - mean) / max(len(exact) - 1, 1) ** 0.5
    return mean.float(), torch.linalg.qr(centred, mode="r").R.float().contiguous()


def _before(context: TaskContext, positions: Indices) -> Tensor:
    """Visual features before the projection, on the CPU; each process looks at its own part."""
    clip, train = context.clip, context.stream.train
    own = positions[collectives.rank_slice(len(positions))]

    def load(group: Indices) -> Tensor:
        return read_to_device(train, group, clip.preprocess, clip.device)

    size = context.settings.micro_batch or context.settings.batch
    groups = np.array_split(own, ceil(max(1, len(own)) / size))
    found = torch.cat([_images(clip, pixels) for _, pixels in prefetch(load, groups)])
    return collectives.gather(found, len(positions)).cpu()


@torch.no_grad()
def _images(clip: Clip, pixels: Tensor) -> Tensor:
    if not len(pixels):
        return _images(clip, pixels.new_zeros((1, *pixels.shape[1:])))[:0]
    ready = clip.preprocess.normalize(pixels.to(clip.device))
    with Projection(clip, "image").aside(), clip.precision():
        return clip.encode_images(ready).float()


@torch.no_grad()
def _texts(clip: Clip, prompts: Sequence[str]) -> Tensor:
    tokens = {key: value.to(clip.device) for key, value in clip.tokenize(prompts).items()}
    with Projection(clip, "text").aside(), clip.precision():
        return clip.encode_texts(tokens).float()


def _need_projections(clip: Clip) -> None:
    if not clip.projections:
        raise UserError(
            f"SLCA trains the projections into the common space, and {clip.name} has none that "
            "retouch knows of; take a model that has, or another method"
        )


@torch.no_grad()
def _check(clip: Clip) -> None:
    """Refuse a model whose projection is not the last that a tower does."""
    blank = torch.zeros((1, *clip.preprocess.size, 3), dtype=torch.uint8)
    prompts = ["a photo of a cat"]
    images = Projection(clip, "image")(_images(clip, blank)), clip.image_features(blank)
    texts = (
        Projection(clip, "text")(_texts(clip, prompts)),
        clip.text_features(clip.tokenize(prompts)),
    )
    for tower, (apart, whole) in {"image": images, "text": texts}.items():
        if apart.shape != whole.shape or cosine_similarity(apart, whole).item() < 0.99:
            raise UserError(
                f"the {tower} tower of {clip.name} does not end with its projection "
                f"({clip.projections.get(tower)}), so SLCA cannot train it apart from the tower"
            )
