"""Several processes that learn together: the same as one device with the same batch."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes_for_tests import quick, reference
from runs import Stop as Fall
from tiny import CLASSES, images, tiny_clip, tiny_folder
from together import together, together_or_lost
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

import retouch
from retouch.clip import Batch, Clip, Features
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.losses import pair_loss
from retouch.clip.model import Tokens
from retouch.clip.zero_shot import classifier
from retouch.data import Stream
from retouch.data.string_array import StringArray
from retouch.distributed import collectives
from retouch.distributed.rendezvous import process_group, rank_device
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.evaluate.image_features import image_features
from retouch.evaluate.per_class import PerClass
from retouch.evaluate.predict import predict
from retouch.methods import RECIPES, Regularizer, Settings
from retouch.sparse import Delta
from retouch.train import Callback, signals
from retouch.train.callbacks import CallbackList

BRIEF = Settings(epochs=2, batch=8, lr=1e-3, weight_decay=0.1)


class Exact(HuggingFaceClip):
    """Computes in double precision, so that rounding hides no mistake."""

    def image_features(self, pixels: Tensor) -> Tensor:
        there = self.preprocess.normalize(pixels).double()
        return normalize(self.encode_images(there), dim=-1)

    def text_features(self, tokens: Tokens) -> Tensor:
        return normalize(self.encode_texts(tokens), dim=-1)

    def pair_features(self, pixels: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return self.image_features(pixels), self.text_features(tokens)


def exact_clip() -> Exact:
    plain = tiny_clip()
    return Exact(plain.model.double(), plain.tokenizer, plain.preprocess, "tiny")


def a_stream(each: int = 7) -> Stream:
    """Two tasks of 14 images, in batches of 7 that neither 2 nor 3 processes share evenly."""
    return Stream.split(images("train", 4, each), images("test", 4, 3), tasks=2)


def learned(name: str, clip: Clip | None = None, **options: Any) -> dict[str, Any]:
    """What a run makes of a model."""
    clip, given = clip or exact_clip(), {"settings": BRIEF, "control": images("control", 4, 3)}
    given = {**given, "reference": reference(), **options}
    stream = given.pop("stream", None) or a_stream()
    results = retouch.teach(clip, stream, quick(name, **given.pop("changes", {})), **given)
    weights = {n: t.detach().numpy().copy() for n, t in clip.model.state_dict().items()}
    return {"weights": weights, "rows": _accuracies(results), "trained": results.trained}


def _accuracies(results: Results) -> list[Any]:
    return [(row.tasks, row.control) for row in results.rows]


def same(one: dict[str, Any], many: list[dict[str, Any]], tolerance: float = 1e-9) -> None:
    """All processes have the same bits, and those are a single one's but for the order of sums."""
    for other in many:
        assert other["rows"] == one["rows"]
        assert other["trained"] == one["trained"]
        for name, weight in one["weights"].items():
            np.testing.assert_array_equal(other["weights"][name], many[0]["weights"][name])
            np.testing.assert_allclose(other["weights"][name], weight, rtol=0, atol=tolerance)


ROUNDED = {"slca", "l2p", "dualprompt"}
"""Parts of these compute in single precision, whatever the model does."""


def by_recipe(name: str) -> dict[str, Any]:
    # A larger eps: AdamW makes a full step of a gradient that is zero but for rounding.
    settings = BRIEF.model_copy(update={"eps": 1e-2})
    return learned(name, tiny_clip() if name in ROUNDED else None, settings=settings)


@pytest.mark.parametrize("name", RECIPES)
def test_every_method_on_two_processes(name: str):
    one = by_recipe(name)
    start = (tiny_clip() if name in ROUNDED else exact_clip()).model.state_dict()
    moved = max(np.abs(one["weights"][n] - t.numpy()).max() for n, t in start.items())
    tolerance = 1e-5 if name in ROUNDED else 1e-10
    assert moved > 10 * tolerance or name == "frozen"
    same(one, together(2, by_recipe, name), tolerance)


VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "micro-batches": {"settings": BRIEF.model_copy(update={"micro_batch": 2})},
    "less images than processes": {"settings": BRIEF.model_copy(update={"batch": 2})},
    "one joined loss": {"changes": {"objective": "joined"}},
    "label-aware": {"changes": {"loss": "label-aware"}},
    "whole neurons": {"changes": {"trains__unit": "neuron"}},
    "captions that all differ": {"stream": "captions"},
}


