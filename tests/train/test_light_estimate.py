"""An estimate needs neither a model's library nor torch's compiler, and says the same without."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from layouts import make_folder
from recipes_for_tests import QUICK, quick
from tiny import tiny_clip, tiny_folder

import retouch
from retouch.clip.fast.light import LightClip
from retouch.data import Stream
from retouch.methods import RECIPES
from retouch.train.estimate import measure
from retouch.train.plan import plan_stream

HEAVY = ["transformers", "torchvision", "torch._dynamo", "scipy", "sympy", "pandas", "matplotlib"]


@pytest.mark.slow
def test_a_plain_clip_gives_the_same_selection_for_every_recipe(stream: Stream, tmp_path: Path):
    folder = str(tiny_folder(tmp_path / "model"))
    loaded = retouch.load(folder, light=True), retouch.load(folder)
    assert type(loaded[0]) is LightClip
    for name in RECIPES:
        clips = map(copy.deepcopy, loaded)
        light, full = (measure(c, stream, quick(name), QUICK, images=4, tries=1) for c in clips)
        shapes = [{n: (c.shape, c.count) for n, c in m.selection.items()} for m in (light, full)]
        assert shapes[0] == shapes[1], name
        assert light.num_trainable == full.num_trainable, name
        assert light.saved == pytest.approx(full.saved, rel=0.2), name


@pytest.mark.slow
def test_memory_grows_with_the_images_of_a_step(stream: Stream):
    clip = tiny_clip()
    steps = [measure(clip, stream, quick("spu"), QUICK, images=n, tries=1) for n in (4, 8)]
    assert [step.images for step in steps] == [4, 8]
    assert steps[0].saved > 10_000
    assert steps[1].saved == pytest.approx(steps[0].saved, rel=0.3)
    batches = [QUICK.model_copy(update={"micro_batch": size}) for size in (2, 24)]
    costs = [
        plan_stream(clip, stream, quick("spu"), settings=s.model_copy(update={"batch": 24})).cost()
        for s in batches
    ]
    assert costs[1].memory - costs[0].memory > 4 * steps[0].saved


def test_optimizers_work_after_an_estimate_as_before(stream: Stream):
    before = vars(torch.optim.Optimizer)["add_param_group"]
    measure(tiny_clip(), stream, quick("spu"), QUICK, images=4, tries=1)
    assert vars(torch.optim.Optimizer)["add_param_group"] is before


LEARN = f"""
import sys
from retouch.cli import app

for options in (["--dry-run"], ["--epochs", "1"]):
    command = ["learn", "photos", "--model", "model", "--out", "run", *options]
    app(command, standalone_mode=False)
    loaded = [name for name in {HEAVY} if name in sys.modules]
    assert not set(loaded) - {{"matplotlib"}}, (loaded, options)  # draws the page at the end
    assert not loaded or "--dry-run" not in options, loaded
    from retouch.report import figures

    figures.to_svg = lambda figure, name: '<svg viewBox="0 0 9 9"></svg>'  # drawing takes its time
    figures.to_png = lambda figure: b""
"""
TRAINER = """
assert not [name for name in sys.modules if name.startswith("retouch.trainer")]
import retouch.trainer
assert "transformers" not in sys.modules
assert retouch.trainer.__all__ == sorted(retouch.trainer._MODULES)
"""
OPTIMIZE = """
import torch
from torch.optim import Adam, AdamW, Optimizer
from retouch.train.cpu_speed import eager_optimizers

def train(kind):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(9))
    optimizer = kind([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        weight.pow(3).sum().backward()
        optimizer.step()
    return weight.detach()

owners = Optimizer, Adam, AdamW
before = [dict(vars(owner)) for owner in owners]
with eager_optimizers(), eager_optimizers():
    eager = [train(kind) for kind in (Adam, AdamW)]
    assert "torch._dynamo" not in sys.modules
assert [dict(vars(owner)) for owner in owners] == before
assert all(torch.equal(a, train(kind)) for a, kind in zip(eager, (Adam, AdamW)))
assert "torch._dynamo" in sys.modules
"""


@pytest.mark.slow
def test_learning_imports_nothing_that_it_does_not_need(tmp_path: Path):
    """Imports took most of its time. Optimizers without torch's compiler do the same.

    Nothing of the trainer of language models is imported either; it needs no transformers itself.
    In a process of its own: once the compiler is imported, nothing of them is replaced.
    """
    make_folder(tmp_path / "photos", {"dark_red": 6, "bright green": 6})
    tiny_folder(tmp_path / "model")
    command = [sys.executable, "-c", LEARN + TRAINER + OPTIMIZE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "It will take about" in done.stdout
    assert "Error" not in done.stderr
