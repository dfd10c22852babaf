"""Pairs of common requests: choice, booking of both legs, and answer, in one compiled call.

The choice is that of `core.pairs`, the bookings are calls of the ledger.  What is refused here is
left to the ordinary path, with nothing changed.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import (
    HEADER,
    LAYOUTS,
    f64_view,
    i64_view,
    mask_view,
    u8_view,
    u64_view,
)
from indexer.jit.decorators import carray, compiled
from indexer.jit.memory_kernels import as_pointer
from indexer.jit.mutex_kernels import lock_mutex, unlock_mutex
from select_service.core.load.compiled import ledger_layout as field
from select_service.core.load.compiled.active_load_kernels import (
    HOLDER_FIELDS,
    PREFIX_FIELDS,
    REFERENCE_FIELDS,
)
from select_service.core.load.compiled.ledger_entry_kernels import call_book, name_view
from select_service.core.load.compiled.ledger_kernels import (
    ID_TAKEN,
    NOT_FOUND,
    find_reservation,
)
from select_service.core.load.compiled.ledger_layout import (
    BLOCKS_MAX,
    BOOK,
    BOOKING,
    COUNT,
    COUNT_MAX,
    LOAD_TO_RELEASE,
    MANY_BLOCKS,
)
from select_service.core.load.compiled.ledger_layout import N_BLOCKS as BOOKED_BLOCKS
from select_service.core.load.compiled.load_layout import HOLDERS, PREFIXES, REFERENCES
from select_service.core.load.compiled.reservation_name_kernels import (
    chunks_for,
    has_chunks,
    words_for,
)
from select_service.core.load.compiled.table_kernels import has_room
from select_service.core.load.prefill_legs import LEG_SUFFIX
from select_service.core.pairs import stored_pair_layout as record
from select_service.core.pairs.pair_kernels import (
    FOR_BOTH,
    FOR_DECODE,
    FOR_PREFILL,
    NO_SLOT,
    call_choice,
)
from select_service.core.pairs.pair_layout import (
    CHOOSE_ADDRESS,
    GROUP,
    R_DECODE,
    R_DECODE_CACHED,
    R_DECODE_WORK,
    R_LOCAL_COST,
    R_MOVE_TOKENS,
    R_PREFILL,
    R_PREFILL_CACHED,
    R_PREFILL_WORK,
    R_REMOTE_COST,
    RESULT,
)
from select_service.core.pairs.pair_traffic_kernels import (
    count_decision,
    count_local,
    count_move,
    queue_transfer,
)
from select_service.core.pairs.pair_traffic_layout import N_REMOTE
from select_service.core.placement.placement_kernels import set_request
from select_service.core.placement.plan_layout import (
    ASSUMES,
    BLOCK_SIZE,
    FOLLOWS_PREFILLS,
    HAS_ASSUMED_INDEX,
    INDEX,
    LOAD,
    PARAMETERS,
    POLICY_NUMBER,
    RANKS,
)
from select_service.core.placement.policies.policy_registry import policy_number
from select_service.core.placement.policies.reference_policy import REFERENCE_POLICY
from select_service.core.workers.rank_table_layout import OPEN
from select_service.fastpath.booking_kernels import fill_booking, may_change, name_of
from select_service.fastpath.pair_scene_layout import (
    DECIDED,
    IS_REMOTE,
    LEG_NAME,
    MASKS,
    N_OPEN,
    NEEDS_RELEASE,
    NEEDS_ROOM,
    PAIR,
    ROLES,
    SCOPE_BYTES,
    TRAFFIC,
    WORK_PARAMETERS,
)
from select_service.fastpath.parsing.byte_kernels import NONE, I, U, copy_bytes, put_number
from select_service.fastpath.parsing.request_layout import (
    ALWAYS,
    AUTO,
    EXPECTED_OUTPUT_TOKENS,
    IS_SELECTION_NAMED,
    ISL_TOKENS,
    LOCAL,
    N_BLOCKS,
    N_SEQUENCE,
    NEVER,
    RESERVATION_ID,
    ROUTE,
    SELECT_PAIR_AND_RESERVE,
    SELECTION_ID,
)
from select_service.fastpath.partition_lookup_kernels import row_at
from select_service.fastpath.response_kernels import (
    RESERVATION,
    SELECTION,
    has_current_text,
    put_booked_id,
    put_named,
    put_overlap,
    put_text,
    record_of,
    text_array,
)
from select_service.fastpath.serve_layout import (
    AT_ROW,
    BLOCKS,
    BODY_BEGIN,
    CHANGED,
    COUNTS_BLOCKS,
    COUNTS_PREFILL,
    DECLINED,
    LEDGER,
    LEDGER_BROKEN,
    MUTEX,
    NEEDS_ID,
    OUT,
    PAIR_END,
    PAIR_RECORD,
    PLAN,
    RANK_LENGTH,
    SEQUENCE,
    SLOT,
    SUM,
    TEXT_BYTES,
    TEXT_LENGTH,
    TEXT_MISSING,
    TEXTS,
)
from select_service.fastpath.serve_layout import SELECTION as SELECTION_WORDS

RULE_POLICY = policy_number(REFERENCE_POLICY)
"""Number of the policy that decides about pairs by a rule of its own."""
SUFFIX = text_array(LEG_SUFFIX.encode())
OPEN_OBJECT = text_array(b"{")
SIZE_IS = text_array(b'"block_size":')
IS_LOCAL, IS_ON_TWO = (
    text_array(b',"path":"local","reason":"'),
    text_array(b',"path":"remote","reason":"'),
)
REQUESTED, CHEAPER, ONLY = (
    text_array(b"requested"),
    text_array(b"cheaper"),
    text_array(b"only_choice"),
)
PREFILL_LEG, DECODE_LEG = (
    text_array(b'","legs":[{"leg":"prefill",'),
    text_array(b',{"leg":"decode",'),
)
OVERLAP = text_array(b',"overlap":{"longest_matched":')
CACHED, OWN_WORK = text_array(b'},"cached_tokens":'), text_array(b',"own_work":')
EFFECTIVE, MOVE = text_array(b'}],"effective_prefill_tokens":'), text_array(b',"move_tokens":')
LEG_END, COMMA = text_array(b"}"), text_array(b",")


@compiled()
def _fill_masks(state, scene, open_slots):
    """Return bool[3, n_slots], the eligible ranks of a request without constraints, as
    `pair_links.pair_masks`.
    """
    roles, n_slots = mask_view(scene, ROLES), open_slots.shape[0]
    masks = carray(as_pointer(scene[MASKS]), (3, n_slots), np.bool_)
    may_move, may_stay, n_open = state[LOCAL] != ALWAYS, state[LOCAL] != NEVER, I(0)
    for slot in range(n_slots):
        is_open = open_slots[slot]
        may_decode = is_open and roles[n_slots + slot]
        masks[FOR_PREFILL, slot] = is_open and roles[slot] and may_move
        masks[FOR_DECODE, slot] = may_decode
        masks[FOR_BOTH, slot] = may_decode and may_stay
        n_open += is_open
    scene[N_OPEN] = n_open
    return masks


@compiled()
def _choose(state, row, scene, draw):
    """Fill RESULT of the `PairPlacer`.  Returns whether there is a pair."""
    plan, pair = i64_view(row, PLAN), i64_view(scene, PAIR)
    open_slots, index = mask_view(i64_view(plan, RANKS), OPEN), i64_view(plan, INDEX)
    is_usual = plan[POLICY_NUMBER] != RULE_POLICY and scene[ROLES + 1] == 2 * open_slots.shape[0]
    if not is_usual or pair[CHOOSE_ADDRESS] == 0:
        return False
    masks = _fill_masks(state, scene, open_slots)
    path = u64_view(state, BLOCKS)[: state[N_BLOCKS]]
    sequence = u64_view(state, SEQUENCE)[: state[N_SEQUENCE]]
    set_request(plan, state[ISL_TOKENS], state[N_SEQUENCE], False, draw)
    own, n_own = plan[PARAMETERS], plan[PARAMETERS + 1]
    thread = lock_mutex(row[MUTEX])
    # Ranks with several cache groups may need the prompt's tokens and names.
    is_usual = index[LAYOUTS] == 0
    if is_usual:
        # Only for the choice: the partition may have another policy.
        plan[PARAMETERS], plan[PARAMETERS + 1] = scene[WORK_PARAMETERS], scene[WORK_PARAMETERS + 1]
        call_choice(pair[CHOOSE_ADDRESS], (plan, pair, path, sequence, masks))
        plan[PARAMETERS], plan[PARAMETERS + 1] = own, n_own
    unlock_mutex(row[MUTEX], thread)
    return is_usual and f64_view(pair, RESULT)[R_DECODE] != NO_SLOT


@compiled()
def _leg_name(data, state, scene):
    """Return the name of the prefill leg, uint8[n]."""
    name, out = name_of(data, state), u8_view(scene, LEG_NAME)
    at = copy_bytes(out, 0, name, 0, name.shape[0])
    at = put_text(out, at, SUFFIX)
    return name_view(out, 0, at)


@compiled()
def _find_room(data, state, row, scene, has_id):
    """Return 0 if both legs can be booked, else DECLINED or NEEDS_ROOM: there is room for rows,
    blocks and names, in the tables of the load, and no such name, if it is known.
    """
    ledger, load = i64_view(state, LEDGER), i64_view(i64_view(row, PLAN), LOAD)
    blocks = state[N_SEQUENCE] if state[COUNTS_BLOCKS] != 0 else 0
    leg = _leg_name(data, state, scene)
    fits = ledger[COUNT] + 2 <= ledger[COUNT_MAX]
    fits &= ledger[BOOKED_BLOCKS] + 2 * blocks <= ledger[BLOCKS_MAX]
    fits &= has_chunks(ledger, 2 * chunks_for(words_for(leg.shape[0]) + blocks))
    if fits and (state[RESERVATION_ID] != NONE or has_id):
        # The other name is found in use by its booking, which comes first.
        own = name_of(data, state) if scene[IS_REMOTE] != 0 else leg
        fits = find_reservation(ledger, own) == NOT_FOUND
    if not fits:
        return DECLINED
    fits = has_room(load, REFERENCES, REFERENCE_FIELDS, 2 * blocks)
    fits &= has_room(load, PREFIXES, PREFIX_FIELDS, 2 * blocks)
    fits &= has_room(load, HOLDERS, HOLDER_FIELDS, 2 * blocks)
    return 0 if fits else NEEDS_ROOM


@compiled()
def _book_leg(state, row, leg, name, part):
    """Book one leg under a name; returns its row.

    leg: (slot, tokens, own work, cached blocks)
    part: part of the request, for observations (ledger_layout)
    """
    ledger, plan = i64_view(state, LEDGER), i64_view(row, PLAN)
    fill_booking(state, row, leg, part)
    n_names = i64_view(ledger, BOOKING)[field.HASHED_BLOCKS]
    n_kept = state[N_BLOCKS] if plan[FOLLOWS_PREFILLS] != 0 else 0
    hashes, prompt = u64_view(state, SEQUENCE)[:n_names], u64_view(state, BLOCKS)[:n_kept]
    return call_book(ledger[BOOK], (ledger, i64_view(plan, LOAD), name, hashes, prompt))


@compiled(error_model="numpy")
def _book_pair(data, state, row, scene):
    """Book both legs of the choice.  Returns the row of the caller's reservation."""
    plan, result = i64_view(row, PLAN), f64_view(i64_view(scene, PAIR), RESULT)
    cached, work, _ = _prefill_numbers(state, scene)
    blocks, tokens = cached // plan[BLOCK_SIZE], max(I(0), state[ISL_TOKENS] - cached)
    work = max(work, I(1))
    if state[COUNTS_PREFILL] == 0:
        tokens, work = I(0), I(0)
    decode = I(result[R_DECODE])
    if scene[IS_REMOTE] == 0:
        leg = (decode, tokens, work, blocks)
        return _book_leg(state, row, leg, name_of(data, state), field.WHOLE_REQUEST)
    leg = (I(result[R_PREFILL]), tokens, work, blocks)
    first = _book_leg(state, row, leg, _leg_name(data, state, scene), field.PREFILL_PART)
    if first <= 0:
        return first
    leg = (decode, I(0), I(0), I(0))
    return _book_leg(state, row, leg, name_of(data, state), field.OTHER_PART)


