"""Tests of several deployments on one cluster: shares, and a sum that is never exceeded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from select_service.planner.core.cluster import ClusterPlanner, GpuClaim, divide_gpus
from select_service.planner.core.reasons import Reason
from select_service.planner.core.reconcile import BoundType, Proposal, ProposedCount
from select_service.planner.core.tick_input import Role, TickInput
from tests.planner.core.deployments import a_deployment, both, replicas, tick_input, traffic


def test_the_first_in_order_gets_its_claim() -> None:
    claims = [GpuClaim(2, 0.9, 1, 1, 6), GpuClaim(1, 0.1, 1, 1, 5)]
    assert divide_gpus(claims, 8) == [3, 5]


def test_among_equals_the_largest_loss_goes_first() -> None:
    claims = [GpuClaim(1, 0.1, 1, 1, 6), GpuClaim(1, 0.9, 1, 1, 6)]
    assert divide_gpus(claims, 8) == [2, 6]


def test_a_deployment_with_enough_is_not_cut_for_an_equal() -> None:
    claims = [GpuClaim(1, 0.0, 1, 4, 4), GpuClaim(1, 0.5, 1, 4, 6)]
    assert divide_gpus(claims, 8) == [4, 4]


def test_no_deployment_grows_into_gpus_of_an_unread_deployment() -> None:
    deployments = {name: a_deployment(max_gpu_budget=-1) for name in ("batch", "chat")}
    cluster = ClusterPlanner(deployments, {"batch": 1, "chat": 1}, 12)
    ticks = {
        "chat": tick_input(60.0, both(2, 1), of=traffic(2400.0)),
        "batch": TickInput(now_s=60.0, replicas={}),
    }
    assert cluster.tick(ticks)["chat"].scale_to is None
    ticks = {
        "chat": tick_input(120.0, both(2, 1), of=traffic(2400.0)),
        "batch": tick_input(120.0, both(1, 1), of=traffic(0.0)),
    }
    scaled = cluster.tick(ticks)["chat"].scale_to
    assert scaled is not None
    assert sum(scaled.get(role, now) for role, now in ((Role.PREFILL, 2), (Role.DECODE, 1))) <= 10


def test_gpus_of_others_are_given_when_free() -> None:
    claims = [GpuClaim(1, 0.9, 1, 2, 6), GpuClaim(2, 0.1, 1, 6, 6)]
    assert divide_gpus(claims, 8) == [2, 2]
    claims = [GpuClaim(1, 0.9, 1, 2, 6), GpuClaim(2, 0.1, 1, 2, 6)]
    assert divide_gpus(claims, 8) == [6, 2]


counts = st.integers(0, 12)


@given(
    st.lists(
        st.builds(GpuClaim, st.integers(0, 2), st.floats(0, 1), st.integers(0, 2), counts, counts),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 40),
)
def test_nothing_is_given_twice(claims: list[GpuClaim], gpus: int) -> None:
    got = divide_gpus(claims, gpus)
    least = sum(min(claim.least, claim.wanted) for claim in claims)
    after = sum(max(claim.now, number) for claim, number in zip(claims, got, strict=True))
    before = sum(max(claim.now, min(claim.least, claim.wanted)) for claim in claims)
    assert sum(got) <= max(gpus, least)
    assert after <= max(gpus, before)
    for claim, number in zip(claims, got, strict=True):
        assert min(claim.least, claim.wanted) <= number <= claim.wanted


def test_two_deployments_share_the_cluster_by_priority() -> None:
    deployments = {name: a_deployment(max_gpu_budget=-1) for name in ("batch", "chat")}
    cluster = ClusterPlanner(deployments, {"batch": 100, "chat": 1}, 12)
    ticks = {name: tick_input(60.0, both(2, 1), of=traffic(2400.0)) for name in deployments}
    effects = cluster.tick(ticks)
    chat, batch = effects["chat"].scale_to, effects["batch"].scale_to
    assert chat is not None
    assert chat[Role.PREFILL] > 5
    assert Reason.CLUSTER_BUDGET in effects["batch"].diagnostics.reasons
    total = sum(chat.get(role, now) for role, now in ((Role.PREFILL, 2), (Role.DECODE, 1)))
    rest = {Role.PREFILL: 2, Role.DECODE: 1} | (batch or {})
    assert total + sum(rest.values()) <= 12


def test_without_a_bound_all_claims_are_granted() -> None:
    deployments = {name: a_deployment() for name in ("batch", "chat")}
    cluster = ClusterPlanner(deployments, {"batch": 1, "chat": 1}, None)
    ticks = {name: tick_input(60.0, both(2, 1), of=traffic(1200.0)) for name in deployments}
    wishes = {tuple((each.scale_to or {}).items()) for each in cluster.tick(ticks).values()}
    assert len(wishes) == 1


def test_deployments_that_are_not_due_keep_their_gpus() -> None:
    deployments = {name: a_deployment(max_gpu_budget=-1) for name in ("batch", "chat")}
    cluster = ClusterPlanner(deployments, {"batch": 100, "chat": 1}, 12)
    cluster.tick({"batch": tick_input(5.0, both(4, 2))})
    effects = cluster.tick({"chat": tick_input(60.0, both(2, 1), of=traffic(4800.0))})["chat"]
    wished = {Role.PREFILL: 2, Role.DECODE: 1} | (effects.scale_to or {})
    assert sum(wished.values()) <= 12 - 6


def test_a_deployment_below_its_minimum_is_not_ended_beside_an_unread_deployment() -> None:
    deployments = {
        "batch": a_deployment(mode="agg"),
        "chat": a_deployment(mode="agg", min_endpoint=3),
    }
    cluster = ClusterPlanner(deployments, {"batch": 1, "chat": 1}, 12)
    effects = cluster.tick({"chat": tick_input(5.0, {Role.DECODE: replicas(2)})})["chat"]
    assert effects.wished is None
    ticks = {
        "batch": tick_input(10.0, {Role.DECODE: replicas(1)}),
        "chat": tick_input(10.0, {Role.DECODE: replicas(2)}),
    }
    assert cluster.tick(ticks)["chat"].scale_to == {Role.DECODE: 3}


def test_a_share_turns_no_movement_round() -> None:
    """Decode wants more, but its growth must not come from prefill, which is busy."""
    deployments = {name: a_deployment(max_gpu_budget=-1) for name in ("batch", "chat")}
    cluster = ClusterPlanner(deployments, {"batch": 1, "chat": 2}, 16)
    busy = Proposal(
        source="ours",
        priority=0,
        targets=(
            ProposedCount("prefill", BoundType.AT_LEAST, 6),
            ProposedCount("decode", BoundType.AT_LEAST, 9),
        ),
    )
    chat = replace(tick_input(60.0, both(6, 1), of=traffic(60.0)), proposals=(busy,))
    ticks = {"chat": chat, "batch": tick_input(60.0, both(3, 3), of=traffic(60.0))}
    scaled = cluster.tick(ticks)["chat"].scale_to
    assert scaled == {Role.DECODE: 4}


@pytest.mark.parametrize("how", ["advisory", "paused"])
def test_an_advisory_deployment_takes_no_gpus_from_others(how: str) -> None:
    advised = a_deployment(max_gpu_budget=-1, advisory=how == "advisory")
    deployments = {"first": advised, "second": a_deployment(max_gpu_budget=-1)}
    cluster = ClusterPlanner(deployments, {"first": 1, "second": 100}, 12)
    if how == "paused":
        cluster.paused.add("first")
    for at in range(1, 4):
        ticks = {
            "first": tick_input(60.0 * at, both(2, 2), of=traffic(2400.0)),
            "second": tick_input(60.0 * at, both(5, 2), of=traffic(1500.0)),
        }
        effects = cluster.tick(ticks)
        second = {Role.PREFILL: 5, Role.DECODE: 2} | (effects["second"].scale_to or {})
        assert second[Role.PREFILL] >= 5
        assert sum(second.values()) <= 12 - 4
        wished = effects["first"].wished
        assert wished is None or sum(({Role.PREFILL: 2, Role.DECODE: 2} | wished).values()) <= 12
