"""Causal tracing: the three runs, what they cost, where objects are, and the command."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from backbones import BACKBONES, own_pair
from PIL import Image
from typer.testing import CliRunner

import retouch
from retouch.analysis import trace_journal
from retouch.analysis.cases import NOTHING, OTHER_SIZE, Cases
from retouch.analysis.effects import Band, TraceSettings
from retouch.analysis.hooks import KINDS, leaving, with_leaving
from retouch.analysis.objects import Scene, read_annotations
from retouch.analysis.patched_forward import PatchedTower, rows_of
from retouch.analysis.token_regions import grid_of, name_tokens, patches_in, seen
from retouch.analysis.trace import UNLIKE, trace
from retouch.analysis.tracer import Tracer
from retouch.builtin.boxes import boxed_pictures
from retouch.cli import app
from retouch.clip import Clip, Preprocess
from retouch.errors import UserError
from retouch.report.trace import write_trace
from retouch.sparse import fingerprint

TRACEABLE = {name: make for name, make in BACKBONES.items() if name != "DualEncoder"}
SIDES = ("image", "text")


@pytest.fixture(params=TRACEABLE)
def clip(request: pytest.FixtureRequest) -> Clip:
    return TRACEABLE[request.param]()


def inputs_of(clip: Clip, side: str):
    if side == "text":
        return clip.tokenize(["a photo of red"])
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.integers(0, 256, (1, *clip.preprocess.size, 3), np.uint8))


def noisy(clip: Clip, side: str):
    """A tower, its input, its clean run, and a corrupted one."""
    tower, inputs = PatchedTower(clip, side), inputs_of(clip, side)
    clean = tower.clean(inputs)
    embeddings = clean.entered[0].clone()
    width = embeddings.shape[1]
    embeddings[1:3] += 3 * torch.randn(2, width, generator=torch.Generator().manual_seed(0))
    return tower, inputs, clean, embeddings, tower.corrupted(inputs, embeddings, clean)


# The three runs, in every library.


@pytest.mark.parametrize("side", SIDES)
def test_restoring_everything_is_clean_and_nothing_is_corrupted(clip: Clip, side: str):
    tower, inputs, clean, _, corrupted = noisy(clip, side)
    plain = tower.features(inputs)
    same = partial(torch.testing.assert_close, rtol=0, atol=2e-6)
    same(clean.feature[None], plain)
    assert (corrupted.feature - clean.feature).abs().max() > 1e-4
    for block in range(len(tower)):
        same(tower.resume(inputs, clean.layer[block][None], block), plain)
        same(tower.resume(inputs, corrupted.layer[block][None], block), corrupted.feature[None])
    same(tower.corrupted(inputs, clean.entered[0], clean).feature[None], plain)
    same(tower.embeddings(inputs), clean.entered[0])
    same(tower.features(inputs), plain)  # nothing of it stays behind in the model


def slowly(tower: PatchedTower, inputs, embeddings, clean, kind: str, block: int, token: int):
    """One restoration as the definition says: the whole tower runs, with torch's own hooks."""
    sites = tower.sites
    module = {"layer": sites.blocks, "attention": sites.attention, "mlp": sites.mlp}[kind][block]

    def enter(_, args, kwargs):
        return (embeddings[None], *args[1:]), kwargs

    def restore(_, args, output):
        tokens = leaving(output).clone()
        tokens[0, token] = getattr(clean, kind)[block][token]
        return with_leaving(tokens, output)

    handles = [
        sites.blocks[0].register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(restore),
    ]
    found = tower.features(inputs)[0]
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("side", SIDES)
def test_side_by_side_equals_one_by_one(clip: Clip, side: str):
    tower, inputs, clean, embeddings, corrupted = noisy(clip, side)
    places = [0, 1, 2, 4]
    largest = 0.0
    for block in (0, len(tower) - 1):
        for kind in KINDS:
            rows = rows_of(clean, corrupted, kind, block)[places]
            quick = tower.restored(inputs, corrupted.layer[block], rows, places, block, batch=3)
            slow = [slowly(tower, inputs, embeddings, clean, kind, block, p) for p in places]
            torch.testing.assert_close(quick, torch.stack(slow), rtol=0, atol=2e-6)
            largest = max(largest, float((quick - corrupted.feature).abs().max()))
    assert largest > 1e-4


