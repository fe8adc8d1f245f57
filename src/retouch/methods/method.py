"""A method is a recipe of four parts: `update`, `replay`, `regularizer` and `after_task`.

A new method is a new part in a file of its own, or a new combination of parts, under a name
(`registry.register`). The training loop never asks which method it runs.
"""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.finite import check_weights
from retouch.clip.losses import LossName, Objective
from retouch.clip.open_clip.model import OpenClip
from retouch.data.pairs import Pairs
from retouch.errors import UserError, first_problem
from retouch.methods.part_classes import find_class, known_classes
from retouch.methods.parts import AfterTask, Part, Regularizer, Replay, Update
from retouch.methods.schedule import Cosine, Schedule
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate

PARTS: dict[str, type[Part]] = {
    "update": Update,
    "replay": Replay,
    "regularizer": Regularizer,
    "after_task": AfterTask,
    "schedule": Schedule,
}
"""The parts of a method by name, each with the class that does nothing."""


class Method(BaseModel):
    """A recipe: four parts, a schedule, and how the loss is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """The name of the method, in results and reports."""
    summary: str = ""
    """The method in a few words."""
    update: SerializeAsAny[Update] = Update()
    """Which parameters are trained, and how."""
    replay: SerializeAsAny[Replay] = Replay()
    """Which images of earlier tasks join a batch."""
    regularizer: SerializeAsAny[Regularizer] = Regularizer()
    """What is added to the loss to preserve earlier knowledge."""
    after_task: SerializeAsAny[AfterTask] = AfterTask()
    """What happens to the weights when a task ends."""
    schedule: SerializeAsAny[Schedule] = Cosine()
    """How the learning rate changes over the steps of a task."""
    loss: LossName = "contrastive"
    """`contrastive` as in pre-training; `label-aware`, where images of the same class are
    not negatives; or `cross-entropy`, where an image is classified among all classes of its task.
    They are forms of the model's own loss: CLIP's softmax, or SigLIP's sigmoid.
    """
    objective: Objective = "summed"
    """Whether the losses on new and replayed pairs are `summed`, as in the paper, or all pairs are
    `joined` in one matrix.
    """
    lr: Annotated[float, Field(gt=0)] = 2.5e-5
    """The learning rate where the user sets none, found on a ViT-B/16 (docs/bench.md)."""
    small_model_lr: Annotated[float, Field(gt=0)] = 1e-3
    """The same for models of a few million weights, found on the built-in model."""
    drop_last: bool = False
    """Skip the last batch of an epoch if it is incomplete (and not the only one)."""
    store_images: bool = True
    """Whether a run may store images in its folder: to replay and to evaluate them when it is
    continued, and as examples. A run that continues one without them stores none either.
    """

    @property
    def parts(self) -> dict[str, Part]:
        names = ("update", "replay", "regularizer", "after_task")
        return {name: getattr(self, name) for name in names}

    @property
    def trains_nothing(self) -> bool:
        """Whether the model stays as it is: nothing is updated."""
        after_task = (part for part in self.after_task.walk() if isinstance(part, AfterTask))
        return type(self.update) is Update and not any(part.trains for part in after_task)

    @property
    def adds_class_vectors(self) -> bool:
        """Whether new classes are recognized by vectors that are kept beside the model."""
        return any(part.adds_class_vectors for part in self._all_parts())

    @property
    def needs_reference(self) -> bool:
        """Whether it needs images with captions that show what the model knew before."""
        return any(part.needs_reference for part in self._all_parts())

    @property
    def needs_control(self) -> bool:
        """Whether it evaluates the control set during training."""
        return any(part.needs_control for part in self._all_parts())

    @property
    def notes(self) -> list[str]:
        """What a plan should say about how it trains."""
        return [part.note for part in self._all_parts() if part.note]

    @property
    def copies(self) -> int:
        """Extra copies of the model's weights that are held during training."""
        return sum(part.copies for part in self._all_parts())

    def _all_parts(self) -> Iterator[Part]:
        """All parts, also those that others hold."""
        return chain.from_iterable(part.walk() for part in self.parts.values())

    @property
    def shards(self) -> bool:
        """Whether it can train while the frozen weights are sharded over ranks."""
        return self.update.shards and not self.copies

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None = None) -> "Method":
        """A copy for one run, whose parts have been started with the pre-trained model.

        Args:
            clip: The pre-trained model.
            settings: The training settings.
            reference: Images with captions, for methods that need them (`zscl`, `lora-ewc`).
        """
        self.check_needs(True, reference is not None)
        if settings.label_smoothing and clip.logit_bias is not None:
            raise UserError(
                f"label_smoothing={settings.label_smoothing:g} is for models with a softmax loss, "
                f"and {clip.name} has a sigmoid loss; leave it out"
            )
        if clip.class_vectors is not None:
            raise UserError(
                f"{clip.name} has class vectors of an earlier run; load the model again, or set "
                "clip.class_vectors to None. To add classes to that run, continue it"
            )
        self.check_weights(clip)
        self.check_towers(clip)
        started = self.model_copy(deep=True)
        for part in started.parts.values():
            part.start(clip, settings, reference)
        return started

    def begin(self, context: TaskContext) -> TaskUpdate:
        """Before a task: choose what may change in it, and how it is trained.

        Args:
            context: The task, its model and its data.
        """
        with self.after_task.prepared(context):
            update = (Update() if self.after_task.is_learned else self.update).begin(context)
        update.add_whole(self.after_task.trained_parameters(context.clip))
        return update

    def trained_parameters(self, clip: Clip) -> Collection[str] | None:
        """Names of all parameters that any task may change. None: any of the model's.

        Args:
            clip: The model.
        """
        names = self.update.trained_parameters(clip)
        return None if names is None else {*names, *self.after_task.trained_parameters(clip)}

    def check_needs(self, control: bool, reference: bool) -> None:
        """Raise if the method needs what it does not have: frozen weights, a control set, pairs.

        Args:
            control: Whether there is a control set.
            reference: Whether there are reference pairs.
        """
        if self.adds_class_vectors and not self.trains_nothing:
            raise UserError(
                f"{self.name} gives classes vectors, which fit only weights that stay as they are, "
                f"and {type(self.update).__name__} changes them; set update=none, or leave out "
                "the vectors with after_task=none"
            )
        if self.needs_reference and not reference:
            raise UserError(
                f"{self.name} preserves earlier knowledge with images and captions like those the "
                "model was pre-trained on, and there are none; give some",
                argument="reference=…",
            )
        if self.needs_control and not control:
            raise UserError(
                f"{self.name} limits how far the accuracy on a control set may fall (max_drop), "
                "and there is no control set; give one",
                argument="control=…",
            )

    def check_weights(self, clip: Clip) -> None:
        """Raise if weights are not finite, or are to be trained in 16 bits.

        Args:
            clip: The model.
        """
        check_weights(clip)
        parameters = clip.model.named_parameters()
        short = {n: p.dtype for n, p in parameters if p.element_size() < 4}
        if short and not self.trains_nothing:
            name, dtype = next(iter(short.items()))
            raise UserError(
                f"{name} of {clip.name} is {str(dtype).removeprefix('torch.')}, in which steps as "
                "small as those of training are rounded away; call model.float() first. To compute "
                "in 16 bits, set precision to bf16"
            )

    def check_towers(self, clip: Clip) -> None:
        """Raise if the visual tower is convolutional: only the text tower would learn.

        Args:
            clip: The model.
        """
        if self.trains_nothing or not isinstance(clip, OpenClip) or clip.blocks["image"]:
            return
        mobile = "MobileCLIP" in clip.name
        others = "MobileCLIP2-B or MobileCLIP2-L-14" if mobile else "ViT-B-16"
        raise UserError(
            f"{clip.name} cannot be taught: its visual tower ({clip.visual_kind}) is convolutional "
            "and has no transformer blocks whose weights a method could select. Choose a model "
            f"with a visual transformer, such as open_clip:{others}; this one can only be "
            "evaluated, and classify images"
        )

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must store for all parts."""
        return {
            f"{name}:{key}": tensor
            for name, part in self.parts.items()
            for key, tensor in part.state().items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned.

        Args:
            state: Tensors by name.
        """
        for name, part in self.parts.items():
            prefix = f"{name}:"
            part.restore(
                {k.removeprefix(prefix): t for k, t in state.items() if k.startswith(prefix)}
            )

    def with_change(self, changes: dict[str, Any]) -> "Method":
        """The same recipe with other parts, or other settings of its parts.

        Args:
            changes: Values by name, such as `{"update.rate": 0.05}`; a part by the name of its
                class, as in `{"after_task": "Interpolate"}`, or `"none"`. A part inside another is
                named in the same way: `{"after_task.after": "Interpolate"}`.
        """
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        for path, value in changes.items():
            name, _, rest = path.partition(".")
            try:
                fields[name] = _changed(fields[name], rest, value, path)
            except (KeyError, ValidationError, AttributeError) as why:
                raise UserError(_refusal(fields, path, value, why)) from None
        try:
            return type(self)(**fields)
        except ValidationError as why:
            raise UserError(f"{changes}: {why.errors()[0]['msg']}") from None


