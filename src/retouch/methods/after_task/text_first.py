"""Words first, then eyes: the text tower learns what the visual tower can tell apart already.

Often the features of new classes are separable and only their prompts point elsewhere. So before
a task's steps the text tower alone is taught on features that are computed once, which costs a
fraction of an epoch. The steps then move both towers, and the text tower follows again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import cos, pi
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.encode import encode_rank_images
from retouch.clip.losses import classification
from retouch.clip.text import everyday_words
from retouch.clip.text.zero_shot import by_length, fill_template
from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.data.stores.image_store import Indices
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.after_task.merging import ShorterStep
from retouch.methods.class_statistics import ClassStatistics, draw_features, drift_map
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.random_streams import RandomStream
from retouch.sparse import SparseAdamW, linear_layers, neuron_axis, select, trainable_only

_PROMPTS_AT_A_TIME = 1024
_CPU_WORDS = 128
_WARMUP_STEPS = 10
_BEFORE, _AFTER = 0, 1
"""When the text tower is taught: before a task's steps, and after them."""


class _Targets(NamedTuple):
    """What the prompts of all known classes are to match, on the model's device."""

    mean: Tensor
    """[C, D]: mean features of the classes that have statistics."""
    root: Tensor
    """[D, D]: a root of the covariance that they share."""
    prompt: Tensor
    """[C]: the index of each class's prompt among the distinct ones."""
    templates: int
    """How many prompts a class has."""


