"""What neurons look at: known answers by hand, and drawn pictures in which the place is known."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from backbones import dual, open_clip, own_pair, small_open_clip
from commands import run
from image_folders import to_folder
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from runs import make_run
from tiny import images, tiny_clip
from torch import Tensor, nn

import retouch
from retouch.analysis.cam import Cam, cam, masks
from retouch.analysis.neurons import layer_of, selected_neurons
from retouch.analysis.pointing import Pointing, pointing_game
from retouch.clip import Clip, DualEncoder, Preprocess
from retouch.clip.open_clip import OpenClip, import_open_clip
from retouch.errors import UserError
from retouch.report.cam import Shown, figure, overlay, wrapped, write_cam
from retouch.report.theme import styled
from retouch.sparse import Delta
from retouch.train.run_folder import delta_file, open_run
from tools.pictures import compose, scenes
from tools.pictures.captions import with_article

PATCH, ROWS, COLUMNS = 8, 3, 5
Box = tuple[float, float, float, float]


class Block(nn.Module):
    """An MLP on every patch: neuron 0 lights up for red, 1 for green, 2 for blue."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.fc1 = nn.Linear(3, 10)
        self.mlp.fc2 = nn.Linear(10, 3)
        for layer in (self.mlp.fc1, self.mlp.fc2):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
            layer.weight.data[:3, :3] = torch.eye(3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.mlp.fc2(self.mlp.fc1(tokens).relu())


class Eyes(nn.Module):
    """The mean colour of each patch, behind a class token; the feature is the mean over all."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 3, PATCH, PATCH, bias=False)
        self.patch.weight.data = torch.eye(3)[..., None, None].repeat(1, 1, PATCH, PATCH) / PATCH**2
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.patch(pixels).flatten(2).transpose(1, 2)
        tokens = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens.mean(dim=1) + 0.05


class ColourWords(nn.Module):
    """The text "red" is the feature of red, and so on."""

    def forward(self, which: Tensor) -> Tensor:
        return torch.eye(3)[which]


def by_hand() -> Clip:
    """A CLIP of 3 × 5 patches that finds colours, and nothing else."""

    def tokenize(prompts: list[str]) -> dict[str, Tensor]:
        return {"which": torch.tensor([["red", "green", "blue"].index(p) for p in prompts])}

    size = (ROWS * PATCH, COLUMNS * PATCH)
    plain = Preprocess(size=size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return DualEncoder(Eyes(), ColourWords(), tokenize, plain, name="by hand")


def coloured() -> Tensor:
    """A red patch in row 0, column 3; a green one in row 2, column 1; black around them."""
    image = np.zeros((ROWS * PATCH, COLUMNS * PATCH, 3), np.uint8)
    image[:PATCH, 3 * PATCH : 4 * PATCH, 0] = 255
    image[2 * PATCH :, PATCH : 2 * PATCH, 1] = 255
    return torch.from_numpy(image)


@pytest.mark.parametrize(("text", "neuron", "patch"), [("red", 0, (0, 3)), ("green", 1, (2, 1))])
def test_a_neuron_that_lights_up_at_one_patch_is_found_there(text, neuron, patch):
    found = cam(by_hand(), coloured(), text, share=0.1)
    assert found.neurons == [neuron]  # of the ten the one whose gradient is largest
    assert (found.block, found.grid, found.width) == (3, (ROWS, COLUMNS), 10)
    assert found.heat.shape == (ROWS * PATCH, COLUMNS * PATCH)
    assert np.unravel_index(found.patches.argmax(), found.patches.shape) == patch
    row, column = found.peak
    assert (row // PATCH, column // PATCH) == patch
    assert found.heat.max() == 1
    assert found.heat.min() == 0
    others = np.delete(found.patches.flatten(), patch[0] * COLUMNS + patch[1])
    assert others.max() < 0.5 < found.patches[patch]


def test_maps_count_by_the_score_of_what_they_leave():
    """Both maps are used; only the one that keeps what the text says weighs anything."""
    found = cam(by_hand(), coloured(), "red", neurons=[1, 0])
    assert found.neurons == [0, 1]
    assert found.weights[0] > 0.99
    assert sum(found.weights) == pytest.approx(1)
    assert found.similarity == pytest.approx(
        float(normal(by_hand(), coloured()) @ torch.tensor([1.0, 0, 0])), abs=1e-5
    )


def normal(clip: Clip, image: Tensor) -> Tensor:
    return clip.image_features(image[None])[0].detach()


def test_masks_go_from_0_to_1_and_a_flat_map_hides_everything():
    maps = torch.stack([torch.randn(3, 5), -7 + torch.rand(3, 5), torch.full((3, 5), 4.0)])
    found = masks(maps, (24, 40))
    assert found.shape == (3, 24, 40)
    assert found.amin(dim=(1, 2)).tolist() == [0, 0, 0]
    assert found.amax(dim=(1, 2)).tolist() == [1, 1, 0]
    assert torch.isfinite(found).all()


def wide_open_clip() -> Clip:
    """Pictures twice as wide as high, squashed to that."""
    library = import_open_clip()
    vision = {"image_size": [16, 32], "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
    name = small_open_clip("wide", vision_cfg=vision)
    model = library.create_model(name)
    model.visual.preprocess_cfg = {**model.visual.preprocess_cfg, "resize_mode": "squash"}
    return OpenClip(model, library.get_tokenizer(name), name)


MODELS: dict[str, tuple[Callable[[], Clip], tuple[int, int]]] = {
    "transformers CLIPModel": (tiny_clip, (2, 2)),
    "transformers dual encoder": (dual, (2, 2)),
    "open_clip": (open_clip, (2, 2)),
    "open_clip, not square": (wide_open_clip, (2, 4)),
    "builtin": (lambda: retouch.load("builtin"), (4, 4)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_library_gives_the_same_map_again(kind: str):
    made, grid = MODELS[kind]
    clip = made()
    clip.model.requires_grad_(False)  # a frozen model has neurons, too
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.integers(0, 256, (*clip.preprocess.size, 3)).astype(np.uint8))
    told: list[tuple[int, int]] = []
    first = cam(clip, image, "a photo of the red", told=lambda *n: told.append(n))
    again = cam(clip, image, "a photo of the red")
    assert first.grid == grid
    assert first.heat.shape == clip.preprocess.size
    assert first.heat.dtype == np.float32
    assert (first.heat.min(), first.heat.max()) == (0, 1)
    assert np.array_equal(first.heat, again.heat)
    assert first.neurons == again.neurons
    assert len(first.neurons) == first.width // 10
    assert sum(done for done, _ in told) == told[0][1] == len(first.neurons)
    drawn = [cam(clip, image, "red", neurons="random", seed=seed).neurons for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert not any(module._forward_hooks for module in clip.model.modules())


def test_learned_prompts_are_no_patches():
    """With prompts, a tower has more tokens, and runs twice."""
    from retouch.methods import Settings, recipe

    clip = tiny_clip()
    before = layer_of(clip).at_patches(torch.zeros(1, 5, 64)).shape
    recipe("l2p").update.start(clip, Settings(), None)
    assert before == layer_of(clip).at_patches(torch.zeros(1, 9, 64)).shape == (4, 64)
    clip.model.get_submodule("prompts").learned.fill_(1)
    image = torch.zeros(16, 16, 3, dtype=torch.uint8)
    assert cam(clip, image, "red").heat.shape == (16, 16)


def test_the_default_layer_is_as_deep_as_nine_of_twelve():
    assert layer_of(by_hand()).block == 3
    assert layer_of(retouch.load("builtin")).block == 4
    assert layer_of(tiny_clip(), 2).weight.endswith("layers.1.mlp.fc1.weight")


def test_what_cannot_be_done_is_said():
    clip = tiny_clip()
    image = torch.zeros(16, 16, 3, dtype=torch.uint8)
    with pytest.raises(UserError, match=r"no layer 3: .* has 2 blocks; choose 1 to 2"):
        cam(clip, image, "red", block=3)
    with pytest.raises(UserError, match="more than the 12 that tiny reads; use a shorter"):
        cam(clip, image, "red " * 11)
    cam(clip, image, "red " * 10)  # with a beginning and an end it just fits
    with pytest.raises(UserError, match="79 tokens, more than the 77"):
        cam(open_clip(), image, "red " * 77)
    with pytest.raises(UserError, match="the text is empty"):
        cam(clip, image, " ")
    with pytest.raises(UserError, match="less than one"):
        cam(clip, image, "red", share=0.001)
    with pytest.raises(UserError, match="is no share"):
        cam(clip, image, "red", share=1.5)
    with pytest.raises(UserError, match="of 64 neurons, 0 to 63"):
        cam(clip, image, "red", neurons=[64])
    with pytest.raises(UserError, match="no transformer blocks"):
        cam(own_pair(), image, "red")


def test_the_pointing_game():
    heat = np.zeros((10, 20), np.float32)
    heat[2, 15] = 1
    one = Cam("", heat, 0.0, [0], [1.0], 1, (5, 10), 1)
    hit, missed = (14.0, 1.0, 3.0, 4.0), (0.0, 0.0, 15.0, 10.0)
    heat[9, 0] = 0.25
    half = pointing_game([one, one], [[hit], [missed]])
    assert half == pytest.approx(Pointing(0.5, (0.8 + 0.2) / 2, (0.06 + 0.75) / 2))
    assert pointing_game([one], [[hit, missed]]) == Pointing(1.0, 1.0, (12 - 4 + 150) / 200)


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
        there = np.abs(canvas - before).max(axis=0) > 0.05
        rows, columns = (np.flatnonzero(there.any(axis=axis)) for axis in (1, 0))
        left, top = float(columns[0]), float(rows[0])
        boxes.append((left, top, columns[-1] + 1.0 - left, rows[-1] + 1.0 - top))
    compose.photograph(canvas, rng)
    picture = torch.from_numpy(compose.to_uint8(canvas))
    names = [f"a photo of {with_article(f'{thing.color} {thing.name}')}" for thing in things]
    return [(picture, name, box) for name, box in zip(names, boxes, strict=True)]


def test_it_points_at_what_the_text_says_better_than_chance_and_random_neurons():
    """Two things in each picture, so that only the text says which of them is meant."""
    clip = retouch.load("builtin")
    cases = [case for seed in range(30) for case in two_things(seed)]
    games = {}
    for neurons in ("gradient", "random"):
        cams = [
            cam(clip, picture, text, neurons=neurons, share=0.05, seed=number)
            for number, (picture, text, _) in enumerate(cases)
        ]
        games[neurons] = pointing_game(cams, [[box] for *_, box in cases])
    chance = games["gradient"].chance
    assert 0.1 < chance < 0.25
    assert games["gradient"].accuracy > chance + 0.2
    assert games["gradient"].accuracy > games["random"].accuracy + 0.15
    assert games["gradient"].energy > chance


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its model, and some images."""
    home = tmp_path_factory.mktemp("home")
    make_run(home)
    to_folder(images("test", 6, 1), home / "photos")
    return home


def test_the_neurons_that_a_run_selected(home: Path):
    reopened = open_run(home / "run")
    found = selected_neurons(reopened, block=1, share=0.1)
    name = layer_of(reopened.clip, 1).weight
    counts = np.zeros(64)
    for task in range(reopened.results.done):
        index = Delta.load(delta_file(home / "run", task)).changes[name].index.index
        counts += np.bincount(index // 32, minlength=64)
    assert len(found) == 6
    assert counts[found].min() >= np.delete(counts, found).max()
    assert reopened.at == 0  # where it was
    assert found != selected_neurons(reopened, block=1, share=0.1, tasks=1)
    with pytest.raises(UserError, match="touched no weight of the first MLP layer of block 2"):
        selected_neurons(reopened, block=2, tasks=0)


def test_of_a_run_before_and_now_stand_side_by_side(home: Path):
    photos = home / "photos"
    done = run("cam", home / "run", photos, "--neurons", "selected", "--json")
    told = json.loads(done.stdout)
    assert next(each["text"] for each in told["images"]) == "a photo of bright blue"
    assert all(each["maps"].keys() == {"before", "now"} for each in told["images"])
    changed = [each["maps"]["before"] != each["maps"]["now"] for each in told["images"]]
    assert any(changed)
    place = home / "run" / "analysis" / "cam"
    assert sorted(file.name for file in place.iterdir()) == [
        f"cam.{ending}" for ending in ("csv", "json", "png", "svg")
    ]
    assert told["files"] == [str(place / f"cam.{e}") for e in ("png", "svg", "csv", "json")]
    written = json.loads((place / "cam.json").read_text())
    assert "whose weights the run selected most" in written["caption"]
    assert "6 images" in written["caption"]
    rows = list(csv.DictReader((place / "cam.csv").open()))
    assert len(rows) == 6 * 2 * 4
    assert {row["model"] for row in rows} == {"before", "now"}
    assert all(0 <= float(row["heat"]) <= 1 for row in rows)
    ElementTree.parse(place / "cam.svg")
    assert Image.open(place / "cam.png").size[0] > 800


def test_of_a_run_the_text_is_what_it_answers(home: Path, tmp_path: Path):
    lone = next((home / "photos" / "bright_red").iterdir())
    answers = json.loads(run("classify", home / "run", lone, "--json").stdout)["images"][0]
    told = json.loads(run("cam", home / "run", lone, "-o", tmp_path, "--json").stdout)
    assert told["images"][0]["text"] == f"a photo of {answers['after'][0]['name']}"
    missing = run("cam", home / "run", lone, "--task", "0", code=1).stderr
    assert "nothing says what to look for" in missing


def test_one_image_and_a_text(home: Path, tmp_path: Path):
    model, lone = home / "model", next((home / "photos" / "dark_red").iterdir())
    done = run("cam", model, lone, "--text", "a photo of\x1b[31m the $red$ 漢字", "-o", tmp_path)
    assert "Block 1 of 2, 6 of 64 neurons (gradient)" in done.stdout
    assert "\x1b[31m" not in done.stdout
    ElementTree.parse(tmp_path / "cam.svg")
    told = json.loads((tmp_path / "cam.json").read_text())
    assert told["title"]
    assert list(told["numbers"]["images"][0]["maps"]) == ["where they look"]
    few = run("cam", model, home / "photos", "--max-images", "4", "-o", tmp_path).stdout
    assert "4 of 6 images, evenly spread" in few


def test_mistakes_are_explained(home: Path, tmp_path: Path):
    model, lone = home / "model", next((home / "photos" / "dark_red").iterdir())
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    for words, reason in {
        (lone, "--layer", 7): "no layer 7: the visual tower of",
        (lone, "--text", "red " * 30): "32 tokens, more than the 12",
        (lone,): "nothing says what to look for in",
        (lone, "--text", "red", "--neurons", "selected"): "is no run, so it has selected no",
        (lone, "--text", "red", "--share", 2): "share=2.0 is no share",
        (tmp_path / "empty", "--text", "red"): "holds no image",
        (tmp_path / "none.jpg", "--text", "red"): "there is no such file",
        (broken, "--text", "red"): "broken.jpg cannot be read as an image",
    }.items():
        assert reason in run("cam", model, *words, "-o", tmp_path / "out", code=1).stderr
    assert not (tmp_path / "out").exists()
    mixed = run("cam", model, broken, lone, "--text", "red", "-o", tmp_path / "out", code=1)
    assert "broken.jpg cannot be read as an image" in mixed.stderr
    assert (tmp_path / "out" / "cam.png").is_file()  # of the other


def flat(text: str = "red", size: tuple[int, int] = (16, 32)) -> Shown:
    heat = np.zeros(size, np.float32)
    one = Cam(text, heat, -0.001, [0], [1.0], 10, (2, 4), 1)
    return Shown("a.png", np.zeros((*size, 3), np.uint8), {"where they look": one})


def test_odd_texts_do_no_harm(tmp_path: Path):
    odd = ["", "x" * 400, "very long " * 60, "漢字" * 90, "a\x00b\nc", "$\\frac{1}{2}$ <b>&"]
    made = figure([flat(text) for text in odd])
    wide, _high = made.get_size_inches()
    drawn = FigureCanvasAgg(made).get_renderer()
    with styled():
        boxes = [text.get_window_extent(drawn) for text in made.texts]
    assert max(box.x1 for box in boxes) <= wide * made.dpi
    assert min(box.y0 for box in boxes) >= 0
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert flat().similarity == "0.00"
    assert wrapped("a\x00b\nc", 20) == ["a b c"]
    assert len(wrapped("very long " * 60, 20)) == 3
    write_cam(tmp_path, [flat(odd[4])], {"model": "m", "blocks": 2, "neurons": "gradient"})
    ElementTree.parse(tmp_path / "cam.svg")


def test_in_grey_hotter_is_lighter():
    heat = np.linspace(0, 1, 64, dtype=np.float32)[None].repeat(8, axis=0)
    grey = overlay(np.full((8, 64, 3), 128, np.uint8), heat) @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(grey[0]) > 0).all()
