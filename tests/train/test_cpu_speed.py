"""A run on a processor without unused work, and with memory that is used again.

`train/test_same_result.py` teaches every method so.
"""

import ctypes
import resource

import pytest
import torch
from compiled_towers import encode, noise
from recipes_for_tests import QUICK
from tiny import tiny_clip, tiny_siglip

from retouch.train import cpu_speed
from retouch.train.cpu_speed import faster_on_cpu, keep_freed_memory


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models count as large."""
    monkeypatch.setattr(cpu_speed, "SMALL_MODEL", 0)


def tokens_of_last_mlp(clip) -> list[int]:
    """How many tokens pass through the last block's MLP, pass by pass."""
    counts: list[int] = []
    mlp = clip.model.get_submodule(clip.blocks["image"][-1]).mlp
    original = type(mlp.fc1).forward

    def forward(inputs):
        counts.append(inputs.shape[1])
        return original(mlp.fc1, inputs)

    mlp.fc1.forward = forward
    return counts


def test_the_last_block_of_a_large_model_is_computed_for_the_class_token_only(every_size):
    clip = tiny_clip()
    plain = encode(clip, 3)
    counts = tokens_of_last_mlp(clip)
    with faster_on_cpu(clip, QUICK):
        fast = encode(clip, 3)
    clip.image_features(noise(clip, 2))
    assert counts[0] == 1 < counts[1], "afterwards the tower is as before"
    for one, other in zip(plain, fast, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_small_model_stays_the_same_to_the_bit():
    clip = tiny_clip()
    plain = encode(clip, 3)
    with faster_on_cpu(clip, QUICK):
        assert all(torch.equal(a, b) for a, b in zip(plain, encode(clip, 3), strict=True))


@pytest.mark.parametrize("change", [{"compile": True}, {"shard": True}])
def test_compiled_and_sharded_towers_are_left_alone(change, every_size):
    clip = tiny_clip()
    with faster_on_cpu(clip, QUICK.model_copy(update=change)):
        assert not any("forward" in vars(module) for module in clip.model.modules())


def test_a_tower_that_pools_all_tokens_is_left_alone(every_size):
    clip = tiny_siglip()
    plain = encode(clip, 3)
    with faster_on_cpu(clip, QUICK):
        assert all(torch.equal(a, b) for a, b in zip(plain, encode(clip, 3), strict=True))


@pytest.mark.skipif(cpu_speed._glibc() is None, reason="another C library than glibc")
def test_freed_memory_is_used_again():
    """Memory of glibc itself: where torch has its own allocator, tensors would not show it."""
    libc, size = ctypes.CDLL(None), 2**26
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(4):
            memory = libc.malloc(size)
            libc.memset(memory, 1, size)
            libc.free(memory)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    usual = faults()
    with keep_freed_memory():
        faults()
        # Something else may come to lie where the freed memory was, so that it is allocated anew.
        assert min(faults() for _ in range(3)) < usual / 10
    assert faults() > usual / 10, "afterwards memory is given back"
