"""What tracing finds: the effects of one pair, and of all pairs together with a confidence band."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from retouch.analysis.hooks import Kind, TowerName

# Standard errors to either side that hold the true mean in 95 of 100 cases, by Student's
# distribution: of 2 values, of 3, …
_FEW = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class TraceSettings(BaseModel, extra="forbid", frozen=True):
    """All that the effects of a pair depend on, beside the model and the pair."""

    towers: tuple[TowerName, ...] = ("image", "text")
    noise: Annotated[float, Field(gt=0)] = 3.0
    """How wide the noise is, in standard deviations of the embeddings."""
    draws: Annotated[int, Field(ge=1)] = 1
    """So many times noise is drawn for each pair; effects are averaged."""
    tokens: Literal["all", "object"] | Annotated[int, Field(ge=1)] = "all"
    """Which tokens are restored: all, as in the paper; those with noise; or a sample.

    A number takes so many patches of each image at random, beside the class token and, of texts,
    every token. Its mean estimates the mean over all of them, for less work.
    """
    prompt: str = "a photo of {}"
    seed: Annotated[int, Field(ge=0)] = 0


class Effect(BaseModel, extra="forbid", frozen=True):
    """What restoring does for one pair of image and text, in one tower."""

    image: str
    name: str
    """The class, as it stands in the prompt."""
    tower: TowerName
    clean: float
    """S: the similarity of image and text."""
    corrupted: float
    """S_c: with noise; the mean over draws."""
    tokens: int
    noised: int
    layer: list[float]
    """For each block the mean over tokens of |S_r - S_c| / S, with its output restored."""
    attention: list[float]
    """The same, with what its attention adds restored."""
    mlp: list[float]


class Band(BaseModel, frozen=True):
    """A mean over pairs, and its 95 % confidence interval; of a single pair there is none."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Band":
        mean = fmean(values)
        free = len(values) - 1
        half = student(free) * stdev(values) / len(values) ** 0.5 if free else 0.0
        return cls(mean=mean, low=mean - half, high=mean + half)


def student(free: int) -> float:
    """The 97.5 % quantile of Student's distribution, by its expansion where that is exact."""
    if free <= len(_FEW):
        return _FEW[free - 1]
    z = 1.959964
    first, second = z**3 + z, 5 * z**5 + 16 * z**3 + 3 * z
    third = 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    return z + first / (4 * free) + second / (96 * free**2) + third / (384 * free**3)


class TowerEffects(BaseModel, frozen=True):
    """Average indirect effects in one tower, block by block."""

    layer: list[Band]
    attention: list[Band]
    mlp: list[Band]
    more: Band
    """By how much restoring an MLP does more than restoring attention, over all blocks."""
    above: int
    """In so many blocks the MLP has the larger effect."""
    clean: float
    """The mean of S, and below of S_c."""
    corrupted: float
    tokens: float
    """On average there are so many tokens, and so many of them get noise."""
    noised: float
    deviation: float
    """The standard deviation of the embeddings."""

    def bands(self, kind: Kind) -> list[Band]:
        return {"layer": self.layer, "attention": self.attention, "mlp": self.mlp}[kind]


class Traced(BaseModel, frozen=True):
    """Where in a CLIP the knowledge lies, as far as tracing can tell."""

    model: str
    data: str
    pairs: int
    """Of image and text, one for each image that was traced."""
    skipped: dict[str, int]
    """Images that were passed over, by the reason."""
    bf16: bool
    settings: TraceSettings
    towers: dict[TowerName, TowerEffects]


def tower_effects(effects: Sequence[Effect], deviation: float) -> TowerEffects:
    """The effects of one tower, averaged over pairs."""
    attention = [Band.of(values) for values in zip(*(e.attention for e in effects), strict=True)]
    mlp = [Band.of(values) for values in zip(*(e.mlp for e in effects), strict=True)]
    return TowerEffects(
        layer=[Band.of(values) for values in zip(*(e.layer for e in effects), strict=True)],
        attention=attention,
        mlp=mlp,
        more=Band.of([fmean(e.mlp) - fmean(e.attention) for e in effects]),
        above=sum(a.mean > b.mean for a, b in zip(mlp, attention, strict=True)),
        clean=fmean(e.clean for e in effects),
        corrupted=fmean(e.corrupted for e in effects),
        tokens=fmean(e.tokens for e in effects),
        noised=fmean(e.noised for e in effects),
        deviation=deviation,
    )


def by_tower(
    effects: Sequence[Effect], deviations: Mapping[TowerName, float]
) -> dict[TowerName, TowerEffects]:
    """The effects of each tower, averaged over pairs."""
    return {
        tower: tower_effects([e for e in effects if e.tower == tower], deviation)
        for tower, deviation in deviations.items()
    }
