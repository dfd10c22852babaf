"""What replicas tell each other of the oldest unfinished prefills: how many tokens are done.

Whoever has admitted a reservation has its prompt and sees its progress in the index; the others do
not know its blocks, and believe what is told.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import HEADER, i64_view, lowest_bit, u64_view
from indexer.index.state_kernels import MUTEX as INDEX_MUTEX
from indexer.mutex_kernels import enter, leave
from select_service.core.load.ledger_layout import FIELDS, LOAD, PROMPT, ROWS, SLOT, TOLD, WORK
from select_service.core.load.load_layout import (
    BOOKED,
    DONE,
    FOLLOWED,
    LEDGER,
    LEFT,
    MUTEX,
    OLDEST,
)
from select_service.core.load.prefill_kernels import prefills_of
from select_service.core.load.progress_kernels import look_at_progress

U64 = np.uint64
I64 = np.int64

# What `gather_progress` has found: rows, and the work that looking took, in blocks.
N_ROWS, LOOK_WORK = range(2)


@compiled(f"void({HEADER}, int64, int64)")
def hear_progress(h, row, done):
    """So many tokens of the prefill of a row are done, says who answers for it.

    Changes nothing when that is no news, when the prefill is over, or when its progress is seen
    here.
    """
    rows, at = i64_view(h, ROWS), row * FIELDS
    done = min(done, rows[at + WORK])
    if rows[at + PROMPT] != 0 or done <= rows[at + TOLD]:
        return
    load, slot = i64_view(rows, at + LOAD), rows[at + SLOT]
    thread = enter(load[MUTEX])
    rows[at + TOLD] = done
    prefills = prefills_of(load, slot)
    if prefills[OLDEST] == row:
        prefills[DONE] = done
        i64_view(load, LEFT)[slot] = i64_view(load, BOOKED)[slot] - done
    leave(load[MUTEX], thread)


@compiled()
def _gather(load, first, rows_out, done_out):
    """How many there are."""
    followed, n = u64_view(load, FOLLOWED), I64(0)
    for word in range(first >> 6, followed.shape[0]):
        rest = followed[word]
        if word == first >> 6:
            rest &= ~U64(0) << U64(first & 63)
        while rest != 0:
            prefills = prefills_of(load, word * 64 + I64(lowest_bit(rest)))
            rest &= rest - U64(1)
            row, done = prefills[OLDEST], prefills[DONE]
            rows = i64_view(i64_view(load, LEDGER), ROWS)
            if done > rows[row * FIELDS + TOLD]:
                if n == rows_out.shape[0]:
                    return n
                rows[row * FIELDS + TOLD] = done
                rows_out[n], done_out[n] = row, done
                n += 1
    return n


@compiled(f"void({HEADER}, {HEADER}, int64, int64, int64[::1], int64[::1], int64[::1])")
def gather_progress(index, load, block_size, first, rows, done, found):
    """Which of the oldest prefills have come further than was told; they count as told now.

    first:      slot to begin with
    rows, done: int64[n], rows of the ledger and their tokens; where as many are found as fit there
                may be more behind the slot of the last
    found:      int64[2], see N_ROWS
    """
    thread = enter(index[INDEX_MUTEX])
    found[LOOK_WORK] = look_at_progress(index, load, block_size)
    found[N_ROWS] = _gather(load, first, rows, done)
    leave(index[INDEX_MUTEX], thread)
