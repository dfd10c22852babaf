"""Tests that a killed engine is back within seconds of listening, even with a long open breaker."""

import pytest

from select_service.core.health.checks.connection_probes import IN_FLIGHT_MAX, ConnectionProbes
from select_service.core.health.health_kinds import RankHealthState, RequestOutcome
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.outcome_trust import OutcomeReport
from select_service.core.identity import Rank
from tests.builders.fleet_scene import FleetScene

KILLED = Rank(2, 0)


def a_killed_engine(gone_s, rules=None, **fields):
    scene = FleetScene(4, rules=rules, **fields)
    scene.run(60)
    scene.break_ranks("connect", *[r for r in scene.ranks if r.worker_id == KILLED.worker_id])
    scene.run(gone_s)
    assert not scene.state(KILLED).is_serving
    return scene


def seconds_until_back(scene, limit_s=700):
    returned_at = scene.now
    while not scene.state(KILLED).is_serving:
        scene.step()
        assert scene.now - returned_at <= limit_s
    return scene.now - returned_at


@pytest.mark.parametrize("gone_s", [45, 130, 290, 590])
def test_a_killed_engine_is_back_within_ten_seconds(gone_s):
    scene = a_killed_engine(gone_s)
    scene.break_ranks("", KILLED)
    assert seconds_until_back(scene) <= 10


def test_reports_do_not_hide_that_the_engine_refuses_connections():
    """Check clients' reports of broken streams before, between and after the failing checks."""
    report = OutcomeReport(KILLED, RequestOutcome.FAILURE)
    for seconds in ([0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [1.0, 4.0, 5.0], [2.0, 2.0, 9.0]):
        scene = FleetScene(4)
        scene.run(60)
        scene.break_ranks("connect", KILLED)
        until = scene.now + 40.0
        reported_at = [scene.now + at for at in seconds]
        while scene.now < until:
            while reported_at and reported_at[0] <= scene.now:
                del reported_at[0]
                scene.monitor.process_report(report, True, scene.now)
            scene.step()
        assert not scene.state(KILLED).is_serving
        scene.break_ranks("", KILLED)
        assert seconds_until_back(scene) <= 10


def test_a_dead_engine_is_back_after_its_three_passes():
    scene = a_killed_engine(900)
    assert scene.state(KILLED) is RankHealthState.DEAD
    scene.break_ranks("", KILLED)
    assert seconds_until_back(scene) <= 10


def test_without_connections_the_breaker_decides():
    scene = a_killed_engine(130, HealthRules(connect_s=0.0))
    scene.break_ranks("", KILLED)
    assert seconds_until_back(scene) > 20
    assert not scene.connected


def test_a_connection_costs_one_attempt_each_three_seconds():
    scene = a_killed_engine(40)
    del scene.connected[:]
    scene.run(300)
    assert 95 <= len(scene.connected) <= 101


def test_all_ranks_behind_an_endpoint_share_its_connection():
    scene = FleetScene(8, dp=4)
    scene.run(60)
    scene.break_ranks("connect", *[Rank(1, dp_rank) for dp_rank in range(4)])
    scene.run(100)
    del scene.connected[:]
    scene.run(30)
    assert 9 <= len(scene.connected) <= 11
    scene.break_ranks("", *[Rank(1, dp_rank) for dp_rank in range(4)])
    scene.run(10)
    assert scene.states() == {RankHealthState.HEALTHY: 8}


def test_a_listening_engine_without_answers_is_checked_less_and_less():
    scene = a_killed_engine(40)
    scene.break_ranks("500", KILLED)
    asked = scene.engines[KILLED].asked
    del asked[:]
    scene.run(600)
    assert len(asked) <= 3 * 18, "canaries of three attempts, after 3, 6, 12, ... 60 s"
    assert not scene.state(KILLED).is_serving
    scene.break_ranks("", KILLED)
    assert seconds_until_back(scene) <= 62


def test_a_hanging_engine_gets_no_connections():
    scene = FleetScene(4)
    scene.run(60)
    scene.break_ranks("hang", KILLED)
    scene.run(200)
    assert not scene.state(KILLED).is_serving
    assert not scene.connected


def test_an_endpoint_waits_once_and_few_are_tried_at_a_time():
    probes = ConnectionProbes()
    for number in [*range(IN_FLIGHT_MAX + 5), 0, 1]:
        probes.request_probe(str(number))
    taken = [probes.take_next() for _ in range(IN_FLIGHT_MAX + 1)]
    assert taken == [*map(str, range(IN_FLIGHT_MAX)), None]
    probes.request_probe("0")
    probes.end_probe("0")
    assert probes.take_next() == str(IN_FLIGHT_MAX)
    probes.check_invariants()