def a_variant(variant: str, folder: Path | None = None) -> dict[str, Any]:
    given = dict(VARIANTS[variant])
    if given.get("stream"):
        stream = a_stream()
        stream.train.captions = StringArray(f"a photo {n} of the {n % 5}" for n in range(28))
        given["stream"] = stream
    return learned("spu", out=folder, **given)


def selections(folder: Path) -> dict[str, list[int]]:
    found = {}
    for file in sorted((folder / "deltas").iterdir()):
        for name, change in Delta.load(file).changes.items():
            found[f"{file.stem} {name}"] = change.index.index.tolist()
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_spu_on_one_two_and_three_processes(variant: str, tmp_path: Path):
    one = a_variant(variant, tmp_path / "1")
    expected = selections(tmp_path / "1")
    assert len(expected) == 2 * 4
    for world in (2, 3) if variant == "as it is" else (3,):
        same(one, together(world, a_variant, variant, tmp_path / str(world)), 1e-12)
        assert selections(tmp_path / str(world)) == expected
        files = [sorted(p.name for p in (tmp_path / n).rglob("*")) for n in ("1", str(world))]
        assert files[0] == files[1], "one process writes, and what one alone would"


# The parts.


def some_features(count: int, new: int) -> Features:
    rng = torch.Generator().manual_seed(count)
    i = normalize(torch.randn(count, 8, generator=rng, dtype=torch.float64), dim=-1)
    t = normalize(torch.randn(5, 8, generator=rng, dtype=torch.float64), dim=-1)
    prompt = torch.randint(5, (count,), generator=rng)
    return Features(i, t, torch.tensor(10.0).double(), Batch(torch.empty(0), {}, prompt, new))


def shares(count: int, new: int, loss: Any, objective: Any) -> tuple[float, list[Any], int]:
    """This process's part of the loss, the gradient that its images get, the largest tensor."""
    f = some_features(count, new)
    part = collectives.rank_slice(count)
    local = f.images[part].clone().requires_grad_()
    with Largest() as seen:
        value = pair_loss(replace(f, images=collectives.gather(local, count)), loss, objective)
        (value / collectives.world_size()).backward()
    assert local.grad is not None
    return value.item(), local.grad.tolist(), seen.elements


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.elements = max(self.elements, made.numel())
        return made


@pytest.mark.parametrize("loss", ["contrastive", "label-aware"])
@pytest.mark.parametrize(("count", "new"), [(60, 60), (60, 31), (7, 5), (2, 2)])
def test_the_loss_over_processes_is_that_of_the_whole_batch(count: int, new: int, loss: Any):
    for objective in ("summed", "joined"):
        value, slope, _ = shares(count, new, loss, objective)
        found = together(3, shares, count, new, loss, objective)
        assert sum(part[0] for part in found) / 3 == pytest.approx(value, rel=1e-12)
        slopes = np.concatenate([np.reshape(part[1], (-1, 8)) for part in found])
        np.testing.assert_allclose(slopes, slope, atol=1e-14)
        if count == 60:  # rows of this process's third, never the whole square
            assert max(part[2] for part in found) <= 20 * 60


def talk() -> list[Any]:
    here = collectives.rank()
    mine = torch.arange(7.0)[collectives.rank_slice(7)]
    whole = collectives.gather(mine[:, None], 7)
    numbers = [torch.full((3,), float(here)), torch.ones(2, 2, dtype=torch.float64)]
    collectives.all_reduce(numbers)
    told = collectives.broadcast_tensors(
        {"a": torch.arange(3), "b": torch.eye(2)} if here == 0 else {}
    )
    first = collectives.broadcast_str(lambda: "from one")
    back = collectives.reduce_scatter(torch.ones(7, 1) * (here + 1))
    return [
        whole.flatten().tolist(),
        [n.flatten().tolist() for n in numbers],
        {name: tensor.tolist() for name, tensor in told.items()},
        [
            first,
            collectives.any_rank(here == 2),
            collectives.any_rank(False),
            collectives.all_reduce_scalar(here),
        ],
        back.flatten().tolist(),
    ]


def test_what_processes_tell_each_other():
    for rank, (whole, added, told, rest, back) in enumerate(together(3, talk)):
        assert whole == [0, 1, 2, 3, 4, 5, 6]
        assert added == [[3, 3, 3], [3, 3, 3, 3]]
        assert told == {"a": [0, 1, 2], "b": [[1, 0], [0, 1]]}
        assert rest == ["from one", True, False, 3]
        assert back == [6] * (3 if rank == 0 else 2)


def blunder() -> str:
    def make() -> str:
        raise UserError("there is no such thing; take another")

    try:
        return collectives.broadcast_str(make)
    except UserError as why:
        return f"{why} {collectives.reports_error(str(why))}"


