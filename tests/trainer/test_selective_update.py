"""Selective updates inside transformers' Trainer: real trainings of tiny models."""

from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import (
    MODELS,
    copies,
    examples,
    gpt2,
    llama,
    llava,
    same,
    tokenizer,
    trainer,
)
from rank_processes import run_ranks_or_errors
from torch import nn

from retouch.errors import UserError
from retouch.sparse import Delta, fingerprint, locate
from retouch.sparse.gradients import mean_gradient
from retouch.trainer import SelectiveUpdate
from retouch.trainer.scoring import select_by


def changed(before: dict[str, torch.Tensor], model: nn.Module) -> dict[str, int]:
    after = model.state_dict()
    counts = {name: int((after[name] != old).sum()) for name, old in before.items()}
    return {name: number for name, number in counts.items() if number}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("unit", ["weight", "neuron"])
def test_only_selected_entries_move_and_the_delta_is_undone_to_the_bit(name, unit, tmp_path):
    model = MODELS[name]()
    before = copies(model)
    training = trainer(model, tmp_path)
    update = SelectiveUpdate(rate=0.1, unit=unit).attach(training)
    training.train()
    moved = changed(before, model)
    assert moved.keys() == update.selection.keys()
    assert moved.keys() <= locate(model).keys()
    for tensor, index in update.selection.items():
        outside = model.state_dict()[tensor].flatten() != before[tensor].flatten()
        outside[index.index] = False
        assert not outside.any()
        assert moved[tensor] == index.count
    assert all(p.requires_grad for p in model.parameters())
    Delta.load(tmp_path / "deltas" / "task-01.safetensors").undo(model)
    assert same(before, copies(model))


@pytest.mark.slow
def test_a_tower_that_no_example_uses_is_left_out(tmp_path):
    training = trainer(llava(), tmp_path)
    update = SelectiveUpdate().attach(training)
    training.train()
    assert len(update.selection) == 4
    assert all("language_model" in name for name in update.selection)


