"""The entry: one request from its bytes to the bytes of its answer."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import time

from indexer.compiled import compiled, intrinsic
from indexer.hashing.kernels import chain_hashes, hash_windows
from indexer.hashing.seeds import SEED
from indexer.index.state_kernels import f64_view, i64_view, mask_view, u8_view, u32_view, u64_view
from indexer.mutex_kernels import enter, leave
from select_service.core.decide.decision_kernels import record_placement
from select_service.core.decide.placement_kernels import NOBODY, call_place, count_placement
from select_service.core.decide.plan_layout import BLOCK_SIZE, FOLLOWS, PLACE_AT, RANKS
from select_service.core.workers.rank_layout import OPEN
from select_service.fast.answer_kernels import is_told, record_of, render, render_done
from select_service.fast.body_kernels import read_body
from select_service.fast.booking_kernels import book_chosen, change, has_path
from select_service.fast.byte_kernels import NONE, I, U
from select_service.fast.guard_kernels import is_let_in
from select_service.fast.head_kernels import read_head
from select_service.fast.keeping_kernels import keep_usual
from select_service.fast.partition_kernels import find_row, row_of
from select_service.fast.request_layout import (
    BODY_AT,
    END,
    ISL_TOKENS,
    N_BLOCKS,
    N_SEQUENCE,
    N_TOKENS,
    NUMBERS_MAX,
    RESERVE,
    ROUTE,
    SELECT,
    SELECT_AND_RESERVE,
    USUAL,
)
from select_service.fast.request_layout import INCOMPLETE as READ_INCOMPLETE
from select_service.fast.serve_layout import (
    ANSWERS,
    AT_ROW,
    BEGAN_NS,
    BEGIN,
    BLOCKS,
    BOUNDS_NS,
    BUCKETS,
    CHANGES,
    COUNT_LENGTH,
    COUNTS,
    DECIDING_NS,
    FIND_RANK,
    GATE,
    GIVE_UP,
    GO_ON_JUDGED,
    INCOMPLETE,
    IS_EAGLE,
    JUDGE,
    LOG,
    MASK,
    MUTEX,
    NO_FACTORS,
    OUT,
    PLAN,
    READ,
    RENDER,
    SEEN,
    SENT,
    SEQUENCE,
    SLOT,
    STALE,
    TEXT_LENGTH,
    TOKENS,
    TOLD,
    UNKNOWN,
    UNTOLD,
)

CLOCK = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
"""That of time.monotonic()."""


@intrinsic
def now_ns(typingctx):
    """Nanoseconds of the clock of time.monotonic()."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        number = ir.IntType(64)
        pair = ir.LiteralStructType((number, number))
        kind = ir.FunctionType(ir.IntType(32), (ir.IntType(32), pair.as_pointer()))
        read = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        place = cgutils.alloca_once(builder, pair)
        builder.call(read, (ir.Constant(ir.IntType(32), CLOCK), place))
        seconds, ns = (builder.extract_value(builder.load(place), k) for k in (0, 1))
        return builder.add(builder.mul(seconds, ir.Constant(number, 10**9)), ns)

    return types.int64(), codegen


@compiled()
def read_usual(data, at, state):
    """Read the request at `at`; USUAL when it is one that can be answered here."""
    state[END] = NONE
    if i64_view(state, LOG)[0] != 0:
        return GIVE_UP
    if i64_view(state, CHANGES)[0] != state[SEEN]:
        return STALE
    end = len(data)
    said = read_head(data, at, end, state)
    if said == USUAL and not is_let_in(data, state):
        return GIVE_UP
    if said == READ_INCOMPLETE or (said == USUAL and state[END] > end):
        return INCOMPLETE  # END says up to where, or NONE as long as the head does not say it
    if said != USUAL:
        return GIVE_UP
    blocks, sequence = u64_view(state, BLOCKS), u64_view(state, SEQUENCE)
    tokens = u32_view(state, TOKENS)
    said = read_body(data, state[BODY_AT], state[END], state, blocks, sequence, tokens)
    state[BEGAN_NS] = now_ns()
    return USUAL if said == USUAL else GIVE_UP


@compiled()
def hash_tokens(state, row, size):
    """Make the hashes of the tokens; False: not here."""
    n_blocks = state[N_TOKENS] // size
    if row[IS_EAGLE] != 0 or n_blocks > NUMBERS_MAX:
        return False
    blocks, sequence = u64_view(state, BLOCKS)[:n_blocks], u64_view(state, SEQUENCE)[:n_blocks]
    if n_blocks > 0:
        hash_windows(u32_view(state, TOKENS)[: state[N_TOKENS]], size, size, U(SEED), blocks)
        chain_hashes(blocks, sequence)
    state[N_BLOCKS] = state[N_SEQUENCE] = n_blocks
    return True


@compiled()
def choose(state, row, is_judged, draw):
    """Place the prompt that was read; NOBODY when there is no rank."""
    plan = i64_view(row, PLAN)
    ranks = i64_view(plan, RANKS)
    path, sequence = u64_view(state, BLOCKS), u64_view(state, SEQUENCE)[: state[N_SEQUENCE]]
    eligible = mask_view(state, MASK) if is_judged else mask_view(ranks, OPEN)
    given = (sequence, eligible, f64_view(state, NO_FACTORS), float(state[ISL_TOKENS]), False, draw)
    slot = call_place(plan[PLACE_AT], (plan, path[: state[N_BLOCKS]], *given))
    record_placement(plan, *given, slot)
    return slot


