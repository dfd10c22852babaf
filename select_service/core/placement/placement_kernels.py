"""Steps shared by the placements of all policies: matching, choosing and counting.

A placement has three steps:

1. `match_prompt` fills MATCHED and LEADING of the plan;
2. the policy's own step fills COSTS;
3. `choose_slot` picks a slot.

`match_prompt` and `choose_slot` are large, so each is compiled once and called by its address in
the plan. Callers reach the policy by address too (`call_place`), because otherwise every caller
would be compiled with a copy of each policy.  Common arguments:

    plan        header of a `Placer` (plan_layout)
    path        uint64[n_blocks], block hashes
    sequence    uint64[n], sequence hashes
    eligible    bool[n_slots]
    factors     float64[n_slots], cost factors; empty means all 1

The caller sets the other numbers of the request in the plan (`set_request` in kernels):

    REQUEST_ISL_TOKENS  length of the prompt
    REQUEST_BLOCKS      number of sequence hashes
    REQUEST_IS_PINNED   whether the request named its rank
    REQUEST_DRAW        float64 bits, uniform in [0, 1)
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

from indexer.index.header_kernels import (
    BOUNDED,
    HASHES,
    HEADER,
    INSIDE,
    LAYOUTS,
    MUTEX,
    N_TIERS,
    PROMPT_TOKENS,
    I,
    U,
    f64_view,
    i64_part,
    i64_view,
    lowest_bit,
    tiers_view,
    u64_view,
)
from indexer.index.match_kernels import match_prompt_incremental
from indexer.index.reuse_kernels import mark_layout_slots, refine_layouts
from indexer.jit.decorators import compiled
from indexer.jit.function_pointers import export_function, function_call
from indexer.jit.mutex_kernels import lock_mutex, unlock_mutex
from select_service.core.load.compiled.float_bits_kernels import float_from_bits, float_to_bits
from select_service.core.load.compiled.histogram_kernels import count_prompt
from select_service.core.load.compiled.load_layout import ONLY_DECODE
from select_service.core.load.compiled.shared_prefix_kernels import clear_runs, fill_leading_runs
from select_service.core.load.histogram_bins import TOKENS_MAX
from select_service.core.placement.assumption_kernels import apply_assumptions, assumed_blocks_of
from select_service.core.placement.decision_ring_kernels import record_placement
from select_service.core.placement.pick_kernels import pick_slot
from select_service.core.placement.plan_layout import (
    ASSUMES,
    BLOCK_SIZE,
    CHOOSE_ADDRESS,
    COSTS,
    HOLDING,
    INDEX,
    KEYS,
    LEADING,
    LEAST_WORK,
    LOAD,
    MATCH_ADDRESS,
    MATCHED,
    P_KV_REUSE,
    P_TEMPERATURE,
    PARAMETERS,
    PLACE_ADDRESS,
    REQUEST_BLOCKS,
    REQUEST_DRAW,
    REQUEST_IS_PINNED,
    REQUEST_ISL_TOKENS,
    RUNNING,
    S_ASSUMED,
    S_BEST,
    S_CERTAINTY,
    S_CPU,
    S_DISK,
    S_EFFECTIVE,
    S_EXTERNAL,
    S_GPU,
    S_INSIDE,
    S_WORK,
    SHARED,
    SUMMARY,
    T_ASSUMED_TOKENS,
    T_BEST_OVERLAP,
    T_CHOSEN_OVERLAP,
    T_CPU,
    T_DISK,
    T_EXACT_TOKENS,
    T_EXTERNAL,
    T_GPU,
    T_PROMPT_BLOCKS,
    T_PROMPTS,
    T_RESERVED,
    T_SELECTED,
    TALLY,
)
from select_service.core.placement.shared_credit_kernels import fill_credits

NO_SLOT = -1

# First rows of every policy's terms: prompt tokens cached on the rank, prompt tokens to prefill,
# active blocks including the prompt, and the cost (never NaN).
CACHED_TOKENS, EFFECTIVE_PREFILL_TOKENS, DECODE, COST = range(4)
N_COMMON_TERMS = 4

PLACE_SIGNATURE = f"int64({HEADER}, {HASHES}, {HASHES}, boolean[::1], float64[::1])"
TERMS_SIGNATURE = f"void({HEADER}, boolean[::1], float64[::1], float64[:, ::1])"


call_place = function_call(PLACE_SIGNATURE)


@compiled()
def set_request(plan, isl_tokens, n_blocks, is_pinned, draw):
    """Set the numbers of the next request."""
    plan[REQUEST_ISL_TOKENS], plan[REQUEST_BLOCKS] = isl_tokens, n_blocks
    plan[REQUEST_IS_PINNED], plan[REQUEST_DRAW] = is_pinned, float_to_bits(draw)


@compiled(PLACE_SIGNATURE)
def place_prompt(plan, path, sequence, eligible, factors):
    """Return the slot for a prompt by the plan's policy, or -1 when no slot is eligible.

    Entry point for Python.  Fills MATCHED, HOLDING, LEADING, RUNNING, COSTS, SUMMARY and the next
    row of RING under the lock of the index.  Outside the plan, only the estimated progress of
    prefills changes.  Kernels already holding the lock use `call_place` and `record_placement`.
    O(blocks + slots)
    """
    mutex = i64_view(plan, INDEX)[MUTEX]
    thread = lock_mutex(mutex)
    slot = call_place(plan[PLACE_ADDRESS], (plan, path, sequence, eligible, factors))
    record_placement(plan, sequence, eligible, factors, slot)
    unlock_mutex(mutex, thread)
    return slot


@compiled()
def _match_prompt(plan, path, sequence):
    index, load = i64_view(plan, INDEX), i64_view(plan, LOAD)
    plan[LEAST_WORK] = 0
    # Clears only the slots written by the last placement.
    match_prompt_incremental(index, path, tiers_view(plan, MATCHED), u64_view(plan, HOLDING))
    if index[LAYOUTS] != 0:
        index[PROMPT_TOKENS] = plan[REQUEST_ISL_TOKENS]
        refine_layouts(index, path, tiers_view(plan, MATCHED))
        mark_layout_slots(index, u64_view(plan, HOLDING))
    if plan[ASSUMES] != 0:
        apply_assumptions(plan, path)
    if plan[SHARED + 1] != 0:
        fill_credits(plan)
    leading, running = i64_view(plan, LEADING), u64_view(plan, RUNNING)
    if f64_view(plan, PARAMETERS)[P_KV_REUSE] != 0.0:
        fill_leading_runs(load, sequence, u64_view(plan, KEYS), leading, running)
    else:
        clear_runs(leading, running)


@compiled()
def inside_rows(plan, first, end):
    """Return the reusable tokens behind the last whole block of slots; empty without any such."""
    index = i64_view(plan, INDEX)
    if index.shape[0] == 0:
        return index  # a plan without an index, of recorded rows
    return i64_part(index, INSIDE, first, end)


@compiled()
def has_inside_rows(plan):
    """Return whether any slot may have reusable tokens behind its last whole block."""
    index = i64_view(plan, INDEX)
    return index.shape[0] != 0 and index[LAYOUTS] != 0


@compiled(error_model="numpy", forceinline=True)
def blocks_inside(inside, at, block_size):
    """Return the reusable tokens behind the last whole block of a slot, as a part of a block."""
    return inside[at] / block_size if at < inside.shape[0] else 0.0


@compiled()
def _best_overlap(plan, eligible):
    """Return the largest overlap of an eligible slot, in blocks over all tiers."""
    matched, holding = tiers_view(plan, MATCHED), u64_view(plan, HOLDING)
    best = I(0)
    for word in range(holding.shape[0]):
        rest = holding[word]
        while rest:
            slot = word * 64 + I(lowest_bit(rest))
            if slot < eligible.shape[0] and eligible[slot]:
                best = max(best, I(matched[slot, N_TIERS - 1]))
            rest &= rest - U(1)
    return best


@compiled()
def _choose_slot(plan, eligible):
    temperature = f64_view(plan, PARAMETERS)[P_TEMPERATURE]
    draw = float_from_bits(plan[REQUEST_DRAW])
    chosen = pick_slot(f64_view(plan, COSTS)[: eligible.shape[0]], eligible, temperature, draw)
    matched, summary = tiers_view(plan, MATCHED), i64_view(plan, SUMMARY)
    summary[S_BEST] = _best_overlap(plan, eligible)
    if chosen != NO_SLOT:
        for tier in range(N_TIERS):
            summary[S_GPU + tier] = matched[chosen, tier]
        inside = inside_rows(plan, chosen, chosen + 1)
        certainties = i64_view(i64_view(plan, INDEX), BOUNDED)
        summary[S_INSIDE] = inside[0] if inside.shape[0] != 0 else I(0)
        has_certainty = chosen < certainties.shape[0]
        summary[S_CERTAINTY] = certainties[chosen] if has_certainty else I(0)
        summary[S_ASSUMED] = assumed_blocks_of(plan, chosen)
    return chosen


_address_of_match, _call_match = export_function(
    f"void({HEADER}, {HASHES}, {HASHES})", _match_prompt
)
_address_of_choose, _call_choose = export_function(f"int64({HEADER}, boolean[::1])", _choose_slot)


@compiled(f"void({HEADER})")
def export_step_addresses(plan):
    """Store the addresses of `match_prompt` and `choose` in the plan."""
    plan[MATCH_ADDRESS], plan[CHOOSE_ADDRESS] = _address_of_match(), _address_of_choose()


@compiled()
def match_prompt(plan, path, sequence):
    """Fill MATCHED and LEADING."""
    _call_match(plan[MATCH_ADDRESS], (plan, path, sequence))


@compiled()
def choose_slot(plan, eligible):
    """Return the slot chosen by COSTS, or -1; fill the summary except the token counts."""
    return _call_choose(plan[CHOOSE_ADDRESS], (plan, eligible))


@compiled()
def write_token_summary(plan, effective, own_work):
    """Record the chosen slot's prefill tokens, as load and as own work, in the summary."""
    summary = i64_view(plan, SUMMARY)
    summary[S_EFFECTIVE], summary[S_WORK] = I(effective), I(own_work)


