"""Recording of the fast path's decisions, with the ids from the request."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import i64_view, u8_view
from indexer.jit.decorators import compiled
from select_service.core.placement import decision_ring_layout as row
from select_service.core.placement.decision_ring_kernels import commit_row, write_id
from select_service.core.placement.plan_layout import RING
from select_service.fastpath.parsing.byte_kernels import NONE
from select_service.fastpath.parsing.request_layout import (
    RESERVATION_ID,
    ROUTE,
    SELECT_AND_RESERVE,
    SELECTION_ID,
)
from select_service.fastpath.serve_layout import BEGAN_NS, ID_BYTES, NEW_ID


@compiled()
def _put_request_id(words, bytes_, at, data, state, field):
    """Write an id of the request; its length is NONE if the request has none."""
    length = state[field + 1] if state[field] != NONE else NONE
    write_id(words, bytes_, at, data, state[field], length)


@compiled()
def record_decision(data, state, plan):
    """Record the decision, if the plan has a ring."""
    if plan[RING + 1] == 0:
        return
    ring, is_reserved = i64_view(plan, RING), state[ROUTE] == SELECT_AND_RESERVE
    at = commit_row(ring, is_reserved, float(state[BEGAN_NS]) / 1e9)
    if at == NONE:
        return
    words, bytes_ = i64_view(ring, row.WORDS), u8_view(ring, row.BYTES)
    _put_request_id(words, bytes_, at + row.SELECTION_ID, data, state, SELECTION_ID)
    if is_reserved and state[RESERVATION_ID] == NONE:
        write_id(words, bytes_, at + row.RESERVATION_ID, u8_view(state, NEW_ID), 0, ID_BYTES)
    else:
        _put_request_id(words, bytes_, at + row.RESERVATION_ID, data, state, RESERVATION_ID)
