"""All methods, by name."""

from typing import Any

from retouch.errors import UserError
from retouch.methods.authors import AuthorsSchedule, AuthorsSelected
from retouch.methods.everything import Everything
from retouch.methods.method import Balanced, Method, Trains
from retouch.methods.selected import Selected

_ALL = (
    Method(name="frozen", summary="no training: the model as it is", trains=Trains()),
    Method(name="flyp", summary="full fine-tuning", trains=Everything()),
    Method(
        name="er", summary="full fine-tuning with replay", trains=Everything(), replays=Balanced()
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
        replays=Balanced(from_epoch=1),
        schedule=AuthorsSchedule(),
        objective="joined",
        drop_last=True,
    ),
    Method(
        name="random",
        summary="spu with randomly selected weights",
        trains=Selected(score="random"),
        replays=Balanced(),
    ),
)
RECIPES = {method.name: method for method in _ALL}


def recipe(name: str, changes: dict[str, Any] | None = None) -> Method:
    """A method by name, with changes such as `{"trains.rate": 0.05}`."""
    if name not in RECIPES:
        raise UserError(f"there is no method {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name].change(changes or {})
