"""Pushing to a stand-in of the hub, and reading back what was pushed."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import peft
import pytest
import torch
import transformers
from commands import error_of, run, run_json
from fake_hub import TOKEN, FakeHub
from image_folders import to_folder
from PIL import Image
from prompted import QUICK, l2p, random_images, set_prompts
from safetensors.torch import load_file, save
from source_cases import time_limit
from tiny import images, tiny_folder

import retouch
from retouch.clip.fast.light import LightClip
from retouch.clip.loading.hub import DELTA_FILES
from retouch.data import Stream
from retouch.errors import UserError
from retouch.export import export, of_run, push
from retouch.methods import Settings
from retouch.sparse import fingerprint, read_header
from retouch.train import open_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("pushed")
    stream = Stream.split(images("train", 6, 6), images("test", 6, 3), tasks=2, order=0)
    method = retouch.recipe("spu", {"replay.size": 12})
    clip = retouch.load(str(tiny_folder(home / "model")))
    retouch.teach(
        clip, stream, method, settings=Settings(epochs=1, batch=8, lr=1e-2), out=home / "run"
    )
    return home / "run"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub().running() as fake:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", fake.url)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", fake.url)
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.url + template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)  # it keeps the address
        yield fake


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.new("RGB", (20, 20)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def base_of(folder: Path) -> Path:
    return folder.parent / "model"


def on_hub(hub: FakeHub, name: str) -> dict[str, bytes]:
    files = hub.repos[name].files()
    assert files is not None
    return files


@pytest.mark.slow
def test_deltas_are_pushed_and_applied_again(hub: FakeHub, trained: Path, tmp_path: Path):
    done = run("push", trained, "alice/birds")
    assert "alice/birds on the hub is public and has 4 files" in done.stdout
    assert "--model BASE@hf:alice/birds" in done.stdout
    files = on_hub(hub, "alice/birds")
    assert files.keys() == {
        *(".gitattributes", "README.md", "classes.json"),
        *("task-01.safetensors", "task-02.safetensors"),
    }
    for name, content in files.items():  # no path of this machine
        assert str(trained.parent).encode() not in content, name
    learned = fingerprint(open_run(trained).load_task().model)
    applied = run_json("delta", "apply", base_of(trained), "hf:alice/birds", "-o", tmp_path / "m")
    assert applied["weights"] == learned
    assert "2 deltas" in run("delta", "merge", "hf:alice/birds", "-o", tmp_path / "d").stdout
    clip = retouch.load(f"{base_of(trained)}@hf:alice/birds")
    assert fingerprint(clip.model) == learned
    assert clip.name.endswith("@hf:alice/birds")
    with pytest.raises(UserError, match="belongs to weights"):
        retouch.load("builtin@hf:alice/birds")


@pytest.mark.slow
def test_without_a_connection_the_cached_copy_is_used(
    hub: FakeHub, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    revision = run_json("push", trained, "alice/birds")["revision"]
    name = f"{base_of(trained)}@hf:alice/birds"
    before = fingerprint(retouch.load(name).model)
    assert fingerprint(retouch.load(f"{name}@{revision}").model) == before
    with pytest.raises(UserError, match="no such revision"):
        retouch.load(f"{name}@{'1' * 7}")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fingerprint(retouch.load(name).model) == before
    with pytest.raises(UserError, match="cannot be reached for hf:alice/other"):
        retouch.load(f"{base_of(trained)}@hf:alice/other")


@pytest.mark.slow
def test_an_adapter_is_pushed_and_imported(hub: FakeHub, trained: Path, tmp_path: Path):
    done = run("push", trained, "alice/adapter", "--to", "peft", "--private")
    assert "is private" in done.stdout
    assert hub.repos["alice/adapter"].private
    assert "task-02/adapter_model.safetensors" in on_hub(hub, "alice/adapter")
    model = peft.PeftModel.from_pretrained(open_run(trained).clip.model, "alice/adapter")
    learned = fingerprint(open_run(trained).load_task().model)
    assert fingerprint(model.merge_and_unload()) == learned
    file = tmp_path / "d.safetensors"
    run("delta", "import", "hf:alice/adapter", "--model", base_of(trained), "-o", file)
    assert read_header(file).after == learned
    wrong = error_of("delta", "show", "hf:alice/adapter")
    assert "retouch delta import hf:alice/adapter" in wrong
    with pytest.raises(UserError, match="retouch delta import hf:alice/adapter"):
        retouch.load("alice/adapter")


@pytest.mark.slow
def test_a_plain_model_is_pushed_and_loaded(
    hub: FakeHub, trained: Path, tmp_path: Path, photo: Path
):
    push(of_run(trained), "alice/plain", to="hf")
    learned = fingerprint(open_run(trained).load_task().model)
    assert fingerprint(retouch.load("alice/plain").model) == learned
    assert "loads by its name, alice/plain" in error_of("delta", "show", "hf:alice/plain")
    # A run that begins with it knows its name on the hub, and so do its card and its deltas.
    clip = retouch.load("alice/plain")
    stream = Stream.split(images("train", 2, 6), images("test", 2, 3), tasks=1)
    settings = Settings(epochs=1, batch=6, lr=1e-2)
    retouch.teach(clip, stream, "random", settings=settings, out=tmp_path / "run")
    pushed = run("push", tmp_path / "run", "alice/more").stdout
    assert "--model alice/plain@hf:alice/more" in pushed
    files = on_hub(hub, "alice/more")
    assert b"base_model: alice/plain" in files["README.md"]
    later = retouch.load("alice/plain@hf:alice/more")
    assert fingerprint(later.model) == fingerprint(clip.model)
    assert "BASE@hf:alice/more" in error_of("classify", "alice/more", photo)


@pytest.mark.slow
def test_what_is_there_is_not_replaced_unasked(hub: FakeHub, trained: Path):
    hub.add("alice/mine", {"model.safetensors": b"x", "old.txt": b"y"})
    assert "--overwrite" in error_of("push", trained, "alice/mine")
    assert set(on_hub(hub, "alice/mine")) == {".gitattributes", "model.safetensors", "old.txt"}
    run("push", trained, "alice/mine", "--overwrite", "--task", 1)
    assert set(on_hub(hub, "alice/mine")) >= {"task-01.safetensors", "README.md"}
    assert not {"old.txt", "model.safetensors", "task-02.safetensors"} & set(
        on_hub(hub, "alice/mine")
    )
    assert "is public" in error_of("push", trained, "alice/mine", "--overwrite", "--private")
    hub.add("alice/empty", {})
    run("push", trained, "alice/empty")


@pytest.mark.slow
def test_mistakes_are_named(
    hub: FakeHub, trained: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
):
    assert "write OWNER/NAME" in error_of("push", trained, "birds")
    assert "not a name on the hub" in error_of("push", trained, "alice/b ds")
    assert "hf auth login" in error_of("push", trained, "bob/birds")
    assert "not on the hub" in error_of("delta", "show", "hf:alice/nothing")
    assert "write the model that they belong to" in error_of("classify", "hf:alice/nothing", photo)
    hub.damage = "task-02.safetensors"
    assert "differs from what was pushed" in error_of("push", trained, "alice/birds")
    with pytest.raises(UserError, match="damaged"):
        retouch.load(f"{base_of(trained)}@hf:alice/birds")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "hf auth login" in error_of("push", trained, "alice/new")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in error_of("push", trained, "alice/new")
    assert list(hub.repos) == ["alice/birds"]


@pytest.mark.slow
@pytest.mark.parametrize("silent", ["api/models/alice/new", "/commit/", "tree", "lfs"])
def test_a_hub_that_never_answers(
    silent: str, hub: FakeHub, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    """At any request: first, to upload, to commit, and to compare."""
    monkeypatch.setattr("retouch.clip.loading.hub.TIMEOUT", 0.2)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the tries of a request
    before = list(huggingface_hub.utils.get_session().event_hooks["request"])
    hub.silent = silent
    with time_limit(20):
        error = error_of("push", trained, "alice/new")
    assert "the hub did not answer in time for alice/new" in error
    assert any(silent in request for request in hub.requests)
    assert huggingface_hub.utils.get_session().event_hooks["request"] == before


@pytest.mark.slow
def test_pickled_weights_on_the_hub_are_refused(hub: FakeHub, tmp_path: Path):
    """Before they are downloaded, and with a word why."""
    folder = tiny_folder(tmp_path / "m")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.add("alice/both", files)
    assert retouch.load("alice/both").size
    del files["model.safetensors"]
    hub.add("alice/pickled", files)
    hub.requests.clear()
    with pytest.raises(UserError, match=r"only pickled weights .* can run code"):
        retouch.load("alice/pickled")
    assert hub.requests == ["GET /api/models/alice/pickled"]
    assert retouch.load("alice/pickled", random_weights=True).size


@pytest.mark.slow
def test_a_plain_clip_on_the_hub_is_loaded_without_its_library(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    folder = tiny_folder(tmp_path / "m")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.add("alice/clip", {**files, "pytorch_model.bin": b"not needed"})
    expected = fingerprint(retouch.load(folder).model)
    clip = retouch.load("alice/clip", light=True)
    assert type(clip) is LightClip
    assert (clip.name, fingerprint(clip.model)) == ("alice/clip", expected)
    assert not any("pytorch_model" in request for request in hub.requests)
    with torch.no_grad():
        clip.model.logit_scale.add_(1)
    changed = {**files, "model.safetensors": save({**clip.model.state_dict()})}
    hub.add("alice/clip", changed)
    newer = retouch.load("alice/clip", light=True)
    assert fingerprint(newer.model) == fingerprint(clip.model), "what the hub has now"
    hub.add("alice/other", {**files, "config.json": b'{"model_type": "blip"}'})
    hub.requests.clear()
    with pytest.raises(UserError, match="blip"):
        retouch.load("alice/other", light=True)
    assert not any("safetensors" in request for request in hub.requests)
    with pytest.raises(UserError, match="there is no model 'alice/none'"):
        retouch.load("alice/none", light=True)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    offline = retouch.load("alice/clip", light=True)
    assert type(offline) is LightClip
    assert fingerprint(offline.model) == fingerprint(newer.model)
    assert caplog.text.count("using the cached copy of alice/clip") == 1


@pytest.mark.slow
@pytest.mark.parametrize("light", [True, False])
def test_prompts_beside_a_model_on_the_hub_are_loaded_with_it(
    light: bool, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clip = retouch.load(tiny_folder(tmp_path / "plain"))
    l2p().start(clip, QUICK)
    set_prompts(clip)
    clip.save(tmp_path / "m")
    files = {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()}
    assert "prompts.safetensors" in files
    hub.add("alice/prompted", files)
    loaded = retouch.load("alice/prompted", light=light)
    assert fingerprint(loaded.model) == fingerprint(clip.model)
    assert torch.equal(loaded.image_features(random_images()), clip.image_features(random_images()))
    for address in (
        (huggingface_hub.hf_api.api, "endpoint"),
        (huggingface_hub.constants, "ENDPOINT"),
    ):
        monkeypatch.setattr(*address, "http://127.0.0.1:9")
    offline = retouch.load("alice/prompted", light=light)
    assert fingerprint(offline.model) == fingerprint(clip.model)


def test_a_folder_of_deltas(trained: Path, tmp_path: Path):
    exported = export(of_run(trained), "deltas", tmp_path / "deltas")
    assert [name for name in exported.files if Path(name).match(DELTA_FILES[0])] == [
        "task-01.safetensors",
        "task-02.safetensors",
    ]
    header = read_header(tmp_path / "deltas" / "task-01.safetensors")
    assert header.metadata["model"] == "model"
    assert (tmp_path / "deltas" / "README.md").read_text().count("hf:OWNER/NAME") > 1
    assert json.loads((tmp_path / "deltas" / "classes.json").read_text())["classes"]
    with pytest.raises(UserError, match="nothing to write"):
        export(of_run(trained, task=0), "deltas", tmp_path / "none")


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_the_commands_and_the_code_of_the_document(
    hub: FakeHub, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photo: Path
):
    """In order, on a stand-in of the hub that has a tiny model under the name of a known one."""
    files = {file.name: file.read_bytes() for file in base_of(trained).iterdir()}
    hub.add("openai/clip-vit-base-patch16", files)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "runs/april")
    photo.rename("photo.jpg")
    to_folder(images("train", 2, 8), tmp_path / "photos")
    document = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
    space: dict[str, Any] = {}
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", document, re.S | re.M):
        if language == "python":
            exec(block, space)
            continue
        for line in block.splitlines():
            if not line.startswith("retouch "):
                assert line == "hf auth login"
                continue
            more = ["--epochs", 1] if " learn " in line else []
            assert run(*line.split()[1:], *more).stdout.strip()
        if not Path("adapter").exists():
            shutil.copytree("models/april", "adapter")
    learned = fingerprint(open_run(trained).load_task().model)
    assert fingerprint(retouch.load("birds").model) == learned
    assert open_run("runs/may").config["weights"] == learned
    merged = space["model"].merge_and_unload(adapter_names=["task-01", "task-02"])
    assert fingerprint(merged) == learned
