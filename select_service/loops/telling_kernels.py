"""What a loop gives to the event loop: connections, and questions that it must have answered."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import i64_view, u8_view
from indexer.mutex_kernels import acquire, release
from select_service.fast.byte_kernels import copy
from select_service.fast.request_layout import MODEL_NAME, TENANT_ID, TEXT_BYTES_MAX
from select_service.fast.serve_layout import AT_ROW, NAMES_HASH, SLOT, UNKNOWN
from select_service.loops.connection_kernels import let_go, tell_epoll
from select_service.loops.libc_kernels import CTL_DEL, write
from select_service.loops.loop_layout import (
    ASKED,
    BUFFER,
    BUFFERED,
    COUNTERS,
    FD,
    H_BUFFER,
    H_FD,
    H_HELD,
    H_LENGTH,
    H_RETURNS,
    H_SENT,
    H_UNSENT,
    H_WHY,
    HANDED,
    HANDED_LENGTH,
    HELD,
    MUTEX,
    N_HANDED,
    NAMES,
    Q_HASH,
    Q_MODEL,
    Q_ROW,
    Q_SLOT,
    Q_TENANT,
    QUESTION,
    QUESTIONS,
    RETURNS,
    SENT,
    TELL,
    UNSENT,
    WORD,
)

WORD_BYTES = 8


@compiled()
def tell(loop):
    """There is something in HANDED, or a QUESTION."""
    i64_view(loop, WORD)[0] = 1
    write(loop[TELL], loop[WORD], WORD_BYTES)


@compiled()
def next_handed(loop, fd, why):
    """The record of a connection that is handed over, without bytes; under MUTEX."""
    at = loop[N_HANDED] * HANDED_LENGTH
    record = i64_view(loop, HANDED)[at : at + HANDED_LENGTH]
    for field in range(HANDED_LENGTH):
        record[field] = 0
    record[H_FD], record[H_WHY] = fd, why
    loop[N_HANDED] += 1
    i64_view(loop, COUNTERS)[why] += 1
    return record


@compiled()
def hand_over_new(loop, fd, why, returns):
    """A connection that has no row."""
    acquire(loop[MUTEX])
    next_handed(loop, fd, why)[H_RETURNS] = returns
    release(loop[MUTEX])
    tell(loop)


@compiled()
def hand_over(loop, row, why):
    """The connection is the event loop's from here on, with what came in and what is unsent."""
    tell_epoll(loop, CTL_DEL, row[FD], 0, 0)
    acquire(loop[MUTEX])
    record = next_handed(loop, row[FD], why)
    record[H_BUFFER], record[H_HELD] = row[BUFFER], row[HELD]
    record[H_UNSENT], record[H_LENGTH] = row[UNSENT], row[UNSENT + 1]
    record[H_SENT], record[H_RETURNS] = row[SENT], row[RETURNS]
    release(loop[MUTEX])
    loop[BUFFERED] -= row[BUFFER + 1]
    row[BUFFER] = row[BUFFER + 1] = row[UNSENT] = 0
    let_go(loop, row)
    tell(loop)


@compiled()
def _note_name(loop, length, state, data, field, place):
    """Keep a name that the request gives."""
    loop[length] = state[field + 1] if state[field] >= 0 else state[field]
    copy(u8_view(loop, NAMES), place, data, state[field], loop[length])


@compiled()
def ask(loop, row, state, data, said):
    """Ask for what would mend `said`, if nothing else is asked; under MUTEX.

    False: that was asked for this request before, and does not help.
    """
    if said == UNKNOWN and row[ASKED] == UNKNOWN:
        return False
    row[ASKED] = 0
    if loop[QUESTION] == 0:
        row[ASKED] = loop[QUESTION] = said
        loop[Q_ROW], loop[Q_SLOT] = state[AT_ROW], state[SLOT]
        if said == UNKNOWN:
            loop[Q_HASH] = state[NAMES_HASH]
            _note_name(loop, Q_MODEL, state, data, MODEL_NAME, 0)
            _note_name(loop, Q_TENANT, state, data, TENANT_ID, TEXT_BYTES_MAX)
        i64_view(loop, COUNTERS)[QUESTIONS] += 1
        tell(loop)
    return True
