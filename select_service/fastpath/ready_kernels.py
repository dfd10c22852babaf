"""Kernel that receives, answers and sends the requests of all ready connections in one call."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import HEADER, f64_view, i32_view, u8_view
from indexer.jit.decorators import compiled
from indexer.jit.socket_kernels import bytes_view, poll_events, read_socket
from select_service.fastpath.parsing.byte_kernels import I
from select_service.fastpath.ready_layout import (
    ALL_SERVED,
    AT_EVENT,
    DRAWN,
    DRAWS,
    EPOLL,
    EVENT_SOCKET,
    EVENT_WORDS,
    EVENTS,
    EVENTS_LEFT,
    EVENTS_MAX,
    HAS_SELECTIONS,
    N_EVENTS,
    N_RECEIVED,
    NEEDS_PYTHON,
    OUTCOME,
    RECEIVED,
    SOCKET,
    TURN_NS_MAX,
    UNTIL_NS,
    UNWATCHED,
    WATCHED,
    WATCHED_ACTIVE,
)
from select_service.fastpath.serve_kernels import call_serve, clock_ns
from select_service.fastpath.serve_layout import (
    BEGAN_NS,
    READ,
    SELECTION_BYTES,
    SENT,
    SERVE_ADDRESS,
)


@compiled()
def _serve_socket(ready, state, file):
    """Receive from a socket and answer its request.  Returns whether nothing else is needed."""
    n = read_socket(file, ready[RECEIVED], ready[RECEIVED + 1])
    ready[SOCKET], ready[N_RECEIVED] = file, n
    if n <= 0:
        return False
    # Draws are used up one by one: Python repeats a declined request with the same one.
    draw = f64_view(ready, DRAWS)[ready[DRAWN]]
    ready[DRAWN] += 1
    data = bytes_view(ready[RECEIVED], n)
    end = call_serve(state[SERVE_ADDRESS], (data, I(0), state, I(READ), draw, I(file)))
    ready[OUTCOME] = end
    n_kept = state[SELECTION_BYTES]
    # Kept selections are objects of Python, as are the answers that the socket did not take.
    if end != SENT or n_kept > 0 or (n_kept < 0 and ready[HAS_SELECTIONS] != 0):
        return False
    u8_view(ready, WATCHED)[file] = WATCHED_ACTIVE
    return True


@compiled()
def _poll_again(ready):
    """Query events, as many as the turn may still take.  Returns whether there are any."""
    ready[AT_EVENT] = ready[N_EVENTS] = 0
    if ready[EVENTS_LEFT] > 0:
        ready[N_EVENTS] = poll_events(ready[EPOLL], ready[EVENTS], ready[EVENTS_LEFT])
        ready[EVENTS_LEFT] -= ready[N_EVENTS]
    return ready[N_EVENTS] > 0


@compiled(f"int64({HEADER}, {HEADER}, boolean)")
def serve_ready(ready, state, begins):
    """Serve the connections that are ready, up to the first that needs Python: NEEDS_PYTHON, with
    its SOCKET and OUTCOME, or ALL_SERVED.

    ready: see ready_layout;  state: see serve_layout
    begins: whether a turn begins, instead of continuing with the events of the last call
    """
    events, watched = i32_view(ready, EVENTS), u8_view(ready, WATCHED)
    if begins:
        ready[N_EVENTS] = ready[AT_EVENT] = ready[DRAWN] = 0
        ready[EVENTS_LEFT], ready[UNTIL_NS] = EVENTS_MAX, clock_ns() + TURN_NS_MAX
    elif clock_ns() > ready[UNTIL_NS]:
        # What Python had to finish counts too.
        return I(ALL_SERVED)
    # While some connections are served, others become ready; a turn of the event loop costs more.
    while ready[AT_EVENT] < ready[N_EVENTS] or _poll_again(ready):
        file = I(events[ready[AT_EVENT] * EVENT_WORDS + EVENT_SOCKET])
        ready[AT_EVENT] += 1
        # A connection may end while another of the same events is served.
        if watched[file] != UNWATCHED and not _serve_socket(ready, state, file):
            return I(NEEDS_PYTHON)
        if state[BEGAN_NS] > ready[UNTIL_NS]:
            # The other connections stay ready for the next turn.
            break
    return I(ALL_SERVED)
