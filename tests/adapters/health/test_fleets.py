"""Tests of small fleets of real engines with fast checks: ejected, kept and returned ranks."""

import asyncio
import contextlib

import pytest

from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.health.checks.canary_prompts import default_prompts
from select_service.core.health.checks.check_state import CheckedWorker
from select_service.core.health.health_kinds import BreakerState, CheckKind, RankHealthState
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import PartitionKey, Rank
from tests.adapters.health.owners import Places, sending
from tests.builders.polling import PATIENCE_S, eventually_on_loop
from tests.builders.toy_engine import (
    Fault,
    ToyEngine,
    drifted,
    no_numbers,
    serving,
    truncated,
    wrong_token,
)

KEY = PartitionKey("m", "default")
RANKS = [Rank(1, dp_rank) for dp_rank in range(4)]
SICK = RANKS[2]
QUICK = HealthRules(
    interval_s=0.2,
    timeout_s=PATIENCE_S,
    retry_pause_s=0.01,
    confirm_s=0.1,
    recovery_s=0.2,
    probe_pause_s=0.02,
    spike_margin_ms=1000.0 * PATIENCE_S,  # no test depends on speed
)


class Scene:
    """One worker of four ranks."""

    def __init__(self, monitor, engine):
        self.monitor, self.engine = monitor, engine

    def state(self, rank=SICK):
        return self.monitor.record_of(rank).state

    async def learns(self):
        """Wait until every prompt has a reference answer."""
        prompts = len(default_prompts())
        await eventually_on_loop(
            lambda: len(list(self.monitor.references.iterate_stored())) >= prompts
        )

    async def goes_out(self, rank=SICK):
        await eventually_on_loop(lambda: not self.state(rank).is_serving)
        return self.monitor.record_of(rank).cause

    async def heals(self, rank=SICK):
        await eventually_on_loop(lambda: self.state(rank) is RankHealthState.HEALTHY)

    async def passes(self, checks):
        """Wait for this many further checks."""
        made = self.monitor.counters.checks
        wanted = sum(made.values()) + checks
        await eventually_on_loop(lambda: sum(made.values()) >= wanted)


@contextlib.asynccontextmanager
async def fleet(style="vllm", api="openai", rules=QUICK):
    engine = ToyEngine(style, ranks=4)
    prompts = default_prompts()
    async with serving(engine) as endpoint:
        touched = DirtyPartitions(lambda: None)
        monitor = HealthMonitor(rules, lambda key: prompts, lambda rank: 0, touched)
        now = asyncio.get_running_loop().time()
        monitor.register_worker(CheckedWorker(1, KEY, range(4), endpoint), now)
        ticking = asyncio.create_task(ticks(monitor))
        try:
            places = Places(endpoint, api)
            async with sending(monitor, places, rules.timeout_s):
                yield Scene(monitor, engine)
        finally:
            ticking.cancel()
        monitor.check_invariants()


async def ticks(monitor):
    while True:
        monitor.advance_timers(asyncio.get_running_loop().time())
        await asyncio.sleep(0.02)


FORMS = [("vllm", "openai"), ("sglang", "openai"), ("sglang", "sglang")]
WRONG = [
    (wrong_token, CheckKind.TOKEN_MISMATCH),
    (truncated, CheckKind.TOKEN_MISMATCH),
    (drifted, CheckKind.LOGIT_DRIFT),
]


@pytest.mark.parametrize(("style", "api"), FORMS)
async def test_a_fleet_without_faults_is_unchanged(style, api):
    async with fleet(style, api) as scene:
        await scene.learns()
        await scene.passes(40)
        assert {scene.state(rank) for rank in RANKS} == {RankHealthState.HEALTHY}
        assert set(scene.monitor.counters.checks) == {CheckKind.PASS}


