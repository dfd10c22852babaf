"""Look-up of a partition's row by the names in a request."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import i64_view, mix_bits, u8_view
from indexer.jit.decorators import compiled
from select_service.fastpath.parsing.byte_kernels import NONE, I, U
from select_service.fastpath.parsing.request_layout import MODEL_NAME, TENANT_ID
from select_service.fastpath.serve_layout import (
    AT_ROW,
    MODEL_BYTES,
    NAMES,
    NAMES_HASH,
    PLACES,
    ROW_LENGTH,
    ROWS,
)
from select_service.schemas.common import DEFAULT_NAME

DEFAULT = np.frombuffer(DEFAULT_NAME.encode(), np.uint8).copy()


@compiled()
def row_at(state, number):
    """Return the row with a number."""
    return i64_view(state, ROWS)[number * ROW_LENGTH : (number + 1) * ROW_LENGTH]


@compiled()
def _bytes_equal(names, begin, end, data, at, length):
    if end - begin != length:
        return False
    # Without an early exit LLVM can vectorize the loop.
    same = True
    for k in range(length):
        same &= names[U(begin + k)] == data[U(at + k)]
    return same


@compiled()
def _has_name(names, begin, end, data, state, field):
    """Return whether the request gives this name; an omitted name means the default."""
    if state[field] == NONE:
        return _bytes_equal(names, begin, end, DEFAULT, 0, DEFAULT.shape[0])
    return _bytes_equal(names, begin, end, data, state[field], state[field + 1])


@compiled()
def _is_asked_for(state, number, data):
    """Return whether the request names the partition of the row."""
    row = row_at(state, number)
    names, middle = u8_view(row, NAMES), row[MODEL_BYTES]
    return _has_name(names, 0, middle, data, state, MODEL_NAME) and _has_name(
        names, middle, names.shape[0], data, state, TENANT_ID
    )


@compiled()
def _fnv1a(h, data, at, length):
    """Return the FNV-1a hash, continued over the text and its end."""
    for k in range(length):
        h = (h ^ U(data[U(at + k)])) * U(0x100000001B3)
    return (h ^ U(0xFF)) * U(0x100000001B3)


@compiled()
def _hash_of_name(h, data, state, field):
    if state[field] == NONE:
        return _fnv1a(h, DEFAULT, 0, DEFAULT.shape[0])
    return _fnv1a(h, data, state[field], state[field + 1])


@compiled()
def find_row(state, data):
    """Set AT_ROW to the row of the requested partition; returns False if there is none.

    O(1): the row of the previous request is tried first.
    """
    if state[AT_ROW] != NONE and _is_asked_for(state, state[AT_ROW], data):
        return True
    places = i64_view(state, PLACES)
    h = _hash_of_name(U(0xCBF29CE484222325), data, state, MODEL_NAME)
    h = _hash_of_name(h, data, state, TENANT_ID)
    state[NAMES_HASH] = I(mix_bits(h) >> U(32))
    at = state[NAMES_HASH] & (places.shape[0] - 1)
    while places[U(at)] != NONE:
        state[AT_ROW] = places[U(at)]
        if _is_asked_for(state, state[AT_ROW], data):
            return True
        at = (at + 1) & (places.shape[0] - 1)
    return False
