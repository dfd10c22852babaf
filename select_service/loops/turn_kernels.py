"""What happens on one connection: bytes come in, answers go out, it waits or is handed over."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import I, i64_view, u8_view
from select_service.fast.byte_kernels import NONE
from select_service.fast.request_layout import END
from select_service.fast.serve_kernels import now_ns
from select_service.fast.serve_layout import INCOMPLETE, OUT_BYTES
from select_service.loops.answering_kernels import ANSWERED, WAITS, answered
from select_service.loops.connection_kernels import (
    drop,
    have_room,
    have_room_for_more,
    keep,
    release_unsent,
    set_mode,
)
from select_service.loops.libc_kernels import (
    EAGAIN,
    EINTR,
    EPOLLERR,
    EPOLLHUP,
    MSG_NOSIGNAL,
    errno,
    memmove,
    realloc,
    recv,
    send,
)
from select_service.loops.loop_layout import (
    ANSWERS,
    ANSWERS_BYTES,
    ANSWERS_PER_TURN,
    BLOCKED,
    BUFFER,
    BUFFERED,
    BUFFERED_BYTES_MAX,
    FD,
    FILLED,
    HELD,
    MODE,
    NEW,
    NO_ROOM,
    NOW,
    PARKED,
    READING,
    READY,
    RECEIVED,
    SENT,
    SINCE,
    STATE,
    TURN_NS,
    UNSENT,
    UNUSUAL,
)
from select_service.loops.telling_kernels import hand_over

ANSWERS_PER_LOOK = 4
"""At the clock."""


@compiled()
def is_patient():
    """Is the error of the last call none of the connection?"""
    error = errno()
    return error in (EAGAIN, EINTR)


@compiled()
def answer_some(loop, row, data):
    """A turn's share: (what was said of the last request, place behind the last answer)."""
    state = i64_view(loop, STATE)
    at, ends_at = I(0), now_ns() + TURN_NS
    for k in range(ANSWERS_PER_TURN):
        said = answered(loop, row, data, at)
        if said != ANSWERED:
            return said, at
        at = state[END]
        if at == data.shape[0] or loop[FILLED] > ANSWERS_BYTES - OUT_BYTES:
            break
        if k % ANSWERS_PER_LOOK == 0 and now_ns() > ends_at:
            break
    return I(ANSWERED), at


@compiled()
def send_answers(loop, row):
    """What the client does not take at once is kept.  False: the connection is of no use."""
    n, sent = loop[FILLED], I(0)
    loop[FILLED] = 0
    if n > 0:
        sent = send(row[FD], loop[ANSWERS], n, MSG_NOSIGNAL)
        if sent < 0:
            if not is_patient():
                return False
            sent = I(0)
    if sent < n:
        row[UNSENT] = realloc(0, n - sent)
        if row[UNSENT] == 0:
            return False
        row[UNSENT + 1], row[SENT] = n - sent, 0
        memmove(row[UNSENT], loop[ANSWERS] + sent, n - sent)
    return True


@compiled()
def wait_for_more(loop, row, wanted):
    """A request has not come in completely; wanted: its length, if it is known."""
    if loop[BUFFERED] > BUFFERED_BYTES_MAX or not have_room_for_more(loop, row, wanted):
        hand_over(loop, row, NO_ROOM)
    else:
        set_mode(loop, row, READING)


@compiled()
def go_on(loop, row, said, wanted):
    """What comes next on a connection, by what was said of the first request that it holds."""
    if row[UNSENT] != 0:
        row[SINCE] = loop[NOW]
        set_mode(loop, row, BLOCKED)
    elif row[HELD] == 0:
        set_mode(loop, row, READING)
    elif said == ANSWERED:
        set_mode(loop, row, READY)
    elif said == WAITS:
        if row[MODE] != PARKED:
            row[SINCE] = loop[NOW]
        set_mode(loop, row, PARKED)
    elif said == INCOMPLETE:
        wait_for_more(loop, row, wanted)
    else:
        hand_over(loop, row, UNUSUAL)


@compiled()
def serve(loop, row, address, n):
    """Answer what it is the turn of, of the n bytes at the address."""
    data = u8_view(loop, RECEIVED)[:n] if row[BUFFER] == 0 else u8_view(row, BUFFER)[:n]
    said, at = answer_some(loop, row, data)
    end = i64_view(loop, STATE)[END]
    if not send_answers(loop, row) or not keep(loop, row, address + at, n - at):
        drop(loop, row)
        return
    if at > 0:
        row[SINCE] = loop[NOW]
    go_on(loop, row, said, NONE if end == NONE else end - at)


@compiled()
def serve_held(loop, row):
    serve(loop, row, row[BUFFER], row[HELD])


@compiled()
def receive(loop, row):
    """Bytes have come in, or the end of them."""
    if row[BUFFER] == 0:
        address, room = loop[RECEIVED], loop[RECEIVED + 1]
    else:
        if row[HELD] == row[BUFFER + 1] and not have_room(loop, row, 2 * row[HELD]):
            drop(loop, row)
            return
        address, room = row[BUFFER], row[BUFFER + 1]
    n = recv(row[FD], address + row[HELD], room - row[HELD], 0)
    if n > 0:
        if row[HELD] == 0:
            row[SINCE], row[MODE] = loop[NOW], READING
        else:
            row[HELD] += n
            n = row[HELD]
        serve(loop, row, address, n)
    elif n == 0 and row[HELD] > 0:
        hand_over(loop, row, UNUSUAL)  # Python refuses a request that will not be complete
    elif n == 0 or not is_patient():
        drop(loop, row)


@compiled()
def send_unsent(loop, row):
    """The client takes answers again."""
    left = row[UNSENT + 1] - row[SENT]
    sent = send(row[FD], row[UNSENT] + row[SENT], left, MSG_NOSIGNAL)
    if sent < 0:
        if not is_patient():
            drop(loop, row)
        return
    row[SENT] += sent
    row[SINCE] = loop[NOW]
    if sent == left:
        release_unsent(row)
        if row[HELD] > 0:
            serve_held(loop, row)
        else:
            set_mode(loop, row, READING)


@compiled()
def happened(loop, row, events):
    """Epoll tells of a connection, or of one that had this row before."""
    if row[FD] == NONE:
        return
    if row[MODE] == BLOCKED:
        send_unsent(loop, row)
    elif row[MODE] == PARKED:
        if events & (EPOLLERR | EPOLLHUP) != 0:
            drop(loop, row)
    elif row[MODE] in (NEW, READING):
        receive(loop, row)
