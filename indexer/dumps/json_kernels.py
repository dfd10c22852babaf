"""The compiled loop behind reading large JSON: where does the next value end? Nothing else."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.
from indexer.compiled import compiled
from indexer.events.msgpack_kernels import BYTES

QUOTE, BACKSLASH, COMMA = ord('"'), ord("\\"), ord(",")
OPENING = (ord("["), ord("{"))
CLOSING = (ord("]"), ord("}"))

# Fields of the state of a scan.
AT, DEPTH, IN_STRING, ESCAPED, LAST_END = range(5)
STATE_FIELDS = 5


@compiled(f"int64({BYTES}, int64[::1], boolean)", nogil=True)
def scan(data, state, one):
    """Go on from state[AT] to the end of the data, or to the bracket that ends the surroundings.

    data:  uint8 [n], UTF-8 text that begins inside an array, an object or a document
    state: int64 [STATE_FIELDS]; LAST_END becomes the place after the last value that is complete,
           that is after which a comma or the closing bracket of the surroundings stands

    one:   stop at the first comma

    Returns 1 when state[AT] is at the closing bracket of the surroundings, else 0 at the end of
    the data. The text is not checked: whoever decodes the values does that.
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
