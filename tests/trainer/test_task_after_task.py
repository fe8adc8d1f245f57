"""One training after the other: replay, a chain of deltas, the commands on a model's folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import error_of, run, run_json
from datasets import Dataset
from language_models import copies, examples, gpt2, llama, same, tokenizer, trainer
from transformers import LlamaForCausalLM

from retouch.errors import UserError
from retouch.sparse import Delta, fingerprint
from retouch.trainer import ReplayBuffer, SelectiveUpdate, is_causal_folder, load_causal


def teach(base: Path, out: Path, seed: int, **settings: Any) -> SelectiveUpdate:
    model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    training = trainer(model, out, examples(8, seed=seed))
    update = SelectiveUpdate(half_step=True, **settings).attach(training)
    training.train()
    training.save_model()
    return update


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base in 16 bits, `first` that was trained from it, and `second` from `first`."""
    home = tmp_path_factory.mktemp("chain")
    llama().bfloat16().save_pretrained(home / "base")
    tokenizer().save_pretrained(home / "base")
    teach(home / "base", home / "first", 1, replay=ReplayBuffer(6))
    teach(home / "first", home / "second", 2, replay=ReplayBuffer(6, home / "first"))
    return home


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return copies(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32))


@pytest.mark.slow
def test_the_second_training_continues_the_chain(folders: Path):
    names = [file.name for file in sorted((folders / "second" / "deltas").iterdir())]
    assert names == ["task-01.safetensors", "task-02.safetensors"]
    first = (folders / "first" / "deltas" / names[0]).read_bytes()
    assert (folders / "second" / "deltas" / names[0]).read_bytes() == first
    model = LlamaForCausalLM.from_pretrained(folders / "second")
    for name in reversed(names):
        Delta.load(folders / "second" / "deltas" / name).undo(model)
    assert same(copies(model), weights(folders / "base"))


@pytest.mark.slow
def test_another_precision_begins_a_new_chain(folders: Path, tmp_path: Path, caplog: Any):
    model = LlamaForCausalLM.from_pretrained(folders / "first", dtype=torch.bfloat16)
    training = trainer(model, tmp_path, examples(4))
    SelectiveUpdate().attach(training)
    training.train()
    assert len(list((tmp_path / "deltas").iterdir())) == 1
    assert "a new chain begins" in caplog.text
    assert "rounds small changes away" in caplog.text


@pytest.mark.slow
def test_stored_examples_are_trained_on_again(folders: Path):
    rows = [
        json.loads(line) for line in (folders / "second" / "replay.jsonl").read_text().splitlines()
    ]
    assert [row["task"] for row in rows] == [1] * 3 + [2] * 3
    buffer = ReplayBuffer(6, folders / "first", ratio=0.5)
    new = examples(8, seed=2)
    mixed = buffer.mix(new, seed=0)
    assert len(mixed) == 8 + 4
    known = {tuple(row["input_ids"].tolist()) for row in examples(8, seed=1)}
    assert all(tuple(mixed[number]["input_ids"]) in known for number in range(8, 12))
    many = ReplayBuffer(6, folders / "first", ratio=2).mix(new, seed=0)
    counts = [sum(many[n] == example for n in range(8, 24)) for example in buffer.examples]
    assert set(counts) <= {2, 3}  # none is repeated before all were used


@pytest.mark.slow
def test_stored_examples_join_a_data_set_of_the_library(folders: Path, tmp_path: Path):
    rows = [{k: v.tolist() for k, v in row.items()} for row in examples(4, seed=3)]
    mixed = ReplayBuffer(6, folders / "first").mix(Dataset.from_list(rows), seed=0)
    assert isinstance(mixed, Dataset)
    assert len(mixed) == 8
    with pytest.raises(UserError, match="stored examples have input_ids, labels, and the new ones"):
        ReplayBuffer(6, folders / "first").mix(Dataset.from_list([{"input_ids": [1]}]), seed=0)


def test_replay_buffers_that_cannot_be_right_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="cannot have 0 examples"):
        ReplayBuffer(0)
    with pytest.raises(UserError, match="ratio=0 is not possible"):
        ReplayBuffer(5, ratio=0)
    with pytest.raises(UserError, match=r"there is no .*replay.jsonl"):
        ReplayBuffer(5, tmp_path)
    (tmp_path / "replay.jsonl").write_text('{"task": 1}\n')
    with pytest.raises(UserError, match=r"line 1 of .* is no stored example"):
        ReplayBuffer(5, tmp_path)
    with pytest.raises(UserError, match="streamed cannot be stored"):
        ReplayBuffer(5).mix(iter([]), seed=0)