def test_blocks_before_the_restored_one_do_not_run_again():
    clip = retouch.load("builtin")
    objects, ran = boxed_pictures(1), Counter()
    for side in SIDES:
        for module in PatchedTower(clip, side).sites.mlp:
            module.register_forward_hook(lambda _, args, out, s=side: ran.update({s: len(out)}))
    trace(clip, objects, batch=1000)
    for side, blocks, tokens in (("image", 6, 17), ("text", 4, 8)):
        clean, corrupted = blocks, 3 * blocks
        restored = 3 * tokens * blocks * (blocks - 1) // 2
        assert ran[side] == clean + corrupted + restored


def test_effects_are_as_the_paper_defines_them():
    clip, objects = retouch.load("builtin"), boxed_pictures(3)
    settings = TraceSettings(towers=("image",))
    cases = Cases(objects, clip.preprocess, grid_of(clip), 0)
    case = next(iter(cases))
    tracer = Tracer(clip, settings, batch=64)
    widths = tracer.measure(cases)
    (found,) = tracer.effects(case, cases.read(case), widths)

    tower, inputs = PatchedTower(clip, "image"), cases.read(case)
    clean = tower.clean(inputs)
    text = clip.text_features(clip.tokenize([f"a photo of {case.name}"])).detach()[0]
    patches = torch.cat([tower.embeddings(cases.read(c))[1:] for c in cases])
    assert widths["image"] == pytest.approx(float(patches.std()))
    assert found.clean == pytest.approx(float(clean.feature @ text), abs=1e-6)
    assert found.noised == len(case.patches) < 16
    assert found.tokens == 17
    assert found.corrupted < found.clean
    assert all(len(getattr(found, kind)) == 6 for kind in KINDS)


def test_a_pair_by_hand():
    """|S_r - S_c| / S over tokens, with the noise drawn anew here."""
    from retouch.analysis.tracer import _rng

    clip, objects = retouch.load("builtin"), boxed_pictures(2)
    cases = Cases(objects, clip.preprocess, grid_of(clip), 0)
    case = next(iter(cases))
    tracer = Tracer(clip, TraceSettings(noise=2.0), batch=7)
    found = {
        e.tower: e for e in tracer.effects(case, cases.read(case), {"image": 0.9, "text": 0.05})
    }
    tower, inputs = PatchedTower(clip, "image"), cases.read(case)
    clean = tower.clean(inputs)
    text = clip.text_features(clip.tokenize([f"a photo of {case.name}"])).detach()[0]
    rng = _rng(0, case.key, case.name, "image", "0")
    embeddings = clean.entered[0].clone()
    noise = rng.standard_normal((len(case.patches), 192), np.float32)
    embeddings[[1 + p for p in case.patches]] += 2.0 * 0.9 * torch.from_numpy(noise)
    before = float(tower.corrupted(inputs, embeddings, clean).feature @ text)
    assert found["image"].corrupted == pytest.approx(before, abs=1e-6)
    for kind in KINDS:
        scores = [
            float(slowly(tower, inputs, embeddings, clean, kind, 2, token) @ text)
            for token in range(17)
        ]
        expected = np.mean([abs(score - before) for score in scores]) / found["image"].clean
        assert getattr(found["image"], kind)[2] == pytest.approx(expected, rel=1e-3)
        assert expected > 1e-4


