"""Exchange of prefill progress between replicas: completed tokens of the oldest prefills.

The admitting replica has the prompt and reads the progress from the index.  Peers do not have the
block hashes and use the progress that they receive.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import HEADER, MUTEX, i64_view, lowest_bit, u64_view
from indexer.jit.decorators import compiled
from indexer.jit.mutex_kernels import lock_mutex, unlock_mutex
from select_service.core.load.compiled.ledger_layout import (
    FIELDS,
    LOAD,
    PROMPT,
    ROWS,
    SLOT,
    SYNCED_TOKENS,
    WORK,
)
from select_service.core.load.compiled.load_layout import (
    DONE_TOKENS,
    LEDGER,
    OLDEST,
    WITH_PROGRESS,
    WORK_BOOKED,
    WORK_LEFT,
)
from select_service.core.load.compiled.prefill_kernels import slot_prefills
from select_service.core.load.compiled.progress_kernels import update_progress

U64 = np.uint64
I64 = np.int64

# Results of `gather_progress`: number of rows, and the work of the update, in
# blocks.
N_ROWS, UPDATE_WORK = range(2)


@compiled(f"void({HEADER}, int64, int64)")
def apply_peer_progress(h, row, done):
    """Apply the progress sent by the responsible peer: `done` completed tokens of a row's prefill.

    Does nothing without news, after the end of the prefill, or when the progress is read here.
    """
    rows, at = i64_view(h, ROWS), row * FIELDS
    done = min(done, rows[at + WORK])
    # A late or reordered message must not set the progress back.
    if rows[at + PROMPT] != 0 or done <= rows[at + SYNCED_TOKENS]:
        return
    load, slot = i64_view(rows, at + LOAD), rows[at + SLOT]
    rows[at + SYNCED_TOKENS] = done
    prefills = slot_prefills(load, slot)
    if prefills[OLDEST] == row:
        prefills[DONE_TOKENS] = done
        i64_view(load, WORK_LEFT)[slot] = i64_view(load, WORK_BOOKED)[slot] - done


@compiled()
def _gather_rows(load, first, found):
    """Collect prefills with new progress; return their number."""
    followed, n = u64_view(load, WITH_PROGRESS), I64(0)
    for word in range(first >> 6, followed.shape[0]):
        rest = followed[word]
        if word == first >> 6:
            rest &= ~U64(0) << U64(first & 63)
        while rest != 0:
            prefills = slot_prefills(load, word * 64 + I64(lowest_bit(rest)))
            rest &= rest - U64(1)
            row, done = prefills[OLDEST], prefills[DONE_TOKENS]
            rows = i64_view(i64_view(load, LEDGER), ROWS)
            if done > rows[row * FIELDS + SYNCED_TOKENS]:
                if n == found.shape[0]:
                    return n
                rows[row * FIELDS + SYNCED_TOKENS] = done
                found[n, 0], found[n, 1] = row, done
                n += 1
    return n


@compiled(f"void({HEADER}, {HEADER}, int64, int64, int64[:, ::1], int64[::1])")
def gather_progress(index, load, block_size, first, found, results):
    """Collect the oldest prefills with progress since the last call, and mark the progress as sent.

    first:   first slot
    found:   int64[n, 2], output: (row of the ledger, completed tokens).  When full, more may
             follow behind the slot of the last row
    results: int64[2], output: see N_ROWS
    """
    thread = lock_mutex(index[MUTEX])
    results[UPDATE_WORK] = update_progress(index, load, block_size)
    results[N_ROWS] = _gather_rows(load, first, found)
    unlock_mutex(index[MUTEX], thread)
