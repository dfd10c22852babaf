"""Workers, their owners, thresholds and shedding come back as they were."""

from itertools import pairwise

import msgspec
import pytest

from select_service.bodies.admission import BusyThresholdChange
from select_service.bodies.state import KeptDrain, KeptState
from select_service.core.discovery.following import Following
from select_service.core.discovery.standing import FleetStanding
from select_service.core.kept_state import changes_of, kept_state, restoring
from select_service.core.workers.catalog import RANKS_PER_STEP
from select_service.core.workers.places import Places
from select_service.destinations import Destinations
from tests.builders import a_patch, a_selector, a_worker
from tests.edge.discovery.fleets import FollowedFleet


def over_a_restart(state, *sources):
    """A new selector that has what was kept, its sources, and what was told."""
    text = msgspec.json.encode(state)
    selector = a_selector()
    following = Following(sources, FleetStanding(selector.fleet), 60.0)
    told = list(restoring(msgspec.json.decode(text, type=KeptState), selector, following))
    return selector, following, [text for text in told if text]


def test_what_operators_did_comes_back():
    selector = a_selector()
    selector.register(a_worker(1, taints=["a"], kv_events_endpoints={0: "tcp://a:1"}))
    selector.register(a_worker(2))
    selector.delete(2, 0.0)
    selector.patch(1, a_patch(block_size=8))
    selector.set_thresholds(BusyThresholdChange(model="m", active_decode_blocks_threshold=0.5))
    selector.shed("best_effort")
    again, _, told = over_a_restart(kept_state(selector))
    assert told == []
    (worker,) = again.workers()
    assert worker.given == selector.worker(1).given
    assert worker.schedulable
    assert again.thresholds() == selector.thresholds()
    assert again.admission().shed_tier == "best_effort"
    assert kept_state(again) == kept_state(selector)


def test_a_worker_of_many_ranks_is_judged_in_parts(monkeypatch):
    judged = []
    monkeypatch.setattr(
        Destinations, "refusal_of_endpoint", lambda self, endpoint: judged.append(endpoint)
    )
    before, again = a_selector(), a_selector()
    ends = {n: f"tcp://10.0.{n // 256}.{n % 256}:5557" for n in range(1024)}
    before.register(a_worker(1, data_parallel_size=1024, kv_events_endpoints=ends))
    again.fleet.places = Places(Destinations())
    seen = [0, *(len(judged) for _ in restoring(kept_state(before), again)), len(judged)]
    assert again.worker(1).given.kv_events_endpoints == ends
    assert len(judged) == 1024
    assert max(after - earlier for earlier, after in pairwise(seen)) <= RANKS_PER_STEP


def test_workers_of_a_source_are_the_source_s_again():
    fleet = FollowedFleet()
    fleet.offer(a_worker(1), a_worker(2), a_worker(3))
    fleet.selector.patch(2, a_patch(taints=["by-hand"]))
    fleet.selector.delete(3, 0.0)
    fleet.selector.register(a_worker(4))
    fleet.run()
    again, following, told = over_a_restart(kept_state(fleet.selector, fleet.following), "a")
    assert told == []
    assert sorted(w.worker_id for w in again.workers()) == [1, 2, 4]
    assert [following.owner(n) for n in (1, 2, 3, 4)] == ["a", "a", None, None]
    following.offer("a", {n: a_worker(n) for n in (1, 2, 3)})
    while following.pending:
        assert following.next(0.0, 10) is None
    counts = following.counts(10)["a"]
    assert (counts.patched, counts.deleted) == ([2], [3])
    assert again.worker(2).given.taints == ["by-hand"]


def test_workers_of_a_source_that_is_gone_stay_away_and_are_told():
    fleet = FollowedFleet()
    fleet.offer(a_worker(1))
    again, _, told = over_a_restart(kept_state(fleet.selector, fleet.following), "b")
    assert again.workers() == []
    assert told == ["worker 1: there is no source `a` any more"]


def test_what_is_wrong_with_one_thing_does_not_keep_the_others():
    state = KeptState(workers=[], deleted=[], thresholds=[], shed="unknown")
    _, _, told = over_a_restart(state)
    assert told[0].startswith("admission: priority tier `unknown` is unknown")


def test_every_change_is_noticed():
    fleet = FollowedFleet()
    seen = [changes_of(fleet.selector, fleet.following)]

    def changed():
        seen.append(changes_of(fleet.selector, fleet.following))
        return seen[-1] != seen[-2]

    assert not changed()
    fleet.offer(a_worker(1))
    assert changed()
    fleet.selector.patch(1, a_patch(taints=["x"]))
    assert changed()
    fleet.selector.delete(1, 0.0)
    assert changed()
    fleet.selector.register(a_worker(5))
    assert changed()
    fleet.selector.set_thresholds(BusyThresholdChange(model="m"))
    assert changed()
    fleet.selector.shed(None)
    assert changed()
    assert not changed()


def test_who_an_operator_drains_goes_on_draining():
    selector = a_selector()
    for worker_id in (1, 2):
        selector.register(a_worker(worker_id))
    before = changes_of(selector)
    selector.draining.drain(1, "operator", False, 0.0)
    selector.draining.drain(2, "source", True, 0.0)
    assert changes_of(selector) > before
    again, _, told = over_a_restart(kept_state(selector))
    assert told == []
    assert again.draining.view(1).asked_by == ["operator"]
    assert again.draining.kept(1).migrate is False
    assert again.draining.view(2) is None
    again.check_invariants()


def test_whom_several_drain_comes_back_as_theirs():
    selector = a_selector()
    for worker_id in (1, 2):
        selector.register(a_worker(worker_id))
        selector.draining.drain(worker_id, "planner", False, 0.0)
    selector.draining.drain(1, "source", False, 0.0)
    selector.draining.drain(1, "operator", False, 0.0)
    again, _, told = over_a_restart(kept_state(selector))
    assert told == []
    assert again.draining.view(1).asked_by == ["operator", "planner"]
    assert again.draining.kept(2) == KeptDrain(migrate=False, asked_by=["planner"])
    for asker, left in (("planner", ["operator"]), ("operator", None)):
        again.draining.undrain(1, asker, 0.0)
        view = again.draining.view(1)
        assert (view and view.asked_by) == left
    again.check_invariants()


def test_a_drain_of_which_nobody_says_who_asked_is_an_operator_s():
    selector = a_selector()
    selector.register(a_worker(1))
    selector.draining.drain(1, "planner", False, 0.0)
    state = msgspec.to_builtins(kept_state(selector))
    state["workers"][0]["drain"] = {"migrate": False}
    again, _, told = over_a_restart(state)
    assert told == []
    assert again.draining.kept(1) == KeptDrain(migrate=False, asked_by=["operator"])


def test_a_drain_for_nobody_is_no_state():
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"asked_by": []}', type=KeptDrain)


def test_what_others_drain_goes_on_draining_when_its_source_changes_it():
    fleet = FollowedFleet()
    fleet.offer(a_worker(1), a_worker(2))
    fleet.selector.draining.drain(1, "operator", True, 0.0)
    fleet.selector.draining.drain(1, "planner", True, 0.0)
    fleet.offer(a_worker(1, endpoint="http://elsewhere:1"), a_worker(2))
    assert fleet.selector.worker(1).given.endpoint == "http://elsewhere:1"
    assert fleet.selector.draining.view(1).asked_by == ["operator", "planner"]
    fleet.selector.check_invariants()