def test_a_sample_of_tokens_estimates_all_of_them():
    clip, objects = retouch.load("builtin"), boxed_pictures(2)
    run = partial(trace, clip, objects, images=1, batch=256)
    every = run(TraceSettings(towers=("image",)))
    many = run(TraceSettings(towers=("image",), tokens=8, draws=1))
    assert run(TraceSettings(towers=("image",), tokens=16)).towers == every.towers
    found = run(TraceSettings(towers=("image",), tokens=1))
    assert found.towers != every.towers
    for kind in KINDS:
        whole, part = every.towers["image"].bands(kind), many.towers["image"].bands(kind)
        # In the last block only the class token matters, which every sample has.
        assert part[-1].mean == pytest.approx(whole[-1].mean, rel=1e-4)
    few = run(TraceSettings(towers=("image",), tokens="object")).towers["image"]
    assert few.layer[-1].mean == pytest.approx(0, abs=1e-6)


def test_the_band_is_students_interval():
    from scipy import stats

    for count in (2, 3, 10, 11, 12, 50, 1000):
        values = np.random.default_rng(count).normal(size=count)
        scale = values.std(ddof=1) / np.sqrt(count)
        low, high = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=scale)
        band = Band.of(values.tolist())
        assert (band.mean, band.low, band.high) == pytest.approx(
            (values.mean(), low, high), abs=5e-4 * scale
        )
    assert Band.of([2.0]) == Band(mean=2.0, low=2.0, high=2.0)


def test_the_model_is_left_as_it_was_and_the_same_seed_gives_the_same():
    clip, objects = retouch.load("builtin"), boxed_pictures(2)
    before = fingerprint(clip.model)
    first = trace(clip, objects, images=1)
    assert trace(clip, objects, images=1, batch=5).towers["text"].layer[0].mean == pytest.approx(
        first.towers["text"].layer[0].mean, rel=1e-3
    )
    assert trace(clip, objects, images=1) == first
    assert trace(clip, objects, TraceSettings(seed=1), images=1) != first
    assert fingerprint(clip.model) == before
    assert not [m for m in clip.model.modules() if "forward" in vars(m)]


def test_what_cannot_be_traced():
    clip = own_pair()
    with pytest.raises(UserError, match="no transformer blocks"):
        PatchedTower(clip, "text")
    with pytest.raises(UserError, match="does not cut images into patches"):
        grid_of(clip)
    with pytest.raises(UserError, match="no transformer blocks"):
        trace(clip, boxed_pictures(1))
    prompted = BACKBONES["transformers CLIPModel"]()
    prompted.model.prompts = torch.nn.Linear(1, 1)
    with pytest.raises(UserError, match="learned prompts"):
        PatchedTower(prompted, "image")
    with pytest.raises(UserError, match="0 images"):
        trace(retouch.load("builtin"), boxed_pictures(1), images=0)


def test_the_tower_that_is_left_alone_may_be_of_any_kind():
    tiny, other = BACKBONES["transformers CLIPModel"](), own_pair()
    tiny.model.vision_model.encoder.layers = torch.nn.ModuleList()
    tiny.encode_images = lambda pixels: other.model["images"](pixels)
    settings = TraceSettings(towers=("text",))
    found = trace(tiny, boxed_pictures(8), settings)
    assert found.towers.keys() == {"text"}
    assert found.towers["text"].layer[0].mean > 0


# Where the object is: in the image, and in the prompt.


def test_a_box_where_the_model_sees_it():
    square = Preprocess(size=(32, 32))
    assert seen((10, 20, 30, 40), (100, 200), square) == pytest.approx((3.2, 3.2, 9.6, 6.4))
    middle = Preprocess(size=(32, 32), shortest=32)
    assert seen((50, 0, 100, 100), (200, 100), middle) == (0, 0, 32, 32)
    assert seen((0, 0, 40, 100), (200, 100), middle)[2] == 0
    # What is drawn into a box is found there, whatever the model does to the picture.
    for pixels in (middle, Preprocess(size=(48, 32)), Preprocess(size=(30, 30), shortest=35)):
        canvas = np.zeros((90, 130, 3), np.uint8)
        canvas[20:70, 40:85] = 255
        there = pixels.prepare(Image.fromarray(canvas))[..., 0] > 127
        rows, columns = (np.flatnonzero(there.any(axis)) for axis in (1, 0))
        left, top, wide, high = seen((40, 20, 45, 50), (130, 90), pixels)
        assert (left, left + wide) == pytest.approx((columns[0], columns[-1] + 1), abs=0.75)
        assert (top, top + high) == pytest.approx((rows[0], rows[-1] + 1), abs=0.75)


