"""The loop itself: from its start to its end without the interpreter."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import I, i32_view
from select_service.fast.byte_kernels import NONE
from select_service.fast.serve_kernels import now_ns
from select_service.loops.accepting_kernels import accept_some, resume, take_back
from select_service.loops.connection_kernels import row_at, tell_epoll
from select_service.loops.libc_kernels import (
    CTL_ADD,
    EINTR,
    EPOLLIN,
    EVENT_MARK,
    EVENT_WORDS,
    epoll_wait,
    errno,
    read,
)
from select_service.loops.loop_layout import (
    EPOLL,
    EVENTS,
    EVENTS_MAX,
    FD,
    LISTENER,
    LISTENER_MARK,
    MODE,
    N_PARKED,
    N_READY,
    N_ROWS,
    NOW,
    PARKED,
    READY,
    STOPS,
    TICK_NS,
    WAKE,
    WAKE_MARK,
    WORD,
)
from select_service.loops.telling_kernels import WORD_BYTES
from select_service.loops.time_kernels import end, look_at_all
from select_service.loops.turn_kernels import happened, serve_held

TICK_MS = TICK_NS // 1_000_000


@compiled()
def serve_all(loop, mode):
    """All connections of this mode, which hold a request."""
    for number in range(loop[N_ROWS]):
        row = row_at(loop, number)
        if row[FD] != NONE and row[MODE] == mode:
            serve_held(loop, row)


@compiled()
def take_in(loop, n):
    """What epoll has told: n events."""
    events = i32_view(loop, EVENTS)
    for k in range(n):
        mark = I(events[k * EVENT_WORDS + EVENT_MARK])
        if mark == LISTENER_MARK:
            accept_some(loop)
        elif mark == WAKE_MARK:
            read(loop[WAKE], loop[WORD], WORD_BYTES)
            take_back(loop)
            if loop[N_PARKED] > 0:
                serve_all(loop, I(PARKED))
        else:
            happened(loop, row_at(loop, mark), events[k * EVENT_WORDS])


@compiled()
def turn(loop, wait_ms):
    """Wait, and do what there is to do.  0, or the error that ends the loop."""
    n = epoll_wait(loop[EPOLL], loop[EVENTS], EVENTS_MAX, wait_ms)
    if n < 0 and errno() != EINTR:
        return errno()
    loop[NOW] = now_ns()
    is_more = loop[N_READY] > 0
    take_in(loop, n)
    if is_more:
        serve_all(loop, I(READY))
    return I(0)


@compiled()
def begin(loop):
    """0, or the error of the system."""
    listens = tell_epoll(loop, CTL_ADD, loop[LISTENER], EPOLLIN, LISTENER_MARK)
    if listens != 0 or tell_epoll(loop, CTL_ADD, loop[WAKE], EPOLLIN, WAKE_MARK) != 0:
        return errno()
    loop[NOW] = now_ns()
    return I(0)


@compiled("int64(int64[::1])", nogil=True)
def run(loop):
    """Serve until STOPS.  0, or the error that ended it.  loop: see loop_layout"""
    error = begin(loop)
    ticked = loop[NOW]
    while error == 0:
        stops = loop[STOPS] != 0
        if stops:
            accept_some(loop)
            take_back(loop)
        error = turn(loop, 0 if stops or loop[N_READY] > 0 else TICK_MS)
        if loop[NOW] - ticked > TICK_NS:
            ticked = loop[NOW]
            look_at_all(loop)
            resume(loop)
            take_back(loop)
        if stops:
            break
    end(loop)
    return error
