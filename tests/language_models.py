"""Tiny language models, a tokenizer of bytes, and texts to train them on."""

from pathlib import Path
from typing import Any

import tiny  # noqa: F401 (makes torchvision importable)
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import Trainer, TrainingArguments

SIZES = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CHAT = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer() -> Any:
    """One token per byte, with a chat template."""
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", bos_token="<s>"
    )
    fast.chat_template = CHAT
    return fast


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **changes}))


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=260, n_embd=32, n_layer=2, n_head=2, n_positions=128, resid_pdrop=0.1
    )
    return transformers.GPT2LMHeadModel(config)


def qwen3() -> Any:
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=16))


def gemma() -> Any:
    torch.manual_seed(0)
    return transformers.GemmaForCausalLM(transformers.GemmaConfig(**SIZES, head_dim=16))


def llava() -> Any:
    """A vision-language model: a CLIP's visual tower in front of a Llama."""
    torch.manual_seed(0)
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    vision.image_size, vision.patch_size, vision.projection_dim = 16, 8, 32
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=transformers.LlamaConfig(**SIZES), image_token_id=259
    )
    return transformers.LlavaForConditionalGeneration(config)


MODELS = {"llama": llama, "gpt2": gpt2, "qwen3": qwen3, "gemma": gemma, "llava": llava}


def examples(count: int = 16, length: int = 12, seed: int = 0) -> list[dict[str, Any]]:
    """Token ids with labels; a random sequence each."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, 200, (count, length), generator=rng)
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


def arguments(out: Path, **changes: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "num_train_epochs": 1,
        "weight_decay": 0.1,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **changes,
    }
    return TrainingArguments(str(out), **settings)


def trainer(
    model: nn.Module, out: Path, data: Any = None, eval_dataset: Any = None, **changes: Any
) -> Trainer:
    """A trainer of transformers on a few examples."""
    return Trainer(
        model,
        arguments(out, **changes),
        train_dataset=examples() if data is None else data,
        eval_dataset=eval_dataset,
        processing_class=tokenizer(),
    )


def copies(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
