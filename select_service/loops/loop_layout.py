"""The header through which a loop keeps its state.  Nothing else.

An int64 array that lives as long as its `InputLoop`: pairs (address, length) of arrays, which the
views of indexer.index.state_kernels turn into arrays again, and plain numbers.

pair         type   length                        meaning
STATE        int64  STATE_LENGTH                  of the answering (fast.serve_layout)
CONNECTIONS  int64  connections * ROW_LENGTH      a row for each connection, see below
EVENTS       int32  EVENTS_MAX * EVENT_WORDS      what epoll tells
EVENT        int32  EVENT_WORDS                   what epoll is told
RECEIVED     uint8  RECEIVED_BYTES                what has just come in
ANSWERS      uint8  ANSWERS_BYTES                 what goes out next
HANDED       int64  2 * connections * HANDED_L..  connections for the event loop, see below
NAMES        uint8  2 * TEXT_BYTES_MAX            model and tenant of a question
WORD         int64  1                             for calls that want the address of a number
RETURNED     int64  connections * RETURN_LENGTH   connections that come back: descriptor, how often
COUNTERS     int64  N_COUNTERS                    what has happened since the start

Whose memory it is:

* STATE and all that it names is the loop's while it holds MUTEX, which is for the time of one
  request; Python changes it while it holds MUTEX.
* So are HANDED with N_HANDED, RETURNED with N_RETURNED, and the question: QUESTION and what belongs
  to it.
* STOPS is written by Python at any time, and only seen later.
* Everything else is the loop's alone.
"""

from select_service.fast.serve_layout import OUT_BYTES

(
    STATE,
    CONNECTIONS,
    EVENTS,
    EVENT,
    RECEIVED,
    ANSWERS,
    HANDED,
    NAMES,
    WORD,
    COUNTERS,
    RETURNED,
) = range(0, 22, 2)
(
    MUTEX,  # address of the loop's own
    EPOLL,  # descriptors, four of them
    LISTENER,
    WAKE,  # an eventfd on which Python wakes the loop
    TELL,  # an eventfd on which the loop tells Python of HANDED and QUESTION
    STOPS,  # not 0: the loop is to end
    SEED,  # of the random numbers
    NOW,  # nanoseconds of the monotonic clock, at the begin of the turn
    N_ROWS,  # rows of CONNECTIONS that were ever used
    FREE_ROW,  # first of those that are free again, or NONE
    N_CONNECTIONS,
    N_READY,  # connections in this mode
    N_PARKED,  # connections in this mode
    IS_PAUSED,  # 1: nothing is accepted for a while
    BUFFERED,  # bytes of all buffers of connections
    FILLED,  # bytes of ANSWERS that are to be sent
    IDLE_NS,  # how long a connection may be without a request,
    CROWDED_NS,  # the same while more than half of the rows are taken,
    REQUEST_NS,  # a request may take to come in,
    UNREAD_NS,  # a client may take nothing of an answer,
    PARKED_NS,  # and Python may take to mend something before a connection is handed over
    N_HANDED,
    QUESTION,  # what Python has to mend (a status of fast.serve_layout), 0: nothing
    Q_ROW,  # its partition,
    Q_SLOT,  # its slot,
    Q_HASH,  # the hash of its names,
    Q_MODEL,  # and how long these are; NONE: not given
    Q_TENANT,
    N_RETURNED,
) = range(22, 51)
LOOP_LENGTH = 51

# A connection.
NUMBER = 0  # of the row
FD = 1  # NONE: the row is free
MODE = 2
SINCE = 3  # when what is waited for began [ns]
WATCHED = 4  # events of which epoll tells
BUFFER = 5  # address and capacity: bytes that came in and are not answered
HELD = 7  # how many these are
UNSENT = 8  # address and length: answers that the client did not take at once
SENT = 10  # how many bytes of these it has taken
ASKED = 11  # the question that was asked for its request, 0: none
NEXT_FREE = 12  # row
RETURNS = 13  # how often it has come back
ROW_LENGTH = 14

NEW, READING, READY, BLOCKED, PARKED = range(5)
"""MODE.  Nothing has come yet; the next bytes are waited for; there is a request that has to wait
for its turn; the client has to take answers first; Python has to mend something first."""

# A connection that is handed over: descriptor, BUFFER, HELD, UNSENT, its length, SENT, why, RETURNS
H_FD, H_BUFFER, H_HELD, H_UNSENT, H_LENGTH, H_SENT, H_WHY, H_RETURNS = range(8)
HANDED_LENGTH = 8
RETURN_LENGTH = 2

DROPS_IDLE, KEEPS_IDLE = 1, 2
"""What becomes of idle connections at the end: they are closed, or handed over."""

UNUSUAL, PARKED_LONG, NO_ROOM, LATE, TOO_MANY, ENDING = range(6)
"""Why.  A request that is not for us; it could not be mended in time; no room for what came in; the
request is not complete in time; there are as many as there may be; the service ends."""
N_WHY = 6

# What has happened.  First connections that were handed over, by why.
(
    ACCEPTED,
    CLOSED_IDLE,  # by us, because no request came for long
    CLOSED_UNREAD,  # by us, because the client took nothing of an answer for long
    QUESTIONS,
    PAUSES,  # of accepting, for want of descriptors, memory or room
    TAKEN_BACK,
) = range(N_WHY, N_WHY + 6)
N_COUNTERS = N_WHY + 6

LISTENER_MARK, WAKE_MARK = -1, -2
"""What epoll says instead of the number of a row."""

EVENTS_MAX = 256
"""Connections with news in one turn."""
ACCEPTS_PER_TURN = 64
ANSWERS_PER_TURN = 32
"""Requests of one connection that are answered before others have their turn ..."""
TURN_NS = 2_000_000
"""... unless they have taken longer."""
RECEIVED_BYTES = 262_144
ANSWERS_BYTES = 2 * OUT_BYTES
BUFFER_BYTES_MIN = 4096
BUFFERED_BYTES_MAX = 2**26
"""Of requests that have not come in completely; beyond it connections are handed over."""
TICK_NS = 500_000_000
"""How often it is looked for what takes too long, and whether accepting can go on."""
