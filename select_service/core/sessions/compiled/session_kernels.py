"""Operations on a session of a table, a compiled call each (session_layout).

`name` is uint8[n], the bytes of a session id.  Times are seconds of the clock of the caller.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import HEADER, i32_view, i64_view, u64_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled import session_layout as field
from select_service.core.load.compiled.float_bits_kernels import float_from_bits, float_to_bits
from select_service.core.load.compiled.ledger_entry_kernels import name_view
from select_service.core.load.compiled.reservation_name_kernels import (
    hash_name,
    read_name_word,
    words_for,
)
from select_service.core.load.compiled.session_lease_kernels import (
    end_session,
    link_idle,
    take_lease,
    unlink_idle,
)
from select_service.core.load.compiled.table_kernels import mix_hash

U64 = np.uint64
I64 = np.int64
I32 = np.int32
_ID = "Bytes(uint8, 1, 'C')"
_PAIR = "UniTuple(int64, 2)"

PART_MASK = U64(((1 << field.PART_BITS) - 1) << (64 - field.PART_BITS))
NOT_FOUND = 0
TABLE_FULL = -1
STALE, CREATED, RENEWED, MOVED = range(4)
"""Results of a received binding: older than the own binding; new; same rank; other rank."""


@compiled()
def _set_fingerprint(rows, row):
    """Set the fingerprint of a session, after every change of rank or version."""
    at = row * field.FIELDS
    found = id_hash = U64(rows[at + field.ID_HASH])
    for number in (field.WORKER_ID, field.DP_RANK, field.SEQUENCE_OF, field.WRITER_OF):
        found = mix_hash(found ^ U64(rows[at + number]))
    rows[at + field.FINGERPRINT] = I64((id_hash & PART_MASK) | (found & ~PART_MASK))


@compiled()
def _has_name(h, row, name):
    names = u64_view(h, field.NAMES)
    for number in range(words_for(len(name))):
        if names[row * field.NAME_WORDS + number] != read_name_word(name, number):
            return False
    return True


@compiled()
def has_expired(h, rows, row, now):
    """Return whether a session has been idle for too long."""
    at = row * field.FIELDS
    ends = float_from_bits(rows[at + field.IDLE_SINCE]) + float_from_bits(h[field.TTL])
    return rows[at + field.LEASES] == 0 and ends <= now


@compiled()
def find_by_hash(h, name, name_hash):
    """Return the row of an id, expired or not; NOT_FOUND without such a row."""
    rows, heads = i64_view(h, field.ROWS), i32_view(h, field.HEADS)
    row = I64(heads[name_hash & I64(heads.shape[0] - 1)])
    while row != 0:
        at = row * field.FIELDS
        if (
            rows[at + field.NAME_HASH] == name_hash
            and rows[at + field.NAME_BYTES] == len(name)
            and _has_name(h, row, name)
        ):
            return row
        row = rows[at + field.NEXT_NAME]
    return row


@compiled()
def hash_id(h, name):
    """Return the hash of an id in this table."""
    return I64(hash_name(name, U64(h[field.SEED])))


@compiled()
def find_live(h, name, name_hash, now):
    """Return the row of a session that has not expired, or NOT_FOUND; changes nothing."""
    row = find_by_hash(h, name, name_hash)
    if row != NOT_FOUND and has_expired(h, i64_view(h, field.ROWS), row, now):
        return I64(NOT_FOUND)
    return row


@compiled()
def _remove_expired(h, name, name_hash, now):
    """Return the row of a live session; an expired session is removed."""
    row, rows = find_by_hash(h, name, name_hash), i64_view(h, field.ROWS)
    if row == NOT_FOUND or not has_expired(h, rows, row, now):
        return row
    h[field.N_EXPIRED] += 1
    end_session(h, rows, row)
    return I64(NOT_FOUND)


@compiled()
def _make_room(h, rows):
    """Return whether there is room for a session, after evicting the longest idle if necessary."""
    if h[field.COUNT] < h[field.COUNT_MAX]:
        return True
    longest = h[field.OLDEST_IDLE]
    if longest == 0:
        return False
    h[field.N_EVICTED] += 1
    end_session(h, rows, longest)
    return True


@compiled()
def _take_row(h, rows):
    row = h[field.FREE_ROW]
    if row != 0:
        h[field.FREE_ROW] = rows[row * field.FIELDS + field.NEXT_NAME]
        return row
    # Rows of ended sessions with leases come on top of COUNT_MAX, so the array may be used up.
    if h[field.ROWS_USED] * field.FIELDS >= h[field.ROWS + 1]:
        return I64(0)
    h[field.ROWS_USED] += 1
    return h[field.ROWS_USED] - 1


@compiled()
def _create_session(h, name, name_hash, idle_since):
    """Return the row of a new idle session without a binding, or TABLE_FULL."""
    rows = i64_view(h, field.ROWS)
    row = _take_row(h, rows) if _make_room(h, rows) else I64(0)
    if row == 0:
        h[field.N_REFUSED] += 1
        return I64(TABLE_FULL)
    at, names, heads = row * field.FIELDS, u64_view(h, field.NAMES), i32_view(h, field.HEADS)
    for number in range(words_for(len(name))):
        names[row * field.NAME_WORDS + number] = read_name_word(name, number)
    rows[at + field.NAME_HASH], rows[at + field.NAME_BYTES] = name_hash, len(name)
    bucket = name_hash & I64(heads.shape[0] - 1)
    rows[at + field.NEXT_NAME] = heads[bucket]
    heads[bucket] = I32(row)
    rows[at + field.LEASES] = rows[at + field.TURNS] = rows[at + field.CONTEXT] = 0
    rows[at + field.SEQUENCE_OF] = 0
    rows[at + field.IDLE_SINCE] = rows[at + field.BOUND_AT] = float_to_bits(idle_since)
    rows[at + field.STATE] = field.LIVE
    # Without the table's secret seed: replicas compare fingerprints made from this hash.
    rows[at + field.ID_HASH] = I64(hash_name(name, U64(0)))
    rows[at + field.ORDER] = h[field.NEXT_ORDER]
    h[field.NEXT_ORDER] += 1
    h[field.COUNT] += 1
    link_idle(h, rows, row)
    return row


@compiled()
def _next_sequence(h, known, now):
    """Return the sequence of a binding made here.

    known: sequence of the session's binding before; 0 for a new session
    """
    if h[field.FALLING_FROM] == 0:
        h[field.SEQUENCE] = I64(U64(h[field.SEQUENCE]) + U64(1))
        return h[field.SEQUENCE]
    if known != 0:
        return I64(U64(known) + U64(1))
    # Falling with time: of two fresh replicas the first to bind the session wins.
    return max(h[field.FALLING_FROM] - I64(now * 1000.0), I64(1))


@compiled()
def _set_own_version(h, rows, row, now):
    """Give a binding made here a version above that of the binding before."""
    at = row * field.FIELDS
    rows[at + field.SEQUENCE_OF] = _next_sequence(h, rows[at + field.SEQUENCE_OF], now)
    rows[at + field.WRITER_OF] = h[field.WRITER]
    rows[at + field.BOUND_AT] = float_to_bits(now)
    _set_fingerprint(rows, row)


@compiled()
def _is_bound_to(rows, row, worker_id, dp_rank):
    at = row * field.FIELDS
    bound = rows[at + field.DP_RANK]
    return rows[at + field.WORKER_ID] == worker_id and (bound == dp_rank or bound == field.ANY_RANK)


@compiled()
def _set_rank(rows, row, worker_id, dp_rank):
    rows[row * field.FIELDS + field.WORKER_ID] = worker_id
    rows[row * field.FIELDS + field.DP_RANK] = dp_rank
    rows[row * field.FIELDS + field.SLOT] = field.NO_SLOT


@compiled()
def use_named(h, name, name_hash, worker_id, dp_rank, now):
    """Bind a session to the rank of a booking; return the session's row, or TABLE_FULL.

    The version changes only with the rank: a binding keeps the version of the last writer.
    """
    row, rows = _remove_expired(h, name, name_hash, now), i64_view(h, field.ROWS)
    if row == NOT_FOUND:
        row = _create_session(h, name, name_hash, now)
        if row == TABLE_FULL:
            return row
        _set_rank(rows, row, worker_id, dp_rank)
        _set_own_version(h, rows, row, now)
        h[field.N_CREATED] += 1
    elif _is_bound_to(rows, row, worker_id, dp_rank):
        # So far any rank of the worker would do; now the rank is definite.
        if rows[row * field.FIELDS + field.DP_RANK] != dp_rank:
            rows[row * field.FIELDS + field.DP_RANK] = dp_rank
            _set_fingerprint(rows, row)
        h[field.N_FOLLOWED] += 1
    else:
        _set_rank(rows, row, worker_id, dp_rank)
        _set_own_version(h, rows, row, now)
        h[field.N_MOVED] += 1
    return row


@compiled()
def begin_turn(h, row, context, is_final, now):
    """Take a lease for a turn of a bound session."""
    rows, at = i64_view(h, field.ROWS), row * field.FIELDS
    rows[at + field.CONTEXT] = context
    rows[at + field.TURNS] += 1
    rows[at + field.IDLE_SINCE] = float_to_bits(
        max(now, float_from_bits(rows[at + field.IDLE_SINCE]))
    )
    rows[at + field.STATE] = field.FINAL if is_final else field.LIVE
    take_lease(h, rows, row)


@compiled()
def set_slot(h, row, slot, version):
    """Note the slot of the rank of a session, and the slot's version."""
    rows, at = i64_view(h, field.ROWS), row * field.FIELDS
    rows[at + field.SLOT], rows[at + field.SLOT_VERSION] = slot, version


