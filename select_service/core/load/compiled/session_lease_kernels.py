"""Leases of sessions: taken by a booking, given back by the release of the reservation.

A session with a lease cannot end by time.  The list of idle sessions has all others.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import HEADER, i32_view, i64_view
from indexer.jit.decorators import carray, compiled
from indexer.jit.memory_kernels import as_pointer
from select_service.core.load.compiled import session_layout as field
from select_service.core.load.compiled.float_bits_kernels import float_from_bits, float_to_bits

I64 = np.int64
I32 = np.int32


@compiled()
def unlink_idle(h, rows, row):
    """Remove a session from the list of idle sessions."""
    at = row * field.FIELDS
    older, newer = rows[at + field.OLDER_IDLE], rows[at + field.NEWER_IDLE]
    if older != 0:
        rows[older * field.FIELDS + field.NEWER_IDLE] = newer
    else:
        h[field.OLDEST_IDLE] = newer
    if newer != 0:
        rows[newer * field.FIELDS + field.OLDER_IDLE] = older
    else:
        h[field.NEWEST_IDLE] = older
    rows[at + field.OLDER_IDLE] = rows[at + field.NEWER_IDLE] = 0


@compiled()
def link_idle(h, rows, row):
    """Insert a session by its IDLE_SINCE, searching from the newest."""
    at = row * field.FIELDS
    since = float_from_bits(rows[at + field.IDLE_SINCE])
    older = h[field.NEWEST_IDLE]
    for _ in range(field.IDLE_STEPS_MAX):
        if older == 0:
            break
        if float_from_bits(rows[older * field.FIELDS + field.IDLE_SINCE]) <= since:
            break
        older = rows[older * field.FIELDS + field.OLDER_IDLE]
    newer = h[field.OLDEST_IDLE] if older == 0 else rows[older * field.FIELDS + field.NEWER_IDLE]
    rows[at + field.OLDER_IDLE], rows[at + field.NEWER_IDLE] = older, newer
    if older != 0:
        rows[older * field.FIELDS + field.NEWER_IDLE] = row
    else:
        h[field.OLDEST_IDLE] = row
    if newer != 0:
        rows[newer * field.FIELDS + field.OLDER_IDLE] = row
    else:
        h[field.NEWEST_IDLE] = row


@compiled()
def _forget_name(h, rows, row):
    heads = i32_view(h, field.HEADS)
    bucket = rows[row * field.FIELDS + field.NAME_HASH] & I64(heads.shape[0] - 1)
    following = rows[row * field.FIELDS + field.NEXT_NAME]
    other = I64(heads[bucket])
    if other == row:
        heads[bucket] = I32(following)
        return
    while rows[other * field.FIELDS + field.NEXT_NAME] != row:
        other = rows[other * field.FIELDS + field.NEXT_NAME]
    rows[other * field.FIELDS + field.NEXT_NAME] = following


@compiled()
def _free_row(h, rows, row):
    at = row * field.FIELDS
    rows[at + field.STATE] = field.FREE
    rows[at + field.NEXT_NAME] = h[field.FREE_ROW]
    h[field.FREE_ROW] = row


@compiled()
def end_session(h, rows, row):
    """End a session: its id is free at once, its row with its last lease."""
    at = row * field.FIELDS
    _forget_name(h, rows, row)
    h[field.COUNT] -= 1
    if rows[at + field.LEASES] != 0:
        rows[at + field.STATE] = field.ENDED
        return
    unlink_idle(h, rows, row)
    _free_row(h, rows, row)


@compiled()
def take_lease(h, rows, row):
    """Take a lease for a new reservation."""
    at = row * field.FIELDS
    if rows[at + field.LEASES] == 0:
        unlink_idle(h, rows, row)
    rows[at + field.LEASES] += 1
    h[field.N_LEASES] += 1


@compiled(f"void({HEADER}, int64, float64)")
def give_back_lease(h, row, now):
    """Give back the lease of a reservation that ended.

    h: header of a table of sessions
    """
    rows, at = i64_view(h, field.ROWS), row * field.FIELDS
    rows[at + field.LEASES] -= 1
    h[field.N_LEASES] -= 1
    rows[at + field.IDLE_SINCE] = float_to_bits(
        max(now, float_from_bits(rows[at + field.IDLE_SINCE]))
    )
    if rows[at + field.LEASES] != 0:
        return
    if rows[at + field.STATE] == field.ENDED:
        _free_row(h, rows, row)
        return
    link_idle(h, rows, row)
    if rows[at + field.STATE] == field.FINAL:
        h[field.N_ENDED] += 1
        end_session(h, rows, row)


@compiled()
def update_context(h, row, worker_id, dp_rank, tokens):
    """Set the context of a session to the length of the last turn, if that ran on its rank."""
    rows, at = i64_view(h, field.ROWS), row * field.FIELDS
    is_there = rows[at + field.WORKER_ID] == worker_id and rows[at + field.DP_RANK] == dp_rank
    if is_there and tokens > rows[at + field.CONTEXT]:
        rows[at + field.CONTEXT] = tokens


@compiled()
def session_header(address):
    """Return the header of a table of sessions at an address."""
    return carray(as_pointer(address), field.HEADER_LENGTH, np.int64)
