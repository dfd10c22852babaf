"""Layout of the parser's output, an int64 array, and the limits of common requests.

Offsets are indexes into the parsed bytes.  A text is an offset and a length, in ASCII without
escapes.  NONE: not given.
"""

NONE = -1

COMMON, INCOMPLETE, NOT_COMMON = 1, 0, -1
"""Results of a parser: complete; more bytes needed; to be parsed by the ordinary path."""

# Routes.
(
    SELECT,
    SELECT_AND_RESERVE,
    RESERVE,
    SELECT_PAIR,
    SELECT_PAIR_AND_RESERVE,
    PREFILL_COMPLETE,
    OUTPUT_BLOCK,
    RENEW,
    FIRST_TOKEN,
    FREE,
) = range(10)
"""Routes with a prompt come before PREFILL_COMPLETE."""
N_ROUTES = 10

# Entries of the head:
ROUTE = 0
BODY_AT = 1  # offset after the head
END = 2  # offset after the request, known once the head is parsed
PATH_ID = 3  # and length: reservation in the path
POLICY_CLASS = 5  # and length: value of the header
# Entries of the body.  Unsigned numbers, by their 64 bits:
ISL_TOKENS = 7  # as given, or the number of tokens; never 0
WORKER_ID = 8
DP_RANK = 9
EFFECTIVE_PREFILL_TOKENS = 10
EXPECTED_OUTPUT_TOKENS = 11
# Numbers of entries in the arrays:
N_BLOCKS = 12
N_SEQUENCE = 13
N_TOKENS = 14
# Texts, each with its length:
SELECTION_ID = 15
RESERVATION_ID = 17  # of a booking without it, SELECTION_ID
MODEL_NAME = 19
TENANT_ID = 21
# Other entries:
KEYS_LEFT = 23  # bit set of the keys not yet seen
DECAY_FRACTION = 24  # bits of a float64; NONE is NaN
# Texts of the head, each with its length:
AUTHORIZATION = 25
HOST_NAME = 27  # including the port
# Of the body, each 0 or 1:
RETURNS_HASHES = 29  # whether the response has the sequence hashes
IS_SELECTION_NAMED = 30  # whether SELECTION_ID is the id of the reservation
SESSION_ID = 31  # text of the body, and its length
LOCAL = 33  # of a pair: whether one rank may do both, see below
LENGTH_TEXT = 34  # of the head: text of the content-length, and its length
N_FIELDS = 36

# Values of LOCAL.
AUTO, NEVER, ALWAYS = range(3)

HEAD_BYTES_MAX = 8192
HEADERS_MAX = 64
SAME_HEAD_BYTES_MAX = 1024
"""Longest head that is kept to be compared with the next, bytes."""
BODY_BYTES_MAX = 2**21
TEXT_BYTES_MAX = 512
"""Longest id or name, bytes."""
TIMEOUT_MS_MAX = 3_600_000
"""Longest wait, as in `schemas.common`."""
SESSION_BYTES_MAX = 256
"""Longest id of a session, bytes."""
NUMBERS_MAX = 65_536
"""Most hashes of a list."""
TOKENS_MAX = 262_144
LENGTH_MAX = 2**40
"""Longest prompt, tokens."""
