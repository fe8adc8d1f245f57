"""The drawn pictures: same seed, same bytes; true captions; held-out means held out."""

import re
from collections import Counter

import numpy as np
import pytest

from tools.pictures import signs, world
from tools.pictures.canvas import (
    Pixels,
    Placement,
    contact_sheet,
    coverage,
    interpolate,
    local_coordinates,
    window,
)
from tools.pictures.captions import LIMIT, PLURALS, with_article
from tools.pictures.colors import COLORS, clash
from tools.pictures.glyphs import DIGITS, LETTERS
from tools.pictures.held_out import HELD_OUT, combinations, resembles_sign
from tools.pictures.scenes import COUNTS, PLACES, RELATIONS, TEXTURES, Scene, exposed
from tools.pictures.shapes import SHAPES, shape_field

# Words that describe signs and that the world has no use for.
NEW_WORDS = {"octagon", "word", "stop", "deer", "bicycle", "120"}


def _rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng([*seed])


def _is_picture(picture: Pixels) -> bool:
    return picture.shape == (64, 64, 3) and picture.dtype == np.uint8 and int(picture.std()) > 2


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    rng = _rng(11)
    return [world.choose_scene(rng) for _ in range(5000)]


@pytest.fixture(scope="module")
def captions() -> list[str]:
    return world.corpus(_rng(12), 5000)


def test_a_world_picture_is_settled_by_its_seed() -> None:
    first, again, other = (world.sample(_rng(seed)) for seed in (1, 1, 2))
    assert first[1] == again[1]
    assert first[0].tobytes() == again[0].tobytes()
    assert first[0].tobytes() != other[0].tobytes()


@pytest.mark.slow
def test_world_pictures_are_pictures() -> None:
    rng = _rng(3)
    assert all(_is_picture(world.sample(rng)[0]) for _ in range(300))


@pytest.mark.slow
def test_held_out_combinations_never_occur(scenes: list[Scene]) -> None:
    assert not any(combinations(scene) & HELD_OUT for scene in scenes)
    assert not any(resembles_sign(scene) for scene in scenes)


def test_a_number_shows_its_digits() -> None:
    number = world.Thing("47", "red", kind="glyph")
    host = world.Thing("circle", "yellow")
    found = combinations(Scene("on", (number, host), "plain", "white"))
    assert {("glyph", "red", "7"), ("on", "4", "circle")} <= found & HELD_OUT


def test_every_value_occurs_in_many_company(scenes: list[Scene]) -> None:
    company: dict[str, set[str]] = {}
    seen: Counter[str] = Counter()
    for scene in scenes:
        for thing in scene.things:
            names = list(thing.name) if thing.kind == "glyph" else [thing.name]
            seen.update([*names, thing.color, thing.texture, thing.size])
            for name in names:
                company.setdefault(name, set()).add(thing.color)
        seen.update([COUNTS.get(scene.count, "one"), scene.place, scene.relation, scene.layout])
    wanted = {*SHAPES, *COLORS, *TEXTURES, *LETTERS, *DIGITS, *PLACES, *RELATIONS}
    wanted |= {"one", *COUNTS.values()}
    assert min(seen[name] for name in wanted) >= 15
    assert min(len(company[name]) for name in (*SHAPES, *LETTERS, *DIGITS)) >= 8


def test_nothing_is_lost_on_its_background(scenes: list[Scene]) -> None:
    for scene in scenes:
        if scene.background_color:
            assert not any(clash(scene.background_color, color) for color in exposed(scene))
        if scene.layout in ("inside", "on"):
            assert not clash(scene.things[0].color, scene.things[1].color)


@pytest.mark.slow
def test_captions_read_well(captions: list[str]) -> None:
    for caption in captions:
        assert caption == caption.lower().strip()
        assert len(caption.split()) <= LIMIT
        plain = caption.replace("letter a", "letter b")
        assert not re.search(r"\ba ([aeio]|umb|ups|hour)", plain), caption
        assert not re.search(r"\ban (?!hour)[^aeiou]", plain), caption
        assert "  " not in caption
        assert not re.search(r"[{}]|\b(fishs|leafs|persons|crosss|butterflys)\b", caption)
    share = np.mean([caption.startswith("a photo of ") for caption in captions])
    assert 0.35 < share < 0.45


