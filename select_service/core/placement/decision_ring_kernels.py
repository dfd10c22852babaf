"""Recording of decisions: the numbers behind a choice, in a ring of the deciding thread.

`record_placement` writes the row of a placement and `keep` turns the row into a decision.  The
next placement overwrites a row that was not kept.  Both only copy numbers; cost terms are computed
again when a reader requests a decision (`recorded`).
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

from typing import NamedTuple

import numpy as np

from indexer.index.header_kernels import (
    HASHES,
    HEADER,
    INSIDE,
    I,
    U,
    f64_view,
    i32_view,
    i64_view,
    lowest_bit,
    u8_view,
)
from indexer.jit.decorators import READ_ONLY, compiled
from indexer.jit.function_pointers import export_function
from select_service.core.load.compiled.active_load_kernels import active_blocks_of
from select_service.core.load.compiled.load_layout import (
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    N_TOTALS,
    PREFILL_TOKENS,
    REPORTED_SHARE,
    REQUESTS,
    TOTALS,
    WHOLE_BLOCKS,
    WORK_BOOKED,
    WORK_LEFT,
)
from select_service.core.placement import decision_ring_layout as row
from select_service.core.placement.assumption_kernels import held_blocks, held_columns
from select_service.core.placement.decision_ring_layout import (
    ASSUMED_BIT,
    ASSUMED_MAX,
    BEGINS,
    BYTES,
    CANDIDATE_WORDS,
    CANDIDATES_ENOUGH,
    CANDIDATES_MAX,
    CREDIT_FADES,
    DRAFT_WORDS,
    HAS_FACTORS,
    HIGH_HALF_BIT,
    ID_BYTES,
    ID_BYTES_KEPT,
    ID_WORDS,
    IS_PINNED,
    IS_RESERVED,
    LANES,
    MINIMA,
    N_DECISIONS,
    NEXT_POSITION,
    NO_VALUE,
    OUTSIDE_BIT,
    ROW_WORDS,
    ROW_WORDS_MAX,
    SLOT_BITS,
    WORDS,
)
from select_service.core.placement.plan_layout import (
    ASSUMED_BLOCKS,
    COSTS,
    INDEX,
    LEADING,
    LEAST_WORK,
    LOAD,
    MATCHED,
    PARAMETERS,
    PARTITION,
    POLICY_NUMBER,
    RANKS,
    RECORD_ADDRESS,
    REQUEST_DRAW,
    REQUEST_IS_PINNED,
    REQUEST_ISL_TOKENS,
    RING,
    SHARED,
)
from select_service.core.placement.shared_credit_kernels import shared_credit
from select_service.core.placement.topk_kernels import (
    cost_bounds,
    costs_between_mask,
    fill_lane_minima,
)
from select_service.core.workers.rank_table_layout import (
    KV_BLOCKS,
    MEDIAN_SPEED,
    OUTSIDE,
    SPEED,
    VERSION,
    WEIGHT,
)

INT64_MAX = I(np.iinfo(np.int64).max)
ALL_LANES = np.ones(LANES, np.bool_)


class SlotArrays(NamedTuple):
    """Per-slot arrays of the plan, the load and the rank table.

    matched: matched blocks as int64, two numbers a slot
    """

    totals: np.ndarray
    fractions: np.ndarray
    matched: np.ndarray
    leading: np.ndarray
    assumed: np.ndarray
    work_booked: np.ndarray
    work_left: np.ndarray
    version: np.ndarray
    kv_blocks: np.ndarray
    weight: np.ndarray
    outside: np.ndarray
    speed: np.ndarray
    costs: np.ndarray
    inside: np.ndarray
    held: tuple[np.ndarray, np.ndarray, int]


class CandidateTarget(NamedTuple):
    """Place of the candidates in the ring, from the word `at` on, and source of the numbers."""

    words: np.ndarray
    at: int
    arrays: SlotArrays


@compiled(forceinline=True)
def _float_bits(number):
    return np.float64(number).view(np.int64)


@compiled(forceinline=True)
def draft_position(ring):
    """Return (position, word) of the start of the next row."""
    n_words, head = ring[WORDS + 1], ring[NEXT_POSITION]
    at = head % n_words
    # The row length is unknown before writing, so the largest row must fit before the end.
    if at + ROW_WORDS_MAX > n_words:
        head, at = head + n_words - at, I(0)
    return head, at


@compiled()
def _slot_arrays(plan):
    load, ranks = i64_view(plan, LOAD), i64_view(plan, RANKS)
    return SlotArrays(
        i64_view(load, TOTALS),
        f64_view(load, FRACTIONS),
        i32_view(plan, MATCHED).view(np.int64),
        i64_view(plan, LEADING),
        i32_view(plan, ASSUMED_BLOCKS),
        i64_view(load, WORK_BOOKED),
        i64_view(load, WORK_LEFT),
        i64_view(ranks, VERSION),
        f64_view(ranks, KV_BLOCKS),
        f64_view(ranks, WEIGHT),
        f64_view(ranks, OUTSIDE),
        f64_view(ranks, SPEED),
        f64_view(plan, COSTS),
        i64_view(i64_view(plan, INDEX), INSIDE),
        held_columns(plan),
    )


@compiled(error_model="numpy", forceinline=True)
def _put_candidate(words, at, arrays, slot):
    """Copy the numbers of a candidate into a row."""
    # Unsigned indices spare the check of the sign in each access.
    at, slot = U(at), U(slot)
    totals, total = arrays.totals, slot * U(N_TOTALS)
    fractional = totals[total + U(FRACTIONAL_BLOCKS)]
    active = totals[total + U(WHOLE_BLOCKS)]
    if fractional != 0:
        active = I(active_blocks_of(active, fractional, arrays.fractions[slot]))
    # The version identifies the rank even after another rank has taken over the slot.
    words[at + U(row.SLOT_AND_VERSION)] = (arrays.version[slot] << SLOT_BITS) | I(slot)
    words[at + U(row.PREFILL_TOKENS)] = totals[total + U(PREFILL_TOKENS)]
    words[at + U(row.ACTIVE_BLOCKS)] = active
    assumed = min(I(arrays.assumed[slot]), I(ASSUMED_MAX)) << ASSUMED_BIT
    live = (totals[total + U(REQUESTS)] << HIGH_HALF_BIT) | assumed | arrays.leading[slot]
    words[at + U(row.LEADING_AND_REQUESTS)] = (I(arrays.outside[slot]) << OUTSIDE_BIT) | live
    words[at + U(row.MATCHED_LOW)] = arrays.matched[U(2) * slot]
    words[at + U(row.MATCHED_HIGH)] = arrays.matched[U(2) * slot + U(1)]
    words[at + U(row.WORK_BOOKED)] = arrays.work_booked[slot]
    words[at + U(row.WORK_LEFT)] = arrays.work_left[slot]
    words[at + U(row.KV_BLOCKS)] = _float_bits(arrays.kv_blocks[slot])
    words[at + U(row.WEIGHT)] = _float_bits(arrays.weight[slot])
    words[at + U(row.SPEED)] = _float_bits(arrays.speed[slot])
    words[at + U(row.COST)] = _float_bits(arrays.costs[slot])
    is_inside = slot < U(arrays.inside.shape[0])
    words[at + U(row.INSIDE_TOKENS)] = arrays.inside[slot] if is_inside else I(0)
    words[at + U(row.HELD_BLOCKS)] = held_blocks(arrays.held, I(slot))


@compiled()
def _put_all(target, eligible, chosen):
    """Write all candidates except the chosen one; return their number including the chosen one."""
    n = I(1)
    for slot in range(eligible.shape[0]):
        if eligible[slot] and slot != chosen:
            _put_candidate(target.words, target.at + n * CANDIDATE_WORDS, target.arrays, slot)
            n += 1
    return n


@compiled()
def _count_eligible(eligible):
    n = I(0)
    for slot in range(eligible.shape[0]):
        n += I(eligible[slot])
    return n


@compiled()
def _put_between(target, eligible, chosen, n, most, costs):
    """Append candidates with costs[0] < cost <= costs[1] after n others, up to `most` in total.

    Returns the new number of candidates, or most + 1 when some were left out.
    """
    n_slots = eligible.shape[0]
    for first in range(0, n_slots, 64):
        bits = costs_between_mask(target.arrays.costs, first, n_slots, costs[0], costs[1])
        while bits != 0:
            slot = first + I(lowest_bit(bits))
            bits &= bits - U(1)
            if slot == chosen or not eligible[slot]:
                continue
            if n == most:
                return n + 1
            _put_candidate(target.words, target.at + n * CANDIDATE_WORDS, target.arrays, slot)
            n += 1
    return n


@compiled()
def _put_cheapest(target, minima, eligible, chosen):
    """Append the cheapest candidates after the chosen one; return their number with the latter.

    The lane minima give a cost bound with enough candidates.  The bound admits too many candidates
    only when the cheapest candidates share a few lanes; then the exact bound is searched.
    """
    fill_lane_minima(minima, target.arrays.costs, eligible)
    low, high = cost_bounds(minima, ALL_LANES)
    n = _put_between(target, eligible, chosen, I(1), CANDIDATES_MAX, (-np.inf, low))
    # The cheapest candidates shared lanes, so minima underestimated how many cost this little.
    if n > CANDIDATES_MAX:
        low, high = cost_bounds(target.arrays.costs, eligible)
        n = _put_between(target, eligible, chosen, I(1), CANDIDATES_MAX, (-np.inf, low))
    if low < high and n < CANDIDATES_ENOUGH:
        n = _put_between(target, eligible, chosen, n, CANDIDATES_ENOUGH, (low, high))
        return min(n, CANDIDATES_ENOUGH)
    return min(n, CANDIDATES_MAX)


@compiled()
def _least_prefill(totals, eligible):
    least = INT64_MAX
    for slot in range(eligible.shape[0]):
        if eligible[slot]:
            least = min(least, totals[slot * N_TOTALS + PREFILL_TOKENS])
    return least


@compiled()
def _put_candidates(ring, words, at, plan, eligible, chosen):
    """Write the chosen candidate, then as many others as the row takes; return the total."""
    n_eligible, slot_arrays, first, least = (
        _count_eligible(eligible),
        _slot_arrays(plan),
        at + ROW_WORDS,
        I(0),
    )
    _put_candidate(words, first, slot_arrays, chosen)
    target = CandidateTarget(words, first, slot_arrays)
    if n_eligible <= CANDIDATES_MAX:
        n = _put_all(target, eligible, chosen)
    else:
        n = _put_cheapest(target, f64_view(ring, MINIMA), eligible, chosen)
        if ring[CREDIT_FADES] != 0:
            least = _least_prefill(slot_arrays.totals, eligible)
    words[at + row.N_ELIGIBLE], words[at + row.N_ROWS] = n_eligible, n
    words[at + row.LEAST_PREFILL] = least
    return n


@compiled()
def _put_factors(words, at, n, factors):
    """Write the cost factors of the row's n candidates; return the number of words used."""
    if factors.shape[0] == 0:
        return I(0)
    behind = at + ROW_WORDS + n * CANDIDATE_WORDS
    for k in range(n):
        packed = words[at + ROW_WORDS + k * CANDIDATE_WORDS + row.SLOT_AND_VERSION]
        words[behind + k] = _float_bits(factors[packed & ((I(1) << SLOT_BITS) - 1)])
    return n


