"""Words first, then eyes: the text tower learns what the visual tower can tell apart already.

Often the features of new classes are separable and only their prompts point elsewhere. So before
a task's steps the text tower alone is taught on features that are computed once, which costs a
fraction of an epoch. Only where a linear classifier of these features makes mistakes do the steps
move both towers, and the text tower follows again.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil, cos, pi
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from retouch.clip import Clip
from retouch.clip.encode import encode_rank_images
from retouch.clip.fast.graph_capture import ForwardPass
from retouch.clip.frozen.texts import BatchKey, FrozenTexts
from retouch.clip.losses import classification
from retouch.clip.text import everyday_words
from retouch.clip.text.zero_shot import by_length, fill_template
from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.distributed import collectives
from retouch.errors import UserError
from retouch.methods.after_task.merging import ShorterStep
from retouch.methods.class_statistics import ClassStatistics, draw_features, drift_map
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.random_streams import RandomStream
from retouch.sparse import trainable_only

_PROMPTS_AT_A_TIME = 1024
_CPU_BATCH = 64
"""On a CPU, batches of one length save more time than large ones do."""
_WARMUP_STEPS = 10
_FOLDS = 5
_STEPS_BETWEEN_CHECKS, _PATIENCE = 5, 2
"""How often the loss is read, for which a GPU has to be waited for, and how many times in a row it
must be below `stop_loss` for the steps of a task to end."""
_MARGIN = 1.0
"""How many standard deviations features are to be more similar to their class's prompt than to the
nearest everyday word."""
_BEFORE, _AFTER = 0, 1
"""When the text tower is taught: before a task's steps, and after them."""


class _Targets(NamedTuple):
    """What the prompts of all known classes are to match, on the model's device."""

    mean: Tensor
    """[C, D]: mean features of the classes that have statistics."""
    root: Tensor
    """[D, D]: a root of the covariance that they share."""
    answers: Tensor
    """[samples · C]: the index of each drawn feature's prompt among the distinct ones."""
    others: Tensor
    """[W, D]: features of everyday words that name none of the classes; none without `lift`."""


class _Words(NamedTuple):
    """Some of the everyday words, or pairs of them."""

    prompts: list[str]
    before: Tensor
    """[W, D]: their features by the pre-trained text tower."""


class _TextBatch(NamedTuple):
    """What a step looks at: the prompts of all known classes by one template, and some words."""

    texts: "_Prompts"
    """The classes' prompts, then the words'."""
    words: Tensor
    """[W, D]: the features of these words by the pre-trained text tower."""


