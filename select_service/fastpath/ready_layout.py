"""Layout of the header through which a kernel serves the ready connections of a server.

An int64 array that lives as long as its `ReadyConnections`: pairs (address, length) of arrays, then
plain numbers.

pair      type     length                    meaning
EVENTS    int32    EVENTS_MAX * EVENT_WORDS  events of epoll_wait(2)
RECEIVED  uint8    RECEIVED_BYTES_MAX        bytes just received
DRAWS     float64  EVENTS_MAX                random numbers of the next requests
WATCHED   uint8    SOCKETS_MAX               by socket: UNWATCHED, WATCHED_QUIET or WATCHED_ACTIVE
"""

import platform

EVENTS, RECEIVED, DRAWS, WATCHED = range(0, 8, 2)
(
    EPOLL,  # file descriptor
    N_EVENTS,  # events of the last poll
    AT_EVENT,  # number of the next event
    DRAWN,  # used entries of DRAWS
    SOCKET,  # socket of the last event
    N_RECEIVED,  # its bytes in RECEIVED; 0 or less: its end or an error
    OUTCOME,  # of its request, see `serve_layout`
    HAS_SELECTIONS,  # whether selections are kept, so that a booking may remove one
    EVENTS_LEFT,  # events that the turn may still take
    UNTIL_NS,  # end of the turn, as `clock_ns`
) = range(8, 18)
READY_LENGTH = 18

UNWATCHED, WATCHED_QUIET, WATCHED_ACTIVE = range(3)
"""ACTIVE: a request was answered since the last check for timeouts."""

ALL_SERVED, NEEDS_PYTHON = range(2)
"""Results of `serve_ready`."""

IS_PACKED = platform.machine() in ("x86_64", "AMD64")
EVENT_WORDS, EVENT_SOCKET = (3, 1) if IS_PACKED else (4, 2)
"""Words of `struct epoll_event`, which is packed on x86-64 alone, and the one with the socket."""

EVENTS_MAX = 64
"""Most events of a turn."""
RECEIVED_BYTES_MAX = 256 << 10
SOCKETS_MAX = 65_536
"""File descriptors that can be watched; connections with greater numbers use the transport."""
TURN_NS_MAX = 2_000_000
"""Time after which a turn takes no further request."""
