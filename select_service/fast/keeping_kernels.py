"""Keeping the decisions that are answered here, with the ids that the request gives."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import i64_view, u8_view
from select_service.core.decide import decision_layout as row
from select_service.core.decide.decision_kernels import keep, put_id
from select_service.core.decide.plan_layout import RING
from select_service.fast.byte_kernels import NONE
from select_service.fast.request_layout import (
    RESERVATION_ID,
    ROUTE,
    SELECT_AND_RESERVE,
    SELECTION_ID,
)
from select_service.fast.serve_layout import BEGAN_NS, ID_BYTES, NEW_ID


@compiled()
def _put_given(words, bytes_, at, data, state, field):
    """An id that the request gives; its length is NONE where it gives none."""
    length = state[field + 1] if state[field] != NONE else NONE
    put_id(words, bytes_, at, data, state[field], length)


@compiled()
def keep_usual(data, state, plan):
    """Keep what was decided, if the plan has a ring."""
    if plan[RING + 1] == 0:
        return
    ring, is_reserved = i64_view(plan, RING), state[ROUTE] == SELECT_AND_RESERVE
    at = keep(ring, is_reserved, float(state[BEGAN_NS]) / 1e9)
    if at == NONE:
        return
    words, bytes_ = i64_view(ring, row.WORDS), u8_view(ring, row.BYTES)
    _put_given(words, bytes_, at + row.SELECTION_ID, data, state, SELECTION_ID)
    if is_reserved and state[RESERVATION_ID] == NONE:
        put_id(words, bytes_, at + row.RESERVATION_ID, u8_view(state, NEW_ID), 0, ID_BYTES)
    else:
        _put_given(words, bytes_, at + row.RESERVATION_ID, data, state, RESERVATION_ID)