class TextFirst(ShorterStep):
    """What happens when a task ends? Its step is scaled by α, and the text tower follows.

    The text tower is taught before a task's steps and again after them, with the visual tower as it
    is then. For every class learned so far, the mean of its visual features is stored, and one
    covariance for all: features are drawn from these Gaussians, and classified among the prompts of
    all known classes. The features of everyday words are held to what they were before the first
    task. Some neurons of the text tower's upper blocks are trained, those with the largest
    gradient.

    After the steps, the stored statistics follow the visual tower: by a linear map between the
    features before and after them, of the task's images and of those that are stored for replay.
    """

    trains: ClassVar[bool] = True

    steps: Annotated[int, Field(ge=0)] = 100
    """Steps of the text tower before a task's steps, and as many after them."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Their peak learning rate, with Adam."""
    rate: Annotated[float, Field(gt=0, le=1)] = 0.20
    """Share of the neurons that they train in each first MLP layer."""
    blocks: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the text tower's blocks, counted from its output, that they train."""
    samples: Annotated[int, Field(gt=0)] = 2
    """Features drawn of each class in a step."""
    scale: Annotated[float, Field(gt=0)] = 30.0
    """What similarities are multiplied by. A model with a sigmoid loss keeps its own scale."""
    templates: Annotated[int, Field(ge=0)] = 3
    """How many of the evaluation's templates are taught besides the training prompt."""
    words: Annotated[float, Field(ge=0)] = 3.0
    """Weight of the squared distance that everyday words have moved; 0 leaves them out."""
    ridge: Annotated[float, Field(gt=0)] = 1.0
    """How strongly the map of stored statistics is shrunk towards the identity."""

    _statistics: ClassStatistics = PrivateAttr(default_factory=ClassStatistics)
    _words: "_Prompts | None" = PrivateAttr(None)
    _word_features: Tensor | None = PrivateAttr(None)
    """[W, D]: of the pre-trained text tower."""
    _before: Tensor | None = PrivateAttr(None)
    """Features before the task's steps of the images that `_positions` returns."""
    _taught: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    """The text tower's weights to begin the task's steps with."""

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        super().start(clip, settings, reference)
        if not self.trained_parameters(clip):
            raise UserError(
                f"the text tower of {clip.name} has no first MLP layers that are known by name, "
                "and this method teaches those; choose another method, such as spu+"
            )
        if self.words:
            # On a CPU, batches of one length save more time than large ones do.
            size = min(settings.micro_batch or _PROMPTS_AT_A_TIME, _PROMPTS_AT_A_TIME)
            size = min(size, _CPU_WORDS) if clip.device.type == "cpu" else size
            texts = fill_template(everyday_words.TEMPLATE, everyday_words.words())
            self._words = _Prompts(clip, texts, size)
            self._word_features = self._words.features(clip)

    def trained_parameters(self, clip: Clip) -> Collection[str]:
        return SelectiveUpdate(tower="text", blocks=self.blocks).selectable(clip).keys()

    @contextmanager
    def prepared(self, context: TaskContext) -> Iterator[None]:
        parameters = self._parameters(context.clip)
        untaught = {name: p.detach().clone() for name, p in parameters.items()}
        self._before = self._encode(context)
        statistics = self._statistics.copy()
        _add_task(statistics, context, self._before)
        try:
            self._teach(context, statistics, _BEFORE)
            self._taught = {name: p.detach().clone() for name, p in parameters.items()}
            yield
        finally:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(untaught[name])

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        update.restore({name: weight.flatten() for name, weight in self._taught.items()})
        self._taught = {}
        context.statistics = self._statistics
        super().begin(context, update)

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        super().end(context, update)
        after = self._encode(context)
        assert self._before is not None
        if self._statistics.classes:
            self._statistics.transform(*drift_map(self._before, after, self.ridge))
        _add_task(self._statistics, context, after)
        self._before = None
        self._teach(context, self._statistics, _AFTER)

    def extra_prompts(self, known: int) -> int:
        everyday = len(everyday_words.words()) if self.words else 0
        return 2 * (self.steps + 1) * ((1 + self.templates) * known + everyday)

    def state(self) -> dict[str, Tensor]:
        return self._statistics.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._statistics.restore(state)

    def _parameters(self, clip: Clip) -> dict[str, nn.Parameter]:
        return {name: clip.model.get_parameter(name) for name in self.trained_parameters(clip)}

    def _encode(self, context: TaskContext) -> Tensor:
        """Features of the task's images, then of those of earlier tasks that are stored."""
        positions = np.concatenate([context.task.train, context.stored_images])
        return context.encode(positions, partial(encode_rank_images, context.clip))

    def _teach(self, context: TaskContext, statistics: ClassStatistics, when: int) -> None:
        """Train neurons of the text tower; only the gradient of this task decides which."""
        clip, parameters = context.clip, self._parameters(context.clip)
        prompts, targets = self._targets(context, statistics)
        step_lr = _schedule(self.lr, self.steps)

        def backward(step: int) -> None:
            rng = context.rng(RandomStream.WORDS, when, step)
            features = draw_features(targets.mean, targets.root, self.samples, rng)
            prompts.backward(clip, partial(self._classification, clip, targets, features))
            if self._words is not None:
                self._words.backward_sum(clip, self._distance)

        with trainable_only(clip.model, parameters):
            backward(0)
            scores = {n: p.grad.abs() for n, p in parameters.items() if p.grad is not None}
            clip.model.zero_grad()
            axes = {name: neuron_axis(clip.model, name) for name in parameters}
            selection = select(scores, self.rate, "neuron", axes=axes)
            layers = None if clip.captures else linear_layers(clip.model, selection)
            optimizer = SparseAdamW(parameters, selection, self.lr, weight_decay=0.0, layers=layers)
            try:
                what = f"Teaching the text tower task {context.task.number + 1}"
                steps = ([step] for step in range(self.steps))
                for (step,) in context.progress(steps, what, self.steps):
                    backward(step + 1)
                    for group in optimizer.param_groups:
                        group["lr"] = step_lr(step)
                    optimizer.step()
                    optimizer.zero_grad()
            finally:
                optimizer.close()
        collectives.broadcast(parameters.values())

    def _targets(
        self, context: TaskContext, statistics: ClassStatistics
    ) -> tuple["_Prompts", _Targets]:
        """The prompts of all known classes, and what they are to match."""
        clip, train, known = context.clip, context.stream.train, context.known_classes
        _, prompt = train.distinct_prompts(known)
        _, first = np.unique(prompt, return_index=True)
        texts = class_templates(train, [known[index] for index in first], self.templates)
        labels = [label for label in statistics.classes if label in known]
        targets = _Targets(
            statistics.means(labels).to(clip.device),
            statistics.root().to(clip.device),
            torch.from_numpy(prompt[[known.index(label) for label in labels]]).to(clip.device),
            len(texts),
        )
        flat = [text for same_template in texts for text in same_template]
        return _Prompts(clip, flat, context.micro_batch.size or _PROMPTS_AT_A_TIME), targets

    def _classification(
        self, clip: Clip, targets: _Targets, features: Tensor, texts: Tensor
    ) -> Tensor:
        """The loss of choosing each feature's class among the prompts of each template."""
        bias = None if clip.logit_bias is None else clip.logit_bias.detach()
        scale = self.scale if bias is None else clip.logit_scale.detach()
        prompts = texts.view(targets.templates, -1, texts.shape[1])
        logits = scale * torch.einsum("nd,pkd->pnk", features.to(texts.dtype), prompts)
        answers = targets.prompt.repeat(self.samples * targets.templates)
        return classification(logits.flatten(0, 1), answers, bias)

    def _distance(self, texts: Tensor, numbers: Tensor) -> Tensor:
        """How far some of the everyday words have moved; over all of them, it is the mean."""
        assert self._word_features is not None
        moved = (texts - self._word_features[numbers]).square().sum()
        return self.words * moved / len(self._word_features)


