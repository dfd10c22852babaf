"""Tests of writing numbers and texts into bytes."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit

from select_service.fastpath.parsing.byte_kernels import copy_bytes, put_number

UNTOUCHED = 7


@njit
def put(out, at, value):
    return put_number(out, at, np.uint64(value))


@njit
def copied(out, at, data, first, length):
    return copy_bytes(out, at, data, first, length)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**64 - 1) | st.integers(0, 1000), st.integers(0, 9))
@example(0, 0)
@example(10**19, 3)
@example(2**64 - 1, 3)
def test_a_number_is_written_in_its_digits_and_nowhere_else(value: int, at: int) -> None:
    out = np.full(32, UNTOUCHED, np.uint8)
    end = put(out, at, np.uint64(value))
    assert bytes(out[at:end]) == str(value).encode()
    assert (out[:at] == UNTOUCHED).all()
    assert (out[end:] == UNTOUCHED).all()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=100), st.integers(0, 9), st.integers(0, 100), st.integers(0, 100))
def test_bytes_are_copied_and_nothing_else(data: bytes, at: int, first: int, end: int) -> None:
    part = data[first:end]
    out = np.full(120, UNTOUCHED, np.uint8)
    behind = copied(out, at, data, first, len(part))
    assert bytes(out[at:behind]) == part
    assert (out[:at] == UNTOUCHED).all()
    assert (out[behind:] == UNTOUCHED).all()
