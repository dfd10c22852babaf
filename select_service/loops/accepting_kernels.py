"""New connections."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import i32_view, i64_view
from select_service.loops.connection_kernels import take_row, tell_epoll
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
    N_CONNECTIONS,
    N_HANDED,
    PAUSES,
    ROW_LENGTH,
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
def enter(loop, fd):
    """A connection that was accepted."""
    i64_view(loop, COUNTERS)[ACCEPTED] += 1
    i32_view(loop, WORD)[0] = 1
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, loop[WORD], FLAG_BYTES)
    if loop[N_CONNECTIONS] * ROW_LENGTH == loop[CONNECTIONS + 1]:
        hand_over_new(loop, fd, TOO_MANY)
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
