"""Tests of draining before a scale-down, with selectors over real HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from select_service.planner.connectors.connector import ConnectorStatus
from select_service.planner.connectors.selector_client import SelectorClients, WorkerLoad
from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.connectors.worker_drain import WorkerDrainer, least_used_workers
from select_service.planner.core.tick_input import Role
from tests.planner.connectors.a_selector import ASelector, running
from tests.planner.connectors.decided import roles_with

D, P = Role.DECODE, Role.PREFILL


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def a_fleet(*selectors: ASelector) -> AsyncIterator[tuple[VirtualConnector, Time]]:
    """Yield a connector with three decided decode replicas, and its clock."""
    time = Time()
    async with running(selectors[0]), running(selectors[-1]):
        client = SelectorClients([selector.url for selector in selectors], "llama", "default")
        drainer = WorkerDrainer(client, clock=time)
        connector = VirtualConnector(None, drainer=drainer, clock=time)
        await connector.scale({D: 3})
        await connector.acknowledge(0, {D: 3})
        yield connector, time
        await connector.close()


def a_selector() -> ASelector:
    return ASelector(booked={1: 2, 2: 1, 3: 4}, blocks={1: 9, 2: 4, 3: 30})


async def test_the_least_used_drain_before_the_count_is_lowered():
    selector = a_selector()
    async with a_fleet(selector) as (connector, _):
        decision = await connector.scale({D: 2})
        assert roles_with(decision, ConnectorStatus.DRAINING) == (D,)
        assert decision.roles[D].victims == ("2",)
        assert selector.draining == {2}
        seen = (await connector.read())[D]
        assert (seen.in_progress, seen.draining, seen.draining_is_ready) == (True, 1, False)
        assert not await connector.wait(0)
        assert connector.decision.num_decode == 3
        selector.booked[2] = 0
        await connector.wait(0)
        assert (connector.decision.num_decode, connector.decision.victims) == (2, (2,))


async def test_all_selectors_must_be_done_with_a_worker():
    one, other = a_selector(), a_selector()
    one.booked[2] = 0
    async with a_fleet(one, other) as (connector, _):
        await connector.scale({D: 2})
        assert one.draining == other.draining == {2}
        await connector.wait(0)
        assert connector.decision.num_decode == 3
        other.is_silent = True
        other.booked[2] = 0
        await connector.wait(0)
        assert connector.decision.num_decode == 3
        other.is_silent = False
        await connector.wait(0)
        assert connector.decision.num_decode == 2


async def test_a_worker_that_never_drains_goes_when_the_time_is_over():
    async with a_fleet(a_selector()) as (connector, time):
        await connector.scale({D: 2})
        time.now = 299.0
        await connector.wait(0)
        assert connector.decision.num_decode == 3
        time.now = 300.0
        await connector.wait(0)
        assert connector.decision.num_decode == 2


async def test_a_cancelled_scale_down_ends_the_drain():
    selector = a_selector()
    async with a_fleet(selector) as (connector, _):
        await connector.scale({D: 1})
        assert selector.draining == {1, 2}
        await connector.scale({D: 2})
        assert selector.draining == {1} or selector.draining == {2}
        await connector.scale({D: 3})
        assert selector.draining == set()
        await connector.scale({D: 2})
    assert selector.draining == set()


async def test_withdrawn_starts_drain_no_worker():
    selector, there = a_selector(), {D: 3}

    async def ready() -> dict[Role, int]:
        return there

    async with running(selector):
        drainer = WorkerDrainer(SelectorClients([selector.url], "llama", "default"))
        connector = VirtualConnector(None, ready, drainer)
        await connector.scale({D: 5})
        await connector.scale({D: 3})
        await connector.scale({D: 3})
        assert (connector.decision.num_decode, connector.decision.victims) == (3, ())
        assert selector.draining == set()
        await connector.acknowledge(1, {D: 3})
        await connector.scale({D: 4})
        decision = await connector.scale({D: 2})
        assert decision.roles[D].victims == ("2",)
        there[D] = 2
        decision = await connector.scale({D: 2})
        assert decision.roles[D].victims == ("2",)
        decision = await connector.scale({D: 1})
        assert selector.draining == {1, 2}
        await connector.close()


async def test_a_restarted_selector_gets_the_drain_again():
    one, other = a_selector(), a_selector()
    async with a_fleet(one, other) as (connector, _):
        await connector.scale({D: 2})
        one.booked[2] = other.booked[2] = 0
        other.draining.clear()
        await connector.wait(0)
        assert connector.decision.num_decode == 3
        await connector.wait(0)
        assert other.draining == {2}
        assert (connector.decision.num_decode, connector.decision.victims) == (2, (2,))


@pytest.mark.parametrize("selectors", [1, 2])
async def test_a_worker_unknown_to_a_new_selector_has_not_drained(selectors):
    both = [a_selector() for _ in range(selectors)]
    async with a_fleet(*both) as (connector, time):
        await connector.scale({D: 2})
        anew = both[-1]
        anew.booked, anew.draining = {}, set()
        for each in both[:-1]:
            each.booked[2] = 0
        time.now = 30.0
        await connector.wait(0)
        assert connector.decision.num_decode == 3
        anew.booked = {1: 0, 2: 3, 3: 0}
        await connector.wait(0)
        await connector.wait(0)
        assert anew.draining == {2}
        assert connector.decision.num_decode == 3
        del anew.booked[2]
        for time.now, count in ((100.0, 3), (159.0, 3), (160.0, 2)):
            await connector.wait(0)
            assert connector.decision.num_decode == count


async def test_workers_drained_by_a_killed_planner_return_to_service(tmp_path):
    selector = a_selector()
    async with running(selector):

        def planner() -> VirtualConnector:
            client = SelectorClients([selector.url], "llama", "default")
            return VirtualConnector(tmp_path / "state.json", drainer=WorkerDrainer(client))

        killed = planner()
        await killed.scale({D: 3})
        await killed.acknowledge(0, {D: 3})
        await killed.scale({D: 1})
        assert selector.draining == {1, 2}
        after = planner()
        selector.is_silent = True
        await after.wait(0)
        selector.is_silent = False
        assert selector.draining == {1, 2}
        assert await after.wait(0)
        assert selector.draining == set()
        assert (after.decision.decision_id, after.decision.num_decode) == (0, 3)
        selector.draining.add(3)
        await planner().wait(0)
        assert selector.draining == {3}, "somebody else's is left alone"
        for each in (killed, after):
            await each.close()


def test_without_health_scaling_skips_draining_and_logs_once(caplog):
    async def run() -> None:
        selector = a_selector()
        selector.health = False
        async with a_fleet(selector) as (connector, _):
            for count in (2, 1):
                decision = await connector.scale({D: count})
                assert roles_with(decision, ConnectorStatus.APPLIED) == (D,)
                await connector.acknowledge(connector.decision.decision_id, {})

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert sum("removed undrained" in message for message in caplog.messages) == 1


async def test_no_replica_is_removed_while_no_selector_answers():
    selector = a_selector()
    async with a_fleet(selector) as (connector, _):
        selector.is_silent = True
        decision = await connector.scale({D: 2})
        assert roles_with(decision, ConnectorStatus.FAILED) == (D,)
        assert connector.decision.num_decode == 3


def test_the_least_used_are_those_with_the_fewest_active_then_cached_blocks():
    loads = [
        WorkerLoad(1, D, "", 5, 1),
        WorkerLoad(2, D, "", 0, 9),
        WorkerLoad(3, D, "", 0, 8),
        WorkerLoad(4, P, "", 0, 0),
    ]
    assert [load.worker_id for load in least_used_workers(loads, D, 2)] == [3, 2]
    assert [load.worker_id for load in least_used_workers(loads, D, 9)] == [3, 2, 1]
