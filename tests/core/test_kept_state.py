"""Tests that workers, owners, thresholds and shedding survive a restart."""

from itertools import pairwise

import msgspec
import pytest

from select_service.core.registry.discovery.fleet_snapshot import FleetSnapshot
from select_service.core.registry.discovery.reconciler import Reconciler
from select_service.core.state_persistence import change_count, persisted_state, restore_state
from select_service.core.workers.endpoint_policy import EndpointPolicy
from select_service.core.workers.worker_catalog import RANKS_PER_STEP
from select_service.net.egress_policy import EgressPolicy
from select_service.schemas.admission import BusyThresholdChange
from select_service.schemas.persisted_state import PersistedDrain, PersistedState
from tests.builders import a_patch, a_selector, a_worker
from tests.builders.followed_fleet import FollowedFleet


def over_a_restart(state, *sources):
    """Return a new selector with the restored state, its sources, and the messages."""
    text = msgspec.json.encode(state)
    selector = a_selector()
    following = Reconciler(sources, FleetSnapshot(selector.fleet), 60.0)
    told = list(restore_state(msgspec.json.decode(text, type=PersistedState), selector, following))
    return selector, following, [text for text in told if text]


def test_changes_by_operators_are_restored():
    selector = a_selector()
    selector.register_worker(a_worker(1, taints=["a"], kv_events_endpoints={0: "tcp://a:1"}))
    selector.register_worker(a_worker(2))
    selector.delete_worker(2, 0.0)
    selector.patch_worker(1, a_patch(block_size=8))
    selector.set_thresholds(BusyThresholdChange(model="m", active_decode_blocks_threshold=0.5))
    selector.set_shed_tier("best_effort")
    again, _, told = over_a_restart(persisted_state(selector))
    assert told == []
    (worker,) = again.list_workers()
    assert worker.registration == selector.get_worker(1).registration
    assert worker.is_schedulable
    assert again.list_thresholds() == selector.list_thresholds()
    assert again.get_admission_state().shed_tier == "best_effort"
    assert persisted_state(again) == persisted_state(selector)


def test_a_worker_of_many_ranks_is_judged_in_parts(monkeypatch):
    judged = []
    monkeypatch.setattr(
        EgressPolicy, "endpoint_refusal", lambda self, endpoint: judged.append(endpoint)
    )
    before, again = a_selector(), a_selector()
    ends = {n: f"tcp://10.0.{n // 256}.{n % 256}:5557" for n in range(1024)}
    before.register_worker(a_worker(1, data_parallel_size=1024, kv_events_endpoints=ends))
    again.fleet.endpoint_policy = EndpointPolicy(EgressPolicy())
    seen = [0, *(len(judged) for _ in restore_state(persisted_state(before), again)), len(judged)]
    assert again.get_worker(1).registration.kv_events_endpoints == ends
    assert len(judged) == 1024
    assert max(after - earlier for earlier, after in pairwise(seen)) <= RANKS_PER_STEP


def test_workers_of_a_source_are_the_source_s_again():
    fleet = FollowedFleet()
    fleet.offer(a_worker(1), a_worker(2), a_worker(3))
    fleet.selector.patch_worker(2, a_patch(taints=["by-hand"]))
    fleet.selector.delete_worker(3, 0.0)
    fleet.selector.register_worker(a_worker(4))
    fleet.run()
    again, following, told = over_a_restart(persisted_state(fleet.selector, fleet.following), "a")
    assert told == []
    assert sorted(w.worker_id for w in again.list_workers()) == [1, 2, 4]
    assert [following.owner_of(n) for n in (1, 2, 3, 4)] == ["a", "a", None, None]
    following.set_desired("a", {n: a_worker(n) for n in (1, 2, 3)})
    while following.n_pending:
        assert following.next_action(0.0, 10) is None
    counts = following.counts_by_source(10)["a"]
    assert (counts.patched, counts.deleted) == ([2], [3])
    assert again.get_worker(2).registration.taints == ["by-hand"]


