"""Tensors stored as the entries that changed, and restored to the bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from retouch.sparse.delta.changed_entries import changed_entries, restore_entries
from retouch.sparse.delta.xor_diff import as_integers


def changed(base: Tensor, share: float, seed: int = 0) -> Tensor:
    """A copy in which a share of the entries has another value."""
    generator = torch.Generator().manual_seed(seed)
    tensor = base.clone().flatten()
    index = torch.randperm(len(tensor), generator=generator)[: round(share * len(tensor))]
    tensor[index] += 1
    return tensor.view(base.shape)


def stored_and_back(base: dict[str, Tensor], tensors: dict[str, Tensor]) -> int:
    """The size of what is stored, after a check that it gives the same bits again."""
    stored = load(save(changed_entries(base, tensors)))
    restored = restore_entries(base, stored)
    assert list(restored) == list(tensors)
    for name, tensor in tensors.items():
        assert restored[name].shape == tensor.shape
        assert restored[name].dtype == tensor.dtype
        expected, found = as_integers(tensor.contiguous()), as_integers(restored[name].contiguous())
        assert torch.equal(found, expected)
        shared = {base[name].data_ptr(), stored[name].data_ptr()} - {0}
        assert restored[name].data_ptr() not in shared, "it may be written to"
    return sum(tensor.nbytes for tensor in stored.values())


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 40),
    columns=st.integers(1, 60),
    share=st.sampled_from([0.0, 0.001, 0.05, 0.12, 0.13, 0.5, 0.9, 0.99, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
)
def test_the_same_bits_whatever_the_share(
    rows: int, columns: int, share: float, dtype: torch.dtype, seed: int
):
    base = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)
    tensor = changed(base, share, seed)
    size = stored_and_back({"w": base}, {"w": tensor})
    assert size <= tensor.nbytes, "never larger than the whole"


@pytest.mark.parametrize(
    ("share", "bytes_per_entry"), [(0.0, 0.0), (0.1, 0.51), (0.5, 2.13), (0.99, 4.0), (1.0, 4.0)]
)
def test_few_bytes_for_few_entries(share: float, bytes_per_entry: float):
    base = torch.randn(200, 500)
    size = stored_and_back({"w": base}, {"w": changed(base, share)})
    assert size <= bytes_per_entry * base.numel()


def test_what_counts_is_bits_and_not_values():
    base = torch.tensor([0.0, 1.0, float("nan"), 2.0] * 8)
    tensor = torch.tensor([-0.0, 1.0, float("nan"), 2.0] + [0.0, 1.0, float("nan"), 2.0] * 7)
    assert changed_entries({"w": base}, {"w": tensor})["w"].numel() == 1
    stored_and_back({"w": base}, {"w": tensor})


def test_other_memory_layouts_scalars_and_several_tensors():
    conv = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    base = {"conv": conv, "scale": torch.tensor(1.5), "same": torch.randn(9), "left": torch.ones(2)}
    tensors = {"conv": conv.clone(), "scale": torch.tensor(2.5), "same": base["same"].clone()}
    tensors["conv"][1, 2, 0, 1] = 7
    stored_and_back(base, tensors)
    assert "left" not in restore_entries(base, changed_entries(base, tensors))
