"""Sessions of common requests: found before the placement, bound after the booking.

The ordinary path does the same in `core.sessions.session_router`; it also handles sessions with a
rank that is unknown, closed or busy here.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import i64_view, mask_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled import session_layout as session
from select_service.core.load.compiled.ledger_entry_kernels import name_view
from select_service.core.load.compiled.ledger_kernels import lease_session
from select_service.core.load.compiled.session_lease_kernels import session_header
from select_service.core.placement.assumption_kernels import set_session_floor
from select_service.core.placement.plan_layout import RANKS
from select_service.core.sessions.compiled.session_kernels import (
    begin_turn,
    find_live,
    hash_id,
    set_slot,
    use_named,
)
from select_service.core.sessions.session_router import CONTEXT_SHARE
from select_service.core.workers.rank_table_layout import N_SLOTS, OPEN, VERSION
from select_service.fastpath.parsing.byte_kernels import NONE, I
from select_service.fastpath.parsing.request_layout import ISL_TOKENS, SESSION_ID
from select_service.fastpath.response_kernels import has_current_text, record_of
from select_service.fastpath.serve_layout import (
    BEGAN_NS,
    BOUND_DP_RANK,
    BOUND_WORKER,
    DECLINED,
    DP_RANK,
    HAS_UNSEEN_CACHE,
    MASK,
    NEEDS_SESSIONS,
    PIN_MASK,
    PIN_SLOTS_MAX,
    PLAN,
    SESSION_HASH,
    SESSION_ROW,
    SESSION_SLOT,
    SESSIONS,
    SESSIONS_ARE_HARD,
    SLOT,
    WORKER_ID,
)


@compiled()
def _session_name(data, state):
    return name_view(data, state[SESSION_ID], state[SESSION_ID + 1])


@compiled()
def _is_slot_current(state, row, at, rows):
    """Return whether the noted slot still is the rank of the session, and takes requests."""
    slot, ranks = rows[at + session.SLOT], i64_view(i64_view(row, PLAN), RANKS)
    versions, is_open = i64_view(ranks, VERSION), mask_view(ranks, OPEN)
    if slot < 0 or slot >= versions.shape[0]:
        return False
    return versions[slot] == rows[at + session.SLOT_VERSION] and is_open[slot]


@compiled()
def find_session(data, state, row, is_judged):
    """Find the session of the request, if any.  Returns 0, or why there is no response yet.

    is_judged: whether only ranks of the mask are eligible
    """
    if row[SESSIONS] == 0:
        return NEEDS_SESSIONS
    table, name = session_header(row[SESSIONS]), _session_name(data, state)
    state[SESSION_HASH], state[SESSION_SLOT] = hash_id(table, name), NONE
    found = find_live(table, name, state[SESSION_HASH], float(state[BEGAN_NS]) / 1e9)
    state[SESSION_ROW] = found
    if found == 0:
        return 0
    rows, at = i64_view(table, session.ROWS), found * session.FIELDS
    if not _is_slot_current(state, row, at, rows):
        return DECLINED
    slot = rows[at + session.SLOT]
    state[BOUND_WORKER] = rows[at + session.WORKER_ID]
    state[BOUND_DP_RANK] = rows[at + session.DP_RANK]
    state[SESSION_SLOT] = slot
    if is_judged and not mask_view(state, MASK)[slot]:
        return DECLINED
    if state[SESSIONS_ARE_HARD] != 0:
        n_slots = i64_view(i64_view(row, PLAN), RANKS)[N_SLOTS]
        return 0 if n_slots <= PIN_SLOTS_MAX else DECLINED
    return 0 if has_current_text(row, slot) else NEEDS_SESSIONS


@compiled()
def is_pinned(state):
    """Return whether the request goes to the rank of its session."""
    has_rank = state[SESSION_ID] != NONE and state[SESSION_SLOT] != NONE
    return has_rank and state[SESSIONS_ARE_HARD] != 0


@compiled()
def pin_session(state, n_slots):
    """Let PIN_MASK have the rank of the session alone; `unpin_session` clears the mask."""
    state[PIN_MASK + 1] = n_slots
    mask_view(state, PIN_MASK)[state[SESSION_SLOT]] = True


@compiled()
def unpin_session(state):
    """Clear PIN_MASK after the placement of a pinned request."""
    mask_view(state, PIN_MASK)[state[SESSION_SLOT]] = False


@compiled()
def add_session_floor(state, row):
    """Let the placement assume the last turn on the rank of the session, where that may be so.

    Called with the index locked, directly before the placement.
    """
    slot = state[SESSION_SLOT]
    if slot == NONE or record_of(row, slot)[HAS_UNSEEN_CACHE] == 0:
        return
    rows = i64_view(session_header(row[SESSIONS]), session.ROWS)
    context = rows[state[SESSION_ROW] * session.FIELDS + session.CONTEXT]
    tokens = I(CONTEXT_SHARE * float(min(context, state[ISL_TOKENS])))
    if tokens > 0:
        set_session_floor(i64_view(row, PLAN), slot, tokens)


@compiled()
def bind_session(data, state, row, ledger, booked):
    """Bind the session to SLOT, with a lease for the reservation in the ledger row `booked`."""
    table, slot = session_header(row[SESSIONS]), state[SLOT]
    now, record = float(state[BEGAN_NS]) / 1e9, record_of(row, slot)
    name, name_hash = _session_name(data, state), state[SESSION_HASH]
    found = use_named(table, name, name_hash, record[WORKER_ID], record[DP_RANK], now)
    state[SESSION_ROW] = found
    if found > 0:
        begin_turn(table, found, state[ISL_TOKENS], False, now)
        versions = i64_view(i64_view(i64_view(row, PLAN), RANKS), VERSION)
        set_slot(table, found, slot, versions[slot])
        lease_session(ledger, booked, row[SESSIONS], found)