class _Prompts:
    """Prompts that are tokenized once and encoded in every step, in batches of similar length.

    Every rank encodes all of them.
    """

    def __init__(self, clip: Clip, prompts: Sequence[str], size: int) -> None:
        tokens = clip.tokenize(prompts)
        sorted_batches = list(by_length(tokens, clip.lengths(tokens), size))
        self._batches = [
            {key: ids.to(clip.device) for key, ids in batch.items()} for _, batch in sorted_batches
        ]
        self._order = torch.cat([index for index, _ in sorted_batches]).to(clip.device)
        self._sizes = [len(index) for index, _ in sorted_batches]

    def _encode(self, clip: Clip, number: int) -> Tensor:
        return clip.text_features(self._batches[number], (self, number))

    @torch.no_grad()
    def features(self, clip: Clip) -> Tensor:
        """The features of all prompts [N, D]."""
        batches = [self._encode(clip, number) for number in range(len(self._batches))]
        return torch.cat(batches)[self._order.argsort()]

    def backward(self, clip: Clip, loss: Callable[[Tensor], Tensor]) -> None:
        """Add the gradient of a loss of all features; a single batch is in memory at a time."""
        unsort = self._order.argsort()
        if len(self._batches) == 1:
            loss(self._encode(clip, 0)[unsort]).backward()
            return
        features = self.features(clip).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(features), features)
        for number, part in enumerate(gradient[self._order].split(self._sizes)):
            (self._encode(clip, number) * part).sum().backward()

    def backward_sum(self, clip: Clip, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        """The same for a loss that is a sum over prompts, given the numbers of some of them."""
        for number, rows in enumerate(self._order.split(self._sizes)):
            loss(self._encode(clip, number), rows).backward()


def class_templates(train: Images, labels: Sequence[int], templates: int) -> list[list[str]]:
    """The prompts of classes: those by the training prompt, then those by further templates.

    A class of a data set with fewer templates than another has some of its prompts repeated.

    Args:
        train: The training images.
        labels: The labels of the classes.
        templates: How many of the evaluation's templates to add, at most.
    """
    group_of = {name: group for group in train.prompt_groups for name in group.classes}
    prompts = []
    for name in (train.classes[label] for label in labels):
        group = group_of[name]
        more = [template for template in group.templates if template != group.prompt]
        filled = [fill_template(t, [group.classes[name]])[0] for t in more[:templates]]
        prompts.append([group.class_prompt(name), *filled])
    count = max(map(len, prompts))
    return [[each[number % len(each)] for each in prompts] for number in range(count)]


def _add_task(statistics: ClassStatistics, context: TaskContext, features: Tensor) -> None:
    """Add the statistics of a task's classes; its images have the first of these features."""
    positions: Indices = context.task.train
    labels = torch.from_numpy(context.stream.train.labels[positions])
    statistics.add(features[: len(positions)], labels, context.task.classes)


def _schedule(lr: float, steps: int) -> Callable[[int], float]:
    """The learning rate of a step: a few steps of warm-up on half a cosine."""

    def of_step(step: int) -> float:
        return lr * min(1.0, (step + 1) / _WARMUP_STEPS) * (1 + cos(pi * step / steps)) / 2

    return of_step
