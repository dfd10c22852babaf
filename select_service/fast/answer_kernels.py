"""Answers as bytes: what msgspec and the ordinary path would write, but for the date."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import i64_view, tiers_view, u8_view
from select_service.core.decide.plan_layout import BLOCK_SIZE, MATCHED, RANKS, S_EFFECTIVE, SUMMARY
from select_service.core.workers.rank_layout import VERSION
from select_service.fast.byte_kernels import NONE, I, U, copy, put_number
from select_service.fast.request_layout import RESERVATION_ID, RESERVE, ROUTE, SELECT, SELECTION_ID
from select_service.fast.serve_layout import (
    BEGIN,
    BODY_BEGIN,
    CREATED,
    FIRST_DP_RANK,
    HEAD_BYTES,
    HEAD_LENGTH,
    HEADS,
    MEMBERS,
    NEW_ID,
    OK,
    OUT,
    PLAN,
    RANK_LENGTH,
    RECORD_LENGTH,
    RECORDS,
    SLOT,
    TEXT_BYTES,
    TEXT_LENGTH,
    TEXTS,
    VERSION_TOLD,
)


def text(of: bytes) -> np.ndarray:
    return np.frombuffer(of, np.uint8).copy()


OPEN, CLOSE, END = text(b"{"), text(b"}"), text(b'",')
SELECTION, RESERVATION = text(b'"selection_id":"'), text(b'"reservation_id":"')
GPU, DP, CPU, DISK = text(b',"gpu":'), text(b',"dp":{"'), text(b'},"cpu":'), text(b',"disk":')
RANK_IS, NEXT_RANK = text(b'":'), text(b',"')
EFFECTIVE = text(b'},"effective_prefill_tokens":')
DONE = text(b'{"status":"ok"}')
HEAD_END = text(b"\r\ncontent-type: application/json\r\n\r\n")


@compiled()
def put(out, at, words):
    return copy(out, at, words, 0, words.shape[0])


@compiled()
def put_named(out, at, name, data, state, field):
    """A member of the answer that is as the request has it, if it has it."""
    if state[field] == NONE:
        return at
    at = put(out, at, name)
    at = copy(out, at, data, state[field], state[field + 1])
    return put(out, at, END)


@compiled()
def record_of(row, slot):
    """What was made of the slot; without a version when nothing was."""
    return i64_view(row, RECORDS)[slot * RECORD_LENGTH : (slot + 1) * RECORD_LENGTH]


@compiled()
def is_told(row, slot):
    """Is there a text of the slot that says what is known of its rank now?"""
    if (slot + 1) * RECORD_LENGTH > row[RECORDS + 1]:
        return False
    versions = i64_view(i64_view(i64_view(row, PLAN), RANKS), VERSION)
    return record_of(row, slot)[VERSION_TOLD] == versions[slot]


@compiled()
def put_overlap(out, at, row, slot):
    """What the worker of the slot holds of the prompt: per rank in GPU memory, and the most."""
    plan, record = i64_view(row, PLAN), record_of(row, slot)
    size, matched, members = plan[BLOCK_SIZE], tiers_view(plan, MATCHED), i64_view(record, MEMBERS)
    gpu, cpu, disk = I(0), I(0), I(0)
    for k in range(members.shape[0]):
        blocks = matched[members[k]]
        gpu, cpu, disk = max(gpu, I(blocks[0])), max(cpu, I(blocks[1])), max(disk, I(blocks[3]))
    at = put_number(out, at, U(size * disk))
    at = put(out, at, GPU)
    at = put_number(out, at, U(size * gpu))
    at = put(out, at, DP)
    for k in range(members.shape[0]):
        if k > 0:
            at = put(out, at, NEXT_RANK)
        at = put_number(out, at, U(record[FIRST_DP_RANK] + k))
        at = put(out, at, RANK_IS)
        at = put_number(out, at, U(size * I(matched[members[k], 0])))
    at = put(out, at, CPU)
    at = put_number(out, at, U(size * cpu))
    at = put(out, at, DISK)
    return put_number(out, at, U(size * disk))


@compiled()
def put_reservation_id(out, at, data, state):
    if state[RESERVATION_ID] != NONE:
        return put_named(out, at, RESERVATION, data, state, RESERVATION_ID)
    at = put(out, at, RESERVATION)
    at = put(out, at, u8_view(state, NEW_ID))
    return put(out, at, END)


@compiled()
def put_rank(out, at, row, slot, length):
    """The text of a slot, or the beginning of it."""
    return copy(out, at, u8_view(row, TEXTS), slot * TEXT_BYTES, record_of(row, slot)[length])


@compiled()
def put_booked(out, at, data, state, row, slot):
    """The answer to a reservation on a rank that the client chose."""
    at = put(out, at, OPEN)
    at = put_reservation_id(out, at, data, state)
    at = put_rank(out, at, row, slot, RANK_LENGTH)
    return put(out, at, CLOSE)


@compiled()
def put_selection(out, at, data, state, row, slot):
    at = put(out, at, OPEN)
    at = put_named(out, at, SELECTION, data, state, SELECTION_ID)
    if state[ROUTE] != SELECT:
        at = put_reservation_id(out, at, data, state)
    at = put_rank(out, at, row, slot, TEXT_LENGTH)
    at = put_overlap(out, at, row, slot)
    at = put(out, at, EFFECTIVE)
    effective = i64_view(i64_view(row, PLAN), SUMMARY)[S_EFFECTIVE]
    at = put_number(out, at, U(effective))
    return put(out, at, CLOSE)


@compiled()
def put_head(out, state, status, end):
    """Put the head before the body that ends at `end`, and note where the answer begins."""
    length = state[HEAD_LENGTH + status]
    n_bytes = U(end - BODY_BEGIN)
    digits = put_number(out, 0, n_bytes)
    at = BODY_BEGIN - HEAD_END.shape[0] - digits - length
    state[BEGIN] = at
    at = copy(out, at, u8_view(state, HEADS), status * HEAD_BYTES, length)
    at = put_number(out, at, n_bytes)
    put(out, at, HEAD_END)
    return end


@compiled()
def render_done(state):
    """Write that it is done; where the answer ends in OUT."""
    return put_head(u8_view(state, OUT), state, OK, put(u8_view(state, OUT), BODY_BEGIN, DONE))


@compiled()
def render(data, state, row):
    """Write the answer of the route that says where a prompt goes; where it ends in OUT."""
    out, slot = u8_view(state, OUT), state[SLOT]
    if state[ROUTE] == RESERVE:
        return put_head(out, state, CREATED, put_booked(out, BODY_BEGIN, data, state, row, slot))
    return put_head(out, state, OK, put_selection(out, BODY_BEGIN, data, state, row, slot))
