"""A model's weights in the form that safetensors can write."""

from torch import Tensor, nn


def savable_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict as safetensors needs it: contiguous, and no two tensors share memory."""
    state: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        contiguous = tensor.contiguous()
        address = contiguous.untyped_storage().data_ptr()
        state[name] = contiguous.clone() if address in seen else contiguous
        seen.add(address)
    return state