def _changed(current: Any, rest: str, value: Any, path: str) -> Any:
    """The new value of a setting; or the part that holds it, with the setting changed.

    Of a part, `model_fields_set` holds only what was set explicitly.

    Args:
        current: The setting's value, or the part.
        rest: Where the setting is in the part; empty if `current` is the setting itself.
        value: The new value.
        path: Where it is in the method, for errors.
    """
    if not rest:
        return _named_part(current, value, path) if isinstance(current, Part) else value
    name, _, below = rest.partition(".")
    explicit = {field: getattr(current, field) for field in current.model_fields_set}
    changed = _changed(getattr(current, name), below, value, path)
    return type(current)(**{**explicit, name: changed})


def _named_part(current: Part, value: Any, path: str) -> Part:
    """A part by the name of its class; a part as it is."""
    if isinstance(value, Part):
        return value
    base = next(kind for kind in PARTS.values() if isinstance(current, kind))
    kind = base if value == "none" else find_class(base, str(value))
    if kind is None:
        others = [name for name, each in known_classes(base).items() if each is not base]
        names = ", ".join(["none", *others])
        raise UserError(f"{path}={value}: there is no such part; there are {names}")
    try:
        return kind()
    except ValidationError as why:
        raise UserError(f"{path}={value} cannot stand alone: {first_problem(why)}") from None


def _refusal(fields: Mapping[str, Any], path: str, value: Any, why: Exception) -> str:
    if isinstance(why, ValidationError) and why.errors()[0]["type"] != "extra_forbidden":
        return f"{path}={value}: {why.errors()[0]['msg']}"
    known = [name for part in PARTS for name in _settings(fields[part], part)]
    close = "".join(f"did you mean {name}? " for name in get_close_matches(path, known, 1))
    settings = ", ".join(known) or "no settings"
    return f"{path}={value}: there is no such setting; {close}{fields['name']} has {settings}"


def _settings(part: Part, path: str) -> Iterator[str]:
    """The paths of all settings of a part, and of the parts that it holds."""
    for name in type(part).model_fields:
        yield f"{path}.{name}"
        if isinstance(inner := getattr(part, name), Part):
            yield from _settings(inner, f"{path}.{name}")
