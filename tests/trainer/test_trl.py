"""Selective updates inside TRL's trainers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run
from datasets import Dataset
from language_models import MODELS, copies, llama, same, tokenizer

from retouch.errors import UserError
from retouch.sparse import Delta, fingerprint
from retouch.trainer import ControlLoss, ReplayBuffer, SelectiveUpdate, load_causal

CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"What is {n} and {n}?"},
            {"role": "assistant", "content": f"It is {2 * n}."},
        ]
    }
    for n in range(8)
]


def sft(model: Any, out: Path, chats: list[Any] = CHATS, **changes: Any) -> Any:
    from trl import SFTConfig, SFTTrainer

    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "num_train_epochs": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "logging_steps": 1,
        "max_length": 64,
        **changes,
    }
    return SFTTrainer(
        model,
        args=SFTConfig(str(out), **settings),
        train_dataset=Dataset.from_list(chats),
        processing_class=tokenizer(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "llava"])
def test_sft_moves_selected_entries_only(name: str, tmp_path: Path):
    model = MODELS[name]()
    before = copies(model)
    training = sft(model, tmp_path)
    update = SelectiveUpdate().attach(training)
    ControlLoss(["a b c", "d e f"], max_increase=10.0).attach(training)
    training.train()
    after = copies(model)
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert moved == set(update.selection)
    assert any("control_increase" in row for row in training.state.log_history)
    update.delta.undo(model)
    assert same(before, copies(model))


@pytest.mark.slow
def test_scoring_leaves_no_trace_in_the_log(tmp_path: Path):
    plain = sft(llama(), tmp_path / "plain", learning_rate=0.0)
    plain.train()
    training = sft(llama(), tmp_path / "sparse", learning_rate=0.0)
    SelectiveUpdate(share=1.0).attach(training)
    training.train()
    for expected, row in zip(plain.state.log_history, training.state.log_history, strict=True):
        for key in ("loss", "num_tokens", "entropy", "mean_token_accuracy"):
            assert row.get(key) == pytest.approx(expected.get(key)), key


@pytest.mark.slow
def test_a_resumed_sft_ends_with_the_same_bits(tmp_path: Path):
    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1}
    model, again = llama(), llama()
    training = sft(model, tmp_path, **options)
    SelectiveUpdate(unit="neuron").attach(training)
    training.train()
    resumed = sft(again, tmp_path, **options)
    SelectiveUpdate(unit="neuron").attach(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(copies(model), copies(again))


@pytest.mark.slow
def test_sft_replays_chats_as_they_were_prepared(tmp_path: Path):
    training = sft(llama(), tmp_path / "first")
    SelectiveUpdate(replay=ReplayBuffer(4)).attach(training)
    training.train()
    second = sft(training.model, tmp_path / "second", CHATS[:4])
    update = SelectiveUpdate(replay=ReplayBuffer(4, tmp_path / "first")).attach(second)
    assert len(second.train_dataset) == 8
    second.train()
    assert update.delta.changes
    rows = (tmp_path / "second" / "replay.jsonl").read_text().splitlines()
    assert [json.loads(row)["task"] for row in rows] == [1, 1, 2, 2]


@pytest.mark.slow
def test_dpo(tmp_path: Path):
    from trl import DPOConfig, DPOTrainer

    pairs = [
        {"prompt": f"{n} and {n}?", "chosen": f" {2 * n}", "rejected": " no idea"} for n in range(8)
    ]
    model = llama()
    before = copies(model)
    settings = DPOConfig(
        str(tmp_path),
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        num_train_epochs=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    training = DPOTrainer(
        model,
        llama(),
        args=settings,
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer(),
    )
    update = SelectiveUpdate().attach(training)
    training.train()
    assert not same(before, copies(model))
    Delta.load(tmp_path / "deltas" / "task-01.safetensors").undo(model)
    assert same(before, copies(model))
    assert update.delta.metadata["rate"] == 0.1


@pytest.mark.slow
def test_an_adapter_of_the_trainer_itself_is_refused(tmp_path: Path):
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    training = SFTTrainer(
        llama(),
        args=SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[]),
        train_dataset=Dataset.from_list(CHATS),
        processing_class=tokenizer(),
        peft_config=LoraConfig(target_modules=["up_proj"]),
    )
    with pytest.raises(UserError, match="without peft_config"):
        SelectiveUpdate().attach(training)


@pytest.mark.slow
def test_the_script_and_the_commands_of_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """With a tiny model in place of one from the hub, which cannot be reached here."""
    document = (Path(__file__).resolve().parents[2] / "docs" / "language.md").read_text()
    script, later = re.findall(r"^```python\n(.*?)^```", document, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    llama().save_pretrained("model")
    tokenizer().save_pretrained("model")
    Path("chats.jsonl").write_text("\n".join(json.dumps(chat) for chat in CHATS))
    texts = ["the cat sat", "on the mat", "x = 1"]
    Path("control.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    here = script.replace('"Qwen/Qwen3-0.6B"', '"model"')
    here = here.replace("bf16=True", "bf16=False, use_cpu=True, report_to=[]")
    assert here.count("use_cpu") == 1
    space: dict[str, Any] = {}
    exec(here, space)
    assert capsys.readouterr().out.strip().endswith("bits per byte lost")
    assert space["control"].after[""].increase(space["control"].before[""]) <= 0.01
    (commands,) = re.findall(r"^```sh\n(.*?)^```", document, re.DOTALL | re.MULTILINE)
    for line in commands.splitlines():
        run(*line.split()[1:])
    before = load_causal("before").model
    assert same(copies(before), copies(llama()))
    adapter = "support-adapter/adapter_model.safetensors"
    assert Path(adapter).read_bytes() == Path("adapter/adapter_model.safetensors").read_bytes()
    Path("support/replay.jsonl").write_text("")
    exec(later, space)
    assert fingerprint(space["model"]) == space["trainer"].callback_handler.callbacks[0].delta.after
