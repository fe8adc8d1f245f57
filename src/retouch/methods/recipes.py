"""The built-in methods, by name."""

from retouch.methods.balanced_replay import BalancedReplay
from retouch.methods.bounded_drop import BoundedDrop
from retouch.methods.distil import PRD, LwF
from retouch.methods.ewc import EWC
from retouch.methods.feature_replay import FeatureReplay
from retouch.methods.full_finetune import FullFinetune
from retouch.methods.lora import LoRA
from retouch.methods.mas import MAS
from retouch.methods.merging import Interpolate, MagMax, ShorterStep
from retouch.methods.method import Method
from retouch.methods.parts import Replay, Update
from retouch.methods.prompts import DualPrompts, KeyLoss, PromptPool
from retouch.methods.schedule import Schedule
from retouch.methods.selective import SelectiveUpdate
from retouch.methods.slca import ClassifierAlignment, SlowBackbone
from retouch.methods.sparsecl import DynamicMaskUpdate
from retouch.methods.spg import SoftMaskUpdate
from retouch.methods.spu_released import ReleasedReplay, ReleasedSchedule, ReleasedUpdate
from retouch.methods.zscl import ReferenceDistillation, WeightEnsemble

_ALL = (
    Method(name="frozen", summary="no training: the model stays as it is", update=Update()),
    Method(name="flyp", summary="full fine-tuning", update=FullFinetune()),
    Method(
        name="er",
        summary="full fine-tuning with replay",
        update=FullFinetune(),
        replay=BalancedReplay(),
    ),
    Method(
        name="mas",
        summary="full fine-tuning with a penalty on changes to important weights",
        update=FullFinetune(),
        regularizer=MAS(),
    ),
    Method(
        name="er+lwf",
        summary="er with distillation of each image's answer (learning without forgetting)",
        update=FullFinetune(),
        replay=BalancedReplay(),
        regularizer=LwF(),
    ),
    Method(
        name="er+prd",
        summary="er with distillation of how prompts relate to images",
        update=FullFinetune(),
        replay=BalancedReplay(),
        regularizer=PRD(),
    ),
    Method(
        name="lora-ewc",
        summary="low-rank updates of query and value, with a penalty from reference pairs",
        update=LoRA(),
        regularizer=EWC(),
    ),
    Method(
        name="lora-ewc+er",
        summary="lora-ewc with replay",
        update=LoRA(),
        replay=BalancedReplay(),
        regularizer=EWC(),
    ),
    Method(
        name="l2p",
        summary="a pool of learned prompts in the visual tower, kept with the model",
        update=PromptPool(),
        replay=BalancedReplay(balance="class"),
        regularizer=KeyLoss(),
        schedule=Schedule(),
    ),
    Method(
        name="dualprompt",
        summary="general prompts and one expert prompt per task, kept with the model",
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
        summary="full fine-tuning with distillation on reference pairs, weights averaged",
        update=FullFinetune(),
        regularizer=ReferenceDistillation(),
        after_task=WeightEnsemble(),
    ),
    Method(
        name="sparsecl",
        summary="weights selected by size and gradient, re-selected during training",
        update=DynamicMaskUpdate(),
    ),
    Method(
        name="spg",
        summary="full fine-tuning in which weights important to earlier tasks move less",
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
        summary="spu with a selection learned from the gradient's",
        update=SelectiveUpdate(score="mask", share=1.0),
        replay=BalancedReplay(),
    ),
    Method(
        name="wise-ft",
        summary="er, interpolated halfway with the pre-trained weights",
        update=FullFinetune(),
        replay=BalancedReplay(),
        after_task=Interpolate(),
    ),
    Method(
        name="magmax",
        summary="full fine-tuning; each weight takes its largest change over the tasks",
        update=FullFinetune(),
        after_task=MagMax(),
    ),
)
_ALL += tuple(
    Method(
        name=name,
        summary="search",
        update=update,
        replay=Replay() if "none" in name else BalancedReplay(balance="class"),
        regularizer=FeatureReplay(),
        after_task=after,
        loss="label-aware",
        objective="joined",
    )
    for name, update, after in (
        ("spu+", SelectiveUpdate(unit="neuron", blocks=0.5, rate=0.2), ShorterStep()),
        ("spu+i", SelectiveUpdate(unit="neuron", blocks=0.5, rate=0.2), Interpolate()),
        ("er+", FullFinetune(), Interpolate()),
        ("spu+none", SelectiveUpdate(unit="neuron", blocks=0.5, rate=0.2), ShorterStep()),
    )
)
RECIPES = {method.name: method for method in _ALL}
"""The built-in methods; `registry.available_methods` adds those that users registered."""
