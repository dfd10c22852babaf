"""Tests of the health metrics: states, failures and moves under the documented names, bounded."""

import pytest

from select_service.core.health.fleet_health import check_times
from select_service.core.health.health_kinds import AttemptResult
from select_service.core.health.migration.migrator import MigrationCounters
from select_service.core.health.migration.move_cost import MoveMethod
from select_service.metrics.health import MOVES
from select_service.metrics.series import make_process_series
from select_service.metrics.service_metrics import ComponentFigures, ServiceMetrics
from select_service.schemas.health import CapacityView
from tests.builders import a_worker
from tests.builders.steps import result_of
from tests.core.health.fleet_health.test_fitness import Scene
from tests.metrics.test_metrics import Scraped


@pytest.fixture
def metrics():
    return ServiceMetrics("1.2.3", lambda: 0.0)


def scraped(metrics, scene):
    observation = result_of(metrics.copy_state(scene.selector, ComponentFigures({})))
    return Scraped(metrics.render_text(observation).decode())


def value(seen, name, **labels):
    """Return the value of a series by full name."""
    wanted = {key: str(text) for key, text in labels.items()}
    found = [
        sample.value
        for family in seen.families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == wanted
    ]
    (only,) = found
    return only


def sick_scene():
    """Return a scene where worker 1 is out after failing checks."""
    scene = Scene()
    for _ in range(60):
        scene.settle(1.0)
        scene.make_checks(AttemptResult.HTTP_5XX)
    return scene


def test_workers_are_shown_with_their_state_breaker_and_failures(metrics):
    seen = scraped(metrics, sick_scene())
    for worker, state, breaker in ((1, 2, 1), (2, 0, 0)):
        labels = {"worker_id": worker, "tp_group": worker}
        assert value(seen, "dynamo_worker_status", **labels) == state
        assert value(seen, "dynamo_circuit_breaker_state", worker_id=worker) == breaker
    failures = "select_service_health_failures_total"
    assert value(seen, failures, worker_id=1, reason="http_5xx") == 3
    for worker in (1, 2):
        assert value(seen, failures, worker_id=worker, reason="token_mismatch") == 0
    times = "dynamo_health_check_duration_seconds_count"
    assert value(seen, times, worker_id=1, check_type="canary") >= 3
    results = {
        result: value(seen, "select_service_health_checks_total", result=result)
        for result in ("http_5xx", "busy", "misconfigured", "neutral")
    }
    assert results.pop("busy") >= 1
    assert results == {"http_5xx": 3, "misconfigured": 0, "neutral": 0}
    moved = {"from": "suspicious", "to": "unhealthy"}
    assert value(seen, "select_service_health_transitions_total", **moved) == 1
    assert value(seen, "select_service_health_ranks", state="unhealthy") == 1
    assert value(seen, "select_service_health_ranks", state="dead") == 0


def test_workers_beyond_the_bound_have_only_sums_that_never_fall(metrics, monkeypatch):
    monkeypatch.setattr(check_times, "OWN_MAX", 1)
    scene = Scene(a_worker(2), a_worker(1))
    for _ in range(60):
        scene.settle(1.0)
        scene.make_checks(AttemptResult.HTTP_5XX)
    failures = {"worker_id": "other", "reason": "http_5xx"}
    before = scraped(metrics, scene)
    assert value(before, "select_service_health_failures_total", **failures) == 3
    wrong = {**failures, "reason": "token_mismatch"}
    assert value(before, "select_service_health_failures_total", **wrong) == 0
    words = ("health", "worker_status", "breaker")
    shown = [f for name, f in before.families.items() if any(word in name for word in words)]
    names = {sample.labels.get("worker_id") for family in shown for sample in family.samples}
    assert names == {None, "2", "other"}
    scene.selector.delete_worker(1, scene.now)
    scene.settle()
    scene.selector.register_worker(a_worker(3))
    scene.settle()
    scene.reserve("r", worker_id=3)
    scene.report("fatal", "r", worker_id=3)
    after = scraped(metrics, scene)
    assert value(after, "select_service_health_ranks", state="draining") == 1
    failures["reason"] = "fatal"
    assert value(after, "select_service_health_failures_total", **failures) == 1


def test_spares_and_capacity_are_shown(metrics):
    scene = Scene(a_worker(1), a_worker(2, spare=True))
    scene.health.capacity_of = lambda key: CapacityView(level=2, ratio=0.625)
    seen = scraped(metrics, scene)
    assert value(seen, "select_service_spares", state="healthy") == 1
    assert value(seen, "dynamo_degradation_level", model_name="m") == 2
    assert value(seen, "select_service_capacity_ratio", model_name="m") == 0.625


def test_moves_are_shown_by_pairs_of_workers():
    counts = MigrationCounters({}, 3, {})
    moves = {(1, 2, MoveMethod.TRANSFER): 1, (1, None, MoveMethod.ABORT): 2}
    moves |= {(None, None, MoveMethod.REPREFILL): 7}
    families = {f.name: f for f in make_process_series(MOVES, counts._replace(moves=moves))}
    shown = {tuple(s.labels.values()): s.value for s in families["dynamo_migration"].samples}
    assert shown == {
        ("1", "2", "transfer"): 1,
        ("1", "", "abort"): 2,
        ("other", "other", "reprefill"): 7,
    }
    (given_up,) = families["select_service_reservations_given_up"].samples
    assert given_up.value == 3