@compiled(f"int64({HEADER}, {_ID}, float64)")
def find_session(h, name, now):
    """Return the row of a session that has not expired, or NOT_FOUND."""
    view = name_view(name, 0, len(name))
    return find_live(h, view, hash_id(h, view), now)


@compiled(f"int64({HEADER}, {_ID}, {_PAIR}, int64, boolean, float64)")
def book_turn(h, name, rank, context, is_final, now):
    """Bind a session to the rank of a booking and take a lease; return the row, or TABLE_FULL.

    rank: worker id as the bits of the unsigned id, and number of the rank
    """
    view = name_view(name, 0, len(name))
    row = use_named(h, view, hash_id(h, view), rank[0], rank[1], now)
    if row > 0:
        begin_turn(h, row, context, is_final, now)
    return row


@compiled(f"int64({HEADER}, int64)")
def lease_row(h, row):
    """Take a lease for a reservation that a peer admitted."""
    take_lease(h, i64_view(h, field.ROWS), row)
    return row


@compiled(f"void({HEADER}, int64, uint64, int64, float64)")
def move_binding(h, row, worker_id, dp_rank, now):
    """Bind a session to the rank to which a reservation of the session moved."""
    rows = i64_view(h, field.ROWS)
    if not _is_bound_to(rows, row, I64(worker_id), dp_rank):
        _set_rank(rows, row, I64(worker_id), dp_rank)
        _set_own_version(h, rows, row, now)
        h[field.N_MOVED] += 1


