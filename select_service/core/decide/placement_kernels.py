"""What the placements of all policies have in common: looking, choosing, counting.

A policy places a prompt in three steps, of which the second is its own: `look` fills MATCHED and
LEADING of the plan, the policy fills COSTS from them, `choose` takes a slot.  The first and the
last are large, so they are compiled once, and policies call them by their address in the plan; so
is the policy by everybody (`call_place`), so that nobody else is compiled with it.  The arguments:

    plan        the header of a `Placing` (plan_layout)
    path        uint64[n_blocks], block hashes;  sequence: uint64[n], sequence hashes
    eligible    bool[n_slots];  factors: float64[n_slots] or empty: all 1
    isl_tokens  length of the prompt;  pinned: has the request named its rank?
    draw        uniform in [0, 1)
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.exported_kernels import call_of, exported
from indexer.index.match_kernels import match_again
from indexer.index.state_kernels import (
    HASHES,
    HEADER,
    MUTEX,
    N_TIERS,
    I,
    U,
    f64_view,
    i64_view,
    lowest_bit,
    tiers_view,
    u64_view,
)
from indexer.mutex_kernels import enter, leave
from select_service.core.decide.decision_kernels import record_placement
from select_service.core.decide.pick_kernels import pick
from select_service.core.decide.plan_layout import (
    BLOCK_SIZE,
    CHOOSE_AT,
    COSTS,
    HOLDING,
    INDEX,
    KEYS,
    LEADING,
    LOAD,
    LOOK_AT,
    MATCHED,
    P_KV_REUSE,
    P_TEMPERATURE,
    PARAMETERS,
    PLACE_AT,
    RUNNING,
    S_BEST,
    S_CPU,
    S_DISK,
    S_EFFECTIVE,
    S_EXTERNAL,
    S_GPU,
    S_WORK,
    SUMMARY,
    T_BEST_OVERLAP,
    T_CHOSEN_OVERLAP,
    T_CPU,
    T_DISK,
    T_EXTERNAL,
    T_GPU,
    T_PROMPT_BLOCKS,
    T_PROMPTS,
    T_RESERVED,
    T_SELECTED,
    TALLY,
)
from select_service.core.load.bin_kernels import count_prompt
from select_service.core.load.bins import TOKENS_MAX
from select_service.core.load.leading_kernels import clear_runs, leading_runs
from select_service.core.load.load_layout import ONLY_DECODE

NOBODY = -1

# Rows that the terms of every policy begin with: prompt tokens that the rank has cached and those
# that it would prefill; blocks that it would have active with the prompt; what it costs, never NaN.
CACHED_TOKENS, EFFECTIVE_PREFILL_TOKENS, DECODE, COST = range(4)
N_COMMON_TERMS = 4

PLACE = (
    f"int64({HEADER}, {HASHES}, {HASHES}, boolean[::1], float64[::1], float64, boolean, float64)"
)
TERMS = f"void({HEADER}, boolean[::1], float64[::1], float64, float64, boolean, float64[:, ::1])"


call_place = call_of(PLACE)


@compiled(PLACE)
def place(plan, path, sequence, eligible, factors, isl_tokens, pinned, draw):
    """The slot for a prompt by the policy of the plan, NOBODY when none is eligible; for Python.

    Fills MATCHED, HOLDING, LEADING, RUNNING, COSTS, SUMMARY and the next row of RING, under the
    lock of the index; of all else it changes only what is known of the progress of prefills.
    Kernels that have the lock use `call_place` and `record_placement`.  O(blocks + slots)
    """
    mutex = i64_view(plan, INDEX)[MUTEX]
    thread = enter(mutex)
    given = (plan, path, sequence, eligible, factors, isl_tokens, pinned, draw)
    slot = call_place(plan[PLACE_AT], given)
    record_placement(plan, sequence, eligible, factors, isl_tokens, pinned, draw, slot)
    leave(mutex, thread)
    return slot


@compiled()
def _look(plan, path, sequence):
    index, load = i64_view(plan, INDEX), i64_view(plan, LOAD)
    match_again(index, path, tiers_view(plan, MATCHED), u64_view(plan, HOLDING))
    leading, running = i64_view(plan, LEADING), u64_view(plan, RUNNING)
    if f64_view(plan, PARAMETERS)[P_KV_REUSE] != 0.0:
        leading_runs(load, sequence, u64_view(plan, KEYS), leading, running)
    else:
        clear_runs(leading, running)


@compiled()
def _best_overlap(plan, eligible):
    """Most blocks, over all tiers, that an eligible slot has."""
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
def _choose(plan, eligible, draw):
    temperature = f64_view(plan, PARAMETERS)[P_TEMPERATURE]
    chosen = pick(f64_view(plan, COSTS)[: eligible.shape[0]], eligible, temperature, draw)
    matched, summary = tiers_view(plan, MATCHED), i64_view(plan, SUMMARY)
    summary[S_BEST] = _best_overlap(plan, eligible)
    if chosen != NOBODY:
        for tier in range(N_TIERS):
            summary[S_GPU + tier] = matched[chosen, tier]
    return chosen


_address_of_look, _call_look = exported(f"void({HEADER}, {HASHES}, {HASHES})", _look)
_address_of_choose, _call_choose = exported(f"int64({HEADER}, boolean[::1], float64)", _choose)


@compiled(f"void({HEADER})")
def say_addresses(plan):
    """Let the plan say where `look` and `choose` are."""
    plan[LOOK_AT], plan[CHOOSE_AT] = _address_of_look(), _address_of_choose()


@compiled()
def look(plan, path, sequence):
    """Fill MATCHED and LEADING."""
    _call_look(plan[LOOK_AT], (plan, path, sequence))


@compiled()
def choose(plan, eligible, draw):
    """The slot that COSTS say, NOBODY when none is eligible; fills the summary but for tokens."""
    return _call_choose(plan[CHOOSE_AT], (plan, eligible, draw))


@compiled()
def summarise_tokens(plan, effective, own_work):
    """Note how many tokens the chosen slot would prefill: as load, and what it would compute."""
    summary = i64_view(plan, SUMMARY)
    summary[S_EFFECTIVE], summary[S_WORK] = I(effective), I(own_work)


@compiled(forceinline=True)
def own_work_of(isl_tokens, cached_tokens, leading_tokens):
    """Tokens that a rank would compute: neither cached there nor on their way; at least 1."""
    return max(1.0, isl_tokens - max(cached_tokens, leading_tokens))


@compiled()
def end_of_run(plan, word, words, found):
    """Where the words end of whose slots none has, or some have something of the prompt."""
    holding, running = u64_view(plan, HOLDING), u64_view(plan, RUNNING)
    while word < words and ((holding[word] | running[word]) != 0) == found:
        word += 1
    return word


@compiled(f"void({HEADER}, int64, int64, int64, boolean)")
def count_placement(plan, n_blocks, isl_tokens, slot, reserved):
    """Add the last placement, of a prompt of so many blocks and tokens on a slot, to the tally."""
    summary, tally = i64_view(plan, SUMMARY), i64_view(plan, TALLY)
    tally[T_RESERVED if reserved else T_SELECTED] += 1
    tally[T_PROMPT_BLOCKS] += n_blocks
    tally[T_GPU] += summary[S_GPU]
    tally[T_CPU] += summary[S_CPU] - summary[S_GPU]
    tally[T_DISK] += summary[S_DISK] - summary[S_CPU]
    tally[T_EXTERNAL] += summary[S_EXTERNAL] - summary[S_DISK]
    tally[T_BEST_OVERLAP] += summary[S_BEST]
    tally[T_CHOSEN_OVERLAP] += summary[S_EXTERNAL]
    isl_tokens = min(max(isl_tokens, I(0)), I(TOKENS_MAX))
    uncached = max(isl_tokens - summary[S_EXTERNAL] * plan[BLOCK_SIZE], I(0))
    only_decode = i64_view(i64_view(plan, LOAD), ONLY_DECODE)[slot]
    count_prompt(tally, T_PROMPTS, only_decode, isl_tokens, uncached)
