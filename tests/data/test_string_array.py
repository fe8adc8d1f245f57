"""Many strings in little memory."""

import numpy as np
import pytest

from retouch.data.stores.string_array import StringArray


def test_strings_come_back_unchanged():
    strings = ["plain.png", "", "é☆.png", b"\xff\xfe.png".decode(errors="surrogateescape")]
    array = StringArray(strings)
    assert list(array) == strings
    assert array[-1] == strings[-1]
    assert list(array[1:3]) == strings[1:3]
    assert list(array.subset(np.array([3, 0]))) == [strings[3], strings[0]]
    with pytest.raises(IndexError):
        _ = array[4]