class TextFirst(ShorterStep):
    """What happens when a task ends? Its step is scaled by α, and the text tower follows.

    The text tower is taught before a task's steps and again after them, with the visual tower as it
    is then. For every class learned so far, the mean of its visual features is stored, and one
    covariance for all: features are drawn from these Gaussians, and classified among the prompts of
    all known classes. The features of everyday words, and of pairs of them, are held to what they
    were before the first task, others in each step: whole layers can learn by heart what they see
    often, and would let the rest drift. The first MLP layers of the text tower's upper blocks are
    trained, whole: selecting some of their neurons keeps no more, and learns less.

    That tells classes from each other, not from anything else that the model knows. So prompts are
    also raised until features are, on average, one standard deviation more similar to their class's
    prompt than to the nearest everyday word, and no further.

    Where linear discriminant analysis of the features before the steps tells the task's classes
    from all known ones, there are no steps: the visual tower stays as it is. This is measured by
    cross-validation on the task's training images. The steps end early when nothing is left to
    learn: when the loss of several in a row is next to nothing.

    After the steps, the stored statistics follow the visual tower: by a linear map between the
    features before and after them, of the task's images and of those that are stored for replay.
    """

    trains: ClassVar[bool] = True
    note: ClassVar[str] = (
        "The visual tower is trained only for tasks whose images it cannot tell apart yet, and "
        "only until nothing is left to learn, so it may take much less time than estimated"
    )

    steps: Annotated[int, Field(ge=0)] = 100
    """Steps of the text tower before a task's steps, and as many after them."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Their peak learning rate, with Adam."""
    blocks: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the text tower's blocks, counted from its output, that they train."""
    samples: Annotated[int, Field(gt=0)] = 16
    """Features drawn of each class in a step."""
    templates: Annotated[int, Field(ge=0)] = 7
    """How many of the evaluation's templates are taught besides the training prompt, one of them in
    a step."""
    words: Annotated[float, Field(ge=0)] = 0.16
    """Weight of the squared distance that everyday words have moved, times the model's logit scale;
    0 leaves them out."""
    words_per_step: Annotated[int, Field(gt=0)] = 40
    """How many of these words, or pairs of them, a step looks at; there are enough for each step to
    have others."""
    lift: Annotated[float, Field(ge=0)] = 0.05
    """Weight of raising the prompts of classes above everyday words, times the logit scale, so that
    more of the new classes are recognized among many others; 0 leaves them where they are."""
    max_error: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Where the cross-validated error of its features is below this, the visual tower stays as it
    is; 0 always trains it."""
    shrinkage: Annotated[float, Field(gt=0, le=1)] = 0.1
    """How far that classifier's covariance is drawn to its mean variance."""
    stop_loss: Annotated[float, Field(ge=0)] = 0.01
    """A loss that leaves nothing to learn; 0 takes all steps."""
    ridge: Annotated[float, Field(gt=0)] = 1.0
    """How strongly the map of stored statistics is shrunk towards the identity."""

    _statistics: ClassStatistics = PrivateAttr(default_factory=ClassStatistics)
    _words: list[_Words] = PrivateAttr(default_factory=list)
    _everyday: Tensor = PrivateAttr(default_factory=lambda: torch.empty(0))
    """[W, D]: features of everyday words by the pre-trained text tower."""
    _before: Tensor | None = PrivateAttr(None)
    """Features before the task's steps of the images that `_positions` returns."""
    _text_batches: list[_TextBatch] = PrivateAttr(default_factory=list)
    """What the steps of this task look at, in turn."""
    _taught: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    """The text tower's weights to begin the task's steps with."""
    _is_separable: bool = PrivateAttr(False)
    """Whether the features of the task's images tell its classes apart as they are."""
    _below: int = PrivateAttr(0)
    """How many times in a row the loss was below `stop_loss`."""

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        super().start(clip, settings, reference)
        if not self.trained_parameters(clip):
            raise UserError(
                f"the text tower of {clip.name} has no first MLP layers that are known by name, "
                "and this method teaches those; choose another method, such as spu+"
            )
        size = min(settings.micro_batch or _PROMPTS_AT_A_TIME, _PROMPTS_AT_A_TIME)
        rng = np.random.default_rng([settings.seed, RandomStream.WORDS])
        if self.words or self.lift:
            prompts = self._prompts_to_hold(rng)
            before = _Prompts(clip, prompts, size).features(clip)
            self._everyday = before[: len(everyday_words.words())]
            count = ceil(len(prompts) / self.words_per_step)
            groups = np.array_split(rng.permutation(len(prompts)), count)
            for group in groups if self.words else ():
                texts = [prompts[index] for index in group]
                self._words.append(_Words(texts, before[torch.from_numpy(group)]))

    def trained_parameters(self, clip: Clip) -> Collection[str]:
        return SelectiveUpdate(tower="text", blocks=self.blocks).selectable(clip).keys()

    @property
    def is_learned(self) -> bool:
        return self._is_separable or self._below >= _PATIENCE

    @contextmanager
    def prepared(self, context: TaskContext) -> Iterator[None]:
        parameters = self._parameters(context.clip)
        untaught = {name: p.detach().clone() for name, p in parameters.items()}
        self._before = self._encode(context)
        labels = context.task_labels
        features = self._before[: len(labels)]
        self._is_separable = self._tells_apart(features, labels)
        statistics = self._statistics.copy()
        statistics.add(features, labels)
        self._text_batches = self._texts_to_teach(context)
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
        self._taught, self._below = {}, 0
        context.statistics = self._statistics
        super().begin(context, update)

    def after_step(
        self, context: TaskContext, update: TaskUpdate, step: int, loss: Callable[[], float]
    ) -> None:
        if self.stop_loss and (step + 1) % _STEPS_BETWEEN_CHECKS == 0:
            self._below = self._below + 1 if loss() <= self.stop_loss else 0

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        super().end(context, update)
        labels = context.task_labels
        assert self._before is not None
        if update.optimizer is None:  # the visual tower stayed as it was
            self._statistics.add(self._before[: len(labels)], labels)
        else:
            after = self._encode(context)
            if self._statistics.classes:
                self._statistics.transform(*drift_map(self._before, after, self.ridge))
            self._statistics.add(after[: len(labels)], labels)
            self._teach(context, self._statistics, _AFTER)
        self._before, self._below, self._text_batches = None, 0, []

    def extra_prompts(self, known: int) -> int:
        return 2 * self.steps * (known + (self.words_per_step if self.words else 0))

    def state(self) -> dict[str, Tensor]:
        state = self._statistics.state()
        return {**state, "below": torch.tensor(self._below)} if self._below else state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._statistics.restore(state)
        self._below = int(state.get("below", 0))

    def _parameters(self, clip: Clip) -> dict[str, nn.Parameter]:
        return {name: clip.model.get_parameter(name) for name in self.trained_parameters(clip)}

    def _encode(self, context: TaskContext) -> Tensor:
        """Features of the task's images, then of those of earlier tasks that are stored."""
        positions = np.concatenate([context.task.train, context.stored_images])
        return context.encode(positions, partial(encode_rank_images, context.clip))

    def _tells_apart(self, features: Tensor, labels: Tensor) -> bool:
        """Whether these features tell their classes from each other and from all known ones."""
        if not self.max_error:
            return False
        error = self._statistics.error_if_added(features, labels, _FOLDS, self.shrinkage)
        return collectives.any_rank(error < self.max_error)  # the same on all

    def _teach(self, context: TaskContext, statistics: ClassStatistics, when: int) -> None:
        """Train the text tower's upper blocks. A step has one template and some words, in turn."""
        clip, parameters = context.clip, self._parameters(context.clip)
        targets, text_batches = self._targets(context, statistics), self._text_batches
        step_lr = _schedule(self.lr, self.steps)
        loss = _Loss((type(self), self.words, self.lift), partial(self._loss, clip))

        with trainable_only(clip.model, parameters), clip.unchanged():
            optimizer = torch.optim.Adam(parameters.values(), fused=True)
            what = f"Teaching the text tower task {context.task.number + 1}"
            steps = ([step] for step in range(self.steps))
            for (step,) in context.progress(steps, what, self.steps):
                rng = context.rng(RandomStream.WORDS, when, step)
                features = draw_features(targets.mean, targets.root, self.samples, rng)
                others = targets.others
                goal = [_own_similarity(features, others)] if len(others) else []
                texts, words = text_batches[step % len(text_batches)]
                texts.backward(clip, loss, [features, targets.answers, words, *goal])
                for group in optimizer.param_groups:
                    group["lr"] = step_lr(step)
                optimizer.step()
                optimizer.zero_grad()
        collectives.broadcast(parameters.values())

    def _targets(self, context: TaskContext, statistics: ClassStatistics) -> _Targets:
        """What the prompts of all known classes are to match."""
        device, known = context.clip.device, context.known_classes
        _, prompt = context.stream.train.distinct_prompts(known)
        labels = [label for label in statistics.classes if label in known]
        return _Targets(
            statistics.means(labels).to(device),
            statistics.root().to(device),
            torch.from_numpy(prompt[[known.index(label) for label in labels]])
            .repeat(self.samples)
            .to(device),
            self._other_words(context),
        )

    def _prompts_to_hold(self, rng: np.random.Generator) -> list[str]:
        """Those of everyday words, then of random pairs of them, as many as the steps look at."""
        words = everyday_words.words()
        missing = max(0, self.steps * self.words_per_step - len(words)) if self.words else 0
        pairs = [f"{one} and {other}" for one, other in rng.choice(words, (missing, 2))]
        return fill_template(everyday_words.TEMPLATE, [*words, *pairs])

    def _other_words(self, context: TaskContext) -> Tensor:
        """The features of words that name no known class, by the pre-trained text tower."""
        if not self.lift:
            return torch.empty(0, device=context.clip.device)
        known = set(context.stream.names(context.known_classes))
        shown = (group.classes.items() for group in context.stream.train.prompt_groups)
        named = {text.casefold() for group in shown for name, text in group if name in known}
        return self._everyday[[word.casefold() not in named for word in everyday_words.words()]]

    def _texts_to_teach(self, context: TaskContext) -> list[_TextBatch]:
        """As few as there must be for every template, and every word, to be in one of them."""
        clip, train, known = context.clip, context.stream.train, context.known_classes
        _, first = np.unique(train.distinct_prompts(known)[1], return_index=True)
        templates = class_templates(train, [known[index] for index in first], self.templates)
        size = context.micro_batch.size or _PROMPTS_AT_A_TIME
        words = self._words or [_Words([], torch.empty(0, device=clip.device))]
        text_batches = []
        for number in range(max(len(templates), len(words))):
            group = words[number % len(words)]
            texts = [*templates[number % len(templates)], *group.prompts]
            text_batches.append(_TextBatch(_Prompts(clip, texts, size), group.before))
        return text_batches

    def _loss(
        self,
        clip: Clip,
        texts: Tensor,
        features: Tensor,
        answers: Tensor,
        words: Tensor,
        goal: Tensor | None = None,
    ) -> Tensor:
        """Of choosing each feature's class among the prompts, and of words that have moved.

        With a goal, also of being less similar to the own class's prompt than that, on average.
        """
        bias = None if clip.logit_bias is None else clip.logit_bias.detach()
        scale = clip.logit_scale.detach()
        prompts, moved = texts.split([len(texts) - len(words), len(words)])
        features = features.to(texts.dtype)
        loss = classification(scale * features @ prompts.T, answers, bias)
        if len(words):
            loss = loss + self.words * scale * (moved - words).square().sum(dim=1).mean()
        if goal is not None:
            own = (features * prompts.index_select(0, answers)).sum(dim=1).mean()
            loss = loss + self.lift * scale * (goal - own).clamp(min=0)
        return loss