@pytest.mark.slow
def test_both_towers_of_a_vision_language_model_are_selected_from(tmp_path):
    rng = torch.Generator().manual_seed(0)
    data = []
    for row in examples(8):
        ids = torch.cat([torch.full((4,), 259), row["input_ids"]])  # four patches
        pixels = torch.randn(3, 16, 16, generator=rng)
        data.append({"input_ids": ids, "labels": ids.clone(), "pixel_values": pixels})
    model = llava()
    before = copies(model)
    training = trainer(model, tmp_path, data)
    update = SelectiveUpdate().attach(training)
    training.train()
    assert {name.split(".")[1] for name in update.selection} == {"vision_tower", "language_model"}
    update.delta.undo(model)
    assert same(before, copies(model))


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_all_entries_of_a_layer_are_trained_as_the_trainer_itself_would(tmp_path, accumulate):
    """Learning rate, schedule, weight decay, clipping and accumulation are the trainer's."""
    where = ["*.mlp.up_proj", "*.input_layernorm"]
    options = {
        "gradient_accumulation_steps": accumulate,
        "max_grad_norm": 0.01,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "num_train_epochs": 2,
        "optim": "adamw_torch",
    }
    plain = llama()
    names = locate(plain, where)
    for name, parameter in plain.named_parameters():
        parameter.requires_grad_(name in names)
    reference = trainer(plain, tmp_path / "plain", **options)
    reference.train()
    model = llama()
    training = trainer(model, tmp_path / "sparse", **options)
    SelectiveUpdate(rate=1.0, where=where).attach(training)
    training.train()
    assert same(copies(plain), copies(model))
    assert not same(copies(llama()), copies(model))
    norms = [
        [row["grad_norm"] for row in each.state.log_history if "grad_norm" in row]
        for each in (reference, training)
    ]
    assert norms[0] == pytest.approx(norms[1])
    assert min(norms[1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["weight", "neuron"])
def test_a_resumed_training_ends_with_the_same_bits(unit, tmp_path):
    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    model = gpt2() if unit == "weight" else llama()  # GPT-2 has dropout, and so random numbers
    training = trainer(model, tmp_path, **options)
    update = SelectiveUpdate(unit=unit, half_step=True).attach(training)
    training.train()
    again = gpt2() if unit == "weight" else llama()
    resumed = trainer(again, tmp_path, **options)
    other = SelectiveUpdate(unit=unit, half_step=True).attach(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same(copies(model), copies(again))
    assert (other.delta.before, other.delta.after) == (update.delta.before, update.delta.after)
    assert len(list((tmp_path / "deltas").iterdir())) == 1


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path):
    plain = trainer(llama(), tmp_path, save_strategy="steps", save_steps=2)
    plain.train()
    training = trainer(llama(), tmp_path)
    SelectiveUpdate().attach(training)
    with pytest.raises(UserError, match="was not written by a selective update"):
        training.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert all(p.requires_grad for p in training.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("option", ["gradient_checkpointing", "bf16"])
def test_gradient_checkpointing_and_16_bits(option, tmp_path):
    results = []
    for enabled in (False, True):
        model = llama()
        training = trainer(model, tmp_path / str(enabled), **{option: enabled})
        SelectiveUpdate().attach(training)
        training.train()
        results.append(copies(model))
    for name, tensor in results[0].items():
        tolerance = 0.05 if option == "bf16" else 1e-6
        assert torch.allclose(tensor, results[1][name], atol=tolerance), name
    assert not same(copies(llama()), results[1])


@pytest.mark.slow
def test_dense_gradients_are_never_in_memory_together(tmp_path, monkeypatch):
    """Neither while scoring nor while training: at most one matrix has one at a time."""
    model = llama()
    candidates = list(locate(model).values())
    most = []

    def count_gradients(_: Any) -> None:
        most.append(sum(p.grad is not None for p in candidates))

    for parameter in candidates:  # registered first, so it runs before the gradient is freed
        parameter.register_post_accumulate_grad_hook(count_gradients)
    training = trainer(model, tmp_path)
    SelectiveUpdate().attach(training)
    training.train()
    assert len(most) == (1 + 4) * len(candidates)  # one batch to score on, four steps
    assert set(most) == {1}


@pytest.mark.slow
def test_half_a_step_is_half_of_the_change(tmp_path):
    ends = []
    for half_step in (False, True):
        model = llama()
        training = trainer(model, tmp_path / str(half_step))
        SelectiveUpdate(half_step=half_step).attach(training)
        training.train()
        ends.append(copies(model))
    start = copies(llama())
    for name, old in start.items():
        assert torch.equal(old.lerp(ends[0][name], 0.5), ends[1][name]), name


@pytest.mark.slow
def test_tied_embeddings(tmp_path):
    model = llama(tie_word_embeddings=True)
    before = copies(model)
    training = trainer(model, tmp_path)
    update = SelectiveUpdate(where="everything").attach(training)
    training.train()
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    assert "model.embed_tokens.weight" in update.selection
    fresh = llama(tie_word_embeddings=True)
    update.delta.apply(fresh)
    assert same(copies(fresh), copies(model))
    update.delta.undo(fresh)
    assert same(copies(fresh), before)


@pytest.mark.slow
def test_the_scores_are_the_gradient_of_the_trainers_loss(tmp_path):
    data = examples(8)
    training = trainer(llama(), tmp_path, data)
    update = SelectiveUpdate(rate=0.2, batches=2).attach(training)
    training.train()
    model = llama()
    ids = torch.stack([row["input_ids"] for row in data])
    loss = lambda: iter([model(input_ids=ids, labels=ids).loss])  # noqa: E731
    expected = select_by(
        model, locate(model), loss, score="gradient", rate=0.2, unit="weight", seed=0
    )
    for name, index in expected.items():
        chosen = set(update.selection[name].index.tolist())
        assert len(chosen & set(index.index.tolist())) >= 0.99 * index.count  # but for rounding


def test_layers_that_are_scored_in_several_passes_are_selected_alike():
    model = llama()
    ids = torch.stack([row["input_ids"] for row in examples(4)])
    losses = lambda: iter([model(input_ids=ids, labels=ids).loss])  # noqa: E731
    settings: dict[str, Any] = {"score": "gradient", "rate": 0.1, "unit": "weight", "seed": 0}
    one, several = (
        select_by(model, locate(model), losses, **settings, max_bytes=size) for size in (2**20, 1)
    )
    assert list(one) == list(several)
    assert all(torch.equal(one[name].index, several[name].index) for name in one)


def test_mean_gradient_leaves_gradients_alone():
    layer = nn.Linear(3, 2)
    layer.weight.grad = torch.ones(2, 3)
    x = torch.ones(1, 3)
    total = mean_gradient({"w": layer.weight}, lambda: [layer(x).sum() / 2, layer(x).sum() / 2])
    assert torch.equal(total["w"], torch.ones(2, 3))
    assert torch.equal(layer.weight.grad, torch.ones(2, 3))


@pytest.mark.slow
def test_a_second_training_of_the_same_trainer_selects_anew(tmp_path):
    model = llama()
    before = fingerprint(model)
    training = trainer(model, tmp_path)
    update = SelectiveUpdate().attach(training)
    training.train()
    first = update.delta
    training.train()
    assert (first.before, first.after) == (before, update.delta.before)
    files = sorted((tmp_path / "deltas").iterdir())
    assert [file.name for file in files] == ["task-01.safetensors", "task-02.safetensors"]
    for file in reversed(files):
        Delta.load(file).undo(model)
    assert fingerprint(model) == before


@pytest.mark.slow
def test_smaller_batches_after_running_out_of_memory_begin_anew(tmp_path, monkeypatch):
    """What was trained before is undone: the delta leads from the weights before training."""
    model = llama()
    before = copies(model)
    training = trainer(model, tmp_path, auto_find_batch_size=True)
    update = SelectiveUpdate(score="random").attach(training)
    steps = []
    take_step = training.training_step

    def out_of_memory_once(*args: Any) -> torch.Tensor:
        steps.append(args)
        if len(steps) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return take_step(*args)

    monkeypatch.setattr(training, "training_step", out_of_memory_once)
    training.train()
    assert len(steps) == 3 + ceil(16 / 3)  # batches of int(0.9 * 4)
    update.delta.undo(model)
    assert same(before, copies(model))


def train_on_ranks(folder: Path, batch: int) -> tuple[dict[str, list[float]], list[str]]:
    torch.manual_seed(0)
    model = llama().double()
    data = examples(16)
    training = trainer(
        model, folder, data, per_device_train_batch_size=batch, gradient_accumulation_steps=2
    )
    update = SelectiveUpdate(share=1.0, rate=0.2).attach(training)
    training.train()
    state = {name: t.flatten()[:200].tolist() for name, t in model.state_dict().items()}
    return state, [update.delta.before, update.delta.after]


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path, monkeypatch):
    one, _ = train_on_ranks(tmp_path / "one", 4)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    results = run_ranks_or_errors(2, train_on_ranks, tmp_path / "two", 2, join=False)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    (first, weights), (second, other) = results
    assert weights == other
    assert first == second
    for name, values in one.items():
        assert values == pytest.approx(first[name], abs=1e-9), name
    assert len(list((tmp_path / "two" / "deltas").iterdir())) == 1


# What cannot be trained is refused before the first step


def attach(model: nn.Module, folder: Path, data: Any = None, **changes: Any) -> None:
    training = trainer(model, folder, data, **changes)
    SelectiveUpdate().attach(training)
    training.train()


class Odd(nn.Module):
    """A model of no known architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(260, 8)

    def forward(self, input_ids, labels=None, **rest):
        return {"loss": self.table(input_ids).mean()}


@pytest.mark.slow
def test_what_is_frozen_stays_frozen(tmp_path):
    model = llama()
    model.model.layers[0].requires_grad_(False)
    training = trainer(model, tmp_path)
    update = SelectiveUpdate().attach(training)
    training.train()
    assert all(name.startswith("model.layers.1.") for name in update.selection)
    assert not model.model.layers[0].mlp.up_proj.weight.requires_grad
    model.requires_grad_(False)
    with pytest.raises(UserError, match=r"all 4 matrices .* are frozen"):
        SelectiveUpdate().attach(trainer(model, tmp_path / "other"))


def test_a_model_without_a_known_layer_is_refused(tmp_path):
    with pytest.raises(UserError, match="Odd has no weights for where='first-mlp'"):
        attach(Odd(), tmp_path)


@pytest.mark.slow
def test_data_without_labels_is_refused(tmp_path):
    data = [{"input_ids": row["input_ids"]} for row in examples(4)]
    with pytest.raises(UserError, match="no labels: a batch holds input_ids"):
        attach(llama(), tmp_path, data)
    masked = [{**row, "labels": torch.full((12,), -100)} for row in examples(4)]
    with pytest.raises(UserError, match="every label of the first batch is -100"):
        attach(llama(), tmp_path, masked)
    assert not (tmp_path / "deltas").exists()


def test_quantized_weights_are_refused(tmp_path):
    training = trainer(llama(), tmp_path)
    training.model.is_quantized = True
    training.model.quantization_method = "bitsandbytes"
    with pytest.raises(UserError, match=r"quantized \(bitsandbytes\)"):
        SelectiveUpdate().attach(training)


def test_a_model_under_peft_is_refused(tmp_path):
    import peft

    wrapped = peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["up_proj"]))
    with pytest.raises(UserError, match=r"wrapped by peft .*merge_and_unload"):
        attach(wrapped, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_fsdp_enabled": True}, "FSDP shards the matrices"),
        ({"is_deepspeed_enabled": True}, "DeepSpeed brings its own optimizer"),
        ({"optimizer": object()}, "was given an optimizer"),
        ({"model_init": llama}, "makes its model anew"),
    ],
)
def test_trainers_that_cannot_be_right_are_refused(change, message, tmp_path):
    training = trainer(llama(), tmp_path)
    vars(training).update(change)
    with pytest.raises(UserError, match=message):
        SelectiveUpdate().attach(training)


def test_settings_that_cannot_be_right_are_refused(tmp_path):
    with pytest.raises(UserError, match="optim='sgd' cannot train single weights"):
        attach(llama(), tmp_path, optim="sgd")
    reentrant = {"gradient_checkpointing_kwargs": {"use_reentrant": True}}
    with pytest.raises(UserError, match="use_reentrant=True gives no gradient"):
        attach(llama(), tmp_path, gradient_checkpointing=True, **reentrant)
    training = trainer(llama(), tmp_path)
    training.args._n_gpu = 2
    with pytest.raises(UserError, match="2 GPUs by DataParallel"):
        SelectiveUpdate().attach(training)
    with pytest.raises(UserError, match="Odd is no trainer"):
        SelectiveUpdate().attach(Odd())
    for settings, message in (
        ({"rate": 0.0}, "rate=0.0 is not a share"),
        ({"share": 2.0}, "share=2.0 is not a share"),
        ({"score": "luck"}, "score='luck' is unknown; choose from gradient"),
        ({"batches": 0}, "batches=0 is too few"),
        ({"unit": "layer"}, "unit='layer' is unknown"),
    ):
        with pytest.raises(UserError, match=message):
            SelectiveUpdate(**settings)


def test_what_is_known_only_after_training(tmp_path):
    update = SelectiveUpdate()
    for name in ("delta", "selection"):
        with pytest.raises(UserError, match="before training"):
            getattr(update, name)
    training = trainer(llama(), tmp_path)
    training.add_callback(update)
    with pytest.raises(UserError, match=r"call update.attach\(trainer\)"):
        training.train()
    training = trainer(llama(), tmp_path)
    training.add_callback(update)
    update.attach(training)
    assert training.callback_handler.callbacks.count(update) == 1
    with pytest.raises(UserError, match="attached to a trainer already"):
        update.attach(training)


@pytest.mark.slow
def test_an_output_folder_with_other_deltas_is_refused(tmp_path):
    attach(llama(), tmp_path)
    with pytest.raises(UserError, match="choose another output_dir"):
        attach(llama(), tmp_path)
    assert len(list((tmp_path / "deltas").iterdir())) == 1


def test_streamed_data_needs_a_number_of_batches(tmp_path):
    from datasets import Dataset

    rows = [{key: value.tolist() for key, value in row.items()} for row in examples(8)]
    stream = Dataset.from_list(rows).to_iterable_dataset()
    with pytest.raises(UserError, match="has no length"):
        attach(llama(), tmp_path, stream, max_steps=2)
    training = trainer(llama(), tmp_path, stream, max_steps=2)
    update = SelectiveUpdate(batches=1).attach(training)
    training.train()
    assert update.delta.changes


def test_the_tokenizer_reads_bytes():
    assert tokenizer()("aé")["input_ids"] == tokenizer()("a")["input_ids"] + [
        *tokenizer()("é")["input_ids"]
    ]
    assert len(tokenizer()("é")["input_ids"]) == 2
