"""What a reading leaves behind: the entries of one int64 array, and the bounds of what is usual.

Places are indexes into the bytes that were read.  A text is its first place and its length, in
ASCII without escapes.  NONE: it was not given.
"""

NONE = -1

USUAL, INCOMPLETE, UNUSUAL = 1, 0, -1
"""What a reader says: all was read; more bytes are needed; the ordinary path has to read it."""

# Routes
(
    SELECT,
    SELECT_AND_RESERVE,
    RESERVE,
    PREFILL_COMPLETE,
    OUTPUT_BLOCK,
    RENEW,
    FREE,
) = range(7)
N_ROUTES = 7

# Entries.  Of the head:
ROUTE = 0
BODY_AT = 1  # place behind the head
END = 2  # place behind the request, known as soon as the head is read
PATH_ID = 3  # and its length: the reservation that the path names
POLICY_CLASS = 5  # and its length: the value of the header
# Of the body.  Numbers, unsigned, as their 64 bits:
ISL_TOKENS = 7  # as given, or the number of tokens; never 0
WORKER_ID = 8
DP_RANK = 9
EFFECTIVE_PREFILL_TOKENS = 10
EXPECTED_OUTPUT_TOKENS = 11
# How many there are in the arrays:
N_BLOCKS = 12
N_SEQUENCE = 13
N_TOKENS = 14
# Texts, each with its length:
SELECTION_ID = 15
RESERVATION_ID = 17
MODEL_NAME = 19
TENANT_ID = 21
# And:
KEYS_LEFT = 23  # a bit for each key that was not given
DECAY_FRACTION = 24  # bits of a float64; NONE is NaN
# Texts of the head, each with its length:
AUTHORIZATION = 25
HOST_NAME = 27  # with its port
N_FIELDS = 29

HEAD_BYTES_MAX = 8192
HEADERS_MAX = 64
BODY_BYTES_MAX = 2**21
TEXT_BYTES_MAX = 512
"""Of an id or a name."""
NUMBERS_MAX = 65_536
"""Hashes of a list."""
TOKENS_MAX = 262_144
LENGTH_MAX = 2**40
"""Of a prompt, in tokens."""
