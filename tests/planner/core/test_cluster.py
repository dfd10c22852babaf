"""Several deployments on one cluster: shares, and the sum that is never exceeded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from select_service.planner.core.cluster import ClusterPlanner, GpuClaim, divide_gpus
from select_service.planner.core.reasons import Reason
from select_service.planner.core.reconcile import BoundType, Proposal, ProposedCount
from select_service.planner.core.tick_input import Role, TickInput
from tests.planner.core.deployments import a_deployment, both, replicas, told, traffic


def test_the_first_in_order_gets_what_it_wants() -> None:
    claims = [GpuClaim(2, 0.9, 1, 1, 6), GpuClaim(1, 0.1, 1, 1, 5)]
    assert divide_gpus(claims, 8) == [3, 5]


def test_among_equals_it_is_who_loses_most() -> None:
    claims = [GpuClaim(1, 0.1, 1, 1, 6), GpuClaim(1, 0.9, 1, 1, 6)]
    assert divide_gpus(claims, 8) == [2, 6]


def test_who_has_enough_is_not_cut_for_an_equal() -> None:
    claims = [GpuClaim(1, 0.0, 1, 4, 4), GpuClaim(1, 0.5, 1, 4, 6)]
    assert divide_gpus(claims, 8) == [4, 4]


def test_nobody_grows_into_what_an_unread_deployment_may_hold() -> None:
    deployments = {name: a_deployment(max_gpu_budget=-1) for name in ("batch", "chat")}
    cluster = ClusterPlanner(deployments, {"batch": 1, "chat": 1}, 12)
    ticks = {
        "chat": told(60.0, both(2, 1), of=traffic(2400.0)),
        "batch": TickInput(now_s=60.0, replicas={}),
    }
    assert cluster.tick(ticks)["chat"].scale_to is None
    ticks = {
        "chat": told(120.0, both(2, 1), of=traffic(2400.0)),
        "batch": told(120.0, both(1, 1), of=traffic(0.0)),
    }
    scaled = cluster.tick(ticks)["chat"].scale_to
    assert scaled is not None
    assert sum(scaled.get(role, now) for role, now in ((Role.PREFILL, 2), (Role.DECODE, 1))) <= 10


def test_what_others_still_have_is_given_when_it_is_free() -> None:
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
    ticks = {name: told(60.0, both(2, 1), of=traffic(2400.0)) for name in deployments}
    effects = cluster.tick(ticks)
    chat, batch = effects["chat"].scale_to, effects["batch"].scale_to
    assert chat is not None
    assert chat[Role.PREFILL] > 5
    assert Reason.CLUSTER_BUDGET in effects["batch"].diagnostics.reasons
    total = sum(chat.get(role, now) for role, now in ((Role.PREFILL, 2), (Role.DECODE, 1)))
    rest = {Role.PREFILL: 2, Role.DECODE: 1} | (batch or {})
    assert total + sum(rest.values()) <= 12


def test_without_a_bound_everyone_gets_everything() -> None:
    deployments = {name: a_deployment() for name in ("batch", "chat")}
    cluster = ClusterPlanner(deployments, {"batch": 1, "chat": 1}, None)
    ticks = {name: told(60.0, both(2, 1), of=traffic(1200.0)) for name in deployments}
    wishes = {tuple((each.scale_to or {}).items()) for each in cluster.tick(ticks).values()}
    assert len(wishes) == 1


def test_those_that_are_not_due_keep_what_they_have() -> None:
    deployments = {name: a_deployment(max_gpu_budget=-1) for name in ("batch", "chat")}
    cluster = ClusterPlanner(deployments, {"batch": 100, "chat": 1}, 12)
    cluster.tick({"batch": told(5.0, both(4, 2))})
    effects = cluster.tick({"chat": told(60.0, both(2, 1), of=traffic(4800.0))})["chat"]
    wished = {Role.PREFILL: 2, Role.DECODE: 1} | (effects.scale_to or {})
    assert sum(wished.values()) <= 12 - 6


def test_who_is_below_its_minimum_is_not_ended_while_another_is_unread() -> None:
    deployments = {
        "batch": a_deployment(mode="agg"),
        "chat": a_deployment(mode="agg", min_endpoint=3),
    }
    cluster = ClusterPlanner(deployments, {"batch": 1, "chat": 1}, 12)
    effects = cluster.tick({"chat": told(5.0, {Role.DECODE: replicas(2)})})["chat"]
    assert effects.wished is None
    ticks = {
        "batch": told(10.0, {Role.DECODE: replicas(1)}),
        "chat": told(10.0, {Role.DECODE: replicas(2)}),
    }
    assert cluster.tick(ticks)["chat"].scale_to == {Role.DECODE: 3}


def test_a_share_turns_no_movement_round() -> None:
    """Decode wants more: what is left for it does not come from prefill, which is busy."""
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
    chat = replace(told(60.0, both(6, 1), of=traffic(60.0)), proposals=(busy,))
    ticks = {"chat": chat, "batch": told(60.0, both(3, 3), of=traffic(60.0))}
    scaled = cluster.tick(ticks)["chat"].scale_to
    assert scaled == {Role.DECODE: 4}


@pytest.mark.parametrize("how", ["advisory", "paused"])
def test_who_is_only_advised_takes_nothing_from_others(how: str) -> None:
    advised = a_deployment(max_gpu_budget=-1, advisory=how == "advisory")
    deployments = {"first": advised, "second": a_deployment(max_gpu_budget=-1)}
    cluster = ClusterPlanner(deployments, {"first": 1, "second": 100}, 12)
    if how == "paused":
        cluster.paused.add("first")
    for at in range(1, 4):
        ticks = {
            "first": told(60.0 * at, both(2, 2), of=traffic(2400.0)),
            "second": told(60.0 * at, both(5, 2), of=traffic(1500.0)),
        }
        effects = cluster.tick(ticks)
        second = {Role.PREFILL: 5, Role.DECODE: 2} | (effects["second"].scale_to or {})
        assert second[Role.PREFILL] >= 5
        assert sum(second.values()) <= 12 - 4
        wished = effects["first"].wished
        assert wished is None or sum(({Role.PREFILL: 2, Role.DECODE: 2} | wished).values()) <= 12