def _own_similarity(features: Tensor, words: Tensor) -> Tensor:
    """How similar features should be to their class's prompt, given everyday words."""
    nearest = (features @ words.to(features.dtype).T).amax(dim=1)
    return nearest.mean() + _MARGIN * nearest.std(correction=0)


class _Loss(NamedTuple):
    """A function of the features of prompts and of further tensors."""

    name: Hashable
    """Tells it from others, and every number in it."""
    of: Callable[..., Tensor]


class _Prompts:
    """Prompts that are tokenized once and encoded in every step, in batches of similar length.

    Every rank encodes all of them.
    """

    def __init__(self, clip: Clip, prompts: Sequence[str], size: int) -> None:
        tokens = clip.tokenize(prompts)
        batch = min(size, _CPU_BATCH) if clip.device.type == "cpu" else size
        sorted_batches = list(by_length(tokens, clip.lengths(tokens), batch))
        self._batches = [
            {key: ids.to(clip.device) for key, ids in batch.items()} for _, batch in sorted_batches
        ]
        self._order = torch.cat([index for index, _ in sorted_batches]).to(clip.device)
        self._rows = self._order.argsort()
        self._sizes = [len(index) for index, _ in sorted_batches]
        self._fits = len(prompts) <= size
        self._prepared: tuple[FrozenTexts | None, ForwardPass] | None = None

    def _encode(self, clip: Clip, number: int) -> Tensor:
        return clip.text_features(self._batches[number], self._key(clip, number))

    def _key(self, clip: Clip, number: int) -> BatchKey | None:
        """A pass that is captured is fastest as a whole; elsewhere lower blocks are reused."""
        return None if clip.captures else (self, number)

    def _encode_all(self, clip: Clip) -> Tensor:
        batches = [self._encode(clip, number) for number in range(len(self._batches))]
        return torch.cat(batches).index_select(0, self._rows)

    @torch.no_grad()
    def features(self, clip: Clip) -> Tensor:
        """The features of all prompts [N, D]."""
        return self._encode_all(clip)

    def _only_pass(self, clip: Clip) -> ForwardPass:
        """That of a single batch; it stays valid as long as the same blocks are frozen."""
        if self._prepared is None or self._prepared[0] is not clip.frozen_texts:
            self._prepared = clip.frozen_texts, clip.text_pass(self._batches[0], self._key(clip, 0))
        return self._prepared[1]

    def backward(self, clip: Clip, loss: _Loss, inputs: Sequence[Tensor]) -> None:
        """Add the gradient of a loss of all features; only so many are in memory at a time.

        A single batch and its loss are one pass, which a GPU replays as a whole.

        Args:
            clip: The model.
            loss: The loss.
            inputs: What it takes besides the features.
        """
        if len(self._batches) == 1:

            def of_rows(encoded: Tensor, rows: Tensor, *inputs: Tensor) -> Tensor:
                return loss.of(encoded.index_select(0, rows), *inputs)

            whole = self._only_pass(clip).then(loss.name, of_rows, [self._rows, *inputs])
            clip.run(whole).backward()
            return
        if self._fits:
            loss.of(self._encode_all(clip), *inputs).backward()
            return
        features = self.features(clip).requires_grad_()
        (gradient,) = torch.autograd.grad(loss.of(features, *inputs), features)
        for number, part in enumerate(gradient[self._order].split(self._sizes)):
            (self._encode(clip, number) * part).sum().backward()


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


def _schedule(lr: float, steps: int) -> Callable[[int], float]:
    """The learning rate of a step: a warm-up, then the peak, and half a cosine from half way on."""

    def of_step(step: int) -> float:
        decay = (1 + cos(pi * max(0.0, 2 * step / steps - 1))) / 2
        return lr * min(1.0, (step + 1) / _WARMUP_STEPS) * decay

    return of_step