def test_patches_that_a_box_touches():
    pixels = Preprocess(size=(32, 32))
    assert patches_in([(0, 0, 8, 8)], (4, 4), pixels) == [0]
    assert patches_in([(7, 0, 2, 9)], (4, 4), pixels) == [0, 1, 4, 5]
    assert patches_in([(24, 24, 8, 8), (0, 0, 1, 1)], (4, 4), pixels) == [0, 15]
    assert patches_in([(5, 5, 0, 9)], (4, 4), pixels) == []


def test_tokens_of_a_name(clip: Clip):
    def tokens(text: str) -> list[int]:
        ids = next(iter(clip.tokenize([text]).values()))[0]
        places = name_tokens(clip, "a photo of {}", text.removeprefix("a photo of "))
        return [int(ids[place]) for place in places]

    one, both = tokens("a photo of red"), tokens("a photo of dark red")
    assert both[-len(one) :] == one
    assert len(both) > len(one)
    assert tokens("a photo of photo of")
    alone = next(iter(clip.tokenize(["red"]).values()))[0].tolist()
    assert any(alone[i : i + len(one)] == one for i in range(len(alone)))


def test_a_name_longer_than_the_context(clip: Clip):
    with pytest.raises(UserError, match=r"'red red red.*is too long.*shorter name"):
        name_tokens(clip, "a photo of {}", " ".join(["red"] * 90))


def test_built_in_pictures_know_where_their_shape_is():
    objects = boxed_pictures(6)
    inside = outside = 0.0
    for index, scene in enumerate(objects.scenes):
        ((name, ((left, top, wide, high),)),) = scene.boxes.items()
        assert name.startswith(("a ", "an "))
        assert 0 <= left < left + wide <= 64
        assert 0 <= top < top + high <= 64
        grey = np.asarray(objects.pictures.image(index).convert("L"), float)
        edges = np.abs(np.diff(grey, axis=0))[:, :-1] + np.abs(np.diff(grey, axis=1))[:-1]
        box = np.zeros_like(edges, bool)
        box[int(top) : int(top + high), int(left) : int(left + wide)] = True
        inside, outside = inside + edges[box].mean(), outside + edges[~box].mean()
    assert inside > 1.5 * outside
    again = boxed_pictures(3)
    assert again.scenes == objects.scenes[:3]
    assert again.stamp() != objects.stamp()


# COCO's files.


def write_coco(folder: Path, official: bool = False, **changes: object) -> Path:
    """Three images, of which one has no objects, in the official layout or flat."""
    told = {
        "images": [
            {"id": 7 + i, "file_name": f"{i}.png", "width": 40, "height": 30} for i in range(3)
        ],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": [5, 5, 20, 20]},
            {"id": 2, "image_id": 7, "category_id": 4, "bbox": [1, 1, 2, 2]},
            {"id": 3, "image_id": 8, "category_id": 4, "bbox": [10, 10, 30.4, 20]},
            {"id": 4, "image_id": 9, "category_id": 4, "bbox": [0, 0, 40, 30], "iscrowd": 1},
        ],
        "categories": [{"id": 3, "name": "red"}, {"id": 4, "name": "dark blue"}],
        **changes,
    }
    images = folder / ("val2017" if official else "images")
    images.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(images / f"{i}.png")
    file = folder / ("annotations/instances_val2017.json" if official else "instances.json")
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(told))
    return file