@compiled(error_model="numpy")
def _count_booked(state, scene):
    """Count the booked pair; the tokens to move wait for their links from now on."""
    pair, words = i64_view(scene, PAIR), i64_view(scene, TRAFFIC)
    result, group = f64_view(pair, RESULT), i64_view(pair, GROUP)
    if scene[IS_REMOTE] != 0:
        prefill, decode, tokens = I(result[R_PREFILL]), I(result[R_DECODE]), result[R_MOVE_TOKENS]
        words[N_REMOTE] += 1
        count_move(words, pair, prefill, decode, I(np.rint(tokens)))
        queue_transfer(pair, group[prefill], group[decode], tokens)
        return
    tokens = I(0)
    if state[COUNTS_PREFILL] != 0:
        # As `pair_bookings.count_observed`.
        cached, work, _ = _prefill_numbers(state, scene)
        tokens = min(state[ISL_TOKENS], max(state[ISL_TOKENS] - cached, work, I(1)))
    count_local(words, tokens)


@compiled()
def _prefill_numbers(state, scene):
    """Return (cached tokens, own work, slot) of the rank that computes the prompt."""
    result = f64_view(i64_view(scene, PAIR), RESULT)
    if scene[IS_REMOTE] != 0:
        cached, work = result[R_PREFILL_CACHED], result[R_PREFILL_WORK]
        return I(np.rint(cached)), I(np.rint(work)), I(result[R_PREFILL])
    cached, work = result[R_DECODE_CACHED], result[R_DECODE_WORK]
    return I(np.rint(cached)), I(np.rint(work)), I(result[R_DECODE])