@compiled()
def _add_credits(words, at, n, plan):
    """Add the credits for tokens in a shared cache to the row's n candidates."""
    shared = f64_view(plan, SHARED)
    for k in range(n):
        candidate = at + ROW_WORDS + k * CANDIDATE_WORDS
        slot = words[candidate + row.SLOT_AND_VERSION] & ((I(1) << SLOT_BITS) - 1)
        words[candidate + row.INSIDE_TOKENS] += I(shared_credit(shared, slot)) << HIGH_HALF_BIT


@compiled()
def _put_parameters(words, at, plan):
    parameters = f64_view(plan, PARAMETERS)
    words[at + row.N_PARAMETERS] = parameters.shape[0]
    for k in range(parameters.shape[0]):
        words[at + row.PARAMETERS + k] = _float_bits(parameters[k])


@compiled()
def _write_row(plan, sequence, eligible, factors, chosen):
    ring = i64_view(plan, RING)
    words, n_blocks = i64_view(ring, WORDS), sequence.shape[0]
    _, at = draft_position(ring)
    words[at + row.NUMBER] = ring[N_DECISIONS] + 1
    words[at + row.PARTITION] = plan[PARTITION]
    words[at + row.POLICY] = plan[POLICY_NUMBER]
    flags = IS_PINNED if plan[REQUEST_IS_PINNED] != 0 else 0
    words[at + row.FLAGS] = flags | (HAS_FACTORS if factors.shape[0] != 0 else 0)
    words[at + row.ISL_TOKENS] = plan[REQUEST_ISL_TOKENS]
    words[at + row.N_BLOCKS] = n_blocks
    words[at + row.PROMPT_HASH] = I(sequence[n_blocks - 1]) if n_blocks else 0
    words[at + row.DRAW] = plan[REQUEST_DRAW]
    words[at + row.REPORTED_SHARE] = i64_view(plan, LOAD)[REPORTED_SHARE]
    words[at + row.USUAL_SPEED] = i64_view(plan, RANKS)[MEDIAN_SPEED]
    words[at + row.LEAST_WORK] = plan[LEAST_WORK]
    _put_parameters(words, at, plan)
    n = _put_candidates(ring, words, at, plan, eligible, chosen)
    if plan[SHARED + 1] != 0:
        _add_credits(words, at, n, plan)
    # Only now is the row a complete draft.
    ring[DRAFT_WORDS] = ROW_WORDS + n * CANDIDATE_WORDS + _put_factors(words, at, n, factors)
    return n


