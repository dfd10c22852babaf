"""Tests of planners that share a lease: two planners never act at the same time."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.connectors.connector import ConnectorStatus
from select_service.planner.connectors.kube.api_requests import REQUEST_TIMEOUT_S
from select_service.planner.connectors.kube.leader_election import (
    DURATION_S,
    RENEW_DEADLINE_S,
    LeaderElection,
)
from tests.builders.fake_kubernetes.kinds import LEASE
from tests.builders.fake_kubernetes.server import FakeKubernetes, Fault, serving
from tests.builders.fake_kubernetes.store import Store
from tests.planner.connectors.a_cluster import D, PlainApi, Time, a_cluster
from tests.planner.connectors.decided import roles_with
from tests.planner.connectors.store_api import StoreApi


class Planner:
    """Planner with a wrong wall clock.

    skew: error of the wall clock in s, which must not matter
    """

    def __init__(self, store: Store, name: str, time: Time, skew: float) -> None:
        self.api = StoreApi(store)
        self.election = LeaderElection(
            self.api, "default", "planner", name, clock=time, wall=lambda: time.now + 1e9 + skew
        )


steps = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2]),
        st.sampled_from(["step", "step", "step", "release", "pause"]),
        st.floats(0.0, 8.0),
        st.lists(st.sampled_from(["", "", "", "0", "answer"]), max_size=2),
    ),
    max_size=40,
)


@given(steps)
def test_two_planners_never_begin_to_write(steps: list[tuple[int, str, float, list[str]]]) -> None:
    async def run() -> None:
        store, time = Store(), Time()
        planners = [Planner(store, f"p{n}", time, n * 1e6) for n in range(3)]
        may_write_until = {}
        for number, verb, seconds, fails in steps:
            planner = planners[number]
            planner.api.fails = list(fails)
            if verb == "release":
                may_write_until.pop(number, None)
                await planner.election.release_lease()
            elif verb == "step":
                await planner.election.try_once()
            time.now += seconds
            for other, by in enumerate(planners):
                if by.election.is_leader:
                    may_write_until[other] = time.now + REQUEST_TIMEOUT_S
            now_writing = [n for n, until in may_write_until.items() if until > time.now]
            leading = [n for n, by in enumerate(planners) if by.election.is_leader]
            assert len(leading) <= 1
            assert not leading or now_writing == leading

    asyncio.run(run())


async def test_the_lease_goes_to_another_when_its_holder_is_silent() -> None:
    store, time = Store(), Time()
    one, other = (Planner(store, name, time, 0.0).election for name in ("one", "other"))
    assert await one.try_once()
    assert not await other.try_once()
    time.now = RENEW_DEADLINE_S
    assert not one.is_leader
    assert not await other.try_once()
    time.now = DURATION_S
    assert await other.try_once()
    assert not await one.try_once()
    assert (one.holder, store.get(LEASE, "default", "planner")["spec"]["leaseTransitions"]) == (
        "other",
        1,
    )


async def test_a_lease_that_is_given_back_is_free_at_once() -> None:
    store, time = Store(), Time()
    one, other = (Planner(store, name, time, 0.0).election for name in ("one", "other"))
    await one.try_once()
    await one.release_lease()
    assert await other.try_once()
    assert not await one.try_once()


@pytest.mark.parametrize("status", [403, 429, 500, 0])
async def test_a_planner_that_cannot_read_the_lease_does_not_act(status: int) -> None:
    async with serving(FakeKubernetes()) as fake:
        election = LeaderElection(PlainApi(fake.url), "default", "planner", "one")
        fake.faults = [Fault("POST", "/leases", status)]
        assert not await election.try_once()
        assert election.error
        assert await election.try_once()
        assert election.error == ""


async def test_one_of_two_planners_scales() -> None:
    async with a_cluster() as cluster:
        one, other = (
            cluster.connector(
                election=LeaderElection(cluster.api, "default", "planner", name, clock=cluster.time)
            )
            for name in ("one", "other")
        )
        assert roles_with(await one.scale({D: 5}), ConnectorStatus.APPLIED) == (D,)
        decision = await other.scale({D: 1})
        assert roles_with(decision, ConnectorStatus.NOT_LEADER) == (D,)
        assert "'one'" in decision.roles[D].detail
        cluster.tick(RENEW_DEADLINE_S)
        cluster.fake.faults = [Fault("PUT", "/leases", 500, times=9)]
        assert roles_with(await one.scale({D: 6}), ConnectorStatus.NOT_LEADER) == (D,)
        assert cluster.replicas("decode") == 5
        await one.close()
        cluster.fake.faults = []
        cluster.tick(DURATION_S)
        assert roles_with(await other.scale({D: 1}), ConnectorStatus.APPLIED) == (D,)
        await other.close()
        assert cluster.store.get(LEASE, "default", "planner")["spec"]["holderIdentity"] == ""