@compiled()
def _put_leg(out, at, row, scene, numbers):
    """Write a leg behind its name, up to its end.  numbers: (cached tokens, own work, slot)"""
    cached, work, slot = numbers
    begin, length = scene[SCOPE_BYTES], record_of(row, slot)[RANK_LENGTH] - scene[SCOPE_BYTES]
    at = copy_bytes(out, at, u8_view(row, TEXTS), slot * TEXT_BYTES + begin, length)
    at = put_overlap(out, put_text(out, at, OVERLAP), row, slot)
    at = put_number(out, put_text(out, at, CACHED), U(cached))
    return put_number(out, put_text(out, at, OWN_WORK), U(work))


@compiled(error_model="numpy")
def _put_reason(out, at, state, scene):
    """Write the path and the reason for it, as `pair_decisions`."""
    result, is_remote = f64_view(i64_view(scene, PAIR), RESULT), scene[IS_REMOTE] != 0
    at = put_text(out, at, IS_ON_TWO if is_remote else IS_LOCAL)
    if state[LOCAL] != AUTO:
        return put_text(out, at, REQUESTED)
    other = result[R_LOCAL_COST if is_remote else R_REMOTE_COST]
    return put_text(out, at, ONLY if np.isinf(other) else CHEAPER)


@compiled()
def _render(data, state, row, scene):
    """Write the answer up to its first cost into OUT; PAIR_END becomes its end."""
    out, result = u8_view(state, OUT), f64_view(i64_view(scene, PAIR), RESULT)
    numbers, slot = _prefill_numbers(state, scene), I(result[R_DECODE])
    at = put_text(out, BODY_BEGIN, OPEN_OBJECT)
    at = put_named(out, at, SELECTION, data, state, SELECTION_ID)
    if state[ROUTE] == SELECT_PAIR_AND_RESERVE:
        at = put_booked_id(out, at, RESERVATION, data, state)
    at = copy_bytes(out, at, u8_view(row, TEXTS), slot * TEXT_BYTES, scene[SCOPE_BYTES])
    at = put_number(out, put_text(out, at, SIZE_IS), U(i64_view(row, PLAN)[BLOCK_SIZE]))
    at = _put_reason(out, at, state, scene)
    at = _put_leg(out, put_text(out, at, PREFILL_LEG), row, scene, numbers)
    at = put_text(out, put_text(out, at, LEG_END), DECODE_LEG)
    cached, work = I(np.rint(result[R_DECODE_CACHED])), I(np.rint(result[R_DECODE_WORK]))
    at = _put_leg(out, at, row, scene, (cached, work, slot))
    effective = max(I(0), state[ISL_TOKENS] - numbers[0])
    at = put_number(out, put_text(out, at, EFFECTIVE), U(effective))
    at = put_number(out, put_text(out, at, MOVE), U(np.rint(result[R_MOVE_TOKENS])))
    state[PAIR_END] = put_text(out, at, COMMA)


