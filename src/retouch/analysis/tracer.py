"""The three runs of a trace, for one pair of image and text: clean, corrupted, restored.

T: tokens, W: width of a tower, D: width of the common space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from retouch.analysis.cases import Case, Cases
from retouch.analysis.effects import Effect, TraceSettings
from retouch.analysis.hooks import KINDS, TowerName
from retouch.analysis.patched_forward import Clean, Inputs, PatchedTower, features, rows_of
from retouch.analysis.token_regions import grid_of, name_tokens, patch_tokens
from retouch.clip import Clip
from retouch.clip.zero_shot import fill_template
from retouch.errors import UserError

MEASURED = 32
"""The width of the embeddings is measured over so many pairs."""


@dataclass
class _Side:
    """One tower's part in a case."""

    tower: PatchedTower
    inputs: Inputs
    clean: Clean
    noised: list[int]
    """The tokens that get noise."""


class Tracer:
    """Traces pairs in both towers of a CLIP."""

    def __init__(self, clip: Clip, settings: TraceSettings, batch: int) -> None:
        self.clip, self.settings, self.batch = clip, settings, batch
        self.towers = {name: PatchedTower(clip, name) for name in settings.towers}
        # Where the visual tower is left alone, it may be of any kind.
        self.grid = grid_of(clip) if "image" in self.towers else (1, 1)

    def measure(self, cases: Cases) -> dict[TowerName, float]:
        """How wide the embeddings are in each tower: of the patches, and of the names' tokens."""
        found: dict[TowerName, list[Tensor]] = {tower: [] for tower in self.settings.towers}
        for case in islice(cases, MEASURED):
            pixels = cases.read(case)
            if pixels is None:
                continue
            patches = list(range(self.grid[0] * self.grid[1]))
            for tower, inputs, noised in self._inputs(case, pixels, patches):
                if tower in found:
                    entered = self.towers[tower].embeddings(inputs)
                    found[tower].append(entered[noised(len(entered))].float())
        if not all(found.values()):
            raise UserError(f"none of the images of {cases.objects.name} shows an object")
        return {tower: float(torch.cat(rows).std()) for tower, rows in found.items()}

    def effects(
        self, case: Case, pixels: Tensor, deviations: dict[TowerName, float]
    ) -> list[Effect]:
        """The effects in each tower; none where image and text are not alike to begin with."""
        sides: list[_Side] = []
        said: dict[TowerName, Tensor] = {}
        for name, inputs, noised in self._inputs(case, pixels, case.patches):
            if name not in self.towers:
                said[name] = features(self.clip, inputs)[0]
                continue
            clean = self.towers[name].clean(inputs)
            said[name] = clean.feature
            noisy = noised(len(clean.entered[0]))
            sides.append(_Side(self.towers[name], inputs, clean, noisy))
        if float(said["image"] @ said["text"]) <= 0:
            return []
        other: dict[TowerName, Tensor] = {"image": said["text"], "text": said["image"]}
        return [
            self._effect(case, side, other[side.tower.name], deviations[side.tower.name])
            for side in sides
        ]

    def _inputs(
        self, case: Case, pixels: Tensor, patches: Sequence[int]
    ) -> list[tuple[TowerName, Inputs, Callable[[int], list[int]]]]:
        """What each tower reads, and which of its so many tokens are the object's."""
        template = self.settings.prompt
        tokens = self.clip.tokenize(fill_template(template, [case.name]))
        named = name_tokens(self.clip, template, case.name)
        return [
            ("image", pixels, lambda count: patch_tokens(patches, self.grid, count)),
            ("text", tokens, lambda count: named),
        ]

    def _effect(self, case: Case, side: _Side, other: Tensor, deviation: float) -> Effect:
        clean = side.clean
        similarity = float(clean.feature @ other)
        corrupted, changes = [], []
        for draw in range(self.settings.draws):
            rng = _rng(self.settings.seed, case.key, case.name, side.tower.name, str(draw))
            before, change = self._restore(side, other, deviation, rng)
            corrupted.append(before)
            changes.append(change)
        mean = torch.stack(changes).mean(0) / similarity
        return Effect(
            image=case.key,
            name=case.name,
            tower=side.tower.name,
            clean=similarity,
            corrupted=sum(corrupted) / len(corrupted),
            tokens=len(clean.entered[0]),
            noised=len(side.noised),
            **dict(zip(KINDS, mean.tolist(), strict=True)),
        )

    def _restore(
        self, side: _Side, other: Tensor, deviation: float, rng: np.random.Generator
    ) -> tuple[float, Tensor]:
        """S_c, and the mean of |S_r - S_c| over tokens [kinds, blocks], for one draw of noise."""
        tower, clean = side.tower, side.clean
        embeddings = clean.entered[0].clone()
        drawn = rng.standard_normal((len(side.noised), embeddings.shape[1]), np.float32)
        noise = torch.from_numpy(drawn) * (self.settings.noise * deviation)
        embeddings[side.noised] += noise.to(embeddings)
        corrupted = tower.corrupted(side.inputs, embeddings, clean)
        before = corrupted.feature @ other
        places, weights = self._places(side, rng)
        weights = weights.to(other)
        means = []
        for block in range(len(tower)):
            rows = [rows_of(clean, corrupted, kind, block)[places] for kind in KINDS]
            said = tower.restored(
                side.inputs,
                corrupted.layer[block],
                torch.cat(rows),
                places * len(KINDS),
                block,
                self.batch,
            )
            change = (said @ other - before).abs().view(len(KINDS), len(places))
            means.append(change @ weights)
        return float(before), torch.stack(means, dim=1).cpu()

    def _places(self, side: _Side, rng: np.random.Generator) -> tuple[list[int], Tensor]:
        """The tokens to restore, and what each counts in the mean."""
        count, choice = len(side.clean.entered[0]), self.settings.tokens
        if choice == "object":
            return side.noised, torch.full((len(side.noised),), 1 / len(side.noised))
        patches = self.grid[0] * self.grid[1]
        if choice == "all" or side.tower.name == "text" or choice >= patches:
            return list(range(count)), torch.full((count,), 1 / count)
        first = count - patches
        some = sorted((first + rng.permutation(patches)[:choice]).tolist())
        weights = torch.full((first + choice,), patches / choice)
        weights[:first] = 1.0
        return [*range(first), *some], weights / count


def _rng(seed: int, *what: str) -> np.random.Generator:
    """Chance that depends on the seed and on what it is for, and on nothing else."""
    digest = blake2b("\0".join(what).encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest)])
