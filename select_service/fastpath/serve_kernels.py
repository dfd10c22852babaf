"""Entry point of the compiled fast path: one request, from bytes to the bytes of its response."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import time

from indexer.hashing.seeds import SEED
from indexer.hashing.xxh3_kernels import chain_hashes, hash_windows
from indexer.index.header_kernels import (
    HEADER,
    LAYOUTS,
    f64_view,
    i64_view,
    mask_view,
    u8_view,
    u32_view,
    u64_view,
)
from indexer.jit.decorators import compiled, intrinsic
from indexer.jit.function_pointers import export_function
from indexer.jit.mutex_kernels import lock_mutex, unlock_mutex
from select_service.core.load.compiled.active_load_kernels import active_blocks_of
from select_service.core.load.compiled.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    N_TOTALS,
    TOTALS,
    WHOLE_BLOCKS,
)
from select_service.core.placement.decision_ring_kernels import record_placement
from select_service.core.placement.placement_kernels import (
    NO_SLOT,
    call_place,
    count_placement,
    set_request,
)
from select_service.core.placement.plan_layout import (
    BLOCK_SIZE,
    FOLLOWS_PREFILLS,
    INDEX,
    LEADING,
    LOAD,
    P_KV_REUSE,
    PARAMETERS,
    PLACE_ADDRESS,
    RANKS,
)
from select_service.core.workers.rank_table_layout import N_SLOTS, OPEN
from select_service.fastpath.authorization_kernels import is_authorized
from select_service.fastpath.booking_kernels import (
    apply_lifecycle_call,
    book_chosen,
    has_block_hashes,
)
from select_service.fastpath.decision_record_kernels import record_decision
from select_service.fastpath.parsing.body_kernels import read_body
from select_service.fastpath.parsing.byte_kernels import NONE, I, U
from select_service.fastpath.parsing.head_kernels import read_head
from select_service.fastpath.parsing.request_layout import (
    BODY_AT,
    COMMON,
    END,
    ISL_TOKENS,
    N_BLOCKS,
    N_SEQUENCE,
    N_TOKENS,
    NUMBERS_MAX,
    PREFILL_COMPLETE,
    RESERVE,
    ROUTE,
    SELECT,
    SELECT_AND_RESERVE,
    SELECT_PAIR,
    SESSION_ID,
)
from select_service.fastpath.parsing.request_layout import INCOMPLETE as READ_INCOMPLETE
from select_service.fastpath.parsing.same_head_kernels import keep_head, read_same_head
from select_service.fastpath.partition_lookup_kernels import find_row, row_at
from select_service.fastpath.response_kernels import (
    has_current_text,
    put_head,
    record_of,
    render_done,
    render_selection,
)
from select_service.fastpath.selection_record_kernels import write_selection
from select_service.fastpath.serve_layout import (
    ANSWERS,
    AT_ROW,
    BEGAN_NS,
    BEGIN,
    BLOCKS,
    BOUNDS_NS,
    BUCKETS,
    CHANGES,
    CHANGES_SEEN,
    CONTINUE_GATED,
    COUNT_LENGTH,
    COUNTS,
    DECIDING_NS,
    DECLINED,
    DECODE_BLOCKS,
    FIND_RANK,
    GATE,
    HEAD_FIELDS,
    INCOMPLETE,
    IS_EAGLE,
    LOG,
    MASK,
    MUTEX,
    NEEDS_GATE,
    NEEDS_PAIR,
    NO_FACTORS,
    OK,
    OUT,
    PAIR_END,
    PIN_MASK,
    PLAN,
    READ,
    RENDER,
    SAME_HEAD,
    SELECTION_BYTES,
    SENT,
    SEQUENCE,
    SERVE_ADDRESS,
    SLOT,
    STALE_ROWS,
    TEXT_LENGTH,
    TEXT_MISSING,
    TEXT_READY,
    TOKENS,
    UNKNOWN_PARTITION,
)
from select_service.fastpath.session_kernels import (
    add_session_floor,
    find_session,
    is_pinned,
    pin_session,
    unpin_session,
)

CLOCK = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
"""Clock of time.monotonic()."""


@intrinsic
def clock_ns(typingctx):
    """Return the nanoseconds of the clock of time.monotonic()."""
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
def read_request(data, at, state):
    """Parse the request at `at`; COMMON if the fast path can handle the request."""
    state[END], state[SELECTION_BYTES] = NONE, 0
    # At debug level every decision is logged, which only the ordinary path does.
    if i64_view(state, LOG)[0] != 0:
        return DECLINED
    if i64_view(state, CHANGES)[0] != state[CHANGES_SEEN]:
        return STALE_ROWS
    end = len(data)
    if at == 0 and read_same_head(data, end, state, SAME_HEAD, HEAD_FIELDS):
        status = COMMON
    else:
        status = read_head(data, at, end, state)
        if at == 0 and status == COMMON:
            keep_head(data, state, SAME_HEAD, HEAD_FIELDS)
    if status == COMMON and not is_authorized(data, state):
        return DECLINED
    if status == READ_INCOMPLETE or (status == COMMON and state[END] > end):
        return INCOMPLETE  # END is the end of the request, or NONE while the head is incomplete
    if status != COMMON:
        return DECLINED
    lists = (u64_view(state, BLOCKS), u64_view(state, SEQUENCE), u32_view(state, TOKENS))
    status = read_body(data, state[BODY_AT], state[END], state, lists)
    state[BEGAN_NS] = clock_ns()
    return COMMON if status == COMMON else DECLINED


@compiled()
def hash_tokens(state, row, size):
    """Hash the tokens; False if that is left to the ordinary path."""
    n_blocks = state[N_TOKENS] // size
    # EAGLE hashes windows that overlap; only the ordinary path implements this.
    if row[IS_EAGLE] != 0 or n_blocks > NUMBERS_MAX:
        return False
    blocks, sequence = u64_view(state, BLOCKS)[:n_blocks], u64_view(state, SEQUENCE)[:n_blocks]
    if n_blocks > 0:
        hash_windows(u32_view(state, TOKENS)[: state[N_TOKENS]], size, size, U(SEED), blocks)
        chain_hashes(blocks, sequence)
    state[N_BLOCKS] = state[N_SEQUENCE] = n_blocks
    return True


@compiled()
def place_prompt(state, row, is_judged, draw):
    """Place the parsed prompt; returns the slot, or NO_SLOT if there is no rank."""
    plan = i64_view(row, PLAN)
    ranks = i64_view(plan, RANKS)
    path, sequence = u64_view(state, BLOCKS), u64_view(state, SEQUENCE)[: state[N_SEQUENCE]]
    eligible = mask_view(state, MASK) if is_judged else mask_view(ranks, OPEN)
    factors, pinned = f64_view(state, NO_FACTORS), is_pinned(state)
    if pinned:
        pin_session(state, ranks[N_SLOTS])
        eligible = mask_view(state, PIN_MASK)
    elif state[SESSION_ID] != NONE:
        add_session_floor(state, row)
    set_request(plan, state[ISL_TOKENS], state[N_SEQUENCE], pinned, draw)
    given = (plan, path[: state[N_BLOCKS]], sequence, eligible, factors)
    slot = call_place(plan[PLACE_ADDRESS], given)
    record_placement(plan, sequence, eligible, factors, slot)
    if pinned:
        unpin_session(state)
    return slot


@compiled()
def count_decode_blocks(state, row):
    """Return the active blocks of SLOT with the prompt just placed, as `core.selection_answers`."""
    plan, slot = i64_view(row, PLAN), state[SLOT]
    load, size = i64_view(plan, LOAD), plan[BLOCK_SIZE]
    totals = i64_view(load, TOTALS)[slot * N_TOTALS : (slot + 1) * N_TOTALS]
    fraction = f64_view(load, FRACTIONS)[slot]
    active = active_blocks_of(totals[WHOLE_BLOCKS], totals[FRACTIONAL_BLOCKS], fraction)
    blocks = max(state[N_SEQUENCE], (state[ISL_TOKENS] + size - 1) // size)
    return I(active) + blocks - i64_view(plan, LEADING)[slot]


@compiled()
def place_on_requested_rank(state, row):
    """Compute the summary (overlap, work) of the prompt on SLOT, the only candidate in the mask."""
    plan, n_blocks = i64_view(row, PLAN), state[N_BLOCKS] if has_block_hashes(state) else 0
    path, sequence = u64_view(state, BLOCKS)[:n_blocks], u64_view(state, SEQUENCE)
    mask, factors = mask_view(state, MASK), f64_view(state, NO_FACTORS)
    set_request(plan, state[ISL_TOKENS], state[N_SEQUENCE], True, 0.0)
    given = (plan, path, sequence[: state[N_SEQUENCE]], mask, factors)
    call_place(plan[PLACE_ADDRESS], given)


@compiled()
def count_answer(state):
    """Count a response."""
    counts = i64_view(state, COUNTS)[state[ROUTE] * COUNT_LENGTH :]
    counts[ANSWERS] += 1


@compiled()
def count_decision(state):
    """Count a decision and its duration."""
    counts = i64_view(state, COUNTS)[state[ROUTE] * COUNT_LENGTH :]
    took_ns = clock_ns() - state[BEGAN_NS]
    counts[DECIDING_NS] += took_ns
    bounds_ns, bucket = f64_view(state, BOUNDS_NS), 0
    while bucket < bounds_ns.shape[0] and bounds_ns[bucket] < took_ns:
        bucket += 1
    counts[BUCKETS + bucket] += 1


@compiled()
def text_status(row, slot):
    """Return 0 if the slot has a response text, or why there is no response yet."""
    if not has_current_text(row, slot):
        return TEXT_MISSING
    return DECLINED if record_of(row, slot)[TEXT_LENGTH] == NONE else 0


@compiled()
def choose_slot(state, row, step, is_judged, draw):
    """Set SLOT to the placement of the prompt, unless set.  Returns 0, or why there is no response
    yet.

    Holds the lock of the index, which protects everything a placement reads.
    """
    plan = i64_view(row, PLAN)
    # Identities that a client gives are shared also without KV reuse.
    if state[N_TOKENS] == NONE and f64_view(plan, PARAMETERS)[P_KV_REUSE] == 0.0:
        return DECLINED
    thread = lock_mutex(row[MUTEX])
    if i64_view(plan, INDEX)[LAYOUTS] != 0:
        # Ranks with several cache groups may need the prompt's tokens and names.
        unlock_mutex(row[MUTEX], thread)
        return DECLINED
    if step < TEXT_READY:
        state[SLOT] = place_prompt(state, row, is_judged, draw)
        if state[SLOT] != NO_SLOT:
            state[DECODE_BLOCKS] = count_decode_blocks(state, row)
    elif state[ROUTE] == RESERVE and i64_view(row, PLAN)[FOLLOWS_PREFILLS] != 0:
        place_on_requested_rank(state, row)
    status = DECLINED if state[SLOT] == NO_SLOT else text_status(row, state[SLOT])
    unlock_mutex(row[MUTEX], thread)
    return status


@compiled()
def render_answer(data, state, row):
    """Count the completed request and render its response."""
    if state[ROUTE] != RESERVE:
        count_decision(state)
        plan, is_reserved = i64_view(row, PLAN), state[ROUTE] == SELECT_AND_RESERVE
        n_blocks, isl_tokens = state[N_SEQUENCE], state[ISL_TOKENS]
        count_placement(plan, n_blocks, isl_tokens, state[SLOT], is_reserved)
        record_decision(data, state, plan)
    if state[ROUTE] != SELECT_AND_RESERVE:
        write_selection(data, state, row)
    count_answer(state)
    return render_selection(data, state, row)


@compiled()
def render_pair(state):
    """Count the completed request for a pair, and write the head before the answer in OUT."""
    count_decision(state)
    count_answer(state)
    return put_head(u8_view(state, OUT), state, OK, state[PAIR_END])


@compiled()
def update_reservation(data, state, step):
    """Apply a lifecycle call, unless done already, and render the response; or why there is none
    yet.
    """
    if step == READ:
        status = apply_lifecycle_call(data, state)
        if status < 0:
            return status
    count_answer(state)
    return render_done(state)


@compiled()
def answer_request(data, at, state, step, draw):
    """Return the end of the response in OUT, or why there is none yet; arguments as for
    `serve_request`.
    """
    is_judged = step == CONTINUE_GATED
    if step == READ:
        status = read_request(data, at, state)
        if status < 0:
            return status
        if state[ROUTE] < PREFILL_COMPLETE and not find_row(state, data):
            return UNKNOWN_PARTITION
    if state[ROUTE] >= PREFILL_COMPLETE:
        return update_reservation(data, state, step)
    row = row_at(state, state[AT_ROW])
    if step < TEXT_READY:
        if step == READ and i64_view(state, GATE)[0] == 0 and state[ROUTE] != RESERVE:
            return NEEDS_GATE
        size = i64_view(row, PLAN)[BLOCK_SIZE]
        if state[N_TOKENS] != NONE and not hash_tokens(state, row, size):
            return DECLINED
        if state[ROUTE] == RESERVE:
            return FIND_RANK
        if state[ROUTE] >= SELECT_PAIR:
            return NEEDS_PAIR
        if state[SESSION_ID] != NONE:
            status = find_session(data, state, row, is_judged)
            if status < 0:
                return status
    if state[ROUTE] >= SELECT_PAIR:
        return render_pair(state)
    if step < RENDER:
        status = choose_slot(state, row, step, is_judged, draw)
        if status < 0:
            return status
        if state[ROUTE] != SELECT:
            status = book_chosen(data, state, row, step)
            if status < 0:
                return status
    return render_answer(data, state, row)


@intrinsic
def _write(typingctx, file, array, at, n_bytes):
    """Call write(2) with array[at : at + n_bytes]."""
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
def send_response(file, state, end):
    """Send the response that ends at `end` in OUT, as far as possible at once.

    Returns SENT, or `end`.
    """
    begin = state[BEGIN]
    n_bytes = _write(file, u8_view(state, OUT), begin, end - begin)
    if n_bytes == end - begin:
        return SENT
    state[BEGIN] = begin + max(n_bytes, 0)
    return end


@compiled()
def serve(data, at, state, step, draw, file):
    """Handle one request; arguments and results as for `serve_request`."""
    end = I(answer_request(data, at, state, step, draw))
    # Send directly only the last response of the bytes received: earlier ones are joined first.
    if end > 0 and file != NONE and state[END] == len(data):
        return I(send_response(file, state, end))
    return end


SERVE = f"int64(Bytes(uint8, 1, 'C'), int64, {HEADER}, int64, float64, int64)"
_address_of_serve, call_serve = export_function(SERVE, serve)


@compiled(SERVE)
def serve_request(data, at, state, step, draw, file):
    """Handle the request that begins at data[at].

    Returns SENT, or the end of the unsent response in OUT, or why there is none yet (serve_layout);
    in the last case nothing visible to others has changed.

    step: step to begin with, READ unless an earlier call for this request asked for another
    draw: uniform in [0, 1), for ties and the softmax
    file: socket to which a response to all remaining bytes of `data` may be sent directly; or NONE
    """
    # `serve_ready` calls the same code: the address is there from the first request on.
    state[SERVE_ADDRESS] = _address_of_serve()
    return call_serve(state[SERVE_ADDRESS], (data, at, state, step, draw, file))