def test_a_mistake_that_the_first_process_finds_is_known_to_all_and_told_once():
    said = sorted(together(3, blunder))
    assert said == [f"there is no such thing; take another {told}" for told in (False, False, True)]


def judged() -> tuple[Any, Any, Any]:
    clip, test = exact_clip(), images("test", 5, 3)
    with torch.no_grad():
        texts = classifier(clip, CLASSES[:2], ["a photo of {}"])  # less prompts than processes
    few = image_features(clip, test, np.array([3]))
    return predict(clip, test).tolist(), texts.tolist(), few.tolist()


def test_judging_is_shared_and_adds_up_exactly():
    said, texts, few = judged()
    for other in together(3, judged):
        assert other[0] == said
        np.testing.assert_allclose(other[1], texts, atol=1e-14)
        np.testing.assert_allclose(other[2], few, atol=1e-14)


def encoded() -> tuple[int, int]:
    """How often each tower runs while 129 images and 1,025 prompts are encoded."""
    clip, often = tiny_clip(), Counter()
    for name in ("image_features", "text_features"):
        own = getattr(clip, name)

        def counted(given: Any, own: Any = own, name: str = name) -> Any:
            often[name] += 1
            return own(given)

        setattr(clip, name, counted)
    found = images("many", 3, 43)
    image_features(clip, found, np.arange(129))
    classifier(clip, [f"red {n}" for n in range(1025)], ["{}"])
    return often["image_features"], often["text_features"]


def test_all_processes_encode_equally_often():
    """Where they share the weights, one would wait for the other's for ever."""
    assert together(2, encoded) == [(2, 2), (2, 2)]


def test_what_travels_a_step():
    """The selected entries alone, and the features; not the model."""
    found = together(2, travelled)[0]
    selected = 4 * int(0.1 * 32 * 64)
    steps = found["steps"]
    assert found["gradients"] == steps * selected * 8  # doubles; of two, each sends half, twice
    # Two tasks of two epochs of two steps, and one batch each to score by: an image's feature goes
    # out to the other process and its gradient comes back.
    assert found["features"] <= (2 * 4 * 16 + 2 * 4 + steps * 2 * 8) * 16 * 8
    assert found.keys() == {"features", "gradients", "scores", "evaluation", "steps"}


def travelled() -> dict[str, int]:
    heard = Heard()
    learned("spu", callback=heard, control=None)
    return {**collectives.traffic, "steps": heard.steps or 8}


class Heard(Callback):
    steps = 0

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.steps += 1


# Stopping, dying, going on.


