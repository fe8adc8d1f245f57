"""Positions in few bytes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from retouch.sparse.delta.codec import decode, encode


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 5000), data=st.data())
def test_decode_inverts_encode(size, data):
    count = data.draw(st.integers(0, size))
    seed = data.draw(st.integers(0, 1000))
    index = np.sort(np.random.default_rng(seed).permutation(size)[:count])
    coding, encoded = encode(index, size)
    assert np.array_equal(decode(coding, encoded, size), index)
    assert len(encoded) <= min(size // 8 + 1, count + size // 255 + 1) + count // 8


def test_large_gaps_and_the_first_and_last_position():
    for index in ([0], [999_999], [254, 255, 256, 510, 511, 766, 100_000], []):
        positions = np.array(index, np.int64)
        assert decode(*encode(positions, 1_000_000), 1_000_000).tolist() == index
    assert decode(*encode(None, 10), 10) is None
