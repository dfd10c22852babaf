"""Responses as bytes, identical to those of msgspec and the ordinary path, except for the date."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import f64_view, i64_view, tiers_view, u8_view, u64_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled.float_bits_kernels import float_from_bits
from select_service.core.placement.assumption_kernels import assumed_blocks_of
from select_service.core.placement.plan_layout import (
    BLOCK_SIZE,
    MATCHED,
    RANKS,
    S_EFFECTIVE,
    SUMMARY,
)
from select_service.core.workers.rank_table_layout import KV_BLOCKS, VERSION
from select_service.fastpath.parsing.byte_kernels import (
    NONE,
    I,
    U,
    bytes_of,
    copy_bytes,
    put_number,
)
from select_service.fastpath.parsing.request_layout import (
    ISL_TOKENS,
    N_SEQUENCE,
    RESERVATION_ID,
    RESERVE,
    RETURNS_HASHES,
    ROUTE,
    SELECT,
    SELECTION_ID,
    SESSION_ID,
)
from select_service.fastpath.serve_layout import (
    BEGIN,
    BODY_BEGIN,
    BOUND_DP_RANK,
    BOUND_WORKER,
    BUSY_BLOCKS,
    COUNTS_PREFILL,
    CREATED,
    DECODE_BLOCKS,
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
    SEQUENCE,
    SESSION_ROW,
    SESSION_SLOT,
    SLOT,
    TEXT_BYTES,
    TEXT_LENGTH,
    TEXT_VERSION,
    TEXTS,
)


def text_array(of: bytes) -> np.ndarray:
    """Return the bytes as an array."""
    return np.frombuffer(of, np.uint8).copy()


OPEN, CLOSE, END = text_array(b"{"), text_array(b"}"), text_array(b'",')
SELECTION, RESERVATION = text_array(b'"selection_id":"'), text_array(b'"reservation_id":"')
GPU, DP, CPU, DISK = (
    text_array(b',"gpu":'),
    text_array(b',"dp":{"'),
    text_array(b'},"cpu":'),
    text_array(b',"disk":'),
)
ASSUMED = text_array(b',"certainty":"assumed","assumed":')
RANK_IS, NEXT_RANK = text_array(b'":'), text_array(b',"')
EFFECTIVE = text_array(b'},"effective_prefill_tokens":')
DECODE = text_array(b',"potential_decode_blocks":')
IS_BUSY, IS_NOT_BUSY = text_array(b',"decode_busy":true'), text_array(b',"decode_busy":false')
HASHES, HASHES_END = text_array(b'"sequence_hashes":['), text_array(b"],")
ISL = text_array(b'"isl_tokens":')
TRACKED = text_array(b',"track_prefill_tokens":true,')
NOT_TRACKED = text_array(b',"track_prefill_tokens":false,')
MINUS, COMMA = bytes_of(b"-,")
SESSION, UNBOUND = text_array(b',"session":{"bound":'), text_array(b"null")
BOUND_WORKER_IS, BOUND_RANK_IS = text_array(b'{"worker_id":'), text_array(b',"dp_rank":')
FOLLOWED = text_array(b',"followed":true}')
IS_NEW = text_array(b',"followed":false,"reason":"new"}')
IS_DEARER = text_array(b',"followed":false,"reason":"cost"}')
NOT_KEPT = text_array(b',"followed":false,"reason":"table_full"}')
DONE = text_array(b'{"status":"ok"}')
HEAD_END = text_array(b"\r\ncontent-type: application/json\r\n\r\n")


@compiled()
def put_text(out, at, words):
    """Write an array of bytes; returns the offset after them."""
    return copy_bytes(out, at, words, 0, words.shape[0])


@compiled()
def put_named(out, at, name, data, state, field):
    """Write a member of the response with a text from the request, if the request has it."""
    if state[field] == NONE:
        return at
    at = put_text(out, at, name)
    at = copy_bytes(out, at, data, state[field], state[field + 1])
    return put_text(out, at, END)


@compiled()
def record_of(row, slot):
    """Return the text record of the slot; has no version before the first text."""
    return i64_view(row, RECORDS)[slot * RECORD_LENGTH : (slot + 1) * RECORD_LENGTH]


@compiled()
def has_current_text(row, slot):
    """Return whether the slot has a text that matches the current version of its rank."""
    if (slot + 1) * RECORD_LENGTH > row[RECORDS + 1]:
        return False
    versions = i64_view(i64_view(i64_view(row, PLAN), RANKS), VERSION)
    return record_of(row, slot)[TEXT_VERSION] == versions[slot]


@compiled()
def put_overlap(out, at, row, slot):
    """Write the overlap of the slot's worker with the prompt: per rank in GPU memory, and the
    maximum.
    """
    plan, record = i64_view(row, PLAN), record_of(row, slot)
    size, matched, members = plan[BLOCK_SIZE], tiers_view(plan, MATCHED), i64_view(record, MEMBERS)
    gpu, cpu, disk = I(0), I(0), I(0)
    for k in range(members.shape[0]):
        blocks = matched[members[k]]
        gpu, cpu, disk = max(gpu, I(blocks[0])), max(cpu, I(blocks[1])), max(disk, I(blocks[3]))
    at = put_number(out, at, U(size * disk))
    at = put_text(out, at, GPU)
    at = put_number(out, at, U(size * gpu))
    at = put_text(out, at, DP)
    for k in range(members.shape[0]):
        if k > 0:
            at = put_text(out, at, NEXT_RANK)
        at = put_number(out, at, U(record[FIRST_DP_RANK] + k))
        at = put_text(out, at, RANK_IS)
        at = put_number(out, at, U(size * I(matched[members[k], 0])))
    at = put_text(out, at, CPU)
    at = put_number(out, at, U(size * cpu))
    at = put_text(out, at, DISK)
    at = put_number(out, at, U(size * disk))
    assumed = assumed_blocks_of(plan, slot)
    if assumed == 0:
        return at
    at = put_text(out, at, ASSUMED)
    return put_number(out, at, U(size * assumed))


@compiled()
def put_booked_id(out, at, name, data, state):
    """Write a member of the response with the id of the reservation, of the client or generated."""
    if state[RESERVATION_ID] != NONE:
        return put_named(out, at, name, data, state, RESERVATION_ID)
    at = put_text(out, at, name)
    at = put_text(out, at, u8_view(state, NEW_ID))
    return put_text(out, at, END)


@compiled()
def put_ids(out, at, data, state):
    """Write the ids of the response: the selection id of a booking defaults to its id."""
    if state[ROUTE] == SELECT or state[SELECTION_ID] != NONE:
        at = put_named(out, at, SELECTION, data, state, SELECTION_ID)
    else:
        at = put_booked_id(out, at, SELECTION, data, state)
    if state[ROUTE] != SELECT:
        at = put_booked_id(out, at, RESERVATION, data, state)
    return at


@compiled()
def put_hashes(out, at, state):
    """Write the sequence hashes, as signed numbers."""
    sequence = u64_view(state, SEQUENCE)
    at = put_text(out, at, HASHES)
    for k in range(state[N_SEQUENCE]):
        if k != 0:
            out[U(at)] = COMMA
            at += 1
        value = sequence[U(k)]
        if I(value) < 0:
            out[U(at)] = MINUS
            at, value = at + 1, U(0) - value
        at = put_number(out, at, value)
    return put_text(out, at, HASHES_END)


@compiled()
def put_booking(out, at, state):
    """Write the members of the response that only selections with a booking have."""
    if state[RETURNS_HASHES] != 0:
        at = put_hashes(out, at, state)
    at = put_number(out, put_text(out, at, ISL), U(state[ISL_TOKENS]))
    return put_text(out, at, TRACKED if state[COUNTS_PREFILL] != 0 else NOT_TRACKED)


@compiled()
def put_decode_load(out, at, state, row, slot):
    """Write the decode load of the rank, and whether it is busy."""
    at = put_number(out, put_text(out, at, DECODE), U(state[DECODE_BLOCKS]))
    threshold = float_from_bits(state[BUSY_BLOCKS])
    if np.isnan(threshold):
        return at
    kv_blocks = f64_view(i64_view(i64_view(row, PLAN), RANKS), KV_BLOCKS)[slot]
    if kv_blocks == np.inf:
        return at
    is_busy = float(state[DECODE_BLOCKS]) > threshold * kv_blocks
    return put_text(out, at, IS_BUSY if is_busy else IS_NOT_BUSY)


@compiled()
def put_session(out, at, state, slot):
    """Write what the session of the request meant for its rank."""
    at = put_text(out, at, SESSION)
    if state[SESSION_SLOT] == NONE:
        at = put_text(out, at, UNBOUND)
    else:
        at = put_number(out, put_text(out, at, BOUND_WORKER_IS), U(state[BOUND_WORKER]))
        at = put_number(out, put_text(out, at, BOUND_RANK_IS), U(state[BOUND_DP_RANK]))
        at = put_text(out, at, CLOSE)
    if state[SESSION_ROW] < 0:
        return put_text(out, at, NOT_KEPT)
    if state[SESSION_SLOT] == slot:
        return put_text(out, at, FOLLOWED)
    return put_text(out, at, IS_NEW if state[SESSION_SLOT] == NONE else IS_DEARER)


@compiled()
def put_rank(out, at, row, slot, length):
    """Write the text of a slot, or the beginning of the text."""
    return copy_bytes(out, at, u8_view(row, TEXTS), slot * TEXT_BYTES, record_of(row, slot)[length])


@compiled()
def put_booked(out, at, data, state, row, slot):
    """Write the response body for a reservation on a rank chosen by the client."""
    at = put_text(out, at, OPEN)
    at = put_ids(out, at, data, state)
    at = put_rank(out, at, row, slot, RANK_LENGTH)
    return put_text(out, at, CLOSE)


@compiled()
def put_selection(out, at, data, state, row, slot):
    """Write the response body for a selection."""
    at = put_text(out, at, OPEN)
    at = put_ids(out, at, data, state)
    if state[ROUTE] != SELECT:
        at = put_booking(out, at, state)
    at = put_rank(out, at, row, slot, TEXT_LENGTH)
    at = put_overlap(out, at, row, slot)
    at = put_text(out, at, EFFECTIVE)
    effective = i64_view(i64_view(row, PLAN), SUMMARY)[S_EFFECTIVE]
    at = put_number(out, at, U(effective))
    at = put_decode_load(out, at, state, row, slot)
    if state[SESSION_ID] != NONE:
        at = put_session(out, at, state, slot)
    return put_text(out, at, CLOSE)


@compiled()
def put_head(out, state, status, end):
    """Write the head before the body that ends at `end`, and record where the response begins."""
    length = state[HEAD_LENGTH + status]
    n_bytes = U(end - BODY_BEGIN)
    digits = put_number(out, 0, n_bytes)
    at = BODY_BEGIN - HEAD_END.shape[0] - digits - length
    state[BEGIN] = at
    at = copy_bytes(out, at, u8_view(state, HEADS), status * HEAD_BYTES, length)
    at = put_number(out, at, n_bytes)
    put_text(out, at, HEAD_END)
    return end


@compiled()
def render_done(state):
    """Write the response without a result; returns its end in OUT."""
    return put_head(u8_view(state, OUT), state, OK, put_text(u8_view(state, OUT), BODY_BEGIN, DONE))


@compiled()
def render_selection(data, state, row):
    """Write the response with the chosen or booked rank; returns its end in OUT."""
    out, slot = u8_view(state, OUT), state[SLOT]
    if state[ROUTE] == RESERVE:
        return put_head(out, state, CREATED, put_booked(out, BODY_BEGIN, data, state, row, slot))
    return put_head(out, state, OK, put_selection(out, BODY_BEGIN, data, state, row, slot))
