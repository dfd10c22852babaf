"""Rows of connections: taken, watched, given bytes to hold, let go."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import I, i32_view, i64_view
from select_service.fast.byte_kernels import NONE
from select_service.loops.libc_kernels import (
    CTL_ADD,
    CTL_MOD,
    EPOLLIN,
    EPOLLOUT,
    EVENT_MARK,
    close,
    epoll_ctl,
    free,
    memmove,
    realloc,
)
from select_service.loops.loop_layout import (
    BLOCKED,
    BUFFER,
    BUFFER_BYTES_MIN,
    BUFFERED,
    CONNECTIONS,
    EPOLL,
    EVENT,
    FD,
    FREE_ROW,
    HELD,
    MODE,
    N_CONNECTIONS,
    N_PARKED,
    N_READY,
    N_ROWS,
    NEW,
    NEXT_FREE,
    NOW,
    NUMBER,
    PARKED,
    READY,
    ROW_LENGTH,
    SENT,
    SINCE,
    UNSENT,
    WATCHED,
)

FIRST_GROWTH = 4
"""A request of known length gets all of its buffer once a part of it, one in so many, is there."""


@compiled()
def row_at(loop, number):
    return i64_view(loop, CONNECTIONS)[number * ROW_LENGTH : (number + 1) * ROW_LENGTH]


@compiled()
def tell_epoll(loop, operation, fd, events, mark):
    """0, or -1 as epoll_ctl says."""
    event = i32_view(loop, EVENT)
    event[0], event[EVENT_MARK] = events, mark
    return epoll_ctl(loop[EPOLL], operation, fd, loop[EVENT])


@compiled()
def _count_mode(loop, mode, n):
    if mode == READY:
        loop[N_READY] += n
    elif mode == PARKED:
        loop[N_PARKED] += n


@compiled()
def set_mode(loop, row, mode):
    """What is waited for, and with it what epoll tells of."""
    _count_mode(loop, row[MODE], -1)
    _count_mode(loop, mode, 1)
    row[MODE] = mode
    events = EPOLLOUT if mode == BLOCKED else 0 if mode == PARKED else EPOLLIN
    if row[WATCHED] != events:
        row[WATCHED] = events
        tell_epoll(loop, CTL_MOD, row[FD], events, row[NUMBER])


@compiled()
def release_buffer(loop, row):
    if row[BUFFER] != 0:
        free(row[BUFFER])
        loop[BUFFERED] -= row[BUFFER + 1]
        row[BUFFER] = row[BUFFER + 1] = row[HELD] = 0


@compiled()
def release_unsent(row):
    if row[UNSENT] != 0:
        free(row[UNSENT])
        row[UNSENT] = row[UNSENT + 1] = row[SENT] = 0


@compiled()
def let_go(loop, row):
    """The row is free again, with its memory; the descriptor is not ours any more."""
    release_buffer(loop, row)
    release_unsent(row)
    _count_mode(loop, row[MODE], -1)
    row[FD], row[MODE] = NONE, NEW
    row[NEXT_FREE], loop[FREE_ROW] = loop[FREE_ROW], row[NUMBER]
    loop[N_CONNECTIONS] -= 1


@compiled()
def drop(loop, row):
    """Close the connection; epoll forgets it with that."""
    close(row[FD])
    let_go(loop, row)


@compiled()
def take_row(loop, fd):
    """Enter a connection and watch it; there is a row for it, whose number is returned."""
    number = loop[FREE_ROW]
    if number == NONE:
        number = loop[N_ROWS]
        loop[N_ROWS] += 1
    else:
        loop[FREE_ROW] = row_at(loop, number)[NEXT_FREE]
    row = row_at(loop, number)
    for field in range(ROW_LENGTH):
        row[field] = 0
    row[NUMBER], row[FD], row[SINCE], row[MODE] = number, fd, loop[NOW], NEW
    row[WATCHED] = EPOLLIN
    loop[N_CONNECTIONS] += 1
    if tell_epoll(loop, CTL_ADD, fd, EPOLLIN, number) != 0:  # for want of memory
        drop(loop, row)
    return number


@compiled()
def have_room(loop, row, size):
    """Let the buffer have room for so many bytes.  False: there is no memory."""
    if size <= row[BUFFER + 1]:
        return True
    size = max(size, I(BUFFER_BYTES_MIN))
    address = realloc(row[BUFFER], size)
    if address == 0:
        return False
    loop[BUFFERED] += size - row[BUFFER + 1]
    row[BUFFER], row[BUFFER + 1] = address, size
    return True


@compiled()
def keep(loop, row, address, n):
    """Hold the n bytes at the address, which may lie in the buffer.  False: there is no memory."""
    if n == 0:
        release_buffer(loop, row)
    else:
        if row[BUFFER] == 0 and not have_room(loop, row, n):
            return False
        memmove(row[BUFFER], address, n)
        row[HELD] = n
    return True


@compiled()
def have_room_for_more(loop, row, wanted):
    """Room for what comes next of a request of `wanted` bytes, NONE: nobody knows.

    What a client only promises takes no memory.
    """
    most = FIRST_GROWTH * row[HELD]
    return have_room(loop, row, most if wanted == NONE else max(min(wanted, most), row[HELD]))
