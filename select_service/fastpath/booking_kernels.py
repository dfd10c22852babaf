"""Changes of reservations by common requests, through the compiled calls of the ledger.

Used only while no request is queued and block hashes come from the client (KERNEL_BOOKS); other
cases and all errors go to the core.  Python notifies the followers of changes.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import i64_view, u8_view, u64_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled import ledger_layout as field
from select_service.core.load.compiled.float_bits_kernels import float_from_bits, float_to_bits
from select_service.core.load.compiled.ledger_entry_kernels import (
    call_book,
    call_complete,
    call_output_block,
    call_release,
    call_renew,
    name_view,
)
from select_service.core.load.compiled.ledger_kernels import NOT_FOUND
from select_service.core.load.compiled.ledger_layout import BOOK as BOOK_AT
from select_service.core.load.compiled.ledger_layout import (
    BOOKING,
    COMPLETE,
    LOAD_TO_RELEASE,
    MANY_BLOCKS,
    N_LISTENERS,
    NOW,
    OUTPUT_BLOCK,
    RELEASE,
    RENEW,
    TTL,
)
from select_service.core.load.new_reservation import UNKNOWN_CACHED
from select_service.core.placement.plan_layout import (
    FOLLOWS_PREFILLS,
    LOAD,
    S_EFFECTIVE,
    S_EXTERNAL,
    S_WORK,
    SUMMARY,
)
from select_service.fastpath.authorization_kernels import check_tenant
from select_service.fastpath.parsing import request_layout as request
from select_service.fastpath.parsing.byte_kernels import NONE, I
from select_service.fastpath.parsing.request_layout import (
    EFFECTIVE_PREFILL_TOKENS,
    IS_SELECTION_NAMED,
    ISL_TOKENS,
    N_BLOCKS,
    N_SEQUENCE,
    N_TOKENS,
    PATH_ID,
    RESERVATION_ID,
    RESERVE,
    ROUTE,
    SESSION_ID,
)
from select_service.fastpath.response_kernels import record_of
from select_service.fastpath.serve_layout import (
    BEGAN_NS,
    BLOCKS,
    CHANGED,
    CORE_BOOKS,
    CORE_CALLS,
    COUNTS_BLOCKS,
    COUNTS_OUTPUT,
    COUNTS_PREFILL,
    DECLINED,
    DP_RANK,
    ID_BYTES,
    ID_READY,
    IS_BOUND,
    KERNEL_BOOKS,
    LEDGER,
    LEDGER_BROKEN,
    NEEDS_ID,
    NEW_ID,
    NOTIFY_FOLLOWERS,
    PLAN,
    SEQUENCE,
    SLOT,
    SUM,
    WAITS,
    WORKER_ID,
)
from select_service.fastpath.session_kernels import bind_session


@compiled()
def may_change(state):
    """Return whether kernels may change reservations now."""
    return state[KERNEL_BOOKS] != 0 and i64_view(state, WAITS)[0] == 0


@compiled()
def _follower_step(state, ledger, row):
    """Return 0, or NOTIFY_FOLLOWERS if followers must be notified of the row."""
    state[CHANGED] = row
    return 0 if ledger[N_LISTENERS] == 0 else NOTIFY_FOLLOWERS


@compiled(error_model="numpy")
def request_time(state):
    """Return the time of the request in seconds, on the clock of time.monotonic()."""
    return float(state[BEGAN_NS]) / 1e9


@compiled()
def _call_ledger(state, ledger, name):
    """Apply a lifecycle call; returns the row of the reservation, in the convention of the ledger
    calls.
    """
    route, now = state[ROUTE], request_time(state)
    if route == request.FREE:
        ledger[NOW] = float_to_bits(now)
        return call_release(ledger[RELEASE], (ledger, name))
    if route == request.PREFILL_COMPLETE or route == request.FIRST_TOKEN:
        return call_complete(ledger[COMPLETE], (ledger, name, now))
    if route == request.OUTPUT_BLOCK and state[COUNTS_OUTPUT] != 0:
        weight = float_from_bits(state[request.DECAY_FRACTION])
        return call_output_block(ledger[OUTPUT_BLOCK], (ledger, name, weight, now))
    return call_renew(ledger[RENEW], (ledger, name, now))


@compiled()
def apply_lifecycle_call(data, state):
    """Apply the route to the reservation of its path.  Returns 0, or why that was not done."""
    ledger, name = i64_view(state, LEDGER), name_view(data, state[PATH_ID], state[PATH_ID + 1])
    if state[IS_BOUND] != 0:
        status = check_tenant(state, ledger, name)
        if status < 0:
            return status
    if not may_change(state):
        return CORE_CALLS
    row = _call_ledger(state, ledger, name)
    if row == NOT_FOUND:
        return DECLINED
    ends_prefill = state[ROUTE] == request.PREFILL_COMPLETE or state[ROUTE] == request.FIRST_TOKEN
    # These return the negative row if no prefill load was left to release: no fault.
    if row < 0 and not ends_prefill:
        return LEDGER_BROKEN
    # Renewals and output blocks change no load that peers track.
    is_followed = ends_prefill or state[ROUTE] == request.FREE
    return _follower_step(state, ledger, abs(row)) if is_followed else 0


@compiled()
def name_of(data, state):
    """Return the id from the client or the generated one, uint8[n]."""
    if state[RESERVATION_ID] == NONE:
        return name_view(u8_view(state, NEW_ID), 0, ID_BYTES)
    return name_view(data, state[RESERVATION_ID], state[RESERVATION_ID + 1])


@compiled()
def _client_prefill(state, plan):
    """Return (tokens to book, own work) on a rank chosen by the client.

    NONE tokens if the client gives more than the prompt has.
    """
    given = state[EFFECTIVE_PREFILL_TOKENS]
    if given > state[ISL_TOKENS]:
        return I(NONE), I(0)
    if given == NONE and state[COUNTS_PREFILL] == 0:
        return I(0), I(0)
    # As `core.booking_numbers.booked_tokens`.
    if given == NONE and state[IS_SELECTION_NAMED] != 0 and plan[FOLLOWS_PREFILLS] == 0:
        given = I(0)
    tokens = state[ISL_TOKENS] if given == NONE else given
    return tokens, max(tokens, I(1))


@compiled()
def has_block_hashes(state):
    """Return whether the prompt has block hashes; those given by a client with its own rank are
    ignored.
    """
    return state[ROUTE] != RESERVE or state[N_TOKENS] != NONE


@compiled()
def _prefill_to_book(state, plan):
    """Return (tokens to book or NONE, own work, cached blocks) as in `NewReservation`."""
    summary = i64_view(plan, SUMMARY)
    if state[ROUTE] == RESERVE:
        tokens, work = _client_prefill(state, plan)
        if plan[FOLLOWS_PREFILLS] == 0 or work == 0:
            return tokens, work, I(UNKNOWN_CACHED)
        return tokens, max(min(tokens, summary[S_WORK]), I(1)), summary[S_EXTERNAL]
    if state[COUNTS_PREFILL] == 0:
        return I(0), I(0), summary[S_EXTERNAL]
    return summary[S_EFFECTIVE], summary[S_WORK], summary[S_EXTERNAL]


@compiled()
def fill_booking(state, row, leg, part):
    """Fill BOOKING of the ledger for the prompt on one rank.

    leg: (slot, tokens, own work, cached blocks)
    part: part of the request, for observations (ledger_layout)
    """
    ledger, (slot, tokens, work, cached) = i64_view(state, LEDGER), leg
    booking, record = i64_view(ledger, BOOKING), record_of(row, slot)
    now, ttl_s = float_to_bits(request_time(state)), float_from_bits(ledger[TTL])
    booking[field.SLOT] = slot
    booking[field.HASHED_BLOCKS] = state[N_SEQUENCE] if state[COUNTS_BLOCKS] != 0 else 0
    booking[field.WHOLE_WEIGHT_BLOCKS] = 0
    booking[field.ISL_TOKENS], booking[field.TOKENS] = state[ISL_TOKENS], tokens
    booking[field.IS_PREFILLING] = 1
    booking[field.WORKER_ID], booking[field.DP_RANK] = record[WORKER_ID], record[DP_RANK]
    booking[field.SUM] = row[SUM]
    booking[field.WORK], booking[field.CACHED] = work, cached
    booking[field.BOOKED_AT], booking[field.RENEWED_AT] = now, now
    booking[field.LEASE_S] = float_to_bits(ttl_s if ttl_s > 0.0 else np.inf)
    booking[field.REQUEST_PART] = part


@compiled()
def book_chosen(data, state, row, step):
    """Book the prompt on SLOT.  Returns 0, or the step needed instead, before or afterwards.

    After a booking that called the owner of its load, the core takes over.
    """
    ledger, n_blocks = i64_view(state, LEDGER), state[N_SEQUENCE]
    plan = i64_view(row, PLAN)
    tokens, _, _ = _prefill_to_book(state, plan)
    is_usual = n_blocks < MANY_BLOCKS and row[SUM] != NONE and tokens != NONE
    if not is_usual or ledger[LOAD_TO_RELEASE] != 0 or not may_change(state):
        return CORE_BOOKS
    if state[RESERVATION_ID] == NONE and step != ID_READY:
        return NEEDS_ID
    tokens, work, cached = _prefill_to_book(state, plan)
    fill_booking(state, row, (state[SLOT], tokens, work, cached), field.ANY_PART)
    named = n_blocks if state[COUNTS_BLOCKS] != 0 else 0
    kept = state[N_BLOCKS] if plan[FOLLOWS_PREFILLS] != 0 and has_block_hashes(state) else 0
    hashes, prompt = u64_view(state, SEQUENCE)[:named], u64_view(state, BLOCKS)[:kept]
    given = (ledger, i64_view(plan, LOAD), name_of(data, state), hashes, prompt)
    booked = call_book(ledger[BOOK_AT], given)
    # A failed booking has changed nothing: the core repeats it and reports why.
    if booked <= 0:
        return CORE_BOOKS
    if state[SESSION_ID] != NONE:
        bind_session(data, state, row, ledger, booked)
    return _follower_step(state, ledger, booked)
