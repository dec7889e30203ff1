"""The block kernels if R (K, G*D, D) has more elements than an int can count."""

import ctypes
import shutil

import numpy as np
import pytest

from python_tests.gpu import builder

GATES, UNITS = 4, 128


@pytest.fixture(scope="module")
def library():
    if shutil.which(builder.compiler()[0]) is None:
        pytest.skip("no C++ compiler")
    return ctypes.CDLL(str(builder.build("many_heads", [*builder.INTERPRETER, "python_tests/gpu/many_heads.cpp"])))


def last_head(library, heads: int, backward: bool) -> np.ndarray:
    found = np.zeros(UNITS, np.float32)
    library.last_head(ctypes.c_int64(heads), backward, found.ctypes.data_as(ctypes.POINTER(ctypes.c_float)))
    return found


@pytest.mark.parametrize("backward", [False, True])
def test_the_last_of_many_heads_is_as_if_it_were_alone(backward, library):
    many = 2**31 // (GATES * UNITS * UNITS) + 1
    alone = last_head(library, 1, backward)
    assert np.abs(alone).max() > 0
    assert np.array_equal(last_head(library, many, backward), alone)
