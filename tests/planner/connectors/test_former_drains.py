"""What drains for a planner that was killed serves again, and nothing else does."""

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
    """A planner that has begun finds nothing to do any more."""
    assert fleet.marks() == {}
    before = len(fleet.selector.released)
    await fleet.planner().wait(0)
    assert len(fleet.selector.released) == before


@of_each_kind
async def test_of_a_planner_that_was_killed_before_anybody_heard_of_a_drain(kind):
    async with a_fleet(kind) as fleet:
        fleet.selector.deaf_to |= set(BLOCKS)
        await fleet.planner().scale({D: 2})
        assert len(fleet.marks()) == 2
        fleet.selector.deaf_to.clear()
        await fleet.planner().wait(0)
        await is_clean(fleet)


@of_each_kind
async def test_of_a_planner_that_was_killed_when_some_drained(kind):
    async with a_fleet(kind) as fleet:
        fleet.selector.deaf_to = {101, 104}
        await fleet.planner().scale({D: 2})
        assert fleet.selector.draining == {103}
        fleet.selector.deaf_to.clear()
        await fleet.planner().wait(0)
        assert fleet.selector.draining == set()
        await is_clean(fleet)


@of_each_kind
async def test_who_goes_for_a_count_that_was_lowered_does_not_serve_again(kind):
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


async def test_who_has_drained_serves_again_where_the_platform_has_taken_another():
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


async def test_a_platform_that_takes_nobody_keeps_nobody_out_for_ever():
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
async def test_whom_somebody_else_has_drained_does_not_serve_again(kind):
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


async def test_whom_somebody_else_has_drained_is_waited_for_and_asked_where_that_ends():
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


async def test_a_record_stays_until_it_was_heard():
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


async def test_a_planner_that_wishes_the_same_carries_on():
    async with a_fleet() as fleet:
        await fleet.planner().scale({D: 3})
        after = fleet.planner()
        decision = await after.scale({D: 3})
        assert decision.roles[D].victims == ("103",)
        fleet.finish(103)
        await after.wait(0)
        assert fleet.cluster.replicas("decode") == 3
        assert fleet.selector.released == []


async def test_what_it_carries_on_with_is_its_own_to_take_back():
    async with a_fleet() as fleet:
        await fleet.planner().scale({D: 3})
        after = fleet.planner()
        await after.scale({D: 3})
        await after.scale({D: 4})
        assert fleet.selector.draining == set()
        await is_clean(fleet)


async def test_a_wish_that_is_taken_back_unheard_is_taken_back_later():
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


async def test_a_wish_is_void_when_another_planner_has_led_meanwhile():
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
    """The planner is no more."""


class Life:
    """Of a planner, in requests that it still sends; one after the other, so that it is certain
    which of them have come."""

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
    """Each of the wishes, and whoever drains for the last one comes to its end."""
    for wish in wishes:
        await planner.scale({D: wish})
        await planner.wait(0)
    fleet.finish(*BLOCKS)
    await planner.wait(0)
    fleet.cluster.tick()
    await planner.wait(0)


@of_each_kind
@pytest.mark.parametrize("wishes", [(2,), (3, 2), (2, 3), (2, 4), (2, 4, 1)])
def test_whenever_a_planner_is_killed_nobody_who_stays_is_left_out(kind, wishes):
    async def killed_after(requests: int) -> bool:
        """Did it live to the end?"""
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


async def test_a_decision_says_who_goes_though_nobody_is_asked():
    async with a_fleet() as fleet:
        fleet.selector.draining = {103}
        fleet.finish(103)
        decision = await fleet.planner().scale({D: 3})
        assert roles_with(decision, ConnectorStatus.APPLIED) == (D,)
        assert decision.roles[D].victims == ("103",)


async def test_a_selector_that_hears_nothing_is_told_of_once(caplog):
    async with a_fleet() as fleet:
        selectors = fleet.selectors()
        fleet.selector.deaf_to = {101, 102}
        for _ in range(3):
            assert not await selectors.undrain_worker(101)
            assert not await selectors.undrain_worker(102)
    assert sum("still draining" in message for message in caplog.messages) == 1