@compiled()
def place_there(state, row):
    """Let the summary say what the prompt has on SLOT, of which the mask says that it is the only
    candidate, and what is to do there."""
    plan, n_blocks = i64_view(row, PLAN), state[N_BLOCKS] if has_path(state) else 0
    path, sequence = u64_view(state, BLOCKS)[:n_blocks], u64_view(state, SEQUENCE)
    mask, factors = mask_view(state, MASK), f64_view(state, NO_FACTORS)
    given = (sequence[: state[N_SEQUENCE]], mask, factors, float(state[ISL_TOKENS]), True, 0.0)
    call_place(plan[PLACE_AT], (plan, path, *given))


@compiled()
def count_answer(state):
    counts = i64_view(state, COUNTS)[state[ROUTE] * COUNT_LENGTH :]
    counts[ANSWERS] += 1


@compiled()
def count_decision(state):
    """A decision, and how long it took."""
    counts = i64_view(state, COUNTS)[state[ROUTE] * COUNT_LENGTH :]
    took_ns = now_ns() - state[BEGAN_NS]
    counts[DECIDING_NS] += took_ns
    bounds_ns, bucket = f64_view(state, BOUNDS_NS), 0
    while bucket < bounds_ns.shape[0] and bounds_ns[bucket] < took_ns:
        bucket += 1
    counts[BUCKETS + bucket] += 1


@compiled()
def told(row, slot):
    """0 when there is a text of the slot, or why there is no answer yet."""
    if not is_told(row, slot):
        return UNTOLD
    return GIVE_UP if record_of(row, slot)[TEXT_LENGTH] == NONE else 0


@compiled()
def decide(state, row, step, is_judged, draw):
    """Let SLOT be where the prompt goes, if it is not yet.  0, or why there is no answer yet.

    The index is locked meanwhile, and with it all that a placement reads.
    """
    thread = enter(row[MUTEX])
    if step < TOLD:
        state[SLOT] = choose(state, row, is_judged, draw)
    elif state[ROUTE] == RESERVE and i64_view(row, PLAN)[FOLLOWS] != 0:
        place_there(state, row)
    said = GIVE_UP if state[SLOT] == NOBODY else told(row, state[SLOT])
    leave(row[MUTEX], thread)
    return said


@compiled()
def answer(data, state, row):
    """Count what was done, and render the answer."""
    if state[ROUTE] != RESERVE:
        count_decision(state)
        plan, is_reserved = i64_view(row, PLAN), state[ROUTE] == SELECT_AND_RESERVE
        n_blocks, isl_tokens = state[N_SEQUENCE], state[ISL_TOKENS]
        count_placement(plan, n_blocks, isl_tokens, state[SLOT], is_reserved)
        keep_usual(data, state, plan)
    count_answer(state)
    return render(data, state, row)


@compiled()
def life_goes_on(data, state, step):
    """Change the reservation of the path, unless that is done, and render the answer; or why there
    is none yet."""
    if step == READ:
        said = change(data, state)
        if said < 0:
            return said
    count_answer(state)
    return render_done(state)


@compiled()
def answer_usual(data, at, state, step, draw):
    """Where the answer ends in OUT, or why there is none yet; arguments as those of `serve`."""
    is_judged = step == GO_ON_JUDGED
    if step == READ:
        said = read_usual(data, at, state)
        if said < 0:
            return said
        if state[ROUTE] <= RESERVE and not find_row(state, data):
            return UNKNOWN
    if state[ROUTE] > RESERVE:
        return life_goes_on(data, state, step)
    row = row_of(state, state[AT_ROW])
    if step < TOLD:
        if step == READ and i64_view(state, GATE)[0] == 0 and state[ROUTE] != RESERVE:
            return JUDGE
        size = i64_view(row, PLAN)[BLOCK_SIZE]
        if state[N_TOKENS] != NONE and not hash_tokens(state, row, size):
            return GIVE_UP
        if state[ROUTE] == RESERVE:
            return FIND_RANK
    if step < RENDER:
        said = decide(state, row, step, is_judged, draw)
        if said < 0:
            return said
        if state[ROUTE] != SELECT:
            said = book_chosen(data, state, row, step)
            if said < 0:
                return said
    return answer(data, state, row)


@intrinsic
def _write(typingctx, file, array, at, n_bytes):
    """write(2) of array[at : at + n_bytes]."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        kind = ir.FunctionType(word, (ir.IntType(32), cgutils.voidptr_t, word))
        write = cgutils.get_or_insert_function(builder.module, kind, "write")
        begin = context.make_array(signature.args[1])(context, builder, args[1]).data
        begin = builder.bitcast(cgutils.pointer_add(builder, begin, args[2]), cgutils.voidptr_t)
        return builder.call(write, (builder.trunc(args[0], ir.IntType(32)), begin, args[3]))

    return types.int64(types.int64, array, types.int64, types.int64), codegen


@compiled()
def send(file, state, end):
    """Send the answer that ends there in OUT, as much as goes at once.  SENT, or `end`."""
    begin = state[BEGIN]
    n_bytes = _write(file, u8_view(state, OUT), begin, end - begin)
    if n_bytes == end - begin:
        return SENT
    state[BEGIN] = begin + max(n_bytes, 0)
    return end


@compiled("int64(Bytes(uint8, 1, 'C'), int64, int64[::1], int64, float64, int64)")
def serve(data, at, state, step, draw, file):
    """Answer the request that begins at data[at].  SENT, or where the rest of its answer ends in
    OUT, or why there is none yet (serve_layout); nothing that others see has changed then.

    step: where to begin, READ unless an earlier call of the request said why not
    draw: uniform in [0, 1), for ties and the softmax
    file: a socket, to which an answer to all that is left of `data` may be sent at once; or NONE
    """
    end = I(answer_usual(data, at, state, step, draw))
    if end > 0 and file != NONE and state[END] == len(data):
        return I(send(file, state, end))
    return end