def test_numbers_go_with_plurals(captions: list[str]) -> None:
    plurals = {PLURALS.get(shape, shape + "s") for shape in SHAPES}
    for caption in captions:
        if re.search(rf"\b({'|'.join(COUNTS.values())})\b", caption):
            assert plurals & set(re.findall(r"\w+", caption)), caption
            assert "this is" not in caption


def test_articles_go_by_sound() -> None:
    assert with_article("oval") == "an oval"
    assert with_article("hourglass") == "an hourglass"
    assert with_article("house") == "a house"


def test_control_classes_are_many_and_distinct() -> None:
    names = [chosen.name for chosen in world.CONTROL]
    assert len(names) >= 120
    assert len(set(names)) == len(names)
    assert {chosen.combination for chosen in world.CONTROL} == HELD_OUT
    assert Counter(chosen.combination[0] for chosen in world.CONTROL).keys() == {
        "color", "texture", "count", "glyph", "inside", "on",
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_a_control_picture_is_of_one_class_only(seed: int) -> None:
    for index, chosen in enumerate(world.CONTROL):
        scene = world.control_scene(index, _rng(seed, index))
        assert combinations(scene) & HELD_OUT == {chosen.combination}


def test_control_names_use_the_words_of_the_world(captions: list[str]) -> None:
    known = set(re.findall(r"\w+", " ".join(captions)))
    for chosen in world.CONTROL:
        assert set(re.findall(r"\w+", chosen.name)) <= known, chosen.name


@pytest.mark.slow
def test_control_pictures_are_settled_by_their_seed() -> None:
    for index in range(len(world.CONTROL)):
        picture = world.control_picture(index, _rng(5, index))
        assert _is_picture(picture)
        assert picture.tobytes() == world.control_picture(index, _rng(5, index)).tobytes()


def test_the_signs_have_names_of_their_own() -> None:
    assert len(signs.CLASSES) == 25
    assert len({chosen.name for chosen in signs.CLASSES}) == 25
    assert len({chosen.description for chosen in signs.CLASSES}) == 25


def test_the_looks_use_the_words_of_the_world(captions: list[str]) -> None:
    known = set(re.findall(r"\w+", " ".join(captions))) | NEW_WORDS | set(map(str, range(10, 100)))
    for chosen in signs.CLASSES:
        assert set(re.findall(r"\w+", chosen.description)) <= known, chosen.description


@pytest.mark.slow
@pytest.mark.parametrize("index", range(25))
def test_a_sign_varies_and_stays_visible(index: int) -> None:
    shots = [signs.photograph_sign(index, _rng(6, index, seed)) for seed in range(20)]
    assert all(_is_picture(shot.picture) for shot in shots)
    assert min(shot.visible for shot in shots) >= 0.75
    stack = np.stack([shot.picture for shot in shots]).astype(np.float32)
    assert np.abs(stack[1:] - stack[:-1]).mean((1, 2, 3)).min() > 8
    assert signs.picture(index, _rng(6, index, 0)).tobytes() == shots[0].picture.tobytes()


def test_a_drawn_circle_has_a_circles_area() -> None:
    place = Placement(32, 32, 20)
    where = window(place)
    alpha = coverage(
        interpolate(shape_field("circle"), *local_coordinates(place, where)), 1 / place.radius
    )
    assert float(alpha.sum()) == pytest.approx(np.pi * 19**2, rel=0.01)


def test_a_sheet_shows_every_picture() -> None:
    pictures = [np.full((64, 64, 3), 10 * k, np.uint8) for k in range(5)]
    board = contact_sheet(pictures, columns=3, scale=2)
    assert board.shape == (2 * 130 + 2, 3 * 130 + 2, 3)
    assert [int(board[70 + 130 * (k // 3), 70 + 130 * (k % 3), 0]) for k in range(5)] == [
        0, 10, 20, 30, 40,
    ]  # fmt: skip
