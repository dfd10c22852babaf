"""Operations on a reservation, one compiled call each, over the header of the ledger.

`name` is uint8[n], the bytes of a reservation id.  `ledger_entry_kernels` has the entry points for
Python and for other kernels.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import HEADER, f64_view, i64_view, u64_view
from indexer.jit.decorators import carray, compiled
from indexer.jit.memory_kernels import as_pointer
from select_service.core.load.compiled.active_load_kernels import (
    MUST_RELEASE_MEMORY,
    BlockWeights,
    add_decay,
    add_load,
    add_output,
    remove_load,
    remove_tokens,
)
from select_service.core.load.compiled.active_load_kernels import TABLES_FULL as TABLES_FULL
from select_service.core.load.compiled.float_bits_kernels import float_from_bits, float_to_bits
from select_service.core.load.compiled.ledger_layout import (
    AFTER,
    AFTER_ON_SLOT,
    BEFORE,
    BEFORE_ON_SLOT,
    BLOCKS,
    BLOCKS_MAX,
    BOOKED_FIELDS,
    BOOKING,
    CHAIN,
    COUNT,
    COUNT_MAX,
    COUNTER_ADDRESS,
    DECAYED_BLOCKS,
    DP_RANK,
    ENDS,
    FIELDS,
    FINGERPRINT,
    FRACTION,
    FREE,
    FREE_ROW,
    HASHED_BLOCKS,
    HISTORY,
    HISTORY_NUMBERS,
    IS_PREFILLING,
    ISL_TOKENS,
    LEASE_S,
    LOAD,
    LOAD_LENGTH,
    LOAD_TO_RELEASE,
    N_BLOCKS,
    N_COUNTED,
    N_SESSION_LEASES,
    NAME_BYTES,
    NAME_HASH,
    NEXT_END,
    NEXT_NAME,
    NEXT_ORDER,
    NOW,
    ORDERS,
    PREFILLING,
    RENEWED_AT,
    REQUEST_PART,
    ROWS,
    ROWS_USED,
    SCRATCH,
    SESSION_ROW,
    SESSION_TABLE,
    SLOT,
    SUM,
    SUM_BLOCKS,
    SUM_NUMBERS,
    SUMS,
    TOKENS,
    TTL,
    WHOLE_WEIGHT_BLOCKS,
    WORKER_ID,
)
from select_service.core.load.compiled.load_layout import DRAINED_BLOCKS, DRAINED_TOKENS, NEWEST
from select_service.core.load.compiled.observation_kernels import (
    observe_booking,
    observe_end,
    observe_output,
    observe_prefill,
)
from select_service.core.load.compiled.prefill_kernels import (
    begin_prefill,
    count_report,
    end_prefill,
)
from select_service.core.load.compiled.reservation_name_kernels import (
    chunks_for,
    copy_words,
    delete_name,
    enter_name,
    find_name,
    free_chain,
    has_chunks,
    hash_name,
    put_chain,
    read_seed,
    words_for,
)
from select_service.core.load.compiled.session_layout import BLOCK_SIZE
from select_service.core.load.compiled.session_lease_kernels import (
    give_back_lease,
    session_header,
    update_context,
)
from select_service.core.load.compiled.table_kernels import mix_hash

U64 = np.uint64
I64 = np.int64

# Results of an operation without a row.
NOT_FOUND = 0
NO_ROOM = -1  # the load's tables must grow first
ID_TAKEN = -2  # the name is in use
TOO_MANY_RESERVATIONS = -3  # maximum number of reservations reached
TOO_MANY_BLOCKS = -4
OUT_OF_CHUNKS = -5
LOAD_CORRUPT = -6  # a booked block or prefix is missing: corruption


@compiled()
def fingerprint_of(name, worker_id, dp_rank):
    """Return the 64-bit hash of an id and a rank, the same in every replica."""
    return I64(mix_hash(mix_hash(hash_name(name, U64(0)) ^ U64(worker_id)) ^ U64(dp_rank)))


@compiled()
def add_to_sum(h, rows, row, sign):
    """Add a row to the sum that counts the row (sign 1), or subtract the row (sign -1)."""
    at = row * FIELDS
    sums, total = i64_view(h, SUMS), rows[at + SUM] * SUM_NUMBERS
    sums[total] += sign
    sums[total + 1] += sign * rows[at + TOKENS]
    sums[total + 2] += sign * rows[at + FINGERPRINT]
    sums[total + 3] += sign * rows[at + IS_PREFILLING]
    sums[total + SUM_BLOCKS] += sign * rows[at + BLOCKS]
    h[PREFILLING] += sign * rows[at + IS_PREFILLING]


@compiled()
def _set_lease_end(h, row, end):
    f64_view(h, ENDS)[row] = end
    if end < float_from_bits(h[NEXT_END]):
        # NEXT_END is a lower bound only: renewals do not raise it, the scan for ended leases does.
        h[NEXT_END] = float_to_bits(end)


@compiled()
def renew_row(h, row, now):
    """Restart the lease: the end becomes `now` plus the time to live."""
    i64_view(h, ROWS)[row * FIELDS + RENEWED_AT] = float_to_bits(now)
    ttl = float_from_bits(h[TTL])
    if ttl > 0.0:
        _set_lease_end(h, row, now + ttl)


@compiled()
def _take_row(h, rows):
    row = h[FREE_ROW]
    if row != 0:
        h[FREE_ROW] = rows[row * FIELDS + NEXT_NAME]
        return row
    h[ROWS_USED] += 1
    return h[ROWS_USED] - 1


@compiled()
def link_row(h, rows, row):
    """Append a row as the newest of all reservations and of its slot."""
    at, last = row * FIELDS, rows[BEFORE]
    rows[at + BEFORE], rows[at + AFTER] = last, 0
    rows[last * FIELDS + AFTER] = row
    rows[BEFORE] = row
    newest, slot = i64_view(i64_view(rows, at + LOAD), NEWEST), rows[at + SLOT]
    older = newest[slot]
    rows[at + BEFORE_ON_SLOT], rows[at + AFTER_ON_SLOT] = 0, older
    if older != 0:
        rows[older * FIELDS + BEFORE_ON_SLOT] = row
    newest[slot] = row
    i64_view(h, ORDERS)[row] = h[NEXT_ORDER]
    h[NEXT_ORDER] += 1


@compiled()
def unlink_row(h, rows, row):
    at = row * FIELDS
    before, after = rows[at + BEFORE], rows[at + AFTER]
    rows[before * FIELDS + AFTER] = after
    rows[after * FIELDS + BEFORE] = before
    newer, older = rows[at + BEFORE_ON_SLOT], rows[at + AFTER_ON_SLOT]
    if newer != 0:
        rows[newer * FIELDS + AFTER_ON_SLOT] = older
    else:
        i64_view(i64_view(rows, at + LOAD), NEWEST)[rows[at + SLOT]] = older
    if older != 0:
        rows[older * FIELDS + BEFORE_ON_SLOT] = newer
    i64_view(h, ORDERS)[row] = FREE


@compiled()
def _refusal_code(h, name, name_hash, blocks):
    """Return the refusal code when the ledger has no room for `blocks` blocks, else 0."""
    if not has_chunks(h, chunks_for(words_for(len(name)) + blocks)):
        return OUT_OF_CHUNKS
    if find_name(h, name, name_hash) != 0:
        return ID_TAKEN
    if h[COUNT] >= h[COUNT_MAX]:
        return TOO_MANY_RESERVATIONS
    if h[N_BLOCKS] + blocks > h[BLOCKS_MAX]:
        return TOO_MANY_BLOCKS
    return 0


@compiled()
def _fill_row(h, load, row, name, hashes):
    """Write a new row from BOOKING, with the name and the hashes in a chain."""
    rows, booking, at = i64_view(h, ROWS), i64_view(h, BOOKING), row * FIELDS
    for field in range(BOOKED_FIELDS):
        rows[at + field] = booking[field]
    rows[at + CHAIN] = put_chain(h, name, hashes)
    rows[at + NAME_BYTES] = len(name)
    rows[at + LOAD], rows[at + LOAD_LENGTH] = load.ctypes.data, load.shape[0]
    rows[at + BLOCKS] = hashes.shape[0]
    rows[at + DECAYED_BLOCKS], rows[at + FRACTION] = 0, float_to_bits(1.0)
    rows[at + FINGERPRINT] = fingerprint_of(name, booking[WORKER_ID], booking[DP_RANK])


@compiled()
def book_reservation(h, load, name, hashes, prompt):
    """Book the reservation described by BOOKING.

    Returns the row, or a refusal code without having changed anything.

    load:   header of the partition's load (load_layout)
    hashes: uint64[n]; the first HASHED_BLOCKS are booked by hash
    prompt: uint64[n], block hashes; empty means no progress estimate
    """
    name_hash = hash_name(name, read_seed(h))
    refusal = _refusal_code(h, name, name_hash, hashes.shape[0])
    if refusal != 0:
        return I64(refusal)
    booking = i64_view(h, BOOKING)
    named, untracked = hashes[: booking[HASHED_BLOCKS]], booking[WHOLE_WEIGHT_BLOCKS]
    status = add_load(load, booking[SLOT], named, booking[TOKENS], untracked)
    if status == TABLES_FULL:
        return I64(NO_ROOM)
    rows = i64_view(h, ROWS)
    row = _take_row(h, rows)
    _fill_row(h, load, row, name, hashes)
    rows[row * FIELDS + NAME_HASH] = I64(name_hash)
    begin_prefill(h, rows, row, prompt)
    enter_name(h, row)
    link_row(h, rows, row)
    now = float_from_bits(booking[RENEWED_AT])
    _set_lease_end(h, row, now + float_from_bits(booking[LEASE_S]))
    h[COUNT] += 1
    h[N_BLOCKS] += hashes.shape[0]
    add_to_sum(h, rows, row, 1)
    observe_booking(h, rows, row, booking[REQUEST_PART])
    i64_view(h, HISTORY)[row * HISTORY_NUMBERS + SESSION_ROW] = 0
    if status == MUST_RELEASE_MEMORY:
        h[LOAD_TO_RELEASE] = load.ctypes.data
    return row


@compiled()
def hashed_blocks(h, rows, row):
    """Return the blocks of a row booked by hash, uint64[n]; the next call overwrites the result."""
    at = row * FIELDS
    out = u64_view(h, SCRATCH)[: rows[at + HASHED_BLOCKS]]
    copy_words(h, rows[at + CHAIN], words_for(rows[at + NAME_BYTES]), out)
    return out


@compiled()
def weights_of_row(rows, row):
    at = row * FIELDS
    return BlockWeights(
        rows[at + WHOLE_WEIGHT_BLOCKS],
        rows[at + DECAYED_BLOCKS],
        float_from_bits(rows[at + FRACTION]),
    )


@compiled()
def _decrement_counter(h, row, blocks):
    if h[N_COUNTED] == 0:
        return
    lived, at = i64_view(h, HISTORY), row * HISTORY_NUMBERS + COUNTER_ADDRESS
    if lived[at] != 0:
        h[N_COUNTED] -= 1
        numbers = carray(as_pointer(lived[at]), 2, np.int64)
        numbers[0] -= 1
        numbers[1] -= blocks
        lived[at] = 0


@compiled()
def lease_session(h, row, table, session):
    """Note that a reservation has a lease of a session, which is given back at its release."""
    lived, at = i64_view(h, HISTORY), row * HISTORY_NUMBERS
    lived[at + SESSION_TABLE], lived[at + SESSION_ROW] = table, session
    h[N_SESSION_LEASES] += 1


@compiled()
def _give_back_session(h, rows, row):
    """Give back the lease of a session, if the row has a lease."""
    lived, history = i64_view(h, HISTORY), row * HISTORY_NUMBERS
    session, at = lived[history + SESSION_ROW], row * FIELDS
    if h[N_SESSION_LEASES] == 0 or session <= 0:
        return
    h[N_SESSION_LEASES] -= 1
    lived[history + SESSION_ROW] = -session
    table = session_header(lived[history + SESSION_TABLE])
    tokens = rows[at + ISL_TOKENS] + _output_blocks(rows, row) * table[BLOCK_SIZE]
    update_context(table, session, rows[at + WORKER_ID], rows[at + DP_RANK], tokens)
    give_back_lease(table, session, float_from_bits(h[NOW]))


@compiled()
def _output_blocks(rows, row):
    at = row * FIELDS
    untracked = rows[at + WHOLE_WEIGHT_BLOCKS] + rows[at + DECAYED_BLOCKS]
    return untracked - (rows[at + BLOCKS] - rows[at + HASHED_BLOCKS])


@compiled()
def release_row(h, row, counts_report):
    """Remove the whole load of a row.  Return the row, or LOAD_CORRUPT.

    counts_report: whether an end before the end of the prefill counts as unreported
    """
    rows = i64_view(h, ROWS)
    at = row * FIELDS
    load, tokens, blocks = i64_view(rows, at + LOAD), rows[at + TOKENS], rows[at + BLOCKS]
    named, weights = hashed_blocks(h, rows, row), weights_of_row(rows, row)
    missing = remove_load(load, rows[at + SLOT], named, tokens, weights)
    if end_prefill(h, load, rows, row) and counts_report:
        count_report(load, False)
    load[DRAINED_TOKENS] += tokens
    load[DRAINED_BLOCKS] += blocks
    delete_name(h, row)
    unlink_row(h, rows, row)
    # A free row must never be found by the scan for ended leases.
    f64_view(h, ENDS)[row] = np.inf
    _decrement_counter(h, row, blocks)
    _give_back_session(h, rows, row)
    free_chain(h, rows[at + CHAIN], words_for(rows[at + NAME_BYTES]) + blocks)
    h[COUNT] -= 1
    h[N_BLOCKS] -= blocks
    add_to_sum(h, rows, row, -1)
    # The field is free now and links the free rows.
    rows[at + NEXT_NAME] = h[FREE_ROW]
    h[FREE_ROW] = row
    return row if missing == 0 else I64(LOAD_CORRUPT)


@compiled()
def complete_row(h, row):
    """Release the booked prefill tokens.  Return their number; 0 when repeated."""
    rows = i64_view(h, ROWS)
    at = row * FIELDS
    tokens = rows[at + TOKENS]
    add_to_sum(h, rows, row, -1)
    rows[at + TOKENS], rows[at + IS_PREFILLING] = 0, 0
    add_to_sum(h, rows, row, 1)
    load = i64_view(rows, at + LOAD)
    remove_tokens(load, rows[at + SLOT], tokens)
    if end_prefill(h, load, rows, row):
        count_report(load, True)
    load[DRAINED_TOKENS] += tokens
    return tokens


@compiled()
def find_reservation(h, name):
    """Return the row of a name, or NOT_FOUND."""
    return find_name(h, name, hash_name(name, read_seed(h)))


@compiled()
def release_reservation(h, name):
    """Release a reservation by name, see `release_row`.  Return NOT_FOUND without a reservation."""
    row = find_reservation(h, name)
    if row == NOT_FOUND:
        return row
    observe_end(h, i64_view(h, ROWS), row)
    return release_row(h, row, True)


@compiled()
def renew_reservation(h, name, now):
    """Restart the lease.  Return the row, or NOT_FOUND."""
    row = find_reservation(h, name)
    if row != NOT_FOUND:
        renew_row(h, row, now)
    return row


@compiled()
def complete_reservation(h, name, now):
    """Renew the lease and release the booked prefill tokens.

    Returns the row, the negative row when no tokens were booked, or NOT_FOUND.
    """
    row = renew_reservation(h, name, now)
    if row == NOT_FOUND:
        return row
    observe_prefill(h, i64_view(h, ROWS), row, now)
    return row if complete_row(h, row) != 0 else -row


@compiled()
def add_output_block(h, name, weight, now):
    """Renew the lease, add an output block, then apply the decay.

    weight: NaN means no decay
    Returns the row, NOT_FOUND or LOAD_CORRUPT.
    """
    row = renew_reservation(h, name, now)
    if row == NOT_FOUND:
        return row
    rows = i64_view(h, ROWS)
    at = row * FIELDS
    observe_output(h, rows, row, now)
    load, slot, whole = i64_view(rows, at + LOAD), rows[at + SLOT], rows[at + WHOLE_WEIGHT_BLOCKS]
    # NaN is the only number unequal to itself.
    if weight != weight:
        add_output(load, slot)
        rows[at + WHOLE_WEIGHT_BLOCKS] = whole + 1
        return row
    weights = weights_of_row(rows, row)
    missing = add_decay(load, slot, hashed_blocks(h, rows, row), weights, weight)
    rows[at + WHOLE_WEIGHT_BLOCKS], rows[at + DECAYED_BLOCKS] = 0, whole + weights.decayed + 1
    rows[at + FRACTION] = float_to_bits(weight)
    return row if missing == 0 else I64(LOAD_CORRUPT)


@compiled(f"void({HEADER}, int64, int64)")
def assign_origin(h, row, number):
    """Make another replica responsible for a reservation.

    number: row of the sum that counts the reservation from now on
    """
    rows = i64_view(h, ROWS)
    add_to_sum(h, rows, row, -1)
    rows[row * FIELDS + SUM] = number
    add_to_sum(h, rows, row, 1)


@compiled(f"void({HEADER}, int64, int64, uint64[::1])")
def copy_chain(h, row, first, out):
    """Copy words of a row's name and hashes to `out`, from the word `first` on."""
    copy_words(h, i64_view(h, ROWS)[row * FIELDS + CHAIN], first, out)


@compiled(f"int64({HEADER}, int64)")
def first_row_from(h, order):
    """Return the oldest row from the order number `order` on, 0 without such a row."""
    orders, found, lowest = i64_view(h, ORDERS), I64(0), h[NEXT_ORDER]
    for row in range(1, h[ROWS_USED]):
        if order <= orders[row] < lowest:
            found, lowest = row, orders[row]
    return found
