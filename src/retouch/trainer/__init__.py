"""Teach a language model inside transformers' `Trainer`, or TRL's, without making it forget.

from retouch.trainer import ControlLoss, SelectiveUpdate

trainer = SFTTrainer(model, args=args, train_dataset=chats)
update = SelectiveUpdate(rate=0.1).attach(trainer)
ControlLoss("control.jsonl").attach(trainer)
trainer.train()
update.delta.save("chats.safetensors")
"""

from importlib import import_module

from retouch.torchvision_compat import patch_torchvision

# Imported on first use: transformers takes seconds, and whoever loads a model's folder for a delta
# needs no trainer.
_MODULES = {
    "BitsPerByte": "document_bits",
    "CausalModel": "causal_model",
    "ControlLoss": "control_loss",
    "ReplayBuffer": "replay",
    "SelectiveUpdate": "selective_update",
    "bits_per_byte": "document_bits",
    "is_causal_folder": "causal_model",
    "load_causal": "causal_model",
}
__all__ = [
    "BitsPerByte",
    "CausalModel",
    "ControlLoss",
    "ReplayBuffer",
    "SelectiveUpdate",
    "bits_per_byte",
    "is_causal_folder",
    "load_causal",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from retouch.trainer.causal_model import CausalModel, is_causal_folder, load_causal
    from retouch.trainer.control_loss import ControlLoss
    from retouch.trainer.document_bits import BitsPerByte, bits_per_byte
    from retouch.trainer.replay import ReplayBuffer
    from retouch.trainer.selective_update import SelectiveUpdate


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"retouch.trainer has no {name!r}")
    patch_torchvision()
    return getattr(import_module(f"retouch.trainer.{_MODULES[name]}"), name)