_address_of_record, _call_record = export_function(
    f"int64({HEADER}, {HASHES}, boolean[::1], float64[::1], int64)", _write_row
)


@compiled("int64()")
def address_of_record():
    """Return the address of the recording kernel, for RECORD_ADDRESS."""
    return _address_of_record()


@compiled()
def record_placement(plan, sequence, eligible, factors, chosen):
    """Write the row of the plan's last placement, if the plan has a ring.

    With more than CANDIDATES_MAX candidates, the row has at least the chosen one and the
    CANDIDATES_MIN cheapest; among nearly equal costs the lowest slots win.  The least prefill
    tokens of all candidates are computed only where costs may depend on this number (CREDIT_FADES).

    chosen: slot of the placement; nothing is written below 0
    Other arguments: those of the placement.  O(slots)
    """
    if plan[RING + 1] != 0 and chosen >= 0:
        _call_record(plan[RECORD_ADDRESS], (plan, sequence, eligible, factors, chosen))


@compiled()
def _hash_bytes(text, begin, length):
    """Return the FNV-1a hash of the bytes."""
    h = U(0xCBF29CE484222325)
    for k in range(length):
        h = (h ^ U(text[begin + k])) * U(0x100000001B3)
    return I(h)


@compiled()
def write_id(words, bytes_, at, text, begin, length):
    """Write text[begin : begin + length] at word `at` in the format of the decision layout.

    length: bytes; NO_VALUE writes an absent id
    """
    words[at] = length
    for k in range(ID_WORDS):
        words[at + 1 + k] = 0
    kept = length
    if length > ID_BYTES:
        # Equal beginnings are common in ids, so the last word is a hash of the whole text.
        kept = I(ID_BYTES_KEPT)
        words[at + ID_WORDS] = _hash_bytes(text, begin, length)
    target = 8 * (at + 1)
    for k in range(kept):
        bytes_[target + k] = text[begin + k]


