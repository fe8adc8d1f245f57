"""Deltas that follow each other."""

from dataclasses import replace

import pytest
from networks import learn, network

from retouch.errors import UserError
from retouch.sparse import Delta, fingerprint, in_order, join


def test_deltas_are_put_in_order():
    model = network()
    deltas = [learn(model, seed=task) for task in range(4)]
    empty = Delta(deltas[1].after, deltas[1].after, {})
    shuffled = [deltas[2], empty, deltas[0], deltas[3], deltas[1]]
    ordered = in_order(shuffled)
    assert [delta.after for delta in ordered] == [
        deltas[0].after,
        *[deltas[1].after] * 2,
        deltas[2].after,
        deltas[3].after,
    ]
    base = network()
    join(shuffled).apply(base)
    assert fingerprint(base) == fingerprint(model)
    with pytest.raises(
        UserError, match=rf"at {deltas[2].before[:12]}, .* at {deltas[0].before[:12]}"
    ):
        in_order([deltas[2], deltas[0]])
    with pytest.raises(UserError, match="which the others do not lead to"):
        in_order([deltas[0], replace(empty, before="x", after="x")])
    with pytest.raises(UserError, match="both begin at"):
        in_order([deltas[0], learn(network(), seed=9)])
    with pytest.raises(UserError, match="are the same change"):
        in_order([deltas[0], deltas[1], deltas[1]])
    cycle = [deltas[0], replace(deltas[0], before=deltas[0].after, after=deltas[0].before)]
    assert in_order(cycle) == cycle
