"""Move of a reservation to another slot of its load, in one compiled call.

The row stays, and with the row the name, the blocks, the output and the lease.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import HASHES, HEADER, i64_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled.active_load_kernels import (
    HOLDER_FIELDS,
    MUST_RELEASE_MEMORY,
    PREFIX_FIELDS,
    REFERENCE_FIELDS,
    BlockWeights,
    add_decay,
    add_load,
    remove_load,
)
from select_service.core.load.compiled.active_load_kernels import TABLES_FULL as TABLES_FULL
from select_service.core.load.compiled.ledger_entry_kernels import name_view
from select_service.core.load.compiled.ledger_kernels import (
    LOAD_CORRUPT,
    NO_ROOM,
    add_to_sum,
    fingerprint_of,
    hashed_blocks,
    link_row,
    unlink_row,
    weights_of_row,
)
from select_service.core.load.compiled.ledger_layout import (
    BOOKING,
    CACHED,
    DP_RANK,
    FIELDS,
    FINGERPRINT,
    IS_PREFILLING,
    LOAD,
    LOAD_TO_RELEASE,
    ROWS,
    SLOT,
    TOKENS,
    WORK,
    WORKER_ID,
)
from select_service.core.load.compiled.load_layout import HOLDERS, PREFIXES, REFERENCES
from select_service.core.load.compiled.prefill_kernels import begin_prefill, end_prefill
from select_service.core.load.compiled.table_kernels import has_room

I64 = np.int64


@compiled(f"boolean({HEADER}, int64)")
def has_room_for(load, blocks):
    """Return whether a load has room for `blocks` new blocks without growing."""
    return (
        has_room(load, REFERENCES, REFERENCE_FIELDS, blocks)
        and has_room(load, PREFIXES, PREFIX_FIELDS, blocks)
        and has_room(load, HOLDERS, HOLDER_FIELDS, blocks)
    )


@compiled()
def _move_load(load, rows, row, hashes, booking):
    """Book blocks, output and tokens on the target slot, and remove them from the source slot.

    Returns (status of the booking, number of blocks missing on the source slot).
    """
    at, slot, weights = row * FIELDS, booking[SLOT], weights_of_row(rows, row)
    # `add_decay` adds one output block itself, so one decayed block is left out here.
    booked = weights.whole + max(weights.decayed - 1, 0)
    status = add_load(load, slot, hashes, booking[TOKENS], booked)
    if status == TABLES_FULL:
        return status, I64(0)
    missing = remove_load(load, rows[at + SLOT], hashes, rows[at + TOKENS], weights)
    if weights.decayed > 0:
        as_whole = BlockWeights(weights.decayed - 1, I64(0), 1.0)
        missing += add_decay(load, slot, hashes, as_whole, weights.fraction)
    return status, missing


@compiled()
def _change_rank(rows, row, name, booking):
    """Update rank and prefill of a row that no sum counts at this moment."""
    at = row * FIELDS
    for field in (SLOT, TOKENS, IS_PREFILLING, WORKER_ID, DP_RANK, WORK, CACHED):
        rows[at + field] = booking[field]
    rows[at + FINGERPRINT] = fingerprint_of(name, booking[WORKER_ID], booking[DP_RANK])


@compiled(f"int64({HEADER}, int64, Bytes(uint8, 1, 'C'), {HASHES})")
def move_row(h, row, name, prompt):
    """Move a row to another slot, as the newest booking there.

    BOOKING has slot, rank and prefill on the target; the other numbers stay.

    prompt: uint64[n], block hashes; empty means no progress estimate
    Returns the row, LOAD_CORRUPT, or NO_ROOM without having changed anything.
    """
    rows, booking = i64_view(h, ROWS), i64_view(h, BOOKING)
    load = i64_view(rows, row * FIELDS + LOAD)
    status, missing = _move_load(load, rows, row, hashed_blocks(h, rows, row), booking)
    if status == TABLES_FULL:
        return I64(NO_ROOM)
    end_prefill(h, load, rows, row)
    unlink_row(h, rows, row)
    add_to_sum(h, rows, row, -1)
    _change_rank(rows, row, name_view(name, 0, len(name)), booking)
    add_to_sum(h, rows, row, 1)
    begin_prefill(h, rows, row, prompt)
    link_row(h, rows, row)
    if status == MUST_RELEASE_MEMORY:
        h[LOAD_TO_RELEASE] = load.ctypes.data
    return row if missing == 0 else I64(LOAD_CORRUPT)
