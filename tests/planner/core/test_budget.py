"""Tests of budgets in GPUs: known cases, all pairs by brute force, and invariants."""

from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.budgets.gpu_budget import (
    GpuBudget,
    Pair,
    fit_directional,
    fit_proportional,
    fit_single_role,
    guard_proposal,
    guard_single_role,
    is_opposing,
)
from select_service.planner.core.reasons import Reason

counts = st.integers(0, 9)
pairs = st.tuples(counts, counts)
bounds = st.sampled_from([-1, 0, 4, 8, 16, 24, 32])
budgets = st.builds(
    GpuBudget,
    bounds,
    bounds,
    st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8])),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
)


def test_a_pair_over_the_ceiling_shrinks_in_proportion():
    assert fit_proportional((5, 2), GpuBudget(-1, 16, (2, 8), (0, 1))) == (3, 1)


def test_a_pair_below_the_floor_grows_in_proportion():
    assert fit_proportional((1, 5), GpuBudget(16, -1, (1, 1), (0, 1))) == (3, 13)


def test_an_unreachable_floor_keeps_the_counts():
    assert fit_proportional((1, 0), GpuBudget(14, 15, (8, 8), (0, 0))) == (1, 0)


def test_movements_that_oppose_each_other_happen_both_or_not():
    assert fit_directional((7, 0), (5, 4), GpuBudget(-1, 32, (2, 8), (1, 1))) == (5, 2)
    assert fit_directional((2, 1), (1, 2), GpuBudget(-1, 3, (1, 2), (0, 0))) == (2, 1)


def test_a_full_budget_admits_no_step_up():
    assert guard_proposal((2, 2), (3, 3), GpuBudget(-1, 4, (1, 1), (1, 1))) == (
        (2, 2),
        Reason.GPU_BUDGET_HOLD,
    )


def test_a_lowered_budget_is_reconciled_from_running_replicas():
    guarded = guard_proposal((4, 4), (5, 5), GpuBudget(-1, 4, (1, 1), (1, 1)))
    assert guarded == ((2, 2), Reason.GPU_BUDGET_RECONCILE)


def test_one_role_alone():
    budget = GpuBudget(4, 16, (4, 0), (2, 0))
    assert guard_single_role(6, 9, budget) == (4, Reason.GPU_BUDGET_RECONCILE)
    assert guard_single_role(4, 5, budget) == (4, Reason.GPU_BUDGET_HOLD)
    assert guard_single_role(3, 4, budget) == (4, None)
    assert fit_single_role(9, GpuBudget(-1, 8, (8, 0), (2, 0))) == 0


def brute_force(current: Pair, proposed: Pair, budget: GpuBudget) -> Pair:
    """Return the best of all pairs that reverse no movement."""
    best = None
    for prefill in range(min(current[0], proposed[0]), max(current[0], proposed[0]) + 1):
        for decode in range(min(current[1], proposed[1]), max(current[1], proposed[1]) + 1):
            pair = (prefill, decode)
            alone = (prefill != current[0]) != (decode != current[1])
            if pair[0] < budget.minimums[0] or pair[1] < budget.minimums[1]:
                continue
            if not budget.is_within(pair) or (is_opposing(current, proposed) and alone):
                continue
            moved = abs(prefill - current[0]), abs(decode - current[1])
            asked = abs(proposed[0] - current[0]), abs(proposed[1] - current[1])
            left = abs(prefill - proposed[0]) + abs(decode - proposed[1])
            skew = abs(moved[0] * asked[1] - moved[1] * asked[0])
            score = (left, skew, -sum(moved), pair)
            best = score if best is None else min(best, score)
    return current if best is None else best[3]


@given(pairs, pairs, budgets)
def test_directional_is_the_best_of_all_pairs(current, proposed, budget):
    assert fit_directional(current, proposed, budget) == brute_force(current, proposed, budget)


@given(pairs, pairs, budgets)
def test_a_pair_below_the_ceiling_never_exceeds_it(current, proposed, budget):
    for pair in (
        fit_proportional(proposed, budget),
        guard_proposal(current, proposed, budget).pair,
    ):
        assert not budget.is_over(budget.total_gpus(pair))


@given(pairs, pairs, budgets)
def test_inside_of_the_band_nothing_is_turned_round_or_left(current, proposed, budget):
    pair, reason = guard_proposal(current, proposed, budget)
    if reason is Reason.GPU_BUDGET_RECONCILE:
        assert not budget.is_within(current)
        return
    assert budget.is_within(pair)
    for now, then, number in zip(current, proposed, pair, strict=True):
        assert min(now, then) <= number <= max(now, then)


@given(pairs, budgets)
def test_minima_are_kept_where_they_fit(pair, budget):
    kept = (max(pair[0], budget.minimums[0]), max(pair[1], budget.minimums[1]))
    fitted = fit_proportional(kept, budget)
    if budget.is_feasible:
        assert fitted[0] >= budget.minimums[0]
        assert fitted[1] >= budget.minimums[1]
    elif budget.is_over(budget.total_gpus(kept)):
        assert fitted == (0, 0)


@given(counts, counts, budgets)
def test_one_role_keeps_its_ceiling_and_direction(current, proposed, both):
    budget = GpuBudget(both.min_gpus, both.max_gpus, (both.gpus[0], 0), (both.minimums[0], 0))
    number, reason = guard_single_role(current, proposed, budget)
    assert not budget.is_over(number * budget.gpus[0])
    if reason is not Reason.GPU_BUDGET_RECONCILE:
        assert min(current, proposed) <= number <= max(current, proposed)