@compiled(f"void({HEADER}, int64, uint64)")
def raise_version(h, row, sequence):
    """Give a session a version of this process, with the sequence behind the given sequence."""
    rows, at = i64_view(h, field.ROWS), row * field.FIELDS
    rows[at + field.SEQUENCE_OF] = I64(sequence + U64(1))
    rows[at + field.WRITER_OF] = h[field.WRITER]
    _set_fingerprint(rows, row)


@compiled()
def _is_newer(rows, row, sequence, writer):
    """Return 1, 0 or -1 as the given version is above, equal to or below the session's version."""
    at = row * field.FIELDS
    own, own_writer = U64(rows[at + field.SEQUENCE_OF]), U64(rows[at + field.WRITER_OF])
    if sequence != own:
        return 1 if sequence > own else -1
    if writer != own_writer:
        return 1 if writer > own_writer else -1
    return 0


@compiled()
def _adopt(rows, row, rank, version, idle_since):
    at = row * field.FIELDS
    rows[at + field.WORKER_ID], rows[at + field.DP_RANK] = rank
    rows[at + field.SEQUENCE_OF], rows[at + field.WRITER_OF] = I64(version[0]), I64(version[1])
    rows[at + field.BOUND_AT] = float_to_bits(idle_since)
    rows[at + field.SLOT] = field.NO_SLOT
    _set_fingerprint(rows, row)


