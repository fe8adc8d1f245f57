"""A whole trace: every library, continuing, and the model stays as it was."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from backbones import BACKBONES, own_pair
from traced_models import TOWERS, TRACEABLE, write_coco

import retouch
from retouch.analysis.annotations import read_annotations
from retouch.analysis.trace import journal
from retouch.analysis.trace.causal_trace import NOT_SIMILAR, causal_trace
from retouch.analysis.trace.effects import TraceSettings
from retouch.analysis.trace.hooks import SITES
from retouch.builtin.boxes import boxed_pictures
from retouch.clip import Clip
from retouch.errors import UserError
from retouch.sparse import fingerprint

FEW_TOKENS = TraceSettings(tokens=2)
"""Two patches per image, which is less work than all of them."""


@pytest.fixture(params=TRACEABLE)
def clip(request: pytest.FixtureRequest) -> Clip:
    return TRACEABLE[request.param]()


@pytest.mark.slow
def test_the_model_is_left_as_it_was_and_the_same_seed_gives_the_same():
    clip, objects = retouch.load("builtin"), boxed_pictures(2)
    before = fingerprint(clip.model)
    first = causal_trace(clip, objects, FEW_TOKENS, images=1)
    small_batch = causal_trace(clip, objects, FEW_TOKENS, images=1, batch=5)
    for tower in TOWERS:
        expected = pytest.approx(first.towers[tower].layer[0].mean, rel=1e-3)
        assert small_batch.towers[tower].layer[0].mean == expected
    assert causal_trace(clip, objects, FEW_TOKENS, images=1) == first
    other_seed = FEW_TOKENS.model_copy(update={"seed": 1})
    assert causal_trace(clip, objects, other_seed, images=1) != first
    assert fingerprint(clip.model) == before
    assert not [m for m in clip.model.modules() if "forward" in vars(m)]


@pytest.mark.slow
def test_a_second_trace_in_the_same_folder_is_refused(tmp_path: Path):
    clip, objects, messages = retouch.load("builtin"), boxed_pictures(1), []

    def again(done: int, total: int) -> None:
        with ThreadPoolExecutor(1) as pool, pytest.raises(UserError) as refused:
            pool.submit(causal_trace, clip, objects, FEW_TOKENS, folder=tmp_path).result()
        messages.append(str(refused.value))

    first = causal_trace(clip, objects, FEW_TOKENS, folder=tmp_path, on_progress=again)
    assert f"{tmp_path} is in use by another `retouch trace`" in messages[0]
    assert causal_trace(clip, objects, FEW_TOKENS, folder=tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.jsonl", "settings.json"]


def test_what_cannot_be_traced():
    with pytest.raises(UserError, match="no transformer blocks"):
        causal_trace(own_pair(), boxed_pictures(1))
    with pytest.raises(UserError, match="0 images"):
        causal_trace(retouch.load("builtin"), boxed_pictures(1), images=0)
    clip = BACKBONES["transformers CLIPModel"]()
    clip.model.get_parameter("text_projection.weight").data[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"1 of .* in text_projection\.weight"):
        causal_trace(clip, boxed_pictures(1))


def test_a_tower_that_is_not_traced_may_be_of_any_kind():
    tiny, other = BACKBONES["transformers CLIPModel"](), own_pair()
    tiny.model.vision_model.encoder.layers = torch.nn.ModuleList()
    tiny.encode_images = lambda pixels: other.model["images"](pixels)
    settings = TraceSettings(towers=("text",))
    result = causal_trace(tiny, boxed_pictures(8), settings)
    assert result.towers.keys() == {"text"}
    assert result.towers["text"].layer[0].mean > 0


@pytest.mark.slow
def test_every_library_and_pairs_that_are_not_similar(
    clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Either with its text features or with their negatives, each image is similar to its class."""
    write_coco(tmp_path)
    objects, encode, traced = read_annotations(tmp_path), clip.encode_texts, 0
    for sign in (1, -1):
        monkeypatch.setattr(clip, "encode_texts", lambda tokens, s=sign: s * encode(tokens))
        try:
            result = causal_trace(clip, objects)
        except UserError as error:
            assert f"2 with {NOT_SIMILAR}" in str(error)  # noqa: PT017
            continue
        traced += result.pairs
        assert result.pairs + sum(result.skipped.values()) == 3
        for tower_name in TOWERS:
            effects = result.towers[tower_name]
            assert min(band.mean for site in SITES for band in effects.at_site(site)[:1]) > 0
    assert traced == 2


@pytest.mark.slow
def test_an_interrupted_trace_continues(tmp_path: Path):
    clip, objects = retouch.load("builtin"), boxed_pictures(4)
    run = partial(causal_trace, clip, objects, FEW_TOKENS)
    whole = run(folder=tmp_path / "whole")
    part = tmp_path / "part"
    run(images=2, folder=part)
    file = part / journal.PAIRS
    before = file.read_text()
    file.write_text(before + before.splitlines()[0][:50])  # killed while it wrote
    assert run(folder=part) == whole
    assert file.read_text().startswith(before)
    assert file.read_text() == (tmp_path / "whole" / journal.PAIRS).read_text()

    clip.encode_images = None  # nothing is left to compute
    assert run(images=2, folder=part).pairs == 2
    for change in ({"noise": 2.0}, {"seed": 3}, {"towers": ("text",)}):
        other = FEW_TOKENS.model_copy(update=change)
        with pytest.raises(UserError, match=f"{part} holds a trace with .* choose another folder"):
            causal_trace(clip, objects, other, folder=part)
    with pytest.raises(UserError, match="holds a trace with objects"):
        causal_trace(clip, boxed_pictures(3), FEW_TOKENS, folder=part)
    file.write_text("{}\n" + before)
    with pytest.raises(UserError, match=r"line 1 of .* is damaged"):
        run(folder=part)
    (part / journal.SETTINGS).write_text("{")
    with pytest.raises(UserError, match=r"settings\.json is damaged"):
        run(folder=part)
