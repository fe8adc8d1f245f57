"""All methods, by name."""

from typing import Any

from retouch.errors import UserError
from retouch.methods.distil import PRD, LwF
from retouch.methods.ewc import EWC
from retouch.methods.full_finetune import FullFinetune
from retouch.methods.lora import LoRA
from retouch.methods.mas import MAS
from retouch.methods.merging import BoundedDrop, Interpolate, MagMax
from retouch.methods.method import BalancedReplay, Method, Schedule, Update
from retouch.methods.prompts import DualPrompts, KeyLoss, PromptPool
from retouch.methods.selective import SelectiveUpdate
from retouch.methods.slca import ClassifierAlignment, SlowBackbone
from retouch.methods.sparsecl import DynamicMaskUpdate
from retouch.methods.spg import SoftMaskUpdate
from retouch.methods.spu_released import ReleasedReplay, ReleasedSchedule, ReleasedUpdate
from retouch.methods.zscl import ReferenceDistillation, WeightEnsemble

_ALL = (
    Method(name="frozen", summary="no training: the model as it is", update=Update()),
    Method(name="flyp", summary="full fine-tuning", update=FullFinetune()),
    Method(
        name="er",
        summary="full fine-tuning with replay",
        update=FullFinetune(),
        replay=BalancedReplay(),
    ),
    Method(
        name="mas",
        summary="full fine-tuning that holds what old outputs hang on",
        update=FullFinetune(),
        regularizer=MAS(),
    ),
    Method(
        name="er+lwf",
        summary="er that keeps the old answers of images",
        update=FullFinetune(),
        replay=BalancedReplay(),
        regularizer=LwF(),
    ),
    Method(
        name="er+prd",
        summary="er that keeps the old relations of prompts to images",
        update=FullFinetune(),
        replay=BalancedReplay(),
        regularizer=PRD(),
    ),
    Method(
        name="lora-ewc",
        summary="low-rank changes of query and value, held by reference pairs",
        update=LoRA(),
        regularizer=EWC(),
    ),
    Method(
        name="lora-ewc+er",
        summary="the same with replay",
        update=LoRA(),
        replay=BalancedReplay(),
        regularizer=EWC(),
    ),
    Method(
        name="l2p",
        summary="a pool of learned prompts in the visual tower, which stay with the model",
        update=PromptPool(),
        replay=BalancedReplay(balance="class"),
        regularizer=KeyLoss(),
        schedule=Schedule(),
    ),
    Method(
        name="dualprompt",
        summary="general prompts and an expert a task, which stay with the model",
        update=DualPrompts(),
        replay=BalancedReplay(balance="class"),
        regularizer=KeyLoss(weight=1.0),
        schedule=Schedule(),
    ),
    Method(
        name="slca",
        summary="slow full fine-tuning, then projections aligned over all classes",
        update=SlowBackbone(),
        after_task=ClassifierAlignment(),
    ),
    Method(
        name="zscl",
        summary="full fine-tuning that keeps what the model said of reference pairs",
        update=FullFinetune(),
        regularizer=ReferenceDistillation(),
        after_task=WeightEnsemble(),
    ),
    Method(
        name="sparsecl",
        summary="weights chosen by size and gradient, anew while a task is learned",
        update=DynamicMaskUpdate(),
    ),
    Method(
        name="spg",
        summary="each weight moves as far as earlier tasks can spare it",
        update=SoftMaskUpdate(),
    ),
    Method(
        name="spu",
        summary="selective parameter update, as in the paper",
        update=SelectiveUpdate(),
        replay=BalancedReplay(),
    ),
    Method(
        name="spu-code",
        summary="selective parameter update, as in the authors' code",
        update=ReleasedUpdate(),
        replay=ReleasedReplay(),
        schedule=ReleasedSchedule(),
        objective="joined",
        drop_last=True,
    ),
    Method(
        name="spu-bounded",
        summary="spu, scaled back where the control set falls too far",
        update=SelectiveUpdate(),
        replay=BalancedReplay(),
        after_task=BoundedDrop(),
    ),
    Method(
        name="random",
        summary="spu with randomly selected weights",
        update=SelectiveUpdate(score="random"),
        replay=BalancedReplay(),
    ),
    Method(
        name="magnitude",
        summary="spu with the largest weights selected",
        update=SelectiveUpdate(score="magnitude"),
        replay=BalancedReplay(),
    ),
    Method(
        name="piggyback",
        summary="spu with a selection learned as a binary mask",
        update=SelectiveUpdate(score="piggyback", share=1.0),
        replay=BalancedReplay(),
    ),
    Method(
        name="mask",
        summary="spu with a selection learned from the gradient on",
        update=SelectiveUpdate(score="mask", share=1.0),
        replay=BalancedReplay(),
    ),
    Method(
        name="wise-ft",
        summary="er, halfway back to the pre-trained weights",
        update=FullFinetune(),
        replay=BalancedReplay(),
        after_task=Interpolate(),
    ),
    Method(
        name="magmax",
        summary="full fine-tuning; of each weight's changes the largest counts",
        update=FullFinetune(),
        after_task=MagMax(),
    ),
)
RECIPES = {method.name: method for method in _ALL}
"""All methods by name."""


def recipe(name: str, changes: dict[str, Any] | None = None) -> Method:
    """A method by its name.

    Args:
        name: One of `RECIPES`, such as `spu`.
        changes: Settings of its parts to change, such as `{"update.rate": 0.05}`.
    """
    if name not in RECIPES:
        raise UserError(f"there is no method {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name].with_change(changes or {})
