"""Tests of drains by a killed planner: its workers return to service, and no others."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from select_service.planner.connectors.connector import ConnectorStatus
from select_service.planner.connectors.kube.leader_election import DURATION_S
from select_service.planner.connectors.kubernetes_connector import (
    GONE_WAIT_S_MAX,
    KubernetesConnector,
)
from tests.builders.fake_kubernetes.kinds import (
    ADAPTER,
    DEPLOYMENT,
    GRAPH,
    LEADER_WORKER_SET,
    STATEFUL_SET,
)
from tests.builders.fake_kubernetes.server import Fault
from tests.planner.connectors.a_cluster import D, PlainApi
from tests.planner.connectors.a_fleet import BLOCKS, Fleet, a_fleet
from tests.planner.connectors.decided import roles_with

KINDS = (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET, ADAPTER, GRAPH)
of_each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


async def is_clean(fleet: Fleet) -> None:
    """Check that a new planner finds no work left."""
    assert fleet.marks() == {}
    before = len(fleet.selector.released)
    await fleet.planner().wait(0)
    assert len(fleet.selector.released) == before


@of_each_kind
async def test_a_planner_killed_before_its_drains_arrive_leaves_no_marks(kind):
    async with a_fleet(kind) as fleet:
        fleet.selector.deaf_to |= set(BLOCKS)
        await fleet.planner().scale({D: 2})
        assert len(fleet.marks()) == 2
        fleet.selector.deaf_to.clear()
        await fleet.planner().wait(0)
        await is_clean(fleet)


@of_each_kind
async def test_a_planner_killed_during_drains_leaves_no_drain(kind):
    async with a_fleet(kind) as fleet:
        fleet.selector.deaf_to = {101, 104}
        await fleet.planner().scale({D: 2})
        assert fleet.selector.draining == {103}
        fleet.selector.deaf_to.clear()
        await fleet.planner().wait(0)
        assert fleet.selector.draining == set()
        await is_clean(fleet)


@of_each_kind
async def test_workers_of_a_lowered_count_do_not_return_to_service(kind):
    async with a_fleet(kind) as fleet:
        killed, after = fleet.planner(), fleet.planner()
        await killed.scale({D: 2})
        gone = set(fleet.selector.draining)
        fleet.finish(*gone)
        await killed.wait(0)
        for _ in range(5):
            await after.wait(0)
            fleet.cluster.tick()
        assert set(fleet.staying()) == set(BLOCKS) - gone
        assert (fleet.selector.released, fleet.selector.draining) == ([], gone)
        await is_clean(fleet)


async def test_a_drained_worker_returns_if_the_platform_removed_another():
    async with a_fleet() as fleet:
        planner = fleet.planner()
        await planner.scale({D: 2})
        assert fleet.selector.draining == {101, 103}
        fleet.finish(101, 103)
        fleet.forget_marks()
        await planner.wait(0)
        fleet.cluster.tick()
        await planner.wait(0)
        assert set(fleet.staying()) == {101, 102}
        assert fleet.selector.released == [101]
        await is_clean(fleet)


async def test_drained_workers_return_if_the_platform_removes_none():
    async with a_fleet() as fleet:
        killed, after = fleet.planner(), fleet.planner()
        await killed.scale({D: 3})
        fleet.finish(103)
        await killed.wait(0)
        fleet.cluster.controller.paused = True
        fleet.cluster.tick(GONE_WAIT_S_MAX - 1)
        await after.wait(0)
        assert fleet.selector.released == []
        fleet.cluster.tick(1)
        await after.wait(0)
        assert fleet.selector.released == [103]


@of_each_kind
async def test_workers_drained_by_others_do_not_return_to_service(kind):
    async with a_fleet(kind) as fleet:
        fleet.selector.draining = {102, 103}
        await fleet.planner().scale({D: 1})
        assert fleet.selector.draining >= {102, 103}
        await fleet.planner().wait(0)
        assert fleet.selector.draining == {102, 103}
        planner = fleet.planner()
        await planner.scale({D: 1})
        await planner.scale({D: 4})
        assert fleet.selector.draining == {102, 103}
        assert not {102, 103} & set(fleet.selector.released)
        await is_clean(fleet)


async def test_a_foreign_drain_is_awaited_and_replaced_when_it_ends():
    async with a_fleet() as fleet:
        fleet.selector.draining = {103}
        planner = fleet.planner()
        await planner.scale({D: 3})
        assert fleet.marks() == {103: ("", True)}
        assert not await planner.wait(0)
        fleet.selector.draining.clear()
        await planner.wait(0)
        await planner.wait(0)
        assert (fleet.selector.draining, fleet.marks()) == ({103}, {103: ("103", True)})
        await fleet.planner().wait(0)
        assert fleet.selector.draining == set()


async def test_a_record_stays_until_the_selector_has_received_it():
    async with a_fleet() as fleet:
        await fleet.planner().scale({D: 3})
        after = fleet.planner()
        fleet.selector.deaf_to = {103}
        await after.wait(0)
        assert fleet.marks() == {103: ("103", True)}
        fleet.selector.deaf_to.clear()
        fleet.cluster.fake.faults = [Fault("PATCH", "/pods/", 409)]
        await after.wait(0)
        assert (fleet.selector.draining, len(fleet.marks())) == (set(), 1)
        await after.wait(0)
        await is_clean(fleet)


async def test_a_planner_with_the_same_target_continues():
    async with a_fleet() as fleet:
        await fleet.planner().scale({D: 3})
        after = fleet.planner()
        decision = await after.scale({D: 3})
        assert decision.roles[D].victims == ("103",)
        fleet.finish(103)
        await after.wait(0)
        assert fleet.cluster.replicas("decode") == 3
        assert fleet.selector.released == []


async def test_a_planner_can_cancel_the_drains_that_it_continues():
    async with a_fleet() as fleet:
        await fleet.planner().scale({D: 3})
        after = fleet.planner()
        await after.scale({D: 3})
        await after.scale({D: 4})
        assert fleet.selector.draining == set()
        await is_clean(fleet)


async def test_a_cancelled_target_without_an_answer_is_cancelled_later():
    async with a_fleet() as fleet:
        planner = fleet.planner()
        await planner.wait(0)
        await planner.scale({D: 3})
        fleet.selector.deaf_to = {103}
        await planner.scale({D: 4})
        fleet.selector.deaf_to.clear()
        await planner.wait(0)
        assert fleet.selector.draining == set()
        await is_clean(fleet)


async def test_a_planner_that_gets_the_lease_lets_them_serve_and_the_former_keeps_off():
    async with a_fleet() as fleet:
        one, other = fleet.election("one"), fleet.election("other")
        former, after = fleet.planner(one), fleet.planner(other)
        await former.scale({D: 3})
        await after.wait(0)
        await other.try_once()
        await after.wait(0)
        assert fleet.selector.draining == {103}, "the former may still act"
        fleet.cluster.tick(DURATION_S)
        await other.try_once()
        await after.wait(0)
        assert fleet.selector.draining == set()
        await after.scale({D: 2})
        assert not one.is_leader
        await former.wait(0)
        assert fleet.selector.draining == {101, 103}
        assert fleet.selector.released == [103]
        for election in (one, other):
            await election.leave_election()


async def test_a_target_is_void_after_another_planner_has_led():
    async with a_fleet() as fleet:
        one, other = fleet.election("one"), fleet.election("other")
        paused, between = fleet.planner(one), fleet.planner(other)
        await paused.scale({D: 3})
        await other.try_once()
        fleet.cluster.tick(DURATION_S)
        await other.try_once()
        await between.wait(0)
        await between.scale({D: 2})
        assert fleet.selector.draining == {101, 103}
        await one.try_once()
        fleet.cluster.tick(DURATION_S)
        assert await one.try_once()
        fleet.finish(101, 103)
        await paused.wait(0)
        await paused.wait(0)
        assert fleet.selector.draining == set()
        assert fleet.cluster.replicas("decode") == 4
        await is_clean(fleet)
        for election in (one, other):
            await election.leave_election()


class Killed(Exception):
    """The planner was killed."""


class Life:
    """Life of a planner, as the number of requests until its end.

    Requests run one at a time, so that the set of arrived requests is certain.
    """

    def __init__(self, requests: int) -> None:
        self.left = requests
        self._single = asyncio.Lock()

    def bound(self, call: Callable[..., Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
        async def sent(*words: Any, **options: Any) -> bytes:
            async with self._single:
                if self.left == 0:
                    raise Killed
                self.left -= 1
                return await call(*words, **options)

        return sent

    def planner(self, fleet: Fleet) -> KubernetesConnector:
        api, selectors = PlainApi(fleet.cluster.api.url), fleet.selectors()
        api.call = self.bound(api.call)  # type: ignore[method-assign]
        http = selectors._http
        http.get, http.post = self.bound(http.get), self.bound(http.post)  # type: ignore[method-assign]
        return fleet.planner(api=api, selectors=selectors)


async def lives(fleet: Fleet, planner: KubernetesConnector, wishes: tuple[int, ...]) -> None:
    """Scale to each count in turn, and finish the workers that drain for the last count."""
    for wish in wishes:
        await planner.scale({D: wish})
        await planner.wait(0)
    fleet.finish(*BLOCKS)
    await planner.wait(0)
    fleet.cluster.tick()
    await planner.wait(0)


@of_each_kind
@pytest.mark.parametrize("wishes", [(2,), (3, 2), (2, 3), (2, 4), (2, 4, 1)])
def test_staying_workers_serve_whenever_a_planner_is_killed(kind, wishes):
    async def killed_after(requests: int) -> bool:
        """Return whether the planner lived to the end."""
        life = Life(requests)
        async with a_fleet(kind) as fleet:
            fleet.selector.draining = {102}
            with contextlib.suppress(Killed):
                await lives(fleet, life.planner(fleet), wishes)
            after = fleet.planner()
            for _ in range(4):
                await after.wait(0)
                fleet.cluster.tick()
            await after.wait(0)
            staying = set(fleet.staying())
            assert fleet.selector.draining & staying == {102} & staying, requests
            assert 102 not in fleet.selector.released, requests
            assert fleet.marks() == {}, requests
            assert len(staying) in {4, *wishes}, requests
        return life.left > 0

    requests = 0
    while not asyncio.run(killed_after(requests)):
        requests += 1
    assert requests > 20


async def test_a_decision_names_victims_without_drain_requests():
    async with a_fleet() as fleet:
        fleet.selector.draining = {103}
        fleet.finish(103)
        decision = await fleet.planner().scale({D: 3})
        assert roles_with(decision, ConnectorStatus.APPLIED) == (D,)
        assert decision.roles[D].victims == ("103",)


async def test_a_selector_without_answers_is_logged_once(caplog):
    async with a_fleet() as fleet:
        selectors = fleet.selectors()
        fleet.selector.deaf_to = {101, 102}
        for _ in range(3):
            assert not await selectors.undrain_worker(101)
            assert not await selectors.undrain_worker(102)
    assert sum("still draining" in message for message in caplog.messages) == 1
