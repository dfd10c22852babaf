"""Tests of pairs before their booking: the queue, busy ranks, sessions and repeated requests."""

import msgspec
import pytest

from select_service.base.errors import (
    Conflict,
    DeadlineExceeded,
    NoEligibleRank,
    Overloaded,
    QueueTimeout,
)
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.busy_thresholds import BusyThresholds
from select_service.core.admission.partition_queue import WaitingTicket
from select_service.core.admission.policy_classes import QueueRules, single_class_profile
from select_service.core.placement.router_config import RouterConfig
from select_service.core.sessions.session_settings import SessionSettings
from select_service.schemas.pairs import SelectPairAndReserveRequest
from tests.builders import a_reservation, a_selector, a_worker
from tests.builders.selector_scenes import KEY
from tests.builders.ticks import ticked
from tests.core.pairs.test_pair_replicas import Replicas

QUEUE = AdmissionSettings(queue=QueueRules(single_class_profile("fcfs", 0.0), timeout_s=100.0))
BUSY = AdmissionSettings(thresholds=BusyThresholds(None, 100))
TOKENS = list(range(40))


def a_fleet(admission=None, sessions=None):
    """Return workers 1 and 2 that prefill, 3 and 4 that decode."""
    selector = a_selector(RouterConfig(policy="work"), admission=admission, sessions=sessions)
    for worker_id in range(1, 5):
        role = "prefill" if worker_id < 3 else "decode"
        selector.register_worker(a_worker(worker_id, role=role, max_num_batched_tokens=64))
    return selector


def ask(selector, name="a", local="never", now=0.0, **fields):
    body = {"model_name": "m", "reservation_id": name, "token_ids": TOKENS, "local": local}
    request = msgspec.convert(body | fields, SelectPairAndReserveRequest)
    return selector.select_pair(request, now)


def hog(selector, *worker_ids):
    for worker_id in worker_ids:
        selector.reserve(a_reservation(f"hog{worker_id}", worker_id, 400), 0.0)


def legs_of(decision):
    return {leg.leg: leg.worker_id for leg in decision.pair.legs}


@pytest.mark.parametrize(
    ("full", "freed", "local"),
    [
        ((1, 2), 2, "never"),
        ((3, 4), 3, "never"),
        ((3, 4), 4, "auto"),
        ((1, 2, 3, 4), 4, "auto"),
    ],
)
def test_a_pair_waits_until_each_of_its_legs_has_room(full, freed, local):
    selector = a_fleet(QUEUE)
    hog(selector, *full)
    ticket = ask(selector, local=local)
    assert isinstance(ticket, WaitingTicket)
    selector.run_pending(1.0)
    assert ticket.outcome is None
    selector.free_reservation(f"hog{freed}", 2.0)
    selector.run_pending(2.0)
    assert freed in legs_of(ticket.outcome).values()
    selector.check_invariants()


def test_a_pair_without_room_for_one_leg_blocks_no_request():
    selector = a_fleet(QUEUE)
    hog(selector, 1, 2)
    waiting = ask(selector, "pair")
    assert isinstance(waiting, WaitingTicket)
    decision = ask(selector, "local", local="always")
    assert decision.pair.path == "local"
    selector.check_invariants()


def test_a_waiting_pair_times_out_and_leaves_with_its_client():
    selector = a_fleet(QUEUE)
    hog(selector, 3, 4)
    late, gone = ask(selector, "late", timeout_ms=500), ask(selector, "gone")
    selector.gate.remove_disconnected(gone)
    with pytest.raises(Conflict, match="already waiting"):
        ask(selector, "late")
    ticked(selector, 1.0)
    assert isinstance(late.outcome, QueueTimeout)
    selector.free_reservation("hog3", 2.0)
    selector.run_pending(2.0)
    assert len(selector.ledger.reservations) == 1


def test_a_waiting_pair_has_a_deadline():
    selector = a_fleet(QUEUE)
    hog(selector, 3, 4)
    late = ask(selector, "late", deadline_ms=500, fairness_id="a")
    assert late.flow == "a"
    ticked(selector, 1.0)
    assert isinstance(late.outcome, DeadlineExceeded)
    with pytest.raises(DeadlineExceeded):
        ask(selector, "never", deadline_ms=0)


def test_a_waiting_pair_ends_when_no_rank_for_a_leg_is_left():
    selector = a_fleet(QUEUE)
    hog(selector, 3, 4)
    ticket = ask(selector)
    for worker_id in (1, 2):
        selector.delete_worker(worker_id, 1.0)
    for _ in range(3):
        selector.run_pending(1.0)
    assert isinstance(ticket.outcome, NoEligibleRank)
    selector.check_invariants()


@pytest.mark.parametrize(("busy", "local"), [((3, 4), "auto"), ((1, 2), "never")])
def test_busy_ranks_of_one_role_are_an_overload(busy, local):
    selector = a_fleet(BUSY)
    hog(selector, *busy)
    with pytest.raises(Overloaded):
        ask(selector, local=local)
    assert len(selector.ledger.reservations) == len(busy)


def test_a_session_is_bound_to_the_rank_of_the_decode_leg():
    selector = a_fleet(sessions=SessionSettings(60.0, is_hard=True))
    first = ask(selector, "a", session_id="s")
    decode = legs_of(first)["decode"]
    assert first.pair.session.reason == "new"
    found = selector.decisions.sessions.directory.find_session(KEY, "s", 0.0)
    assert found.binding.worker_id == decode
    for number in range(6):
        again = ask(selector, f"r{number}", session_id="s")
        assert legs_of(again)["decode"] == decode
        assert again.pair.session.followed
    selector.check_invariants()


def test_a_repeated_request_gets_the_same_pair_and_books_nothing():
    selector = a_fleet()
    first = ask(selector)
    again = ask(selector, repeat=True)
    assert again.pair == first.pair
    assert len(selector.ledger.reservations) == 2
    moved = selector.pairs.move_leg("a", "prefill", 0.0)
    assert ask(selector, repeat=True).pair == moved
    with pytest.raises(Conflict):
        ask(selector, repeat=True, token_ids=TOKENS[:20])
    with pytest.raises(Conflict):
        ask(selector)
    selector.reserve(a_reservation("one", 3, 40), 0.0)
    with pytest.raises(Conflict):
        ask(selector, "one", repeat=True)


def test_a_repeated_request_at_another_replica_gets_the_same_legs():
    replicas = Replicas()
    one, other = replicas.selectors
    first = ask(one)
    again = ask(other, repeat=True)
    assert legs_of(again) == legs_of(first)
    assert again.pair.path == "remote"
    one.complete_prefill("a", 0.0)
    replicas.settle()
    assert legs_of(ask(other, repeat=True))["decode"] == legs_of(first)["decode"]