class Stop(Callback):
    """Tells one process to stop, as torchrun does."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped(folder: Path, name: str, after: int) -> int:
    """The step at which the run was left, in each process."""
    seen = Heard()
    watch = CallbackList(seen, Stop(after))
    with pytest.raises(KeyboardInterrupt):
        learned(name, out=folder, callback=watch)
    return seen.steps


def go_on(folder: Path, name: str) -> dict[str, Any]:
    return learned(name, out=folder)


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [("spu", 2, 3), ("spu", 3, 1), ("spu", 1, 2), ("mas", 2, 1), ("lora-ewc+er", 1, 2)],
)
def test_a_run_goes_on_with_another_number_of_processes(
    name: str, first: int, then: int, tmp_path: Path
):
    whole = learned(name)
    if first == 1:
        stop = Fall(6, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            learned(name, out=tmp_path, callback=stop, checkpoint_seconds=0)
    else:
        assert together(first, stopped, tmp_path, name, 6)[0] == 6
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == (5 if first == 1 else 6)
    assert (tmp_path / "checkpoint.safetensors").exists()
    if then == 1:
        same(whole, [go_on(tmp_path, name)], 1e-7)
    else:
        same(whole, together(then, go_on, tmp_path, name), 1e-7)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 8


def orphaned(folder: Path) -> tuple[str, float]:
    """The last process dies in a step; what the others then say, and after how long."""

    class Dies(Regularizer):
        def loss(self, features: Features) -> Tensor | None:
            if collectives.rank() == 2 and len(features.batch.pixels) and _later(self):
                os.kill(os.getpid(), signal.SIGKILL)
            return None

    began = time.monotonic()
    method = quick("spu").model_copy(update={"regularizer": Dies()})
    try:
        retouch.teach(tiny_clip(), a_stream(), method, settings=BRIEF, out=folder)
    except collectives.RankLost as why:
        return str(why), time.monotonic() - began
    raise AssertionError


_CALLS: list[object] = []


def _later(part: object) -> bool:
    _CALLS.append(part)
    return len(_CALLS) > 3


def test_a_process_that_dies_ends_the_others_with_a_message(tmp_path: Path):
    heard = together_or_lost(3, orphaned, tmp_path)
    for said in heard[:2]:
        assert "another process of this job ended" in said[0]
        assert said[1] < 30
    assert isinstance(heard[2], collectives.RankLost)
    assert Results.read(tmp_path).begun, "what was done is kept"


def stuck(folder: Path) -> None:
    """The second process hangs; the first is told to stop while it waits for it."""

    class Hangs(Regularizer):
        def loss(self, features: Features) -> Tensor | None:
            if collectives.rank() == 1:
                time.sleep(5)  # far longer than the first waits
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
            return None

    signals.GRACE = 0.5
    method = quick("spu").model_copy(update={"regularizer": Hangs()})
    retouch.teach(tiny_clip(), a_stream(), method, settings=BRIEF, out=folder)


def test_a_process_that_waits_for_one_that_hangs_still_stops(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    began = time.monotonic()
    heard = together_or_lost(2, stuck, tmp_path)
    assert isinstance(heard[0], collectives.RankLost)
    assert time.monotonic() - began < 20
    assert "another process did not answer for 0.5 s" in capfd.readouterr().err


def test_a_device_for_each_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert str(rank_device("auto")) == "cuda:2"
    assert str(rank_device("cpu")) == "cpu"
    with pytest.raises(UserError, match=r"device cuda:1: each of 4 processes takes a GPU"):
        rank_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=r"process 3 on .* sees 2 there.*one process per GPU"):
        rank_device("cuda")


def test_processes_that_cannot_meet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"could not connect.*torchrun"), process_group("cpu"):
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


def command(*words: str) -> tuple[int, str, str]:
    """What a command says, and its exit code."""
    from typer.testing import CliRunner

    from retouch.cli import app

    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def pictures(folder: Path) -> str:
    """A folder of images per class."""
    some = images("train", 4, 8)
    for number, label in enumerate(some.labels):
        (own := folder / some.classes[label]).mkdir(parents=True, exist_ok=True)
        some.store.image(number).save(own / f"{number}.png")
    return str(folder)


def test_the_command_line_talks_and_writes_once(model: Path, tmp_path: Path):
    data, cache = pictures(tmp_path / "data"), str(tmp_path / "cache")
    words = ["learn", data, "--model", str(model), "--control", data, "--tasks", "2", "--batch"]
    words += ["7", "--epochs", "2", "--lr", "1e-3", "--cache", cache]
    found = []
    for world in (1, 2):
        folder = tmp_path / str(world)
        said = together_or_lost(world, command, *words, "--out", str(folder), join=False)
        assert [each[0] for each in said] == [0] * world, said
        assert "spu      task  2/2" in said[0][1]
        assert [each[1:] for each in said[1:]] == [("", "")] * (world - 1), "the first one talks"
        assert (", in 2 processes;" in said[0][1]) == (world == 2)
        found.append((Results.read(folder), PerClass.read(folder), _files(folder)))
        shown = together_or_lost(world, command, "eval", str(folder), "--json", join=False)
        found[-1] += (json.loads(shown[0][1])["classes"],)
        assert [each[1] for each in shown[1:]] == [""] * (world - 1)
    one, two = found
    assert _accuracies(one[0]) == _accuracies(two[0])
    assert one[1:] == two[1:]
    assert two[0].environment["processes"] == "2"
    wrong = together_or_lost(2, command, *words, "--lr", "5", "--out", str(folder), join=False)
    assert [each[0] for each in wrong] == [1, 1]
    assert sum("other settings (settings.lr" in each[2] for each in wrong) == 1, "and is told once"


def a_mistake_that_the_second_sees_later() -> None:
    if not collectives.is_rank0():
        time.sleep(0.5)
    raise UserError(str(collectives.reports_error("the same mistake")))


def test_whoever_keeps_count_of_what_was_said_waits_for_the_others():
    said = together_or_lost(2, a_mistake_that_the_second_sees_later)
    assert [str(each) for each in said] == ["True", "False"]


def _files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_torchrun_starts_it(model: Path, tmp_path: Path):
    """The real thing; what it does is tested above."""
    program = Path(sys.executable).with_name("torchrun")
    words = ["eval", str(model), "--data", "builtin:world", "--no-cache", "--json"]
    done = subprocess.run(
        [program, "--nproc-per-node", "2", "-m", "retouch", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["images"] > 100
