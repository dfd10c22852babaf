"""Conversion of floating-point numbers in headers and rows of int64."""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.jit.decorators import compiled


@compiled()
def float_from_bits(bits):
    return np.int64(bits).view(np.float64)


@compiled()
def float_to_bits(number):
    return np.float64(number).view(np.int64)
