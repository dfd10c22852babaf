"""A reservation goes to another slot of its load, in one compiled call: its row stays, and with it
its name, its blocks, its output and its lease."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import HASHES, HEADER, i64_view
from indexer.mutex_kernels import enter, leave
from select_service.core.load.bits_kernels import float_of
from select_service.core.load.kernels import (
    CALL_OWNER,
    HOLDER_FIELDS,
    PREFIX_FIELDS,
    REFERENCE_FIELDS,
    add_decay,
    add_load,
    remove_load,
)
from select_service.core.load.kernels import NO_ROOM as TABLES_FULL
from select_service.core.load.ledger_call_kernels import name_in
from select_service.core.load.ledger_kernels import (
    BROKEN,
    NO_ROOM,
    _add_to_sum,
    _link,
    _named,
    _unlink,
    mark_of,
)
from select_service.core.load.ledger_layout import (
    CALL_LOAD,
    DP_RANK,
    FADED,
    FIELDS,
    FRACTION,
    IS_PREFILLING,
    LOAD,
    MARK,
    PREFILLING,
    ROWS,
    SLOT,
    SUM,
    TOKENS,
    WHOLE,
    WORKER_ID,
)
from select_service.core.load.load_layout import HOLDERS, MUTEX, PREFIXES, REFERENCES
from select_service.core.load.prefill_kernels import begin_prefill, end_prefill
from select_service.core.load.table_kernels import has_room

I64 = np.int64


@compiled(f"boolean({HEADER}, int64)")
def is_roomy(load, blocks):
    """Does a load take so many new blocks as it is?"""
    return (
        has_room(load, REFERENCES, REFERENCE_FIELDS, blocks)
        and has_room(load, PREFIXES, PREFIX_FIELDS, blocks)
        and has_room(load, HOLDERS, HOLDER_FIELDS, blocks)
    )


@compiled()
def _carry(load, rows, at, hashes, slot, tokens):
    """Its blocks, output and tokens, booked there and taken back here.

    How the booking went, and how many blocks were missing here.
    """
    whole, faded, fraction = rows[at + WHOLE], rows[at + FADED], float_of(rows[at + FRACTION])
    booked = whole + max(faded - 1, 0)
    status = add_load(load, slot, hashes, tokens, booked)
    if status == TABLES_FULL:
        return status, I64(0)
    missing = remove_load(load, rows[at + SLOT], hashes, rows[at + TOKENS], whole, faded, fraction)
    if faded > 0:
        missing += add_decay(load, slot, hashes, faded - 1, 0, 1.0, fraction)
    return status, missing


@compiled()
def _rename(h, rows, row, name, worker_id, dp_rank, tokens, prefilling):
    """Its rank, and what is summed of it."""
    at = row * FIELDS
    mark = I64(mark_of(name, worker_id, dp_rank))
    more, begun = tokens - rows[at + TOKENS], prefilling - rows[at + IS_PREFILLING]
    _add_to_sum(h, rows[at + SUM], 0, more, mark - rows[at + MARK], begun, 0)
    h[PREFILLING] += begun
    rows[at + WORKER_ID], rows[at + DP_RANK], rows[at + MARK] = I64(worker_id), dp_rank, mark
    rows[at + TOKENS], rows[at + IS_PREFILLING] = tokens, prefilling


@compiled(
    f"int64({HEADER}, int64, Bytes(uint8, 1, 'C'), int64, uint64, int64, int64, int64, int64,"
    f" int64, {HASHES})"
)
def move_row(h, row, name, slot, worker_id, dp_rank, tokens, prefilling, work, cached, prompt):
    """Let it be on another slot, as the newest booking there.

    tokens, prefilling: of its prefill there;  work, cached, prompt: see `begin_prefill`
    Returns the row, NO_ROOM, when nothing is changed, or BROKEN.
    """
    rows = i64_view(h, ROWS)
    at = row * FIELDS
    load = i64_view(rows, at + LOAD)
    thread = enter(load[MUTEX])
    status, missing = _carry(load, rows, at, _named(h, rows, row), slot, tokens)
    if status == TABLES_FULL:
        leave(load[MUTEX], thread)
        return I64(NO_ROOM)
    end_prefill(h, load, rows, row)
    _unlink(h, rows, row)
    rows[at + SLOT] = slot
    begin_prefill(h, load, rows, row, work, cached, prompt)
    leave(load[MUTEX], thread)
    _link(h, rows, row)
    _rename(h, rows, row, name_in(name, 0, len(name)), worker_id, dp_rank, tokens, prefilling)
    if status == CALL_OWNER:
        h[CALL_LOAD] = load.ctypes.data
    return row if missing == 0 else I64(BROKEN)
