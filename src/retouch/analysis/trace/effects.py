"""The results of a trace: effects of single pairs, and their means with confidence intervals."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from retouch.analysis.layer_names import TowerName
from retouch.analysis.trace.hooks import Site
from retouch.files.checksummed import Count, Document

# The 97.5 % quantiles of Student's t distribution with 1, 2, … degrees of freedom.
_T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class TraceSettings(BaseModel, extra="forbid", frozen=True):
    """All that the effects of a pair depend on, apart from the model and the pair."""

    towers: tuple[TowerName, ...] = ("image", "text")
    noise: Annotated[float, Field(gt=0)] = 3.0
    """Standard deviation of the noise, as a multiple of that of the embeddings."""
    draws: Annotated[int, Field(ge=1)] = 1
    """How often noise is drawn for each pair; effects are averaged."""
    tokens: Literal["all", "object"] | Annotated[int, Field(ge=1)] = "all"
    """Which tokens are restored: all, as in the paper; those with noise; or a sample.

    A number samples that many patches of each image, in addition to the class token; of texts,
    every token is restored. Its mean estimates the mean over all tokens, for less work.
    """
    prompt: str = "a photo of {}"
    seed: Annotated[int, Field(ge=0)] = 0


class PairEffects(Document):
    """The effects of restoring activations for one pair of image and text, in one tower."""

    model_config = ConfigDict(frozen=True)

    image: str
    name: str
    """The class, as in the prompt."""
    tower: TowerName
    clean: float
    """S: the similarity of image and text."""
    corrupted: float
    """S_c: with noise; the mean over draws."""
    tokens: Count
    noised: Count
    """The number of tokens with noise."""
    layer: list[float]
    """For each block the mean over tokens of |S_r - S_c| / S, with its output restored."""
    attention: list[float]
    """The same, with the output of its attention restored."""
    mlp: list[float]


class MeanInterval(BaseModel, frozen=True):
    """A mean over pairs and its 95 % confidence interval, which is empty for a single pair."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "MeanInterval":
        mean = fmean(values)
        freedom = len(values) - 1
        half = t_quantile(freedom) * stdev(values) / len(values) ** 0.5 if freedom else 0.0
        return cls(mean=mean, low=mean - half, high=mean + half)


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution, by its expansion where that is accurate."""
    if freedom <= len(_T_QUANTILES):
        return _T_QUANTILES[freedom - 1]
    z = 1.959964
    first, second = z**3 + z, 5 * z**5 + 16 * z**3 + 3 * z
    third = 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    return z + first / (4 * freedom) + second / (96 * freedom**2) + third / (384 * freedom**3)


class TowerEffects(BaseModel, frozen=True):
    """Average indirect effects in one tower, block by block."""

    layer: list[MeanInterval]
    attention: list[MeanInterval]
    mlp: list[MeanInterval]
    mlp_minus_attention: MeanInterval
    """How much larger the effect of restoring an MLP is than that of attention, over all blocks."""
    mlp_larger_in: int
    """The number of blocks in which the MLP has the larger effect."""
    clean: float
    """The mean of S."""
    corrupted: float
    """The mean of S_c."""
    tokens: float
    """The mean number of tokens, and below of those with noise."""
    noised: float
    embedding_std: float
    """The standard deviation of the embeddings."""

    def at_site(self, site: Site) -> list[MeanInterval]:
        return {"layer": self.layer, "attention": self.attention, "mlp": self.mlp}[site]


class TraceResult(BaseModel, frozen=True):
    """The effects of a trace, averaged over pairs."""

    model: str
    data: str
    pairs: int
    """Pairs of image and text, one per traced image."""
    skipped: dict[str, int]
    """The number of skipped images by reason."""
    bf16: bool
    settings: TraceSettings
    towers: dict[TowerName, TowerEffects]


def tower_effects(effects: Sequence[PairEffects], embedding_std: float) -> TowerEffects:
    """The effects in one tower, averaged over pairs."""
    attention = [MeanInterval.of(v) for v in zip(*(e.attention for e in effects), strict=True)]
    mlp = [MeanInterval.of(v) for v in zip(*(e.mlp for e in effects), strict=True)]
    return TowerEffects(
        layer=[MeanInterval.of(v) for v in zip(*(e.layer for e in effects), strict=True)],
        attention=attention,
        mlp=mlp,
        mlp_minus_attention=MeanInterval.of([fmean(e.mlp) - fmean(e.attention) for e in effects]),
        mlp_larger_in=sum(m.mean > a.mean for m, a in zip(mlp, attention, strict=True)),
        clean=fmean(e.clean for e in effects),
        corrupted=fmean(e.corrupted for e in effects),
        tokens=fmean(e.tokens for e in effects),
        noised=fmean(e.noised for e in effects),
        embedding_std=embedding_std,
    )


def by_tower(
    effects: Sequence[PairEffects], embedding_std: Mapping[TowerName, float]
) -> dict[TowerName, TowerEffects]:
    """The effects in each tower, averaged over pairs."""
    return {
        tower: tower_effects([e for e in effects if e.tower == tower], std)
        for tower, std in embedding_std.items()
    }