def test_workers_of_a_removed_source_stay_away_and_are_reported():
    fleet = FollowedFleet()
    fleet.offer(a_worker(1))
    again, _, told = over_a_restart(persisted_state(fleet.selector, fleet.following), "b")
    assert again.list_workers() == []
    assert told == ["worker 1: source `a` is no longer configured"]


def test_an_invalid_part_does_not_prevent_the_others():
    state = PersistedState(workers=[], deleted=[], thresholds=[], shed="unknown")
    _, _, told = over_a_restart(state)
    assert told[0].startswith("admission: priority tier `unknown` is unknown")


def test_every_change_is_noticed():
    fleet = FollowedFleet()
    seen = [change_count(fleet.selector, fleet.following)]

    def changed():
        seen.append(change_count(fleet.selector, fleet.following))
        return seen[-1] != seen[-2]

    assert not changed()
    fleet.offer(a_worker(1))
    assert changed()
    fleet.selector.patch_worker(1, a_patch(taints=["x"]))
    assert changed()
    fleet.selector.delete_worker(1, 0.0)
    assert changed()
    fleet.selector.register_worker(a_worker(5))
    assert changed()
    fleet.selector.set_thresholds(BusyThresholdChange(model="m"))
    assert changed()
    fleet.selector.set_shed_tier(None)
    assert changed()
    assert not changed()


def test_a_drain_by_an_operator_continues():
    selector = a_selector()
    for worker_id in (1, 2):
        selector.register_worker(a_worker(worker_id))
    before = change_count(selector)
    selector.draining.drain_worker(1, "operator", False, 0.0)
    selector.draining.drain_worker(2, "source", True, 0.0)
    assert change_count(selector) > before
    again, _, told = over_a_restart(persisted_state(selector))
    assert told == []
    assert again.draining.drain_view(1).asked_by == ["operator"]
    assert again.draining.persisted_drain(1).migrate is False
    assert again.draining.drain_view(2) is None
    again.check_invariants()


def test_a_drain_by_several_callers_is_restored_for_each():
    selector = a_selector()
    for worker_id in (1, 2):
        selector.register_worker(a_worker(worker_id))
        selector.draining.drain_worker(worker_id, "planner", False, 0.0)
    selector.draining.drain_worker(1, "source", False, 0.0)
    selector.draining.drain_worker(1, "operator", False, 0.0)
    again, _, told = over_a_restart(persisted_state(selector))
    assert told == []
    assert again.draining.drain_view(1).asked_by == ["operator", "planner"]
    assert again.draining.persisted_drain(2) == PersistedDrain(migrate=False, asked_by=["planner"])
    for asker, left in (("planner", ["operator"]), ("operator", None)):
        again.draining.undrain_worker(1, asker, 0.0)
        view = again.draining.drain_view(1)
        assert (view and view.asked_by) == left
    again.check_invariants()


def test_a_drain_without_a_caller_is_an_operators():
    selector = a_selector()
    selector.register_worker(a_worker(1))
    selector.draining.drain_worker(1, "planner", False, 0.0)
    state = msgspec.to_builtins(persisted_state(selector))
    state["workers"][0]["drain"] = {"migrate": False}
    again, _, told = over_a_restart(state)
    assert told == []
    assert again.draining.persisted_drain(1) == PersistedDrain(migrate=False, asked_by=["operator"])


def test_a_drain_without_callers_is_invalid():
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"asked_by": []}', type=PersistedDrain)


def test_a_drain_by_others_continues_when_the_source_changes_the_worker():
    fleet = FollowedFleet()
    fleet.offer(a_worker(1), a_worker(2))
    fleet.selector.draining.drain_worker(1, "operator", True, 0.0)
    fleet.selector.draining.drain_worker(1, "planner", True, 0.0)
    fleet.offer(a_worker(1, endpoint="http://elsewhere:1"), a_worker(2))
    assert fleet.selector.get_worker(1).registration.endpoint == "http://elsewhere:1"
    assert fleet.selector.draining.drain_view(1).asked_by == ["operator", "planner"]
    fleet.selector.check_invariants()
