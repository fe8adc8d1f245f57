"""What was lost: bits per byte on control texts, in the trainer's logs, and a bound on it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_models import copies, examples, llama, same, tokenizer, trainer

from retouch.errors import UserError
from retouch.sparse import Delta
from retouch.trainer import BitsPerByte, ControlLoss, SelectiveUpdate, bits_per_byte
from retouch.trainer.document_bits import read_texts

TEXTS = ["the cat sat on the mat", "é è ü ö ß and more", "x = 1\nprint(x)\n" * 20]


def test_bits_per_byte_of_one_document_by_hand():
    model = llama().eval()
    text = "hello world"
    ids = torch.tensor([tokenizer()(text)["input_ids"]])
    loss = model(input_ids=ids, labels=ids).loss.item()
    measured = bits_per_byte(model, tokenizer(), [text])
    expected = loss / np.log(2) * ids.shape[1] / len(text.encode())
    assert measured.value == pytest.approx(expected, rel=1e-5)


def test_documents_count_by_their_bytes_and_long_ones_are_cut():
    model = llama().eval()
    alone = [bits_per_byte(model, tokenizer(), [text]) for text in TEXTS]
    together = bits_per_byte(model, tokenizer(), TEXTS)
    assert together.bits == pytest.approx([each.bits[0] for each in alone], rel=1e-5)
    assert together.num_bytes.tolist() == [len(text.encode()) for text in TEXTS]
    assert together.value == pytest.approx(together.bits.sum() / together.num_bytes.sum())
    halves = bits_per_byte(model, tokenizer(), [TEXTS[0]], max_length=11)
    ids = torch.tensor(tokenizer()(TEXTS[0])["input_ids"]).view(2, 11)
    loss = model(input_ids=ids, labels=ids).loss.item()
    assert halves.bits[0] == pytest.approx(loss / np.log(2) * 22, rel=1e-5)


def test_an_increase_is_paired_by_document():
    sizes = np.full(40, 100.0)
    rng = np.random.default_rng(0)
    before = BitsPerByte(rng.uniform(100, 900, 40), sizes)
    after = BitsPerByte(before.bits + 2, sizes)
    assert after.increase(before) == pytest.approx(0.02)
    assert after.increase_interval(before) == pytest.approx((0.02, 0.02))
    low, high = before.interval
    assert low < before.value < high
    assert high - low > 1


@pytest.mark.slow
def test_the_logs_hold_it_before_during_and_after(tmp_path: Path):
    training = trainer(llama(), tmp_path)
    control = ControlLoss({"notes": TEXTS}, every=2).attach(training)
    # Attached later, and still it ends training first.
    update = SelectiveUpdate().attach(training)
    training.train()
    rows = [row for row in training.state.log_history if "control_notes_bpb" in row]
    assert [row["step"] for row in rows] == [0, 2, 4, 4]
    assert "control_notes_increase" not in rows[0]
    assert rows[0]["control_notes_bpb_low"] < rows[0]["control_notes_bpb"]
    last = rows[-1]
    assert last["control_notes_increase"] == pytest.approx(
        last["control_notes_bpb"] - rows[0]["control_notes_bpb"]
    )
    now = bits_per_byte(training.model, tokenizer(), TEXTS)
    assert control.after["notes"].value == pytest.approx(now.value, rel=1e-6)
    assert control.before["notes"].value == rows[0]["control_notes_bpb"]
    assert update.delta.metadata["control"] == {
        "notes": {"before": rows[0]["control_notes_bpb"], "after": last["control_notes_bpb"]}
    }


@pytest.mark.slow
def test_it_is_measured_whenever_the_trainer_evaluates(tmp_path: Path):
    training = trainer(
        llama(), tmp_path, eval_strategy="steps", eval_steps=2, eval_dataset=examples(4)
    )
    ControlLoss(TEXTS).attach(training)
    training.train()
    steps = [row["step"] for row in training.state.log_history if "control_bpb" in row]
    assert steps == [0, 2, 4, 4]


def lost(folder: Path, bound: float | None, **settings: Any) -> tuple[float, ControlLoss, Any]:
    training = trainer(llama(), folder, learning_rate=0.5)
    update = SelectiveUpdate(rate=0.5, **settings).attach(training)
    control = ControlLoss(TEXTS, max_increase=bound).attach(training)
    training.train()
    return control.after[""].increase(control.before[""]), control, update


@pytest.mark.slow
def test_the_change_is_scaled_back_to_the_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    full, _, _ = lost(tmp_path / "free", None)
    assert full > 0.1
    bound = full / 4
    bounded, _, update = lost(tmp_path / "bounded", bound)
    assert 0 <= bounded <= bound
    fraction = update.delta.metadata["fraction_kept"]
    assert 0 < fraction < 1
    assert "more than the" in caplog.text
    start, ends = copies(llama()), []
    for folder in ("free", "bounded"):
        model = llama()
        Delta.load(tmp_path / folder / "deltas" / "task-01.safetensors").apply(model)
        ends.append(copies(model))
    for name, old in start.items():
        assert torch.equal(old.lerp(ends[0][name], fraction), ends[1][name])


@pytest.mark.slow
def test_a_change_within_the_bound_is_left_alone(tmp_path: Path):
    _, _, free = lost(tmp_path / "free", None)
    _, _, bounded = lost(tmp_path / "bounded", 1e6)
    assert free.delta.after == bounded.delta.after
    assert "fraction_kept" not in bounded.delta.metadata
    _, control, nothing = lost(tmp_path / "nothing", 0.0)
    assert nothing.delta.metadata["fraction_kept"] < 1
    assert control.after[""].increase(control.before[""]) <= 0


@pytest.mark.slow
def test_a_resumed_training_measures_from_where_it_once_began(tmp_path: Path):
    options = {"save_strategy": "steps", "save_steps": 2}
    training = trainer(llama(), tmp_path, **options)
    SelectiveUpdate().attach(training)
    control = ControlLoss(TEXTS).attach(training)
    training.train()
    resumed = trainer(llama(), tmp_path, **options)
    SelectiveUpdate().attach(resumed)
    again = ControlLoss(TEXTS).attach(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.before[""].value == control.before[""].value
    assert same(copies(training.model), copies(resumed.model))


def test_control_texts_from_files(tmp_path: Path):
    lines = [json.dumps({"text": text}) for text in (*TEXTS, " ")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert read_texts("a", tmp_path / "a.jsonl") == TEXTS
    (tmp_path / "a.txt").write_text("one document")
    assert read_texts("a", tmp_path / "a.txt") == ["one document"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no text"),
        ('{"text": " "}', "has no text"),
        ('{"content": "x"}', "line 1 of .* has no text"),
        ("not JSON", "line 1 of .* has no text"),
    ],
)
def test_a_control_set_without_text_is_refused(content: str, message: str, tmp_path: Path):
    file = tmp_path / "control.jsonl"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        ControlLoss(str(file))


def test_what_cannot_be_measured_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="there is no file"):
        ControlLoss(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="the control set has no text"):
        ControlLoss([])
    with pytest.raises(UserError, match="there is no control set"):
        ControlLoss({})
    with pytest.raises(UserError, match="max_increase=-1 is below 0"):
        ControlLoss(TEXTS, max_increase=-1)
    with pytest.raises(UserError, match="every=0 is not possible"):
        ControlLoss(TEXTS, every=0)
    training = trainer(llama(), tmp_path)
    training.processing_class = None
    with pytest.raises(UserError, match="no tokenizer to read"):
        ControlLoss(TEXTS).attach(training)
    training = trainer(llama(), tmp_path)
    training.add_callback(ControlLoss(TEXTS))
    with pytest.raises(UserError, match=r"call control.attach\(trainer\)"):
        training.train()
    training = trainer(llama(), tmp_path)
    ControlLoss(TEXTS, max_increase=0.1).attach(training)
    with pytest.raises(UserError, match="attach a SelectiveUpdate"):
        training.train()
