"""Tests of functions that kernels call by address."""

from typing import Any

import numpy as np
import pytest
from numba import njit

from indexer.jit.decorators import compiled
from indexer.jit.function_pointers import export_function


@compiled()
def weigh_number(numbers: Any, k: int, weight: float, negative: bool) -> int:
    """Increment an entry of the numbers, and return the weighted entry."""
    if k >= len(numbers):
        raise IndexError("there is no such number")
    numbers[k] += 1
    return int(numbers[k] * weight) * (-1 if negative else 1)


address_of_weigh_number, call_weigh_number = export_function(
    "int64(int64[::1], int64, float64, boolean)", weigh_number
)


@njit
def address() -> int:
    return address_of_weigh_number()


@njit
def call(at: int, numbers: Any, k: int) -> int:
    """Call the function; its arguments are converted to the types of the signature."""
    return call_weigh_number(at, (numbers, np.int32(k), 3, k == 1)) + 1


def test_a_function_is_called_by_its_address() -> None:
    numbers = np.arange(10)
    at = address()
    assert [call(at, numbers, k) for k in (1, 5, 1)] == [-5, 19, -8]
    assert numbers.tolist() == [0, 3, 2, 3, 4, 6, 6, 7, 8, 9]


def test_its_errors_are_those_of_the_caller() -> None:
    numbers = np.arange(10)
    with pytest.raises(IndexError, match="no such number"):
        call(address(), numbers, 10)
    assert numbers.tolist() == list(range(10))