@pytest.mark.parametrize("official", [False, True])
def test_coco_in_its_own_form(tmp_path: Path, official: bool):
    file = write_coco(tmp_path, official)
    if official:  # as the official download has it
        file.with_name("instances_train2017.json").write_text("{}")
    for source in (tmp_path, file):
        objects = read_annotations(source)
        assert [scene.key for scene in objects.scenes] == ["7", "8", "9"]
        assert objects.scenes[0].boxes == {"red": ((5, 5, 20, 20),), "dark blue": ((1, 1, 2, 2),)}
        assert objects.scenes[2].boxes == {}
        assert objects.pictures.image(2).size == (40, 30)


ONE = {"id": 5, "image_id": 7, "category_id": 3, "bbox": [5, 5, 20, 20]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": [ONE | {"bbox": [30, 5, 20, 20]}]}, r"5 .*outside.* 0\.png of 40×30"),
        ({"annotations": [ONE | {"bbox": [-9, 5, 20, 20]}]}, "outside its image"),
        ({"annotations": [ONE | {"bbox": [5, 5, -3, 2]}]}, "outside its image"),
        ({"annotations": [ONE | {"bbox": [5, 5, float("nan"), 2]}]}, "NaN is not a number"),
        ({"annotations": [ONE | {"bbox": [5, 5]}]}, "not in COCO's form"),
        ({"annotations": [ONE | {"category_id": 99}]}, "class 99, which is not among the 2 cat"),
        ({"annotations": [ONE | {"image_id": 99}]}, "image 99, which the file does not list"),
        ({"annotations": [{"id": 5}]}, "not in COCO's form.*category_id"),
        ({"categories": None}, "not in COCO's form"),
        ({"images": []}, "image 7, which the file does not list"),
        ({"images": [], "annotations": []}, "lists no images"),
    ],
)  # fmt: skip
def test_coco_files_with_mistakes(tmp_path: Path, change: dict[str, object], message: str):
    write_coco(tmp_path, **change)
    with pytest.raises(UserError, match=message):
        read_annotations(tmp_path)


def test_coco_folders_with_mistakes(tmp_path: Path):
    with pytest.raises(UserError, match="no instances"):
        read_annotations(tmp_path)
    file = write_coco(tmp_path)
    file.with_name("instances_2.json").write_text("{}")
    with pytest.raises(UserError, match="several files"):
        read_annotations(tmp_path)
    file.with_name("instances_2.json").unlink()
    (tmp_path / "images" / "0.png").unlink()
    with pytest.raises(UserError, match=r"0\.png is in none of"):
        read_annotations(tmp_path)
    file.write_text("[")
    with pytest.raises(UserError, match="is not JSON"):
        read_annotations(tmp_path)