# The commands on a causal model's folder


@pytest.mark.slow
def test_show_apply_and_undo(folders: Path, tmp_path: Path):
    shown = run("delta", "show", folders / "second").stdout
    assert "task-01" in shown
    assert "task-02" in shown
    new, old = tmp_path / "new", tmp_path / "old"
    said = run("delta", "apply", folders / "base", folders / "second", "-o", new).stdout
    assert "load it with transformers" in said
    assert same(weights(new), weights(folders / "second"))
    assert (new / "tokenizer.json").exists()
    facts = run_json("delta", "undo", folders / "second", folders / "second", "-o", old)
    assert same(weights(old), weights(folders / "base"))
    assert facts["weights"] == fingerprint(LlamaForCausalLM.from_pretrained(old))
    wrong = error_of("delta", "undo", folders / "base", folders / "second", "-o", tmp_path / "x")
    assert "already" in wrong


@pytest.mark.slow
def test_merge_and_diff(folders: Path, tmp_path: Path):
    both = tmp_path / "both.safetensors"
    run("delta", "merge", folders / "second", "-o", both)
    assert Delta.load(both).after == fingerprint(
        LlamaForCausalLM.from_pretrained(folders / "second")
    )
    mean = tmp_path / "mean.safetensors"
    facts = run_json(
        *("delta", "merge", folders / "second", "--how", "mean"),
        *("--base", folders / "base", "-o", mean),
    )
    assert facts["moved"] > 0
    difference = tmp_path / "diff.safetensors"
    run("delta", "diff", folders / "first", folders / "second", "-o", difference)
    second = Delta.load(folders / "second" / "deltas" / "task-02.safetensors")
    assert (Delta.load(difference).before, Delta.load(difference).after) == (
        second.before,
        second.after,
    )


@pytest.mark.slow
def test_export_to_hf_and_peft(folders: Path, tmp_path: Path):
    import peft

    plain = run_json("export", folders / "second", "--to", "hf", "-o", tmp_path / "hf")
    assert "tokenizer.json" in plain["files"]
    assert not any("delta" in name or "replay" in name for name in plain["files"])
    assert same(weights(tmp_path / "hf"), weights(folders / "second"))
    said = run("export", folders / "second", "--to", "peft", "-o", tmp_path / "peft").stdout
    assert "the weights are the same" in said
    base = LlamaForCausalLM.from_pretrained(folders / "base", dtype=torch.float32)
    merged = peft.PeftModel.from_pretrained(base, tmp_path / "peft").merge_and_unload()
    assert same(copies(merged), weights(folders / "second"))
    assert (tmp_path / "peft" / "task-02" / "adapter_config.json").exists()
    card = (tmp_path / "peft" / "README.md").read_text()
    assert "2 trainings" in card
    assert str(folders) not in card


@pytest.mark.slow
def test_what_cannot_be_exported_is_refused(folders: Path, tmp_path: Path):
    wrong = error_of("export", folders / "second", "--to", "onnx", "-o", tmp_path / "x")
    assert "a language model cannot be exported to onnx; choose one of hf, peft" in wrong
    assert "has no deltas/" in error_of(
        "export", folders / "base", "--to", "peft", "-o", tmp_path / "x"
    )
    assert "--task is for a run" in error_of(
        "export", folders / "base", "--to", "hf", "--task", 1, "-o", tmp_path / "x"
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_the_adapter_of_a_training(tmp_path: Path):
    import peft

    model = llama()
    training = trainer(model, tmp_path)
    update = SelectiveUpdate().attach(training)
    training.train()
    learned = copies(model)
    update.save_adapter(tmp_path / "adapter")
    assert same(copies(model), learned)
    merged = peft.PeftModel.from_pretrained(llama(), tmp_path / "adapter").merge_and_unload()
    assert same(copies(merged), learned)
    with pytest.raises(UserError, match="exists"):
        update.save_adapter(tmp_path / "adapter")
    other = trainer(gpt2(), tmp_path / "gpt2")
    conv1d = SelectiveUpdate().attach(other)
    other.train()
    with pytest.raises(UserError, match="not the weight of a linear layer"):
        conv1d.save_adapter(tmp_path / "other")


def test_folders_of_other_models(tmp_path: Path):
    assert not is_causal_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["CLIPModel"]}')
    assert not is_causal_folder(tmp_path)
    with pytest.raises(UserError, match="does not hold a language model"):
        load_causal(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["OddForCausalLM"]}')
    with pytest.raises(UserError, match=r"OddForCausalLM, which transformers .* does not know"):
        load_causal(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(UserError, match="cannot be loaded"):
        load_causal(tmp_path)
