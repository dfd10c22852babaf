"""Tests of merging proposals from several proposers: known cases, and a naive twin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.reasons import Reason
from select_service.planner.core.reconcile import (
    BoundType,
    Proposal,
    ProposedCount,
    ReconciledCounts,
    reconcile_proposals,
)
from select_service.planner.core.tick_input import Role, TickInput
from tests.planner.core.deployments import a_deployment, replicas, traffic

BASELINE = {"prefill": 3, "decode": 2}


def proposal(
    source: str, priority: int, *targets: tuple[str, BoundType, int | None], final: bool = False
) -> Proposal:
    return Proposal(
        source=source,
        priority=priority,
        final=final,
        targets=tuple(ProposedCount(*target) for target in targets),
    )


def test_the_smallest_priority_sets_and_bounds_hold_it() -> None:
    merged = reconcile_proposals(
        [
            proposal("throughput", 20, ("prefill", BoundType.SET, 9), ("decode", BoundType.SET, 4)),
            proposal("load", 10, ("prefill", BoundType.SET, 7)),
            proposal("quota", 0, ("prefill", BoundType.AT_MOST, 5)),
            proposal("night", 5, ("decode", BoundType.AT_LEAST, 6)),
        ],
        BASELINE,
    )
    assert merged.targets == {"prefill": 5, "decode": 6}


def test_the_floor_wins_over_the_ceiling() -> None:
    merged = reconcile_proposals(
        [proposal("a", 0, ("prefill", BoundType.AT_MOST, 2), ("prefill", BoundType.AT_LEAST, 4))],
        BASELINE,
    )
    assert merged.targets["prefill"] == 4


def test_a_rejection_ends_the_tick_even_before_a_final_word() -> None:
    no = Proposal(source="freeze", priority=50, reject="deploying")
    merged = reconcile_proposals(
        [proposal("a", 0, ("prefill", BoundType.SET, 9), final=True), no], BASELINE
    )
    assert merged == ReconciledCounts(targets={}, rejected="freeze: deploying")


def test_the_first_final_word_of_the_smallest_priority_is_taken_as_it_is() -> None:
    merged = reconcile_proposals(
        [
            proposal("a", 1, ("prefill", BoundType.SET, 9), final=True),
            proposal("b", 0, ("prefill", BoundType.AT_LEAST, 5), final=True),
            proposal("c", 0, ("prefill", BoundType.SET, 6), final=True),
            proposal("d", 0, ("prefill", BoundType.AT_MOST, 1)),
        ],
        BASELINE,
    )
    assert merged.final_from == "b"
    assert merged.targets == {"prefill": 5, "decode": 2}


def test_numbers_are_not_set_where_only_bounds_are_allowed() -> None:
    merged = reconcile_proposals(
        [proposal("a", 0, ("prefill", BoundType.SET, 9), ("decode", BoundType.AT_MOST, 1))],
        BASELINE,
        set_allowed=False,
    )
    assert merged.targets == {"prefill": 3, "decode": 1}
    assert merged.set_dropped == ("prefill",)


def naive(proposals: list[Proposal], baseline: dict[str, int]) -> dict[str, int]:
    """Return the merged counts, each role computed from all proposals."""
    said = [(at.priority, target) for at in proposals for target in at.targets or ()]
    names = set(baseline) | {at.component for _, at in said if at.replicas is not None}
    found = {}
    for name in names:
        mine = [(p, at.type, at.replicas) for p, at in said if at.component == name]
        numbers = [(p, kind, number) for p, kind, number in mine if number is not None]
        sets = sorted(
            (p, order, n) for order, (p, kind, n) in enumerate(numbers) if kind is BoundType.SET
        )
        wish = sets[0][2] if sets else baseline.get(name, 0)
        most = [n for _, kind, n in numbers if kind is BoundType.AT_MOST]
        least = [n for _, kind, n in numbers if kind is BoundType.AT_LEAST]
        found[name] = max([min([wish, *most]), *least, 0])
    return found


targets = st.tuples(
    st.sampled_from(["prefill", "decode"]),
    st.sampled_from(list(BoundType)),
    st.none() | st.integers(0, 9),
)
proposals = st.builds(
    lambda priority, at: proposal(f"p{priority}", priority, *at),
    st.integers(0, 3),
    st.lists(targets, max_size=4),
)


@given(
    st.lists(proposals, max_size=5),
    st.dictionaries(st.sampled_from(["prefill", "decode"]), st.integers(0, 9)),
)
def test_merged_counts_match_the_naive_twin(
    given_proposals: list[Proposal], baseline: dict[str, int]
) -> None:
    found = reconcile_proposals(given_proposals, baseline)
    assert found.targets == naive(given_proposals, baseline)


@pytest.mark.parametrize("stabilise", [False, True])
@pytest.mark.parametrize("final", [False, True])
def test_a_role_outside_of_the_mode_is_ignored_and_reported(stabilise: bool, final: bool) -> None:
    both_roles = tuple(ProposedCount(role, BoundType.AT_LEAST, 5) for role in ("prefill", "decode"))
    outside = Proposal(source="quota", priority=0, targets=both_roles, final=final)
    for constrains in (False, True):
        of = "constraints" if constrains else "proposals"
        tick = TickInput(
            now_s=60.0,
            replicas={Role.DECODE: replicas(2)},
            traffic=traffic(60.0),
            **{of: (outside,)},
        )
        effects = a_deployment(mode="agg", stabilise=stabilise).run_tick(tick)
        assert effects.scale_to == {Role.DECODE: 5}
        assert Reason.ROLE_OUTSIDE_MODE in effects.diagnostics.reasons