@compiled()
def _write_record(state):
    """Write the record of the request into SELECTION; PAIR_RECORD becomes its length."""
    words, at = i64_view(state, SELECTION_WORDS), U(record.RECORD_WORDS)
    n_blocks, n_sequence = U(state[N_BLOCKS]), U(state[N_SEQUENCE])
    words[record.N_BLOCKS], words[record.ISL_TOKENS] = state[N_BLOCKS], state[ISL_TOKENS]
    words[record.LOCAL], words[record.OUTPUT_TOKENS] = state[LOCAL], state[EXPECTED_OUTPUT_TOKENS]
    words[record.HAS_RESERVATION_ID] = (
        state[RESERVATION_ID] != NONE and state[IS_SELECTION_NAMED] == 0
    )
    blocks, sequence = u64_view(state, BLOCKS), u64_view(state, SEQUENCE)
    for k in range(n_blocks):
        words[at + k] = I(blocks[k])
    at += n_blocks
    for k in range(n_sequence):
        words[at + k] = I(sequence[k])
    state[PAIR_RECORD] = 8 * I(at + n_sequence)


@compiled()
def _missing_text(state, row, slot):
    """Return 0 if the slot has a text, TEXT_MISSING with SLOT set, or DECLINED for a long one."""
    if not has_current_text(row, slot):
        state[SLOT] = slot
        return TEXT_MISSING
    return DECLINED if record_of(row, slot)[TEXT_LENGTH] == NONE else 0


