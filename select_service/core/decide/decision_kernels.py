"""Keeping decisions: their numbers as they were, in a ring of the thread that decides.

`record_placement` writes the row of a placement, `keep` makes a decision of it.  A placement that
is none is overwritten by the next one.  Both only copy: terms are made of the numbers again when
somebody asks (`recorded`).
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from typing import NamedTuple

import numpy as np

from indexer.compiled import READ_ONLY, compiled
from indexer.exported_kernels import exported
from indexer.index.state_kernels import (
    HASHES,
    HEADER,
    I,
    U,
    f64_view,
    i32_view,
    i64_view,
    lowest_bit,
    u8_view,
)
from select_service.core.decide import decision_layout as row
from select_service.core.decide.cheap_kernels import cost_bits, cost_bounds, fill_minima
from select_service.core.decide.decision_layout import (
    BEGINS,
    BYTES,
    CANDIDATE_WORDS,
    CANDIDATES_ENOUGH,
    CANDIDATES_MAX,
    CREDIT_FADES,
    DRAFT_WORDS,
    FACTORED,
    HALF,
    HEAD,
    ID_BYTES,
    ID_BYTES_KEPT,
    ID_WORDS,
    KEPT,
    LANES,
    MINIMA,
    NONE,
    OUTSIDE_BIT,
    PINNED,
    RESERVED,
    ROW_WORDS,
    ROW_WORDS_MAX,
    SLOT_BITS,
    WORDS,
)
from select_service.core.decide.plan_layout import (
    COSTS,
    LEADING,
    LOAD,
    MATCHED,
    NAMED_POLICY,
    PARAMETERS,
    PARTITION,
    RANKS,
    RECORD_AT,
    RING,
)
from select_service.core.load.kernels import active_blocks_of
from select_service.core.load.load_layout import (
    BOOKED,
    FRACTIONAL_BLOCKS,
    FRACTIONS,
    LEFT,
    N_TOTALS,
    PREFILL_TOKENS,
    REPORTED,
    REQUESTS,
    TOTALS,
    WHOLE_BLOCKS,
)
from select_service.core.workers.rank_layout import (
    KV_BLOCKS,
    OUTSIDE,
    SPEED,
    USUAL_SPEED,
    VERSION,
    WEIGHT,
)

LARGEST = I(np.iinfo(np.int64).max)
ALL_LANES = np.ones(LANES, np.bool_)


class Known(NamedTuple):
    """What is known of all slots: arrays as the plan, the load and the rank table have them.

    matched: as numbers of 64 bits, of which each slot has two
    """

    totals: np.ndarray
    fractions: np.ndarray
    matched: np.ndarray
    leading: np.ndarray
    booked: np.ndarray
    left: np.ndarray
    version: np.ndarray
    kv_blocks: np.ndarray
    weight: np.ndarray
    outside: np.ndarray
    speed: np.ndarray
    costs: np.ndarray


@compiled(forceinline=True)
def _bits(number):
    return np.float64(number).view(np.int64)


@compiled(forceinline=True)
def draft_place(ring):
    """Where the next row begins: a place, and the word that lies there."""
    n_words, head = ring[WORDS + 1], ring[HEAD]
    at = head % n_words
    if at + ROW_WORDS_MAX > n_words:
        head, at = head + n_words - at, I(0)
    return head, at


@compiled()
def _known(plan):
    load, ranks = i64_view(plan, LOAD), i64_view(plan, RANKS)
    return Known(
        i64_view(load, TOTALS),
        f64_view(load, FRACTIONS),
        i32_view(plan, MATCHED).view(np.int64),
        i64_view(plan, LEADING),
        i64_view(load, BOOKED),
        i64_view(load, LEFT),
        i64_view(ranks, VERSION),
        f64_view(ranks, KV_BLOCKS),
        f64_view(ranks, WEIGHT),
        f64_view(ranks, OUTSIDE),
        f64_view(ranks, SPEED),
        f64_view(plan, COSTS),
    )


@compiled(error_model="numpy", forceinline=True)
def _put_candidate(words, at, known, slot):
    """One candidate, as it is.  Places are unsigned: others would be looked at for a sign."""
    at, slot = U(at), U(slot)
    totals, total = known.totals, slot * U(N_TOTALS)
    fractional = totals[total + U(FRACTIONAL_BLOCKS)]
    active = totals[total + U(WHOLE_BLOCKS)]
    if fractional != 0:
        active = I(active_blocks_of(active, fractional, known.fractions[slot]))
    words[at + U(row.WHO)] = (known.version[slot] << SLOT_BITS) | I(slot)
    words[at + U(row.PREFILL_TOKENS)] = totals[total + U(PREFILL_TOKENS)]
    words[at + U(row.ACTIVE_BLOCKS)] = active
    live = (totals[total + U(REQUESTS)] << HALF) | known.leading[slot]
    words[at + U(row.LIVE)] = (I(known.outside[slot]) << OUTSIDE_BIT) | live
    words[at + U(row.MATCHED_LOW)] = known.matched[U(2) * slot]
    words[at + U(row.MATCHED_HIGH)] = known.matched[U(2) * slot + U(1)]
    words[at + U(row.BOOKED)] = known.booked[slot]
    words[at + U(row.LEFT)] = known.left[slot]
    words[at + U(row.KV_BLOCKS)] = _bits(known.kv_blocks[slot])
    words[at + U(row.WEIGHT)] = _bits(known.weight[slot])
    words[at + U(row.SPEED)] = _bits(known.speed[slot])
    words[at + U(row.COST)] = _bits(known.costs[slot])


@compiled()
def _put_all(words, at, known, eligible, chosen):
    """Put all candidates but the chosen one; how many there are with it."""
    n = I(1)
    for slot in range(eligible.shape[0]):
        if eligible[slot] and slot != chosen:
            _put_candidate(words, at + n * CANDIDATE_WORDS, known, slot)
            n += 1
    return n


@compiled()
def _count(eligible):
    n = I(0)
    for slot in range(eligible.shape[0]):
        n += I(eligible[slot])
    return n


@compiled()
def _put_between(words, at, n, most, known, eligible, above, cost, chosen):
    """Put candidates that cost more than `above` and at most `cost` behind n others, until there
    are `most`.  Returns how many there are then, or one more where some are left out."""
    n_slots = eligible.shape[0]
    for first in range(0, n_slots, 64):
        bits = cost_bits(known.costs, first, n_slots, above, cost)
        while bits != 0:
            slot = first + I(lowest_bit(bits))
            bits &= bits - U(1)
            if slot == chosen or not eligible[slot]:
                continue
            if n == most:
                return n + 1
            _put_candidate(words, at + n * CANDIDATE_WORDS, known, slot)
            n += 1
    return n


@compiled()
def _put_cheapest(words, at, minima, known, eligible, chosen):
    """Put those that cost least behind the chosen one; how many there are with it.

    The minima say up to which cost there are enough and, unless the cheapest ones share a few
    lanes, not too many.
    """
    fill_minima(minima, known.costs, eligible)
    low, high = cost_bounds(minima, ALL_LANES)
    n = _put_between(words, at, I(1), CANDIDATES_MAX, known, eligible, -np.inf, low, chosen)
    if n > CANDIDATES_MAX:
        low, high = cost_bounds(known.costs, eligible)
        n = _put_between(words, at, I(1), CANDIDATES_MAX, known, eligible, -np.inf, low, chosen)
    if low < high and n < CANDIDATES_ENOUGH:
        n = _put_between(words, at, n, CANDIDATES_ENOUGH, known, eligible, low, high, chosen)
        return min(n, CANDIDATES_ENOUGH)
    return min(n, CANDIDATES_MAX)


@compiled()
def _least_prefill(totals, eligible):
    least = LARGEST
    for slot in range(eligible.shape[0]):
        if eligible[slot]:
            least = min(least, totals[slot * N_TOTALS + PREFILL_TOKENS])
    return least


@compiled()
def _put_candidates(ring, words, at, plan, eligible, chosen):
    """The chosen one, then as many of the others as the row takes; how many those are."""
    n_eligible, known, first, least = _count(eligible), _known(plan), at + ROW_WORDS, I(0)
    _put_candidate(words, first, known, chosen)
    if n_eligible <= CANDIDATES_MAX:
        n = _put_all(words, first, known, eligible, chosen)
    else:
        n = _put_cheapest(words, first, f64_view(ring, MINIMA), known, eligible, chosen)
        if ring[CREDIT_FADES] != 0:
            least = _least_prefill(known.totals, eligible)
    words[at + row.N_ELIGIBLE], words[at + row.N_ROWS] = n_eligible, n
    words[at + row.LEAST_PREFILL] = least
    return n


@compiled()
def _put_factors(words, at, n, factors):
    """Those of the n candidates of the row; how many words that takes."""
    if factors.shape[0] == 0:
        return I(0)
    behind = at + ROW_WORDS + n * CANDIDATE_WORDS
    for k in range(n):
        who = words[at + ROW_WORDS + k * CANDIDATE_WORDS + row.WHO]
        words[behind + k] = _bits(factors[who & ((I(1) << SLOT_BITS) - 1)])
    return n


@compiled()
def _put_parameters(words, at, plan):
    parameters = f64_view(plan, PARAMETERS)
    words[at + row.N_PARAMETERS] = parameters.shape[0]
    for k in range(parameters.shape[0]):
        words[at + row.PARAMETERS + k] = _bits(parameters[k])


@compiled()
def _record(plan, sequence, eligible, factors, isl_tokens, pinned, draw, chosen):
    ring = i64_view(plan, RING)
    words, n_blocks = i64_view(ring, WORDS), sequence.shape[0]
    _, at = draft_place(ring)
    words[at + row.NUMBER] = ring[KEPT] + 1
    words[at + row.PARTITION] = plan[PARTITION]
    words[at + row.POLICY] = plan[NAMED_POLICY]
    flags = PINNED if pinned else 0
    words[at + row.FLAGS] = flags | (FACTORED if factors.shape[0] != 0 else 0)
    words[at + row.ISL_TOKENS] = I(isl_tokens)
    words[at + row.N_BLOCKS] = n_blocks
    words[at + row.PROMPT] = I(sequence[n_blocks - 1]) if n_blocks else 0
    words[at + row.DRAW] = _bits(draw)
    words[at + row.REPORTED] = i64_view(plan, LOAD)[REPORTED]
    words[at + row.USUAL_SPEED] = i64_view(plan, RANKS)[USUAL_SPEED]
    _put_parameters(words, at, plan)
    n = _put_candidates(ring, words, at, plan, eligible, chosen)
    ring[DRAFT_WORDS] = ROW_WORDS + n * CANDIDATE_WORDS + _put_factors(words, at, n, factors)
    return n


_address_of_record, _call_record = exported(
    f"int64({HEADER}, {HASHES}, boolean[::1], float64[::1], float64, boolean, float64, int64)",
    _record,
)


@compiled("int64()")
def address_of_record():
    """For RECORD_AT."""
    return _address_of_record()


@compiled()
def record_placement(plan, sequence, eligible, factors, isl_tokens, pinned, draw, chosen):
    """Write the row of the placement that the plan holds, if the plan has a ring.

    Of more than CANDIDATES_MAX candidates the chosen one and the CANDIDATES_MIN cheapest are in the
    row at least; of some that cost nearly the same the first ones.  The least prefill tokens of all
    are only looked for where costs may depend on them (CREDIT_FADES).  Arguments: as those of the
    placement, of which `chosen` is the slot, or less than 0.  O(slots)
    """
    if plan[RING + 1] != 0 and chosen >= 0:
        given = (plan, sequence, eligible, factors, isl_tokens, pinned, draw, chosen)
        _call_record(plan[RECORD_AT], given)


@compiled()
def _hash_of(text, begin, length):
    """FNV-1a of the bytes."""
    h = U(0xCBF29CE484222325)
    for k in range(length):
        h = (h ^ U(text[begin + k])) * U(0x100000001B3)
    return I(h)


@compiled()
def put_id(words, bytes_, at, text, begin, length):
    """Put text[begin : begin + length] at a word, as decision_layout says it; NONE: nothing."""
    words[at] = length
    for k in range(ID_WORDS):
        words[at + 1 + k] = 0
    kept = length
    if length > ID_BYTES:
        kept = I(ID_BYTES_KEPT)
        words[at + ID_WORDS] = _hash_of(text, begin, length)
    target = 8 * (at + 1)
    for k in range(kept):
        bytes_[target + k] = text[begin + k]


@compiled()
def keep(ring, reserved, at_s):
    """Make a decision of the row that was recorded last; the word at which the row begins.

    Its ids are put by the caller, see `put_id`.  NONE: there is no such row.
    """
    if ring[DRAFT_WORDS] == 0:
        return I(NONE)
    place, at = draft_place(ring)
    words, begins = i64_view(ring, WORDS), i64_view(ring, BEGINS)
    if reserved:
        words[at + row.FLAGS] |= RESERVED
    words[at + row.DECIDED_AT] = _bits(at_s)
    words[at + row.POLICY_CLASS] = NONE
    begins[ring[KEPT] % begins.shape[0]] = place
    ring[KEPT] += 1
    ring[HEAD] = place + ring[DRAFT_WORDS]
    ring[DRAFT_WORDS] = 0
    return at


_ID = READ_ONLY.format("uint8")


@compiled(f"int64({HEADER}, boolean, float64, boolean, {_ID}, boolean, {_ID})")
def keep_decision(ring, reserved, at_s, has_selection_id, selection_id, has_id, reservation_id):
    """`keep`, for Python, with the ids."""
    at = keep(ring, reserved, at_s)
    if at != NONE:
        words, bytes_ = i64_view(ring, WORDS), u8_view(ring, BYTES)
        length = selection_id.shape[0] if has_selection_id else NONE
        put_id(words, bytes_, at + row.SELECTION_ID, selection_id, 0, length)
        length = reservation_id.shape[0] if has_id else NONE
        put_id(words, bytes_, at + row.RESERVATION_ID, reservation_id, 0, length)
    return at
