"""All methods, by name."""

from typing import Any

from retouch.errors import UserError
from retouch.methods.authors import AuthorsReplay, AuthorsSchedule, AuthorsSelected
from retouch.methods.distil import PRD, LwF
from retouch.methods.everything import Everything
from retouch.methods.ewc import EWC
from retouch.methods.lora import LoRA
from retouch.methods.mas import MAS
from retouch.methods.method import Balanced, Method, Schedule, Trains
from retouch.methods.prompts import DualPrompts, KeyLoss, PromptPool
from retouch.methods.selected import Selected
from retouch.methods.settling import Bounded, Interpolate, MagMax
from retouch.methods.slca import Alignment, SlowBackbone
from retouch.methods.sparsecl import Dynamic
from retouch.methods.spg import Softly
from retouch.methods.zscl import Ensemble, ReferenceDistillation

_ALL = (
    Method(name="frozen", summary="no training: the model as it is", trains=Trains()),
    Method(name="flyp", summary="full fine-tuning", trains=Everything()),
    Method(
        name="er", summary="full fine-tuning with replay", trains=Everything(), replays=Balanced()
    ),
    Method(
        name="mas",
        summary="full fine-tuning that holds what old outputs hang on",
        trains=Everything(),
        keeps=MAS(),
    ),
    Method(
        name="er+lwf",
        summary="er that keeps the old answers of images",
        trains=Everything(),
        replays=Balanced(),
        keeps=LwF(),
    ),
    Method(
        name="er+prd",
        summary="er that keeps the old relations of prompts to images",
        trains=Everything(),
        replays=Balanced(),
        keeps=PRD(),
    ),
    Method(
        name="lora-ewc",
        summary="low-rank changes of query and value, held by reference pairs",
        trains=LoRA(),
        keeps=EWC(),
    ),
    Method(
        name="lora-ewc+er",
        summary="the same with replay",
        trains=LoRA(),
        replays=Balanced(),
        keeps=EWC(),
    ),
    Method(
        name="l2p",
        summary="a pool of learned prompts in the visual tower, which stay with the model",
        trains=PromptPool(),
        replays=Balanced(balance="class"),
        keeps=KeyLoss(),
        schedule=Schedule(),
    ),
    Method(
        name="dualprompt",
        summary="general prompts and an expert a task, which stay with the model",
        trains=DualPrompts(),
        replays=Balanced(balance="class"),
        keeps=KeyLoss(weight=1.0),
        schedule=Schedule(),
    ),
    Method(
        name="slca",
        summary="slow full fine-tuning, then projections aligned over all classes",
        trains=SlowBackbone(),
        settles=Alignment(),
    ),
    Method(
        name="zscl",
        summary="full fine-tuning that keeps what the model said of reference pairs",
        trains=Everything(),
        keeps=ReferenceDistillation(),
        settles=Ensemble(),
    ),
    Method(
        name="sparsecl",
        summary="weights chosen by size and gradient, anew while a task is learned",
        trains=Dynamic(),
    ),
    Method(
        name="spg",
        summary="each weight moves as far as earlier tasks can spare it",
        trains=Softly(),
    ),
    Method(
        name="spu",
        summary="selective parameter update, as in the paper",
        trains=Selected(),
        replays=Balanced(),
    ),
    Method(
        name="spu-code",
        summary="selective parameter update, as in the authors' code",
        trains=AuthorsSelected(),
        replays=AuthorsReplay(),
        schedule=AuthorsSchedule(),
        objective="joined",
        drop_last=True,
    ),
    Method(
        name="spu-bounded",
        summary="spu, scaled back where the control set falls too far",
        trains=Selected(),
        replays=Balanced(),
        settles=Bounded(),
    ),
    Method(
        name="random",
        summary="spu with randomly selected weights",
        trains=Selected(score="random"),
        replays=Balanced(),
    ),
    Method(
        name="magnitude",
        summary="spu with the largest weights selected",
        trains=Selected(score="magnitude"),
        replays=Balanced(),
    ),
    Method(
        name="piggyback",
        summary="spu with a selection learned as a binary mask",
        trains=Selected(score="piggyback", share=1.0),
        replays=Balanced(),
    ),
    Method(
        name="mask",
        summary="spu with a selection learned from the gradient on",
        trains=Selected(score="mask", share=1.0),
        replays=Balanced(),
    ),
    Method(
        name="wise-ft",
        summary="er, halfway back to the pre-trained weights",
        trains=Everything(),
        replays=Balanced(),
        settles=Interpolate(),
    ),
    Method(
        name="magmax",
        summary="full fine-tuning; of each weight's changes the largest counts",
        trains=Everything(),
        settles=MagMax(),
    ),
)
RECIPES = {method.name: method for method in _ALL}


def recipe(name: str, changes: dict[str, Any] | None = None) -> Method:
    """A method by name, with changes such as `{"trains.rate": 0.05}`."""
    if name not in RECIPES:
        raise UserError(f"there is no method {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name].change(changes or {})
