"""What has taken too long, and the end."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import i64_view
from select_service.fast.byte_kernels import NONE
from select_service.loops.connection_kernels import drop, row_at
from select_service.loops.loop_layout import (
    BLOCKED,
    CLOSED_IDLE,
    CLOSED_UNREAD,
    CONNECTIONS,
    COUNTERS,
    CROWDED_NS,
    DROPS_IDLE,
    ENDING,
    FD,
    HELD,
    IDLE_NS,
    LATE,
    MODE,
    N_CONNECTIONS,
    N_ROWS,
    NEW,
    NOW,
    PARKED,
    PARKED_LONG,
    PARKED_NS,
    READY,
    REQUEST_NS,
    ROW_LENGTH,
    SINCE,
    STOPS,
    UNREAD_NS,
    UNSENT,
)
from select_service.loops.telling_kernels import hand_over


@compiled()
def close_for(loop, row, why):
    i64_view(loop, COUNTERS)[why] += 1
    drop(loop, row)


@compiled()
def idle_ns(loop):
    """Return how long a connection may be idle at the moment."""
    if 2 * loop[N_CONNECTIONS] * ROW_LENGTH > loop[CONNECTIONS + 1]:
        return min(loop[IDLE_NS], loop[CROWDED_NS])
    return loop[IDLE_NS]


@compiled()
def look_at(loop, row):
    """Is one waited for longer than may be?"""
    waited_ns = loop[NOW] - row[SINCE]
    if row[MODE] == BLOCKED:
        if waited_ns > loop[UNREAD_NS]:
            close_for(loop, row, CLOSED_UNREAD)
    elif row[MODE] == PARKED:
        if waited_ns > loop[PARKED_NS]:
            hand_over(loop, row, PARKED_LONG)
    elif row[MODE] == NEW or row[HELD] > 0:
        if row[MODE] != READY and waited_ns > loop[REQUEST_NS]:
            hand_over(loop, row, LATE)
    elif waited_ns > idle_ns(loop):
        close_for(loop, row, CLOSED_IDLE)


@compiled()
def look_at_all(loop):
    """Every tick.  Ten nanoseconds a connection."""
    for number in range(loop[N_ROWS]):
        row = row_at(loop, number)
        if row[FD] != NONE:
            look_at(loop, row)


@compiled()
def end(loop):
    """What is in hand is for the event loop to end; idle connections are that or closed."""
    drops_idle = loop[STOPS] == DROPS_IDLE
    for number in range(loop[N_ROWS]):
        row = row_at(loop, number)
        if row[FD] != NONE:
            if drops_idle and row[HELD] == 0 and row[UNSENT] == 0:
                drop(loop, row)
            else:
                hand_over(loop, row, ENDING)
