"""One request of a connection: read, placed and answered, or why it is not."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import I, U, i64_view
from indexer.mutex_kernels import acquire, release
from select_service.core.decide.placement_kernels import NOBODY
from select_service.core.decide.plan_layout import BLOCK_SIZE
from select_service.fast.byte_kernels import NONE
from select_service.fast.partition_kernels import find_row, row_of
from select_service.fast.request_layout import N_TOKENS, ROUTE, SELECT
from select_service.fast.serve_kernels import answer, choose, hash_tokens, read_usual, told
from select_service.fast.serve_layout import (
    AT_ROW,
    BEGIN,
    GATE,
    GIVE_UP,
    INCOMPLETE,
    OUT,
    PLAN,
    SLOT,
    UNKNOWN,
)
from select_service.fast.serve_layout import MUTEX as INDEX_MUTEX
from select_service.loops.libc_kernels import memmove
from select_service.loops.loop_layout import (
    ANSWERS,
    ASKED,
    FILLED,
    MUTEX,
    SEED,
    STATE,
)
from select_service.loops.telling_kernels import ask

ANSWERED = 1
WAITS = 2
"""Python has to mend something first."""


@compiled()
def draw(loop):
    """Uniform in [0, 1): xorshift of 64 bits.

    Source: G. Marsaglia, Xorshift RNGs, J. Stat. Softw. 8 (2003)
    """
    x = U(loop[SEED])
    x ^= x << U(13)
    x ^= x >> U(7)
    x ^= x << U(17)
    loop[SEED] = I(x)
    return (x >> U(11)) * (1.0 / 9007199254740992.0)


@compiled()
def place(loop, state, row):
    """Let SLOT be where the prompt goes.  0, or why there is no answer yet."""
    acquire(row[INDEX_MUTEX])
    state[SLOT] = choose(state, row, False, draw(loop))
    said = I(GIVE_UP) if state[SLOT] == NOBODY else I(told(row, state[SLOT]))
    release(row[INDEX_MUTEX])
    return said


@compiled()
def served(loop, state, data, at):
    """Where the answer to the request at data[at] ends in OUT, or why there is none yet."""
    said = read_usual(data, at, state)
    if said < 0:
        return I(said)
    if state[ROUTE] != SELECT or i64_view(state, GATE)[0] == 0:
        return I(GIVE_UP)
    if not find_row(state, data):
        return I(UNKNOWN)
    row = row_of(state, state[AT_ROW])
    size = i64_view(row, PLAN)[BLOCK_SIZE]
    if state[N_TOKENS] != NONE and not hash_tokens(state, row, size):
        return I(GIVE_UP)
    said = place(loop, state, row)
    return I(said) if said < 0 else I(answer(data, state, row))


@compiled()
def put_aside(loop, state, end):
    """The answer goes out with the others of this turn."""
    n = end - state[BEGIN]
    memmove(loop[ANSWERS] + loop[FILLED], state[OUT] + state[BEGIN], n)
    loop[FILLED] += n


@compiled()
def answered(loop, row, data, at):
    """ANSWERED, WAITS, or INCOMPLETE or GIVE_UP: the request at data[at]."""
    state = i64_view(loop, STATE)
    acquire(loop[MUTEX])
    said = served(loop, state, data, at)
    if said >= 0:
        put_aside(loop, state, said)
        row[ASKED], said = 0, I(ANSWERED)
    elif said < INCOMPLETE:
        said = I(WAITS) if ask(loop, row, state, data, said) else I(GIVE_UP)
    release(loop[MUTEX])
    return said