@compiled()
def _renew(h, rows, row, idle_since):
    at = row * field.FIELDS
    if idle_since <= float_from_bits(rows[at + field.IDLE_SINCE]):
        return
    rows[at + field.IDLE_SINCE] = float_to_bits(idle_since)
    # The list of idle sessions is sorted by time of use, as expiry reads only its head.
    if rows[at + field.LEASES] == 0:
        unlink_idle(h, rows, row)
        link_idle(h, rows, row)


@compiled(f"{_PAIR}({HEADER}, {_ID}, UniTuple(uint64, 2), {_PAIR}, float64, float64)")
def apply_binding(h, name, version, rank, idle_since, now):
    """Apply a binding received from a replica; return (result, row).

    version: sequence and writer
    rank: as in `book_turn`
    idle_since: time of the last use, as seen here
    """
    view = name_view(name, 0, len(name))
    name_hash = hash_id(h, view)
    row, rows = _remove_expired(h, view, name_hash, now), i64_view(h, field.ROWS)
    # Later bindings of this process must win over every version seen.
    if version[0] > U64(h[field.SEQUENCE]):
        h[field.SEQUENCE] = I64(version[0])
    if row == NOT_FOUND:
        row = _create_session(h, view, name_hash, idle_since)
        if row == TABLE_FULL:
            return I64(TABLE_FULL), row
        _adopt(rows, row, rank, version, idle_since)
        return I64(CREATED), row
    newer, at = _is_newer(rows, row, version[0], version[1]), row * field.FIELDS
    if newer < 0:
        return I64(STALE), row
    # A replica that bound "any rank" of the worker and then a rank keeps the version.
    is_same = _is_bound_to(rows, row, rank[0], rank[1])
    if not is_same and newer == 0:
        return I64(STALE), row
    if newer > 0 or rows[at + field.DP_RANK] == field.ANY_RANK:
        bound_at = rows[at + field.BOUND_AT]
        _adopt(rows, row, rank, version, idle_since)
        # The session has not moved, so it stays bound since the same time.
        if is_same:
            rows[at + field.BOUND_AT] = bound_at
    _renew(h, rows, row, idle_since)
    return I64(RENEWED if is_same else MOVED), row


@compiled(f"void({HEADER}, int64)")
def end_by_caller(h, row):
    """End a session at the request of a caller."""
    h[field.N_ENDED] += 1
    end_session(h, i64_view(h, field.ROWS), row)


@compiled(f"int64({HEADER}, float64, int64)")
def expire_sessions(h, now, limit):
    """End up to `limit` sessions that were idle for too long; return the number."""
    rows, ended = i64_view(h, field.ROWS), 0
    while ended < limit:
        row = h[field.OLDEST_IDLE]
        if row == 0 or not has_expired(h, rows, row, now):
            break
        h[field.N_EXPIRED] += 1
        end_session(h, rows, row)
        ended += 1
    return ended


@compiled(f"void({HEADER}, float64, uint64[::1])")
def sum_fingerprints(h, used_after, sums):
    """Add the fingerprints of the sessions with leases or used after a time to `sums`, by part."""
    rows, shift = i64_view(h, field.ROWS), U64(64 - field.PART_BITS)
    for row in range(1, h[field.ROWS_USED]):
        at = row * field.FIELDS
        if rows[at + field.STATE] != field.LIVE and rows[at + field.STATE] != field.FINAL:
            continue
        idle_since = float_from_bits(rows[at + field.IDLE_SINCE])
        if rows[at + field.LEASES] != 0 or idle_since > used_after:
            found = U64(rows[at + field.FINGERPRINT])
            sums[found >> shift] += found


@compiled(f"int64({HEADER}, int64, uint64, int64[::1])")
def list_sessions(h, after, parts, out):
    """Write the first rows of sessions behind a row to `out`; return the number.

    parts: mask of the parts of the table to look at
    """
    rows, shift, n = i64_view(h, field.ROWS), U64(64 - field.PART_BITS), 0
    for row in range(after + 1, h[field.ROWS_USED]):
        at = row * field.FIELDS
        if rows[at + field.STATE] != field.LIVE and rows[at + field.STATE] != field.FINAL:
            continue
        if (parts >> (U64(rows[at + field.ID_HASH]) >> shift)) & U64(1):
            if n == out.shape[0]:
                break
            out[n] = row
            n += 1
    return n
