"""The pointing game, by hand and on drawn pictures in which the place is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import retouch
from retouch.analysis.annotations import Box
from retouch.analysis.cam.gscorecam import Cam, gscorecam
from retouch.analysis.cam.pointing_game import PointingScores, pointing_game
from tools.pictures import compose, scenes
from tools.pictures.captions import with_article


def test_the_pointing_game():
    heat = np.zeros((10, 20), np.float32)
    heat[2, 15] = 1
    one = Cam("", heat, 0.0, [0], [1.0], 1, (5, 10), 1)
    hit, missed = (14.0, 1.0, 3.0, 4.0), (0.0, 0.0, 15.0, 10.0)
    heat[9, 0] = 0.25
    scores = pointing_game([one, one], [[hit], [missed]])
    assert scores == pytest.approx(PointingScores(0.5, (0.8 + 0.2) / 2, (0.06 + 0.75) / 2))
    assert pointing_game([one], [[hit, missed]]) == PointingScores(1.0, 1.0, (12 - 4 + 150) / 200)


def two_things(seed: int) -> list[tuple[Tensor, str, Box]]:
    """A picture of two large things beside each other: it, the name of each, and its box."""
    rng = np.random.default_rng([31, seed])
    one = scenes.random_shape(rng, plain=1.0)
    other = scenes.random_shape(rng, without=[one.name], plain=1.0)
    while other.color == one.color:
        other = scenes.random_shape(rng, without=[one.name], plain=1.0)
    things = tuple(replace(thing, size="large", pose="") for thing in (one, other))
    scene = scenes.with_background(scenes.Scene("pair", things, "", relation="above"), rng)
    canvas = compose.paint_background(scene.background, scene.background_color, rng)
    ends = [((32, 17), (32, 47)), ((17, 32), (47, 32))][seed % 2]
    boxes = []
    for thing, (x, y) in zip(things, ends[:: 1 if seed % 4 < 2 else -1], strict=True):
        before = canvas.copy()
        place = compose.place_thing(thing, rng, "pair", x, y, 1.5, (0.0, 0.0))
        compose.draw_thing(canvas, thing, place, rng)
        visible = np.abs(canvas - before).max(axis=0) > 0.05
        rows, columns = (np.flatnonzero(visible.any(axis=axis)) for axis in (1, 0))
        left, top = float(columns[0]), float(rows[0])
        boxes.append((left, top, columns[-1] + 1.0 - left, rows[-1] + 1.0 - top))
    compose.photograph(canvas, rng)
    picture = torch.from_numpy(compose.to_uint8(canvas))
    names = [f"a photo of {with_article(f'{thing.color} {thing.name}')}" for thing in things]
    return [(picture, name, box) for name, box in zip(names, boxes, strict=True)]


@pytest.mark.slow
@pytest.mark.usefixtures("onednn")
def test_it_points_at_what_the_text_says_better_than_chance_and_random_neurons():
    """Two things in each picture, so that only the text says which of them is meant."""
    clip = retouch.load("builtin")
    cases = [case for seed in range(8) for case in two_things(seed)]
    scores = {}
    for neurons in ("gradient", "random"):
        cams = [
            gscorecam(clip, picture, text, neurons=neurons, share=0.03, seed=number)
            for number, (picture, text, _) in enumerate(cases)
        ]
        scores[neurons] = pointing_game(cams, [[box] for *_, box in cases])
    chance = scores["gradient"].chance
    assert 0.1 < chance < 0.25
    assert scores["gradient"].accuracy > chance + 0.2
    assert scores["gradient"].accuracy > scores["random"].accuracy + 0.15
    assert scores["gradient"].energy > chance