@compiled(f"int64(Bytes(uint8, 1, 'C'), {HEADER}, {HEADER}, float64, boolean)")
def serve_pair(data, state, scene, draw, has_id):
    """Choose a pair for the parsed request, book it if requested, and write the answer.

    Returns the row of the reservation, 0 without a booking, or why nothing was done: TEXT_MISSING,
    NEEDS_ROOM, NEEDS_RELEASE, NEEDS_ID, LEDGER_BROKEN or DECLINED.

    draw: uniform in [0, 1), for ties
    has_id: whether NEW_ID is set
    """
    row, is_booked = row_at(state, state[AT_ROW]), state[ROUTE] == SELECT_PAIR_AND_RESERVE
    ledger = i64_view(state, LEDGER)
    if is_booked:
        is_usual = state[N_SEQUENCE] < MANY_BLOCKS and row[SUM] != NONE and may_change(state)
        # Ranks that assume what is booked get its blocks from the core.
        is_usual &= (i64_view(row, PLAN)[ASSUMES] & HAS_ASSUMED_INDEX) == 0
        if not is_usual:
            return I(DECLINED)
        if ledger[LOAD_TO_RELEASE] != 0:
            return I(NEEDS_RELEASE)
    if not _choose(state, row, scene, draw):
        return I(DECLINED)
    result = f64_view(i64_view(scene, PAIR), RESULT)
    scene[IS_REMOTE] = result[R_PREFILL] != NO_SLOT
    for slot in (I(result[R_DECODE]), _prefill_numbers(state, scene)[2]):
        status = _missing_text(state, row, slot)
        if status != 0:
            return I(status)
    booked = I(0)
    if is_booked:
        status = _find_room(data, state, row, scene, has_id)
        if status != 0:
            return I(status)
        if state[RESERVATION_ID] == NONE and not has_id:
            return I(NEEDS_ID)
        booked = I(_book_pair(data, state, row, scene))
        if booked <= 0:
            return I(DECLINED if booked == ID_TAKEN else LEDGER_BROKEN)
        state[CHANGED] = booked
        _count_booked(state, scene)
    cached = _prefill_numbers(state, scene)[0]
    count_decision(i64_view(scene, DECIDED), scene[IS_REMOTE] == 0, state[ISL_TOKENS], cached)
    _render(data, state, row, scene)
    _write_record(state)
    return booked
