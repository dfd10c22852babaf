"""Tests of sources' workers in the real catalog, where reservations delay their removal."""

from itertools import count, pairwise
from time import thread_time

import pytest

from select_service.adapters.discovery import apply_changes
from select_service.base.errors import NoEligibleRank
from select_service.core.registry.discovery.reconciler import GRACE_S
from select_service.core.workers.endpoint_policy import EndpointPolicy
from select_service.core.workers.worker_catalog import RANKS_PER_STEP
from select_service.net.egress_policy import EgressPolicy
from tests.builders import a_select, a_select_and_reserve, a_worker
from tests.builders.followed_fleet import FollowedFleet


def select(fleet):
    return fleet.selector.select(a_select(), 0.0).selection.worker_id


def book(fleet, reservation_id):
    body = a_select_and_reserve(reservation_id=reservation_id)
    return fleet.selector.select_and_reserve(body, 0.0).selection.worker_id


def test_workers_come_change_and_go():
    fleet = FollowedFleet()
    fleet.offer(a_worker(1), a_worker(2))
    assert {i: w.lifecycle for i, w in fleet.is_current().items()} == {
        1: "schedulable",
        2: "schedulable",
    }
    fleet.offer(a_worker(1, metrics_endpoint="http://m"), a_worker(2))
    assert fleet.is_current()[1].registration.metrics_endpoint == "http://m"
    fleet.offer(a_worker(1), a_worker(2))
    assert fleet.is_current()[1].registration.metrics_endpoint is None
    fleet.offer(a_worker(2))
    fleet.run(after=GRACE_S)
    assert set(fleet.is_current()) == {2}
    assert fleet.told == 2 + 1 + 1 + 2
    fleet.selector.check_invariants()


def test_a_leaving_worker_gets_no_requests_and_is_removed_when_empty():
    fleet = FollowedFleet()
    fleet.offer(a_worker(1))
    assert book(fleet, "r1") == 1
    fleet.offer()
    with pytest.raises(NoEligibleRank):
        select(fleet)
    assert not fleet.standing.has_no_reservations(1)
    fleet.offer(a_worker(1))
    assert select(fleet) == 1
    fleet.offer()
    fleet.selector.free_reservation("r1", 0.0)
    fleet.run(after=GRACE_S)
    assert fleet.is_current() == {}


def test_an_incomplete_worker_names_missing_fields_and_is_removed_too(caplog):
    caplog.set_level("INFO", "select_service.discovery")
    fleet = FollowedFleet()
    fleet.offer(a_worker(1, block_size=None))
    assert fleet.is_current()[1].lifecycle == "incomplete"
    (added,) = [r.fields for r in caplog.records]
    (reason,) = added["reasons"]
    assert reason.startswith("block_size is required: give the block size of the engine")
    fleet.offer()
    fleet.run(after=GRACE_S)
    assert fleet.is_current() == {}


def test_a_rejected_worker_is_logged_once_and_retried(monkeypatch, caplog):
    monkeypatch.setattr("select_service.core.workers.worker_catalog.WORKERS_MAX", 1)
    fleet = FollowedFleet()
    fleet.selector.register_worker(a_worker(9))
    fleet.offer(a_worker(1))
    fleet.run()
    assert fleet.following.counts_by_source(1)["a"].refused == {
        1: "worker limit reached (1); deregister one first"
    }
    assert sum("discovered worker rejected" in r.message for r in caplog.records) == 1
    fleet.selector.delete_worker(9, 0.0)
    fleet.run()
    assert set(fleet.is_current()) == {1}


def test_a_step_is_bounded_for_any_number_of_actions():
    fleet = FollowedFleet()
    fleet.offer(a_worker(0))  # the first worker of a model creates the tables
    workers = [a_worker(n) for n in range(1000)]
    fleet.following.set_desired("a", {each.worker_id: each for each in workers})
    steps_s, goes_on = [], True
    while goes_on:
        begun = thread_time()
        goes_on = fleet.carrying.apply_step(2.0)
        steps_s.append(thread_time() - begun)
    assert len(fleet.is_current()) == 1000
    assert len(steps_s) > 10
    assert sorted(steps_s)[-3] < 0.01  # 2 ms; the garbage collector may run in between


def test_a_worker_of_many_ranks_is_judged_in_parts_when_it_comes_and_when_it_changes(monkeypatch):
    monkeypatch.setattr(apply_changes, "perf_counter", count().__next__)
    monkeypatch.setattr(apply_changes, "STEP_S", 1.5)  # a step is one piece of work
    judged = []
    monkeypatch.setattr(
        EgressPolicy, "endpoint_refusal", lambda self, endpoint: judged.append(endpoint)
    )
    fleet = FollowedFleet()
    fleet.selector.fleet.endpoint_policy = EndpointPolicy(EgressPolicy())
    for net in (1, 2):
        before = len(judged)
        ends = {n: f"tcp://10.{net}.{n // 256}.{n % 256}:5557" for n in range(1024)}
        wide = a_worker(1, data_parallel_size=1024, kv_events_endpoints=ends)
        fleet.following.set_desired("a", {1: wide})
        fleet.now += 1.0
        seen, goes_on = [before], True
        while goes_on:
            goes_on = fleet.carrying.apply_step(fleet.now)
            seen.append(len(judged))
        assert fleet.is_current()[1].registration.kv_events_endpoints == ends
        assert seen[-1] - before == 1024
        assert max(after - earlier for earlier, after in pairwise(seen)) <= RANKS_PER_STEP