def test_images_that_are_passed_over_are_counted(tmp_path: Path):
    write_coco(tmp_path)
    objects = read_annotations(tmp_path)
    cases = Cases(objects, Preprocess(size=(16, 16)), (2, 2), seed=0)
    assert {case.key: case.name for case in cases} == {"7": "red", "8": "dark blue"}
    assert cases.skipped == {NOTHING: 1}
    Image.new("RGB", (30, 40)).save(tmp_path / "images" / "1.png")
    read = {case.key: cases.read(case) for case in cases}
    assert read["8"] is None
    assert read["7"].shape == (1, 16, 16, 3)
    assert cases.skipped == {NOTHING: 1, OTHER_SIZE: 1}
    (tmp_path / "images" / "0.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"0\.png cannot be read"):
        [cases.read(case) for case in cases]
    empty = replace(objects, scenes=[Scene(s.key, s.size, {}) for s in objects.scenes])
    with pytest.raises(UserError, match="none of the images"):
        trace(BACKBONES["transformers CLIPModel"](), empty)


def test_every_library_and_pairs_that_are_not_alike(
    clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Either as it is or with its texts turned round, a model finds each image like its class."""
    write_coco(tmp_path)
    objects, encode, traced = read_annotations(tmp_path), clip.encode_texts, 0
    for sign in (1, -1):
        monkeypatch.setattr(clip, "encode_texts", lambda tokens, s=sign: s * encode(tokens))
        try:
            found = trace(clip, objects)
        except UserError as why:
            assert f"2 with {UNLIKE}" in str(why)  # noqa: PT017
            continue
        traced += found.pairs
        assert found.pairs + sum(found.skipped.values()) == 3
        for side in SIDES:
            effects = found.towers[side]
            assert min(band.mean for kind in KINDS for band in effects.bands(kind)[:1]) > 0
    assert traced == 2


# Going on, and the command.


def test_a_trace_goes_on_where_it_was(tmp_path: Path):
    clip, objects = retouch.load("builtin"), boxed_pictures(4)
    whole = trace(clip, objects, folder=tmp_path / "whole")
    part = tmp_path / "part"
    trace(clip, objects, images=2, folder=part)
    file = part / trace_journal.PAIRS
    before = file.read_text()
    file.write_text(before + before.splitlines()[0][:50])  # killed while it wrote
    assert trace(clip, objects, folder=part) == whole
    assert file.read_text().startswith(before)
    assert file.read_text() == (tmp_path / "whole" / trace_journal.PAIRS).read_text()

    clip.encode_images = None  # nothing is left to compute
    assert trace(clip, objects, images=2, folder=part).pairs == 2
    for other in (TraceSettings(noise=2.0), TraceSettings(seed=3), TraceSettings(towers=("text",))):
        with pytest.raises(UserError, match=f"{part} holds a trace with .* choose another folder"):
            trace(clip, objects, other, folder=part)
    with pytest.raises(UserError, match="holds a trace with objects"):
        trace(clip, boxed_pictures(3), folder=part)
    file.write_text("{}\n" + before)
    with pytest.raises(UserError, match=r"line 1 of .* is damaged"):
        trace(clip, objects, folder=part)
    (part / trace_journal.SETTINGS).write_text("{")
    with pytest.raises(UserError, match=r"settings\.json is damaged"):
        trace(clip, objects, folder=part)


def test_figures_can_be_written(tmp_path: Path):
    found = trace(retouch.load("builtin"), boxed_pictures(2))
    files = write_trace(tmp_path, found)
    assert [file.name for file in files] == ["trace.png", "trace.svg", "trace.csv", "trace.json"]
    told = json.loads((tmp_path / "trace.json").read_text())
    assert told["title"]
    assert "3 standard deviations" in told["caption"]
    assert told["numbers"]["towers"]["image"]["mlp"][0]["mean"] > 0
    drawn = (tmp_path / "trace.svg").read_text()
    for text in ("Visual tower", "Text tower", "after attention", "3 standard deviations"):
        assert text in drawn
    table = (tmp_path / "trace.csv").read_text().splitlines()
    assert table[0] == "tower,site,layer,aie,low,high,pairs"
    assert len(table) == 1 + 3 * (6 + 4)
    one = trace(retouch.load("builtin"), boxed_pictures(2), TraceSettings(towers=("text",)))
    write_trace(tmp_path / "one", one)
    assert "Visual tower" not in (tmp_path / "one" / "trace.svg").read_text()


def command(*args: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["trace", *map(str, args)])
    return done.exit_code, done.output


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    code, told = command("builtin", "--images", 2, "--json")
    assert code == 0, told
    found = json.loads(told[told.index("{") :])
    assert found["pairs"] == 2
    assert sorted(path.name for path in Path("trace").glob("trace.*")) == [
        "trace.csv", "trace.json", "trace.png", "trace.svg",
    ]  # fmt: skip
    code, told = command("builtin", "--images", 2)
    assert code == 0
    assert "Average indirect effect" in told
    assert "MLPs lead in" in told
    for args, message in (
        (("builtin", "--noise", 1), "holds a trace with noise"),
        (("builtin", "--tokens", "some"), "names no tokens"),
        (("builtin", "--noise", 0), "corrupts nothing"),
        (("builtin", "--coco", "nowhere"), "nowhere has no instances"),
        (("builtin", "--task", 1), "--task 1 is for a run"),
    ):
        code, told = command(*args)
        assert code == 1, told
        assert message in " ".join(told.split())
