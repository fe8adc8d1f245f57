"""What cannot be trained selectively is refused before the first step."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from retouch.errors import UserError
from retouch.sparse import locate
from retouch.trainer.scoring import IGNORED

ADAMW = ("adamw_torch", "adamw_torch_fused")


def check_trainer(trainer: Any) -> None:
    """Refuse a trainer whose model or settings do not go with a selective update.

    Args:
        trainer: What is to be trained.
    """
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise UserError(
            f"{type(trainer).__name__} is no trainer; give a transformers.Trainer, or one that "
            "derives from it, such as TRL's SFTTrainer"
        )
    check_model(trainer.model)
    _check_parallel(trainer)
    _check_checkpointing(trainer.args)
    optim = getattr(trainer.args.optim, "value", trainer.args.optim)
    if optim not in ADAMW or trainer.args.optim_args:
        raise UserError(
            f"optim={optim!r} cannot train single weights, which are trained by AdamW; set "
            "optim='adamw_torch', without optim_args"
        )
    if trainer.optimizer is not None or trainer.optimizer_cls_and_kwargs is not None:
        raise UserError(
            "the trainer was given an optimizer, which would train all weights; leave out "
            "`optimizers` and `optimizer_cls_and_kwargs`"
        )
    if trainer.model_init is not None:
        raise UserError("the trainer makes its model anew by `model_init`; give it a model instead")


def check_model(model: nn.Module) -> None:
    """Refuse a model whose own weights cannot be trained.

    Args:
        model: The model.
    """
    if hasattr(model, "peft_config"):
        raise UserError(
            f"the model is wrapped by peft ({type(model).__name__}), which freezes its weights and "
            "trains an adapter; give the trainer the plain model, without peft_config. To go on "
            "from an adapter, merge it first: model.merge_and_unload()"
        )
    method = getattr(model, "quantization_method", None) or (
        "bitsandbytes" if getattr(model, "is_quantized", False) else None
    )
    if method is not None:
        name = getattr(method, "value", method)
        raise UserError(
            f"the model's weights are quantized ({name}), and single weights cannot be changed in "
            "that form; load it in bfloat16 or float32, without quantization_config"
        )


def trainable_of(model: nn.Module, where: str | Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters that weights are selected from, without those that are frozen.

    Args:
        model: The model.
        where: As in `retouch.sparse.locate`.
    """
    located = locate(model, where)
    trainable = {name: p for name, p in located.items() if p.requires_grad}
    if not trainable:
        raise UserError(
            f"all {len(located)} matrices that weights would be selected from are frozen, such as "
            f"{next(iter(located))}; call requires_grad_(True) on those to train, or name others "
            "with where=…"
        )
    return trainable


def _check_parallel(trainer: Any) -> None:
    if trainer.is_fsdp_enabled or trainer.is_fsdp_xla_enabled:
        raise UserError(
            "FSDP shards the matrices that weights are selected from, so no process could rank "
            "all weights of one; use DDP (torchrun without fsdp), where every process has the "
            "whole model"
        )
    if trainer.is_deepspeed_enabled:
        raise UserError(
            "DeepSpeed brings its own optimizer, which would train all weights; start it with "
            "torchrun, without deepspeed"
        )
    if trainer.args.n_gpu > 1:
        raise UserError(
            f"this process would use {trainer.args.n_gpu} GPUs by DataParallel, which copies the "
            "model in every step; start one process per GPU with torchrun, or let it see one GPU "
            "(CUDA_VISIBLE_DEVICES=0)"
        )


def _check_checkpointing(args: Any) -> None:
    names = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
    settings = [getattr(args, name, None) or {} for name in names]
    if any(each.get("use_reentrant") for each in settings):
        raise UserError(
            "gradient checkpointing with use_reentrant=True gives no gradient where the embeddings "
            "are frozen; set gradient_checkpointing_kwargs={'use_reentrant': False}"
        )


def check_batch(trainer: Any, batch: Any) -> None:
    """Refuse data that nothing can be learned from.

    Args:
        trainer: What is to be trained.
        batch: Its first batch.
    """
    from transformers import Trainer

    own_loss = type(trainer).compute_loss is not Trainer.compute_loss or trainer.compute_loss_func
    if not hasattr(batch, "keys"):
        return
    if "labels" not in batch:
        if own_loss:
            return
        columns = ", ".join(batch.keys()) or "nothing"
        raise UserError(
            f"the training data has no labels: a batch holds {columns}, so there is no loss to "
            "learn by. Give the trainer DataCollatorForLanguageModeling(tokenizer, mlm=False), or "
            "a data set with a column `labels`"
        )
    if bool((batch["labels"] == IGNORED).all()):
        raise UserError(
            f"every label of the first batch is {IGNORED}, so nothing would be learned; look at "
            "how prompts are masked, and whether answers are cut off (max_length)"
        )
