"""New connections, and those that come back."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import I, i32_view, i64_view
from indexer.mutex_kernels import acquire, release
from select_service.fast.byte_kernels import NONE
from select_service.loops.connection_kernels import row_at, take_row, tell_epoll
from select_service.loops.libc_kernels import (
    CTL_MOD,
    EAGAIN,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOMEM,
    EPOLLIN,
    IPPROTO_TCP,
    SOCK_NONBLOCK_CLOEXEC,
    TCP_NODELAY,
    accept4,
    errno,
    setsockopt,
)
from select_service.loops.loop_layout import (
    ACCEPTED,
    ACCEPTS_PER_TURN,
    CONNECTIONS,
    COUNTERS,
    HANDED,
    HANDED_LENGTH,
    IS_PAUSED,
    LISTENER,
    LISTENER_MARK,
    MODE,
    MUTEX,
    N_CONNECTIONS,
    N_HANDED,
    N_RETURNED,
    NO_ROOM,
    PAUSES,
    READING,
    RETURN_LENGTH,
    RETURNED,
    RETURNS,
    ROW_LENGTH,
    TAKEN_BACK,
    TOO_MANY,
    WORD,
)
from select_service.loops.telling_kernels import hand_over_new

FLAG_BYTES = 4


@compiled()
def pause(loop):
    """Nothing is accepted until the next tick; clients wait in the backlog."""
    loop[IS_PAUSED] = 1
    i64_view(loop, COUNTERS)[PAUSES] += 1
    tell_epoll(loop, CTL_MOD, loop[LISTENER], 0, LISTENER_MARK)


@compiled()
def resume(loop):
    if loop[IS_PAUSED] != 0:
        loop[IS_PAUSED] = 0
        tell_epoll(loop, CTL_MOD, loop[LISTENER], EPOLLIN, LISTENER_MARK)


@compiled()
def has_record(loop):
    """Every connection that there is may be handed over, and this one too."""
    return loop[N_HANDED] + loop[N_CONNECTIONS] < loop[HANDED + 1] // HANDED_LENGTH


@compiled()
def is_full(loop):
    return loop[N_CONNECTIONS] * ROW_LENGTH == loop[CONNECTIONS + 1]


@compiled()
def next_returned(loop):
    """Descriptor of a connection that comes back, and how often it did; NONE: there is no other."""
    acquire(loop[MUTEX])
    fd, returns = I(NONE), I(0)
    if loop[N_RETURNED] > 0:
        loop[N_RETURNED] -= 1
        at = loop[N_RETURNED] * RETURN_LENGTH
        returned = i64_view(loop, RETURNED)
        fd, returns = returned[at], returned[at + 1]
    release(loop[MUTEX])
    return fd, returns


@compiled()
def take_back(loop):
    """Connections that come back, between two requests, with nothing read that is not answered."""
    while has_record(loop):
        fd, returns = next_returned(loop)
        if fd == NONE:
            return
        if is_full(loop):
            hand_over_new(loop, fd, NO_ROOM, returns)
            continue
        i64_view(loop, COUNTERS)[TAKEN_BACK] += 1
        row = row_at(loop, take_row(loop, fd))
        row[RETURNS], row[MODE] = returns, READING


@compiled()
def enter(loop, fd):
    """A connection that was accepted."""
    i64_view(loop, COUNTERS)[ACCEPTED] += 1
    i32_view(loop, WORD)[0] = 1
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, loop[WORD], FLAG_BYTES)
    if is_full(loop):
        hand_over_new(loop, fd, TOO_MANY, 0)
    else:
        take_row(loop, fd)


@compiled()
def accept_some(loop):
    """A turn's share of those that wait."""
    for _ in range(ACCEPTS_PER_TURN):
        if not has_record(loop):
            pause(loop)
            return
        fd = accept4(loop[LISTENER], 0, 0, SOCK_NONBLOCK_CLOEXEC)
        if fd >= 0:
            enter(loop, fd)
            continue
        error = errno()
        if error == EAGAIN:
            return
        if error in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
            pause(loop)
            return