@pytest.mark.parametrize(("style", "api"), FORMS)
@pytest.mark.parametrize(("spoil", "cause"), WRONG)
async def test_a_rank_with_wrong_answers_is_ejected_until_it_answers_right(
    style, api, spoil, cause
):
    async with fleet(style, api) as scene:
        await scene.learns()
        scene.engine.faults[SICK.dp_rank] = Fault(spoil)
        assert await scene.goes_out() is cause
        del scene.engine.faults[SICK.dp_rank]
        await scene.heals()
        assert scene.monitor.record_of(SICK).breaker.state is BreakerState.CLOSED
        others = {scene.state(rank) for rank in RANKS if rank != SICK}
        assert others == {RankHealthState.HEALTHY}


async def test_logits_that_are_no_numbers_are_wrong_answers():
    async with fleet() as scene:
        await scene.learns()
        scene.engine.faults[SICK.dp_rank] = Fault(no_numbers)
        assert await scene.goes_out() in (CheckKind.TOKEN_MISMATCH, CheckKind.LOGIT_DRIFT)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(Fault(status=500), CheckKind.HTTP_5XX), (Fault(hangs=True), CheckKind.TIMEOUT)],
)
async def test_a_silent_rank_is_ejected(fault, cause):
    async with fleet(rules=QUICK._replace(timeout_s=1.0)) as scene:
        await scene.learns()
        scene.engine.faults[SICK.dp_rank] = fault
        assert await scene.goes_out() is cause


async def test_a_connection_that_fails_is_that_of_all_ranks_behind_the_endpoint():
    async with fleet() as scene:
        await scene.learns()
        scene.engine.faults[SICK.dp_rank] = Fault(resets=True)
        assert await scene.goes_out() is CheckKind.CONNECT


@pytest.mark.parametrize("status", [400, 429, 404])
async def test_a_rank_that_refuses_stays(status):
    async with fleet() as scene:
        await scene.learns()
        scene.engine.faults[SICK.dp_rank] = Fault(status=status)
        counts = scene.monitor.counters
        await eventually_on_loop(lambda: counts.busy + counts.misconfigured >= 5)
        assert scene.state() is RankHealthState.HEALTHY


async def test_an_attempt_that_fails_once_is_flaky_and_no_more():
    async with fleet() as scene:
        await scene.learns()
        scene.engine.faults[SICK.dp_rank] = Fault(status=500, times=1)
        await eventually_on_loop(lambda: scene.monitor.counters.flaky)
        assert scene.state() is RankHealthState.HEALTHY


async def test_other_weights_everywhere_eject_no_rank():
    async with fleet("sglang") as scene:
        await scene.learns()
        scene.engine.weight_version = "next"
        await scene.passes(30)
        assert {scene.state(rank) for rank in RANKS} == {RankHealthState.HEALTHY}


async def test_the_number_of_checks_under_way_is_bounded():
    async with fleet() as scene:
        for dp_rank in range(4):
            scene.engine.faults[dp_rank] = Fault(hangs=True)
        await eventually_on_loop(lambda: scene.engine.at_once == 4)
        await asyncio.sleep(0.5)  # two and a half intervals
        assert scene.engine.most_at_once == 4


def test_a_rank_is_named_where_several_are_behind_its_endpoint():
    prompts = default_prompts()
    monitor = HealthMonitor(
        QUICK, lambda key: prompts, lambda rank: 0, DirtyPartitions(lambda: None)
    )
    monitor.register_worker(CheckedWorker(1, KEY, range(1), "http://shared"), 0.0)
    monitor.register_worker(CheckedWorker(2, KEY, range(1, 2), "http://shared"), 0.0)
    monitor.register_worker(CheckedWorker(3, KEY, range(1), "http://alone"), 0.0)
    named = {}
    for step in range(100):
        while (order := monitor.next_due_check(step * 0.01)) is not None:
            named[order.rank] = order.must_name_rank
    assert named == {Rank(1, 0): True, Rank(2, 1): True, Rank(3, 0): False}
