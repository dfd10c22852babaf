"""Compiled search for the ends of values in large JSON texts."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.
from indexer.events.msgpack_kernels import BYTES
from indexer.jit.decorators import compiled

QUOTE, BACKSLASH, COMMA = ord('"'), ord("\\"), ord(",")
OPENING = (ord("["), ord("{"))
CLOSING = (ord("]"), ord("}"))

# Fields of the state of a scan.
AT, DEPTH, IN_STRING, ESCAPED, LAST_END = range(5)
STATE_FIELDS = 5


@compiled(f"int64({BYTES}, int64[::1], boolean)", nogil=True)
def scan_values(data, state, one):
    """Continue from state[AT] to the end of the data, or to the bracket that ends the surroundings.

    data:  uint8 [n], UTF-8 text that begins inside an array, an object or a document
    state: int64 [STATE_FIELDS]; LAST_END becomes the place after the last complete value, that is
           the place of a comma or of the closing bracket of the surroundings
    one:   stop at the first comma
    Returns 1 when state[AT] is at the closing bracket of the surroundings, else 0 at the end of
    the data. The text is not checked: the decoder of the values does that.
    """
    while state[AT] < data.shape[0]:
        c = data[state[AT]]
        if state[IN_STRING]:
            if state[ESCAPED]:
                state[ESCAPED] = 0
            elif c == BACKSLASH:
                state[ESCAPED] = 1
            elif c == QUOTE:
                state[IN_STRING] = 0
        elif c == QUOTE:
            state[IN_STRING] = 1
        elif c in OPENING:
            state[DEPTH] += 1
        elif c in CLOSING:
            if state[DEPTH] == 0:
                state[LAST_END] = state[AT]
                return 1
            state[DEPTH] -= 1
        elif c == COMMA and state[DEPTH] == 0:
            state[LAST_END] = state[AT]
            if one:
                return 0
        state[AT] += 1
    return 0
