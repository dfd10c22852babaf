"""Floating-point numbers in headers and rows of int64."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled


@compiled()
def float_of(bits):
    return np.int64(bits).view(np.float64)


@compiled()
def bits_of(number):
    return np.float64(number).view(np.int64)
