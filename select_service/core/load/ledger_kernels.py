"""What changes a reservation, one compiled call each, over the header of the ledger.

`name` is uint8[n], the bytes of an id.  The verbs are helpers here; `ledger_call_kernels` says how
Python and other kernels call them.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import carray, compiled
from indexer.index.state_kernels import HEADER, f64_view, i64_view, u64_view
from indexer.memory_kernels import pointer
from indexer.mutex_kernels import enter, leave
from select_service.core.load.bits_kernels import bits_of, float_of
from select_service.core.load.kernels import CALL_OWNER, add_load, remove_load, remove_tokens
from select_service.core.load.kernels import NO_ROOM as TABLES_FULL
from select_service.core.load.ledger_layout import (
    AFTER,
    AFTER_ON_SLOT,
    BEFORE,
    BEFORE_ON_SLOT,
    BLOCKS,
    BLOCKS_MAX,
    BOOKED_AT,
    CALL_LOAD,
    CHAIN,
    COUNT,
    COUNT_MAX,
    COUNTED,
    COUNTED_BY,
    DP_RANK,
    ENDS,
    FADED,
    FIELDS,
    FRACTION,
    FREE,
    FREE_ROW,
    IS_PREFILLING,
    ISL_TOKENS,
    LIVED,
    LIVED_NUMBERS,
    LOAD,
    LOAD_LENGTH,
    MARK,
    N_BLOCKS,
    NAME_BYTES,
    NAME_HASH,
    NAMED,
    NEXT_END,
    NEXT_NAME,
    NEXT_ORDER,
    ORDERS,
    PREFILLING,
    RENEWED_AT,
    ROWS,
    ROWS_USED,
    SCRATCH,
    SLOT,
    SUM,
    SUM_BLOCKS,
    SUM_NUMBERS,
    SUMS,
    TOKENS,
    TTL,
    WHOLE,
    WORKER_ID,
)
from select_service.core.load.load_layout import DRAINED_BLOCKS, DRAINED_TOKENS, MUTEX, NEWEST
from select_service.core.load.name_kernels import (
    chunks_of,
    copy_words,
    delete_name,
    enter_name,
    find_name,
    free_chain,
    has_chunks,
    hash_of,
    put_chain,
    seed_of,
    words_of,
)
from select_service.core.load.observed_kernels import (
    observe_booking,
    observe_end,
    observe_output,
    observe_prefill,
)
from select_service.core.load.prefill_kernels import begin_prefill, count_report, end_prefill
from select_service.core.load.shared_kernels import add_decay, add_output
from select_service.core.load.table_kernels import mix

U64 = np.uint64
I64 = np.int64

# What a verb returns that has no row to return.
UNKNOWN = 0
NO_ROOM = -1  # the tables of the load must grow first
TAKEN = -2  # the name is in use
FULL = -3  # as many reservations as there may be
FULL_OF_BLOCKS = -4
FULL_OF_NAMES = -5
BROKEN = -6  # something is not booked that must be


@compiled()
def mark_of(name, worker_id, dp_rank):
    """64-bit hash of an id and the rank it is booked on; the same in every replica."""
    return mix(mix(hash_of(name, U64(0)) ^ U64(worker_id)) ^ U64(dp_rank))


@compiled()
def _add_to_sum(h, number, requests, tokens, mark, prefilling, blocks):
    sums, at = i64_view(h, SUMS), number * SUM_NUMBERS
    sums[at] += requests
    sums[at + 1] += tokens
    sums[at + 2] += mark
    sums[at + 3] += prefilling
    sums[at + SUM_BLOCKS] += blocks


@compiled()
def _let_end(h, row, end):
    f64_view(h, ENDS)[row] = end
    if end < float_of(h[NEXT_END]):
        h[NEXT_END] = bits_of(end)


@compiled()
def renew_row(h, row, now):
    """Let the lease end the time to live from now."""
    i64_view(h, ROWS)[row * FIELDS + RENEWED_AT] = bits_of(now)
    ttl = float_of(h[TTL])
    if ttl > 0.0:
        _let_end(h, row, now + ttl)


@compiled()
def _take_row(h, rows):
    row = h[FREE_ROW]
    if row != 0:
        h[FREE_ROW] = rows[row * FIELDS + NEXT_NAME]
        return row
    h[ROWS_USED] += 1
    return h[ROWS_USED] - 1


@compiled()
def _link(h, rows, row):
    """It is the newest of all, and the newest of its slot."""
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
def _unlink(h, rows, row):
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
def _refusal(h, name, name_hash, blocks):
    """Why a reservation of so many blocks finds no room in the ledger, or 0."""
    if not has_chunks(h, chunks_of(words_of(len(name)) + blocks)):
        return FULL_OF_NAMES
    if find_name(h, name, name_hash) != 0:
        return TAKEN
    if h[COUNT] >= h[COUNT_MAX]:
        return FULL
    if h[N_BLOCKS] + blocks > h[BLOCKS_MAX]:
        return FULL_OF_BLOCKS
    return 0


@compiled()
def book(
    h,
    load,
    name,
    slot,
    hashes,
    named,
    whole,
    isl_tokens,
    prefill_tokens,
    prefilling,
    worker_id,
    dp_rank,
    number,
    booked_at,
    now,
    lease_s,
    work,
    cached,
    prompt,
):
    """Book a reservation.  Returns its row, or why not; then nothing is changed.

    load:    header of the load of its partition (load_layout)
    hashes:  uint64[n], of which the first `named` are booked by name;  whole: blocks without one
    number:  of the sum by partition and origin that counts it
    lease_s: of the first lease, in seconds
    work, cached, prompt: of its prefill, see `begin_prefill`
    """
    name_hash = hash_of(name, seed_of(h))
    refusal = _refusal(h, name, name_hash, hashes.shape[0])
    if refusal != 0:
        return I64(refusal)
    thread = enter(load[MUTEX])
    status = add_load(load, slot, hashes[:named], prefill_tokens, whole)
    if status == TABLES_FULL:
        leave(load[MUTEX], thread)
        return I64(NO_ROOM)
    rows = i64_view(h, ROWS)
    row = _take_row(h, rows)
    at = row * FIELDS
    rows[at + SLOT] = slot
    begin_prefill(h, load, rows, row, work, cached, prompt)
    leave(load[MUTEX], thread)
    rows[at + NAME_HASH] = I64(name_hash)
    rows[at + CHAIN] = put_chain(h, name, hashes)
    rows[at + NAME_BYTES] = len(name)
    rows[at + LOAD] = load.ctypes.data
    rows[at + LOAD_LENGTH] = load.shape[0]
    rows[at + BLOCKS], rows[at + NAMED] = hashes.shape[0], named
    rows[at + ISL_TOKENS], rows[at + TOKENS] = isl_tokens, prefill_tokens
    rows[at + IS_PREFILLING] = prefilling
    rows[at + WHOLE], rows[at + FADED], rows[at + FRACTION] = whole, 0, bits_of(1.0)
    rows[at + BOOKED_AT], rows[at + RENEWED_AT] = bits_of(booked_at), bits_of(now)
    rows[at + WORKER_ID], rows[at + DP_RANK] = I64(worker_id), dp_rank
    rows[at + SUM] = number
    mark = I64(mark_of(name, worker_id, dp_rank))
    rows[at + MARK] = mark
    enter_name(h, row)
    _link(h, rows, row)
    _let_end(h, row, now + lease_s)
    h[COUNT] += 1
    h[N_BLOCKS] += hashes.shape[0]
    h[PREFILLING] += prefilling
    _add_to_sum(h, number, 1, prefill_tokens, mark, prefilling, hashes.shape[0])
    observe_booking(h, load, row, slot, number, isl_tokens, prefill_tokens, work)
    if status == CALL_OWNER:
        h[CALL_LOAD] = load.ctypes.data
    return row


@compiled()
def _named(h, rows, row):
    """uint64[n]: the blocks of a row that are booked by name; the next call overwrites them."""
    at = row * FIELDS
    out = u64_view(h, SCRATCH)[: rows[at + NAMED]]
    copy_words(h, rows[at + CHAIN], words_of(rows[at + NAME_BYTES]), out)
    return out


@compiled()
def _uncount(h, row, blocks):
    if h[COUNTED] == 0:
        return
    lived, at = i64_view(h, LIVED), row * LIVED_NUMBERS + COUNTED_BY
    if lived[at] != 0:
        h[COUNTED] -= 1
        numbers = carray(pointer(lived[at]), 2, np.int64)
        numbers[0] -= 1
        numbers[1] -= blocks
        lived[at] = 0


@compiled()
def release_row(h, row, tells):
    """Take the whole load of a row back.  Returns it, or BROKEN.

    tells: does an end before that of the prefill tell that nobody reports it?
    """
    rows = i64_view(h, ROWS)
    at = row * FIELDS
    load, tokens, blocks = i64_view(rows, at + LOAD), rows[at + TOKENS], rows[at + BLOCKS]
    thread = enter(load[MUTEX])
    missing = remove_load(
        load,
        rows[at + SLOT],
        _named(h, rows, row),
        tokens,
        rows[at + WHOLE],
        rows[at + FADED],
        float_of(rows[at + FRACTION]),
    )
    if end_prefill(h, load, rows, row) and tells:
        count_report(load, False)
    leave(load[MUTEX], thread)
    load[DRAINED_TOKENS] += tokens
    load[DRAINED_BLOCKS] += blocks
    delete_name(h, row)
    _unlink(h, rows, row)
    f64_view(h, ENDS)[row] = np.inf
    _uncount(h, row, blocks)
    free_chain(h, rows[at + CHAIN], words_of(rows[at + NAME_BYTES]) + blocks)
    h[COUNT] -= 1
    h[N_BLOCKS] -= blocks
    prefilling = rows[at + IS_PREFILLING]
    h[PREFILLING] -= prefilling
    _add_to_sum(h, rows[at + SUM], -1, -tokens, -rows[at + MARK], -prefilling, -blocks)
    rows[at + NEXT_NAME] = h[FREE_ROW]
    h[FREE_ROW] = row
    return row if missing == 0 else I64(BROKEN)


@compiled()
def complete_row(h, row):
    """Give the booked prefill tokens back.  Returns them; 0 when it is repeated."""
    rows = i64_view(h, ROWS)
    at = row * FIELDS
    tokens, prefilling = rows[at + TOKENS], rows[at + IS_PREFILLING]
    h[PREFILLING] -= prefilling
    rows[at + TOKENS], rows[at + IS_PREFILLING] = 0, 0
    load = i64_view(rows, at + LOAD)
    thread = enter(load[MUTEX])
    remove_tokens(load, rows[at + SLOT], tokens)
    if end_prefill(h, load, rows, row):
        count_report(load, True)
    leave(load[MUTEX], thread)
    load[DRAINED_TOKENS] += tokens
    _add_to_sum(h, rows[at + SUM], 0, -tokens, 0, -prefilling, 0)
    return tokens


@compiled()
def find(h, name):
    """The row of a name, or UNKNOWN."""
    return find_name(h, name, hash_of(name, seed_of(h)))


@compiled()
def release(h, name):
    """As `release_row`, or UNKNOWN."""
    row = find(h, name)
    if row == UNKNOWN:
        return row
    observe_end(h, i64_view(h, ROWS), row)
    return release_row(h, row, True)


@compiled()
def renew(h, name, now):
    """Start the lease anew.  Returns the row, or UNKNOWN."""
    row = find(h, name)
    if row != UNKNOWN:
        renew_row(h, row, now)
    return row


@compiled()
def complete(h, name, now):
    """Renew, and give the booked prefill tokens back.

    Returns the row, its negative when there was nothing to give back, or UNKNOWN.
    """
    row = renew(h, name, now)
    if row == UNKNOWN:
        return row
    observe_prefill(h, i64_view(h, ROWS), row, now)
    return row if complete_row(h, row) != 0 else -row


@compiled()
def add_output_block(h, name, weight, now):
    """Renew, and one more output block, then the decay; weight: NaN for none.

    Returns the row, UNKNOWN or BROKEN.
    """
    row = renew(h, name, now)
    if row == UNKNOWN:
        return row
    rows = i64_view(h, ROWS)
    at = row * FIELDS
    observe_output(h, rows, row, now)
    load, slot, whole = i64_view(rows, at + LOAD), rows[at + SLOT], rows[at + WHOLE]
    if weight != weight:
        add_output(load, slot)
        rows[at + WHOLE] = whole + 1
        return row
    faded, fraction = rows[at + FADED], float_of(rows[at + FRACTION])
    missing = add_decay(load, slot, _named(h, rows, row), whole, faded, fraction, weight)
    rows[at + WHOLE], rows[at + FADED] = 0, whole + faded + 1
    rows[at + FRACTION] = bits_of(weight)
    return row if missing == 0 else I64(BROKEN)


@compiled(f"void({HEADER}, int64, int64)")
def assign(h, row, number):
    """Another replica answers for it from now on; number: the sum that counts it then."""
    rows = i64_view(h, ROWS)
    at = row * FIELDS
    tokens, mark, prefilling = rows[at + TOKENS], rows[at + MARK], rows[at + IS_PREFILLING]
    blocks = rows[at + BLOCKS]
    _add_to_sum(h, rows[at + SUM], -1, -tokens, -mark, -prefilling, -blocks)
    rows[at + SUM] = number
    _add_to_sum(h, number, 1, tokens, mark, prefilling, blocks)


@compiled(f"void({HEADER}, int64, int64, uint64[::1])")
def copy_chain(h, row, first, out):
    """out[:] = words of the name and hashes of a row, from the word `first` on."""
    copy_words(h, i64_view(h, ROWS)[row * FIELDS + CHAIN], first, out)


@compiled(f"int64({HEADER}, int64)")
def first_from(h, order):
    """The oldest row whose number of order is `order` or higher, 0 when there is none."""
    orders, found, lowest = i64_view(h, ORDERS), I64(0), h[NEXT_ORDER]
    for row in range(1, h[ROWS_USED]):
        if order <= orders[row] < lowest:
            found, lowest = row, orders[row]
    return found
