"""What usual requests change: reservations, by the verbs of the ledger.

Only where nobody waits for capacity at this moment, and every block has the name that the client
gave it (BOOKS); everything else is the verbs' of the core, and so is every refusal.  Those who
follow the changes are told of them by Python.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import i64_view, u8_view, u64_view
from select_service.core.decide.plan_layout import (
    FOLLOWS,
    LOAD,
    S_EFFECTIVE,
    S_EXTERNAL,
    S_WORK,
    SUMMARY,
)
from select_service.core.load.bits_kernels import float_of
from select_service.core.load.ledger_call_kernels import (
    call_book,
    call_complete,
    call_output_block,
    call_release,
    call_renew,
    name_in,
)
from select_service.core.load.ledger_kernels import UNKNOWN
from select_service.core.load.ledger_layout import (
    BOOK as BOOK_AT,
)
from select_service.core.load.ledger_layout import (
    CALL_LOAD,
    COMPLETE,
    FOLLOWERS,
    MANY_BLOCKS,
    OUTPUT_BLOCK,
    RELEASE,
    RENEW,
    TTL,
)
from select_service.fast import request_layout as request
from select_service.fast.answer_kernels import record_of
from select_service.fast.byte_kernels import NONE, I, U
from select_service.fast.guard_kernels import kept_within
from select_service.fast.request_layout import (
    EFFECTIVE_PREFILL_TOKENS,
    ISL_TOKENS,
    N_BLOCKS,
    N_SEQUENCE,
    N_TOKENS,
    PATH_ID,
    RESERVATION_ID,
    RESERVE,
    ROUTE,
)
from select_service.fast.serve_layout import (
    BEGAN_NS,
    BLOCKS,
    BOOK,
    BOOKS,
    BROKEN,
    CALL,
    CHANGED,
    COUNTS_BLOCKS,
    COUNTS_OUTPUT,
    COUNTS_PREFILL,
    DP_RANK,
    GIVE_UP,
    ID_BYTES,
    IS_BOUND,
    LEDGER,
    NAMED,
    NEW_ID,
    PLAN,
    SEQUENCE,
    SLOT,
    SUM,
    TELL,
    UNNAMED,
    WAITS,
    WORKER_ID,
)


@compiled()
def _may_change(state):
    return state[BOOKS] != 0 and i64_view(state, WAITS)[0] == 0


@compiled()
def _told(state, ledger, row):
    """0, or TELL where somebody has to be told of the row."""
    state[CHANGED] = row
    return 0 if ledger[FOLLOWERS] == 0 else TELL


@compiled(error_model="numpy")
def _now(state):
    """In seconds, as time.monotonic() says it."""
    return float(state[BEGAN_NS]) / 1e9


@compiled()
def _changed(state, ledger, name):
    """The row of the reservation whose life goes on, as the verbs of the ledger say it."""
    route, now = state[ROUTE], _now(state)
    if route == request.FREE:
        return call_release(ledger[RELEASE], (ledger, name))
    if route == request.PREFILL_COMPLETE:
        return call_complete(ledger[COMPLETE], (ledger, name, now))
    if route == request.OUTPUT_BLOCK and state[COUNTS_OUTPUT] != 0:
        weight = float_of(state[request.DECAY_FRACTION])
        return call_output_block(ledger[OUTPUT_BLOCK], (ledger, name, weight, now))
    return call_renew(ledger[RENEW], (ledger, name, now))


@compiled()
def change(data, state):
    """Do what the route says to the reservation of its path.  0, or why it is not done."""
    ledger, name = i64_view(state, LEDGER), name_in(data, state[PATH_ID], state[PATH_ID + 1])
    if state[IS_BOUND] != 0:
        said = kept_within(state, ledger, name)
        if said < 0:
            return said
    if not _may_change(state):
        return CALL
    row = _changed(state, ledger, name)
    if row == UNKNOWN:
        return GIVE_UP
    if row < 0 and state[ROUTE] != request.PREFILL_COMPLETE:
        return BROKEN
    is_followed = state[ROUTE] == request.PREFILL_COMPLETE or state[ROUTE] == request.FREE
    return _told(state, ledger, abs(row)) if is_followed else 0


@compiled()
def _name_of(data, state):
    """uint8[n]: the id that the client gives, or the new one."""
    if state[RESERVATION_ID] == NONE:
        return name_in(u8_view(state, NEW_ID), 0, ID_BYTES)
    return name_in(data, state[RESERVATION_ID], state[RESERVATION_ID + 1])


@compiled()
def _asked_prefill(state):
    """(tokens to book, or NONE when the client gives more than the prompt has; own work) on a rank
    of the client's."""
    given = state[EFFECTIVE_PREFILL_TOKENS]
    if given > state[ISL_TOKENS]:
        return I(NONE), I(0)
    if given == NONE and state[COUNTS_PREFILL] == 0:
        return I(0), I(0)
    tokens = state[ISL_TOKENS] if given == NONE else given
    return tokens, max(tokens, I(1))


@compiled()
def has_path(state):
    """Does the prompt have block hashes?  Those that a client gives beside its rank count for
    nothing."""
    return state[ROUTE] != RESERVE or state[N_TOKENS] != NONE


@compiled()
def _prefill(state, plan):
    """(tokens to book or NONE, own work, cached blocks) as `NewBooking` has them."""
    summary = i64_view(plan, SUMMARY)
    if state[ROUTE] == RESERVE:
        tokens, work = _asked_prefill(state)
        if plan[FOLLOWS] == 0 or work == 0:
            return tokens, work, I(0)
        return tokens, max(min(tokens, summary[S_WORK]), I(1)), summary[S_EXTERNAL]
    if state[COUNTS_PREFILL] == 0:
        return I(0), I(0), summary[S_EXTERNAL]
    return summary[S_EFFECTIVE], summary[S_WORK], summary[S_EXTERNAL]


@compiled()
def book_chosen(data, state, row, step):
    """Book the prompt on SLOT.  0, or what has to be done instead, before or afterwards.

    Where an earlier booking has called the owner of its load, a verb of the core goes there.
    """
    ledger, n_blocks = i64_view(state, LEDGER), state[N_SEQUENCE]
    plan = i64_view(row, PLAN)
    tokens, work, cached = _prefill(state, plan)
    is_usual = n_blocks < MANY_BLOCKS and row[SUM] != NONE and tokens != NONE
    if not is_usual or ledger[CALL_LOAD] != 0 or not _may_change(state):
        return BOOK
    if state[RESERVATION_ID] == NONE and step != NAMED:
        return UNNAMED
    record, now = record_of(row, state[SLOT]), _now(state)
    named = n_blocks if state[COUNTS_BLOCKS] != 0 else 0
    kept = state[N_BLOCKS] if plan[FOLLOWS] != 0 and has_path(state) else 0
    ttl_s = float_of(ledger[TTL])
    what = (state[SLOT], u64_view(state, SEQUENCE)[:named], named, 0, state[ISL_TOKENS], tokens)
    where = (True, U(record[WORKER_ID]), record[DP_RANK], row[SUM])
    when = (now, now, ttl_s if ttl_s > 0.0 else np.inf)
    given = (ledger, i64_view(plan, LOAD), _name_of(data, state))
    prefill = (work, cached, u64_view(state, BLOCKS)[:kept])
    booked = call_book(ledger[BOOK_AT], given + what + where + when + prefill)
    return _told(state, ledger, booked) if booked > 0 else BOOK
