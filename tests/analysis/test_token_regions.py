"""Where the object is: in the image, and in the prompt."""

import numpy as np
import pytest
from backbones import own_pair
from PIL import Image
from traced_models import TRACEABLE

from retouch.analysis.token_regions import box_in_input, name_tokens, patch_grid, patches_in
from retouch.clip import Clip, Preprocess
from retouch.errors import UserError


@pytest.fixture(params=TRACEABLE)
def clip(request: pytest.FixtureRequest) -> Clip:
    return TRACEABLE[request.param]()


def test_a_tower_without_patches():
    with pytest.raises(UserError, match="does not cut images into patches"):
        patch_grid(own_pair())


def test_a_box_in_the_input_of_the_model():
    square = Preprocess(size=(32, 32))
    assert box_in_input((10, 20, 30, 40), (100, 200), square) == pytest.approx((3.2, 3.2, 9.6, 6.4))
    middle = Preprocess(size=(32, 32), shortest=32)
    assert box_in_input((50, 0, 100, 100), (200, 100), middle) == (0, 0, 32, 32)
    assert box_in_input((0, 0, 40, 100), (200, 100), middle)[2] == 0
    # What is drawn into a box is found visible, whatever the model does to the picture.
    for preprocess in (middle, Preprocess(size=(48, 32)), Preprocess(size=(30, 30), shortest=35)):
        canvas = np.zeros((90, 130, 3), np.uint8)
        canvas[20:70, 40:85] = 255
        visible = preprocess.prepare(Image.fromarray(canvas))[..., 0] > 127
        rows, columns = (np.flatnonzero(visible.any(axis)) for axis in (1, 0))
        left, top, wide, high = box_in_input((40, 20, 45, 50), (130, 90), preprocess)
        assert (left, left + wide) == pytest.approx((columns[0], columns[-1] + 1), abs=0.75)
        assert (top, top + high) == pytest.approx((rows[0], rows[-1] + 1), abs=0.75)


def test_patches_that_a_box_touches():
    preprocess = Preprocess(size=(32, 32))
    assert patches_in([(0, 0, 8, 8)], (4, 4), preprocess) == [0]
    assert patches_in([(7, 0, 2, 9)], (4, 4), preprocess) == [0, 1, 4, 5]
    assert patches_in([(24, 24, 8, 8), (0, 0, 1, 1)], (4, 4), preprocess) == [0, 15]
    assert patches_in([(5, 5, 0, 9)], (4, 4), preprocess) == []


def test_tokens_of_a_name(clip: Clip):
    def tokens(text: str) -> list[int]:
        ids = next(iter(clip.tokenize([text]).values()))[0]
        positions = name_tokens(clip, "a photo of {}", text.removeprefix("a photo of "))
        return [int(ids[position]) for position in positions]

    one, both = tokens("a photo of red"), tokens("a photo of dark red")
    assert both[-len(one) :] == one
    assert len(both) > len(one)
    assert tokens("a photo of photo of")
    alone = next(iter(clip.tokenize(["red"]).values()))[0].tolist()
    assert any(alone[i : i + len(one)] == one for i in range(len(alone)))


def test_a_name_longer_than_the_context(clip: Clip):
    with pytest.raises(UserError, match=r"'red red red.*is too long.*shorter name"):
        name_tokens(clip, "a photo of {}", " ".join(["red"] * 90))
