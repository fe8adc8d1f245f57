"""A method is a recipe of four parts: `update`, `replay`, `regularizer` and `after_task`.

A new method is a new part in a file of its own, or a new combination of parts, under a name
(`registry.register`). The training loop never asks which method it runs.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.finite import check_weights
from retouch.clip.losses import LossName, Objective
from retouch.clip.open_clip import OpenClip
from retouch.data.pairs import Pairs
from retouch.errors import UserError
from retouch.methods.parts import AfterTask, Part, Regularizer, Replay, Update
from retouch.methods.schedule import Cosine, Schedule
from retouch.methods.settings import Settings

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

    @property
    def parts(self) -> dict[str, Part]:
        names = ("update", "replay", "regularizer", "after_task")
        return {name: getattr(self, name) for name in names}

    @property
    def trains_nothing(self) -> bool:
        """Whether the model stays as it is: nothing is updated."""
        return type(self.update) is Update

    @property
    def needs_reference(self) -> bool:
        return any(part.needs_reference for part in self.parts.values())

    @property
    def copies(self) -> int:
        """Extra copies of the model's weights that are held during training."""
        return sum(part.copies for part in self.parts.values())

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
        self.check_weights(clip)
        self.check_towers(clip)
        started = self.model_copy(deep=True)
        for part in started.parts.values():
            part.start(clip, settings, reference)
        return started

    def check_needs(self, control: bool, reference: bool) -> None:
        """Raise if the method needs a control set or reference pairs, and there are none.

        Args:
            control: Whether there is a control set.
            reference: Whether there are reference pairs.
        """
        if self.needs_reference and not reference:
            raise UserError(
                f"{self.name} preserves earlier knowledge with images and captions like those the "
                "model was pre-trained on, and there are none; give some",
                argument="reference=…",
            )
        if any(part.needs_control for part in self.parts.values()) and not control:
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
                class, as in `{"after_task": "Interpolate"}`, or `"none"`.
        """
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        for path, value in changes.items():
            name, _, setting = path.partition(".")
            try:
                part = fields[name]
                fields[name] = (
                    _with_setting(part, setting, value) if setting else _part_or_value(name, value)
                )
            except (KeyError, ValidationError, AttributeError) as why:
                raise UserError(_refusal(self, path, value, why)) from None
        try:
            return type(self)(**fields)
        except ValidationError as why:
            raise UserError(f"{changes}: {why.errors()[0]['msg']}") from None


def _part_or_value(name: str, value: Any) -> Any:
    """A part by the name of its class; any other value as it is."""
    if name not in PARTS or not isinstance(value, str):
        return value
    kinds = {"none": PARTS[name], **{kind.__name__: kind for kind in _subclasses(PARTS[name])}}
    if value not in kinds:
        raise UserError(f"{name}={value}: there is no such part; there are {', '.join(kinds)}")
    try:
        return kinds[value]()
    except (TypeError, ValidationError) as why:
        raise UserError(f"{name}={value} cannot stand alone: {why}") from None


def _subclasses(kind: type[Part]) -> list[type[Part]]:
    """All that are imported and can be made."""
    direct = kind.__subclasses__()
    made = [sub for sub in direct if not getattr(sub, "__abstractmethods__", None)]
    return made + [below for sub in direct for below in _subclasses(sub)]


def _with_setting(part: Part, setting: str, value: Any) -> Part:
    """A part with one setting changed; `model_fields_set` holds only what was set explicitly."""
    explicit = {name: getattr(part, name) for name in part.model_fields_set}
    return type(part)(**{**explicit, setting: value})


def _refusal(method: Method, path: str, value: Any, why: Exception) -> str:
    if isinstance(why, ValidationError) and why.errors()[0]["type"] != "extra_forbidden":
        return f"{path}={value}: {why.errors()[0]['msg']}"
    fields = {name: type(getattr(method, name)).model_fields for name in PARTS}
    known = [f"{name}.{setting}" for name in fields for setting in fields[name]]
    close = "".join(f"did you mean {name}? " for name in get_close_matches(path, known, 1))
    settings = ", ".join(known) or "no settings"
    return f"{path}={value}: there is no such setting; {close}{method.name} has {settings}"
