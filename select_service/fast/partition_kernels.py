"""From the names in a request to the row of its partition."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import i64_view, mix, u8_view
from select_service.bodies.common import DEFAULT_NAME
from select_service.fast.byte_kernels import NONE, I, U
from select_service.fast.request_layout import MODEL_NAME, TENANT_ID
from select_service.fast.serve_layout import (
    AT_ROW,
    MODEL_BYTES,
    NAMES,
    NAMES_HASH,
    PLACES,
    ROW_LENGTH,
    ROWS,
)

DEFAULT = np.frombuffer(DEFAULT_NAME.encode(), np.uint8).copy()


@compiled()
def row_of(state, number):
    return i64_view(state, ROWS)[number * ROW_LENGTH : (number + 1) * ROW_LENGTH]


@compiled()
def _same(known, begin, end, data, at, length):
    if end - begin != length:
        return False
    same = True
    for k in range(length):
        same &= known[U(begin + k)] == data[U(at + k)]
    return same


@compiled()
def _has_name(known, begin, end, data, state, field):
    """Does the request give this name, or none, which means the default?"""
    if state[field] == NONE:
        return _same(known, begin, end, DEFAULT, 0, DEFAULT.shape[0])
    return _same(known, begin, end, data, state[field], state[field + 1])


@compiled()
def _is_asked_for(state, number, data):
    row = row_of(state, number)
    names, middle = u8_view(row, NAMES), row[MODEL_BYTES]
    return _has_name(names, 0, middle, data, state, MODEL_NAME) and _has_name(
        names, middle, names.shape[0], data, state, TENANT_ID
    )


@compiled()
def _hashed(h, data, at, length):
    """FNV-1a, of the text and its end."""
    for k in range(length):
        h = (h ^ U(data[U(at + k)])) * U(0x100000001B3)
    return (h ^ U(0xFF)) * U(0x100000001B3)


@compiled()
def _hash_of_name(h, data, state, field):
    if state[field] == NONE:
        return _hashed(h, DEFAULT, 0, DEFAULT.shape[0])
    return _hashed(h, data, state[field], state[field + 1])


@compiled()
def find_row(state, data):
    """Let AT_ROW be the row of the partition that the request names; False: it has none.

    O(1): the row of the last request is looked at first.
    """
    if state[AT_ROW] != NONE and _is_asked_for(state, state[AT_ROW], data):
        return True
    places = i64_view(state, PLACES)
    h = _hash_of_name(U(0xCBF29CE484222325), data, state, MODEL_NAME)
    h = _hash_of_name(h, data, state, TENANT_ID)
    state[NAMES_HASH] = I(mix(h) >> U(32))
    at = state[NAMES_HASH] & (places.shape[0] - 1)
    while places[U(at)] != NONE:
        state[AT_ROW] = places[U(at)]
        if _is_asked_for(state, state[AT_ROW], data):
            return True
        at = (at + 1) & (places.shape[0] - 1)
    return False
