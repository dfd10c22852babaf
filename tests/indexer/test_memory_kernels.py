"""Tests of memory for kernels, which own no memory."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np
from numba import njit

from indexer.jit.decorators import carray, compiled
from indexer.jit.memory_kernels import as_pointer, calloc, free, stack_array

four = stack_array("uint64", 4)


@compiled()
def backwards(depth):
    """Return a sum that is right only if every call has its own array."""
    mine = four()
    for k in range(len(mine)):
        mine[k] = depth * 10 + k
    below = backwards(depth - 1) if depth > 0 else 0
    return below + np.int64(mine[0] + mine[3])


@njit
def depths(n):
    return backwards(n)


@njit
def squares(n):
    """Return the sum of the initial values, and the sum of the written values."""
    address = calloc(8 * n)
    numbers = carray(as_pointer(address), n, np.int64)
    before = numbers.sum()
    for k in range(n):
        numbers[k] = k * k
    after = numbers.sum()
    free(address)
    return before, after


def test_an_array_on_the_stack_is_of_one_call() -> None:
    assert depths(5) == sum(20 * depth + 3 for depth in range(6))


def test_allocated_memory_is_zero_and_is_freed() -> None:
    for _ in range(50):
        assert squares(1000) == (0, sum(k * k for k in range(1000)))