@compiled(forceinline=True)
def own_work_tokens(isl_tokens, cached_tokens, leading_tokens):
    """Return the tokens a rank would compute, neither cached nor in computation there; at least
    1.
    """
    return max(1.0, isl_tokens - max(cached_tokens, leading_tokens))


@compiled()
def find_run_end(plan, word, words, has_blocks):
    """Return the end of the run of words with slots that have (`has_blocks`) or lack blocks of the
    prompt.
    """
    holding, running = u64_view(plan, HOLDING), u64_view(plan, RUNNING)
    while word < words and ((holding[word] | running[word]) != 0) == has_blocks:
        word += 1
    return word


@compiled(f"void({HEADER}, int64, int64, int64, boolean)")
def count_placement(plan, n_blocks, isl_tokens, slot, reserved):
    """Add the last placement, of `n_blocks` and `isl_tokens` on a slot, to the tally."""
    summary, tally = i64_view(plan, SUMMARY), i64_view(plan, TALLY)
    tally[T_RESERVED if reserved else T_SELECTED] += 1
    tally[T_PROMPT_BLOCKS] += n_blocks
    tally[T_GPU] += summary[S_GPU]
    # Tiers are cumulative in the summary, separate in the tally.
    tally[T_CPU] += summary[S_CPU] - summary[S_GPU]
    tally[T_DISK] += summary[S_DISK] - summary[S_CPU]
    tally[T_EXTERNAL] += summary[S_EXTERNAL] - summary[S_DISK]
    claimed = summary[S_EXTERNAL] * plan[BLOCK_SIZE] + summary[S_INSIDE]
    # Tokens that the engine computes again count first among the assumed tokens.
    assumed = min(summary[S_ASSUMED] * plan[BLOCK_SIZE], claimed)
    tally[T_EXACT_TOKENS + summary[S_CERTAINTY]] += claimed - assumed
    tally[T_ASSUMED_TOKENS] += assumed
    tally[T_BEST_OVERLAP] += summary[S_BEST]
    tally[T_CHOSEN_OVERLAP] += summary[S_EXTERNAL]
    # The sums of the histograms are int64 and must not overflow.
    isl_tokens = min(max(isl_tokens, I(0)), I(TOKENS_MAX))
    uncached = max(isl_tokens - claimed, I(0))
    only_decode = i64_view(i64_view(plan, LOAD), ONLY_DECODE)[slot]
    count_prompt(tally, T_PROMPTS, only_decode, isl_tokens, uncached)