@compiled()
def commit_row(ring, reserved, at_s):
    """Turn the last recorded row into a decision; return the first word of the row.

    Returns NO_VALUE without such a row.  The caller then writes the ids with `write_id`.
    """
    if ring[DRAFT_WORDS] == 0:
        return I(NO_VALUE)
    place, at = draft_position(ring)
    words, begins = i64_view(ring, WORDS), i64_view(ring, BEGINS)
    if reserved:
        words[at + row.FLAGS] |= IS_RESERVED
    words[at + row.DECIDED_AT] = _float_bits(at_s)
    # Set here because a row of a former lap may have left another value.
    words[at + row.POLICY_CLASS] = NO_VALUE
    begins[ring[N_DECISIONS] % begins.shape[0]] = place
    ring[N_DECISIONS] += 1
    ring[NEXT_POSITION] = place + ring[DRAFT_WORDS]
    ring[DRAFT_WORDS] = 0
    return at


_ID = READ_ONLY.format("uint8")


WAS_RESERVED, HAS_SELECTION_ID, HAS_RESERVATION_ID = 1, 2, 4
"""Bits of the flags of `commit_decision`."""


@compiled(f"int64({HEADER}, float64, int64, {_ID}, {_ID})")
def commit_decision(ring, at_s, flags, selection_id, reservation_id):
    """Turn the last recorded row into a decision and write the ids; entry point for Python."""
    at = commit_row(ring, flags & WAS_RESERVED != 0, at_s)
    if at != NO_VALUE:
        words, bytes_ = i64_view(ring, WORDS), u8_view(ring, BYTES)
        length = selection_id.shape[0] if flags & HAS_SELECTION_ID != 0 else NO_VALUE
        write_id(words, bytes_, at + row.SELECTION_ID, selection_id, 0, length)
        length = reservation_id.shape[0] if flags & HAS_RESERVATION_ID != 0 else NO_VALUE
        write_id(words, bytes_, at + row.RESERVATION_ID, reservation_id, 0, length)
    return at
