"""The three runs of a trace for one pair of image and text: clean, corrupted, restored.

T: tokens, W: width of a tower, D: width of the joint embedding space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from retouch.analysis.layer_names import TowerName
from retouch.analysis.token_regions import name_tokens, patch_grid, patch_tokens
from retouch.analysis.trace.cases import Case, Cases
from retouch.analysis.trace.effects import PairEffects, TraceSettings
from retouch.analysis.trace.hooks import SITES
from retouch.analysis.trace.patched_forward import (
    CleanRun,
    Inputs,
    PatchedTower,
    features,
    restored_rows,
)
from retouch.clip import Clip
from retouch.clip.finite import check_weights
from retouch.clip.text.zero_shot import fill_template
from retouch.errors import UserError

MEASURED_PAIRS = 32
"""The number of pairs over which the standard deviation of the embeddings is measured."""
TokenSelector = Callable[[int], list[int]]
"""Returns the object's tokens, given the number of all tokens."""


@dataclass
class _TowerRun:
    """A traced tower's part in a case."""

    tower: PatchedTower
    inputs: Inputs
    clean: CleanRun
    noised: list[int]
    """The tokens that get noise."""


class Tracer:
    """Traces pairs in both towers of a CLIP."""

    def __init__(self, clip: Clip, settings: TraceSettings, batch: int) -> None:
        check_weights(clip)
        self.clip, self.settings, self.batch = clip, settings, batch
        self.towers = {name: PatchedTower(clip, name) for name in settings.towers}
        # If the visual tower is not traced, it may be of any kind.
        self.grid = patch_grid(clip) if "image" in self.towers else (1, 1)

    def measure_embedding_std(self, cases: Cases) -> dict[TowerName, float]:
        """The standard deviation of each tower's embeddings, over patches or tokens of names."""
        rows: dict[TowerName, list[Tensor]] = {tower: [] for tower in self.settings.towers}
        for case in islice(cases, MEASURED_PAIRS):
            pixels = cases.read(case)
            if pixels is None:
                continue
            all_patches = list(range(self.grid[0] * self.grid[1]))
            for tower, inputs, object_tokens in self._inputs(case, pixels, all_patches):
                if tower in rows:
                    embeddings = self.towers[tower].embeddings(inputs)
                    rows[tower].append(embeddings[object_tokens(len(embeddings))].float())
        if not all(rows.values()):
            raise UserError(f"none of the images of {cases.objects.name} shows an object")
        return {tower: float(torch.cat(parts).std()) for tower, parts in rows.items()}

    def effects(
        self, case: Case, pixels: Tensor, embedding_std: dict[TowerName, float]
    ) -> list[PairEffects]:
        """The effects in each tower; none if the similarity of image and text is not above 0."""
        runs: list[_TowerRun] = []
        feature: dict[TowerName, Tensor] = {}
        for name, inputs, object_tokens in self._inputs(case, pixels, case.patches):
            if name not in self.towers:
                feature[name] = features(self.clip, inputs)[0]
                continue
            clean = self.towers[name].run_clean(inputs)
            feature[name] = clean.feature
            noised = object_tokens(len(clean.embeddings))
            runs.append(_TowerRun(self.towers[name], inputs, clean, noised))
        if float(feature["image"] @ feature["text"]) <= 0:
            return []
        other: dict[TowerName, Tensor] = {"image": feature["text"], "text": feature["image"]}
        return [
            self._pair_effects(case, run, other[run.tower.name], embedding_std[run.tower.name])
            for run in runs
        ]

    def _inputs(
        self, case: Case, pixels: Tensor, patches: Sequence[int]
    ) -> list[tuple[TowerName, Inputs, TokenSelector]]:
        """What each tower reads, and which of its tokens are the object's."""
        template = self.settings.prompt
        prompt = self.clip.tokenize(fill_template(template, [case.name]))
        name_positions = name_tokens(self.clip, template, case.name)
        return [
            ("image", pixels, lambda count: patch_tokens(patches, self.grid, count)),
            ("text", prompt, lambda count: name_positions),
        ]

    def _pair_effects(
        self, case: Case, run: _TowerRun, other: Tensor, embedding_std: float
    ) -> PairEffects:
        similarity = float(run.clean.feature @ other)
        corrupted, changes = [], []
        for draw in range(self.settings.draws):
            rng = _rng(self.settings.seed, case.key, case.name, run.tower.name, str(draw))
            corrupted_similarity, change = self._restore(run, other, embedding_std, rng)
            corrupted.append(corrupted_similarity)
            changes.append(change)
        effects = torch.stack(changes).mean(0) / similarity
        return PairEffects(
            image=case.key,
            name=case.name,
            tower=run.tower.name,
            clean=similarity,
            corrupted=sum(corrupted) / len(corrupted),
            tokens=len(run.clean.embeddings),
            noised=len(run.noised),
            **dict(zip(SITES, effects.tolist(), strict=True)),
        )

    def _restore(
        self, run: _TowerRun, other: Tensor, embedding_std: float, rng: np.random.Generator
    ) -> tuple[float, Tensor]:
        """S_c, and the mean of |S_r - S_c| over tokens [sites, blocks], for one draw of noise."""
        tower, clean = run.tower, run.clean
        embeddings = clean.embeddings.clone()
        drawn = rng.standard_normal((len(run.noised), embeddings.shape[1]), np.float32)
        noise = torch.from_numpy(drawn) * (self.settings.noise * embedding_std)
        embeddings[run.noised] += noise.to(embeddings)
        corrupted = tower.run_corrupted(run.inputs, embeddings, clean)
        corrupted_similarity = corrupted.feature @ other
        positions, weights = self._restored_positions(run, rng)
        weights = weights.to(other)
        means = []
        for block in range(len(tower)):
            rows = [restored_rows(clean, corrupted, site, block)[positions] for site in SITES]
            restored = tower.run_restored(
                run.inputs,
                corrupted.layer[block],
                torch.cat(rows),
                positions * len(SITES),
                block,
                self.batch,
            )
            change = (restored @ other - corrupted_similarity).abs()
            means.append(change.view(len(SITES), len(positions)) @ weights)
        return float(corrupted_similarity), torch.stack(means, dim=1).cpu()

    def _restored_positions(
        self, run: _TowerRun, rng: np.random.Generator
    ) -> tuple[list[int], Tensor]:
        """The tokens to restore, and the weight of each in the mean."""
        count, choice = len(run.clean.embeddings), self.settings.tokens
        if choice == "object":
            return run.noised, torch.full((len(run.noised),), 1 / len(run.noised))
        patches = self.grid[0] * self.grid[1]
        if choice == "all" or run.tower.name == "text" or choice >= patches:
            return list(range(count)), torch.full((count,), 1 / count)
        first = count - patches
        sample = sorted((first + rng.permutation(patches)[:choice]).tolist())
        weights = torch.full((first + choice,), patches / choice)
        weights[:first] = 1.0
        return [*range(first), *sample], weights / count


def _rng(seed: int, *purpose: str) -> np.random.Generator:
    """A generator that depends only on the seed and on what it is for."""
    digest = blake2b("\0".join(purpose).encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest)])
