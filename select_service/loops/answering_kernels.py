"""One request of a connection: read, placed and answered, or why it is not."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import I, U, f64_view, i64_view, mask_view
from indexer.mutex_kernels import acquire, release
from select_service.core.admission.busy_kernels import free_ranks
from select_service.core.decide.placement_kernels import NOBODY
from select_service.core.decide.plan_layout import BLOCK_SIZE, LOAD, RANKS
from select_service.core.fleet.limits_layout import (
    BATCHES_MAX,
    DECODE_MAX,
    IS_SAID,
    PREFILL_MAX,
    ROOM_MAX,
)
from select_service.core.load.load_layout import FRACTIONS, N_TOTALS, TOTALS
from select_service.core.workers.rank_layout import BATCH_TOKENS, KV_BLOCKS, KV_USAGE, OPEN
from select_service.fast.byte_kernels import NONE
from select_service.fast.partition_kernels import find_row, row_of
from select_service.fast.request_layout import N_TOKENS, POLICY_CLASS, ROUTE, SELECT
from select_service.fast.serve_kernels import answer, choose, hash_tokens, read_usual, told
from select_service.fast.serve_layout import (
    AT_ROW,
    BEGIN,
    GATE,
    GIVE_UP,
    INCOMPLETE,
    LIMITS,
    MASK,
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
def find_free(state, row):
    """Let MASK be the ranks among which the gate lets choose.  False: it has to be asked itself."""
    limits, plan = f64_view(row, LIMITS), i64_view(row, PLAN)
    if limits[IS_SAID] == 0.0:
        return False
    ranks, load = i64_view(plan, RANKS), i64_view(plan, LOAD)
    candidates = mask_view(ranks, OPEN)
    n_slots = candidates.shape[0]
    state[MASK + 1] = n_slots
    n_free = free_ranks(
        candidates,
        i64_view(load, TOTALS)[: n_slots * N_TOTALS].reshape((n_slots, N_TOTALS)),
        f64_view(load, FRACTIONS),
        f64_view(ranks, KV_BLOCKS),
        f64_view(ranks, KV_USAGE),
        f64_view(ranks, BATCH_TOKENS),
        limits[DECODE_MAX],
        limits[PREFILL_MAX],
        limits[ROOM_MAX],
        limits[BATCHES_MAX],
        mask_view(state, MASK),
    )
    return n_free > 0


@compiled()
def chosen(loop, state, row):
    """Where the prompt goes; NOBODY when there is no rank, or the gate has to be asked."""
    is_judged = i64_view(state, GATE)[0] == 0
    if is_judged and (state[POLICY_CLASS] != NONE or not find_free(state, row)):
        return NOBODY
    return choose(state, row, is_judged, draw(loop))


@compiled()
def place(loop, state, row):
    """Let SLOT be where the prompt goes.  0, or why there is no answer yet, nothing drawn."""
    seed = loop[SEED]
    acquire(row[INDEX_MUTEX])
    state[SLOT] = chosen(loop, state, row)
    said = I(GIVE_UP) if state[SLOT] == NOBODY else I(told(row, state[SLOT]))
    release(row[INDEX_MUTEX])
    if said != 0:
        loop[SEED] = seed
    return said


@compiled()
def served(loop, state, data, at):
    """Where the answer to the request at data[at] ends in OUT, or why there is none yet."""
    said = read_usual(data, at, state)
    if said < 0:
        return I(said)
    if state[ROUTE] != SELECT:
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
