"""Tests of a session's effect on routing: hard, soft, queues, moves and ends."""

import msgspec
import pytest

from select_service.base.errors import BadRequest, NoEligibleRank
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.partition_queue import WaitingTicket
from select_service.core.admission.policy_classes import QueueRules, single_class_profile
from select_service.core.identity import Rank
from select_service.core.load.reservation_move import MoveTarget
from select_service.core.placement.router_config import RouterConfig
from select_service.core.sessions.session_pages import SessionFilter
from select_service.core.sessions.session_settings import SessionSettings
from tests.builders import (
    a_patch,
    a_reservation,
    a_select,
    a_select_and_reserve,
    a_selector,
    a_worker,
)
from tests.builders.selector_scenes import KEY, store

HARD = SessionSettings(60.0, is_hard=True)
SOFT = SessionSettings(60.0)
QUEUE = AdmissionSettings(queue=QueueRules(single_class_profile("fcfs", 1.0), timeout_s=100.0))


def a_fleet(sessions=HARD, workers=3, **fields):
    settings = {"use_kv_events": False, "admission": None, "config": None}
    given = {name: fields.pop(name, default) for name, default in settings.items()}
    selector = a_selector(sessions=sessions, **given)
    for worker_id in range(1, workers + 1):
        selector.register_worker(a_worker(worker_id, max_num_batched_tokens=64, **fields))
    return selector


def book(selector, session, now=0.0, tokens=8, **fields):
    request = a_select_and_reserve(tokens, session_id=session, **fields)
    return selector.select_and_reserve(request, now).selection


def look(selector, session, now=0.0, **fields):
    return selector.select(a_select(session_id=session, **fields), now).selection


def hog(selector, worker_id, name="hog", tokens=400):
    selector.reserve(a_reservation(name, worker_id, tokens), 0.0)


def session_of(selector, session, now=0.0):
    return selector.decisions.sessions.directory.find_session(KEY, session, now)


def test_a_hard_session_stays_on_its_rank_at_any_load():
    selector = a_fleet()
    first = book(selector, "s", allowed_worker_ids=[2])
    assert (first.session.bound, first.session.followed, first.session.reason) == (
        None,
        False,
        "new",
    )
    hog(selector, 2)
    again = book(selector, "s")
    assert (again.worker_id, again.session.followed) == (2, True)
    assert again.session.bound.worker_id == 2
    assert again.session.reason is msgspec.UNSET
    assert look(selector, "other").worker_id != 2
    selector.check_invariants()


def test_select_follows_and_never_binds():
    selector = a_fleet()
    assert look(selector, "s").session.reason == "new"
    assert session_of(selector, "s") is None
    book(selector, "s", allowed_worker_ids=[3])
    hog(selector, 3)
    assert look(selector, "s").worker_id == 3
    assert session_of(selector, "s").turns == 1


def test_idle_time_begins_with_the_end_of_the_last_reservation():
    selector = a_fleet()
    book(selector, "s", reservation_id="a", allowed_worker_ids=[2])
    book(selector, "s", reservation_id="b")
    selector.free_reservation("a", 100.0)
    assert session_of(selector, "s", 1e6).leases == 1
    selector.free_reservation("b", 200.0)
    selector.decisions.sessions.directory.expire_sessions(259.0)
    assert session_of(selector, "s", 259.0).leases == 0
    assert session_of(selector, "s", 260.0) is None
    assert len(selector.decisions.sessions.directory) == 1
    selector.decisions.sessions.directory.expire_sessions(260.0)
    assert len(selector.decisions.sessions.directory) == 0
    selector.check_invariants()


def test_expiry_of_reservations_gives_leases_back():
    selector = a_fleet()
    book(selector, "s", 0.0)
    selector.expire_reservations(4000.0)
    assert session_of(selector, "s", 4000.0).leases == 0
    assert session_of(selector, "s", 4060.0) is None


def test_a_conflict_is_rejected_and_unbinds_no_session():
    selector = a_fleet()
    book(selector, "s", allowed_worker_ids=[2])
    with pytest.raises(BadRequest, match="session s is bound to worker 2"):
        book(selector, "s", allowed_worker_ids=[3])
    assert look(selector, "s", allowed_worker_ids=[3]).session.reason == "not_allowed"
    with pytest.raises(NoEligibleRank):
        book(selector, "s", allowed_worker_ids=[9])
    hog(selector, 2)
    assert look(selector, "s").worker_id == 2
    assert session_of(selector, "s").leases == 1


def test_a_pinned_request_neither_binds_nor_renews():
    selector = a_fleet()
    book(selector, "s", allowed_worker_ids=[2], reservation_id="a")
    selector.free_reservation("a", 1.0)
    pin = {"worker_id": 3, "dp_rank": 0}
    answer = book(selector, "s", 2.0, pinned_worker=pin)
    assert (answer.worker_id, answer.session.reason) == (3, "pinned")
    assert session_of(selector, "s", 2.0).idle_since == 1.0
    assert session_of(selector, "s", 2.0).binding.worker_id == 2


def test_a_target_is_used_if_eligible_and_touches_no_session():
    selector = a_fleet()
    book(selector, "s", allowed_worker_ids=[2])
    hog(selector, 3)
    answer = book(selector, "s", affinity_target={"worker_id": 3})
    assert (answer.worker_id, answer.session.reason) == (3, "target")
    assert session_of(selector, "s").binding.worker_id == 2
    ignored = book(selector, None, affinity_target={"worker_id": 9, "dp_rank": 1})
    assert ignored.worker_id in (1, 2)
    with pytest.raises(BadRequest, match="pinned worker 1 is not in allowed worker set"):
        book(
            selector,
            None,
            affinity_target={"worker_id": 3},
            pinned_worker={"worker_id": 1, "dp_rank": 0},
        )


def test_a_session_of_a_removed_worker_chooses_freely_and_is_bound_again():
    selector = a_fleet()
    book(selector, "s", allowed_worker_ids=[2], reservation_id="a")
    record = selector.get_worker(2).registration
    selector.delete_worker(2, 1.0)
    selector.run_pending(1.0)
    assert session_of(selector, "s", 1.0).leases == 0
    assert look(selector, "s").session.reason == "gone"
    selector.register_worker(record)
    assert look(selector, "s", 2.0).worker_id == 2
    selector.delete_worker(2, 3.0)
    selector.run_pending(3.0)
    moved = book(selector, "s", 4.0, allowed_worker_ids=[3])
    assert (moved.worker_id, moved.session.reason) == (3, "gone")
    selector.register_worker(record)
    hog(selector, 3)
    assert look(selector, "s", 5.0).worker_id == 3
    assert selector.decisions.sessions.moves == {"gone": 1}


def test_scopes_have_sessions_of_their_own():
    selector = a_fleet()
    selector.register_worker(a_worker(11, tenant_id="g"))
    selector.register_worker(a_worker(12, tenant_id="g"))
    book(selector, "s", allowed_worker_ids=[2])
    book(selector, "s", allowed_worker_ids=[11], tenant_id="g")
    assert look(selector, "s").worker_id == 2
    assert look(selector, "s", tenant_id="g").worker_id == 11


def test_first_requests_that_wait_together_land_on_one_rank():
    selector = a_fleet(admission=QUEUE)
    for worker_id in (1, 2, 3):
        hog(selector, worker_id, f"hog-{worker_id}")
    tickets = [
        selector.select_and_reserve(
            a_select_and_reserve(8, session_id="s", reservation_id=f"r{k}"), 0.0
        )
        for k in range(16)
    ]
    assert all(isinstance(ticket, WaitingTicket) for ticket in tickets)
    for worker_id in (2, 1, 3):
        selector.free_reservation(f"hog-{worker_id}", 1.0)
        selector.run_pending(1.0)
    for _ in range(20):
        for ticket in tickets:
            if ticket.outcome is not None and not isinstance(ticket.outcome, Exception):
                name = ticket.outcome.selection.reservation_id
                if selector.ledger.find_active(name):
                    selector.free_reservation(name, 1.0)
        selector.run_pending(1.0)
    assert {ticket.outcome.selection.worker_id for ticket in tickets} == {2}
    selector.check_invariants()


def test_a_hard_session_waits_for_its_busy_rank_and_blocks_no_request():
    selector = a_fleet(admission=QUEUE)
    book(selector, "s", allowed_worker_ids=[2])
    hog(selector, 2)
    ticket = selector.select_and_reserve(a_select_and_reserve(8, session_id="s"), 0.0)
    assert isinstance(ticket, WaitingTicket)
    assert book(selector, None).worker_id != 2
    selector.free_reservation("hog", 1.0)
    selector.run_pending(1.0)
    assert ticket.outcome.selection.worker_id == 2
    assert ticket.outcome.selection.session.followed


def test_a_request_that_waits_on_for_its_session_has_paid_nothing():
    rules = QueueRules(single_class_profile("fcfs", 0.0))
    selector = a_fleet(admission=AdmissionSettings(queue=rules))
    for worker_id in (1, 2, 3):
        hog(selector, worker_id, f"hog-{worker_id}")
    asked = [("a0", "s"), ("a1", "s"), ("a2", None), ("b0", None), ("b1", None)]
    tickets = {
        name: selector.select_and_reserve(
            a_select_and_reserve(8, session_id=session, fairness_id=name[0]), 0.0
        )
        for name, session in asked
    }
    for worker_id in (2, 1, 3):
        selector.free_reservation(f"hog-{worker_id}", 1.0)
        selector.run_pending(1.0)
    ranks = {n: t.outcome.selection.worker_id for n, t in tickets.items() if t.outcome}
    # a1 had a turn on rank 3, but the session is on rank 2 by then.
    assert ranks == {"a0": 2, "b0": 1, "a2": 3}
    assert selector.gate.waiting.queues[KEY].released_cost == 24
    selector.check_invariants()


def test_a_waiting_session_goes_elsewhere_if_its_rank_leaves():
    selector = a_fleet(admission=QUEUE)
    book(selector, "s", allowed_worker_ids=[2])
    hog(selector, 2)
    ticket = selector.select_and_reserve(a_select_and_reserve(8, session_id="s"), 0.0)
    selector.delete_worker(2, 1.0)
    selector.run_pending(1.0)
    selector.run_pending(1.0)
    assert ticket.outcome.selection.worker_id in (1, 3)
    assert ticket.outcome.selection.session.reason == "gone"
    selector.check_invariants()


def test_soft_sessions_prefer_no_rank_where_the_index_is_complete():
    selector = a_fleet(
        SOFT, use_kv_events=True, kv_events_endpoint="tcp://w:5557", total_kv_blocks=1000
    )
    book(selector, "s", tokens=64, allowed_worker_ids=[2], reservation_id="a")
    selector.free_reservation("a", 1.0)
    hog(selector, 2, tokens=4)
    answer = book(selector, "s", 2.0, tokens=64)
    assert answer.worker_id != 2
    assert answer.session.reason == "cost"
    # The binding follows the turns.
    assert session_of(selector, "s", 2.0).binding.worker_id == answer.worker_id


@pytest.mark.parametrize(
    ("fields", "use_kv_events"),
    [
        ({}, False),
        ({"kv_events_endpoint": "tcp://w:1", "kv_cache": {"unseen_tiers": True}}, True),
        ({"kv_events_endpoint": "tcp://w:1", "kv_cache": {"certainty": "at_most"}}, True),
    ],
)
@pytest.mark.parametrize("policy", ["work", "reference"])
def test_soft_sessions_add_cached_blocks_without_events(fields, use_kv_events, policy):
    selector = a_fleet(
        SOFT, use_kv_events=use_kv_events, config=RouterConfig(policy=policy), **fields
    )
    book(selector, "s", tokens=64, allowed_worker_ids=[2], reservation_id="a")
    selector.free_reservation("a", 1.0)
    answer = look(selector, "s", 2.0, tokens=64)
    # 0.8 of 64 tokens, in whole blocks of 4.
    assert (answer.worker_id, answer.overlap.gpu, answer.session.followed) == (2, 48, True)
    # The session's facts count for one placement.
    assert look(selector, None, 2.0, tokens=64).overlap.gpu == 0
    hog(selector, 2)
    assert look(selector, "s", 2.0, tokens=64).session.reason == "cost"


@pytest.mark.parametrize("is_live", [False, True])
def test_a_cleared_cache_has_nothing_of_a_session_without_reservations(is_live):
    fields = {"kv_events_endpoint": "tcp://w:1", "index": "assumed"}
    selector = a_fleet(SOFT, use_kv_events=True, **fields)
    book(selector, "s", tokens=64, allowed_worker_ids=[2], reservation_id="a")
    if not is_live:
        selector.free_reservation("a", 1.0)
    assumptions = selector.followers.assumptions
    assert assumptions.clear_cache(3, None, 1.5) == {0: 0}
    assert session_of(selector, "s", 1.5).binding.context_tokens == 64
    assert assumptions.clear_cache(2, None, 1.5) == {0: 16}
    assert session_of(selector, "s", 1.5).binding.context_tokens == 64 * is_live
    for now in (2.0, 3.0):
        assumptions.follower.run_turn(now)
    answer = look(selector, "s", 4.0, tokens=64, allowed_worker_ids=[2])
    assert answer.overlap.gpu == 64 * is_live


def test_a_session_knows_more_than_the_assumed_blocks_that_were_evicted():
    fields = {"kv_events_endpoint": "tcp://w:1", "index": "assumed", "total_kv_blocks": 16}
    selector = a_fleet(SOFT, use_kv_events=True, **fields)
    book(selector, "s", tokens=64, allowed_worker_ids=[2], reservation_id="a")
    selector.free_reservation("a", 1.0)
    other = a_select_and_reserve(64, allowed_worker_ids=[2], reservation_id="b", cache_salt="x")
    selector.select_and_reserve(other, 2.0)
    assert look(selector, "s", 2.0, tokens=64, allowed_worker_ids=[2]).overlap.gpu == 48


def test_the_answer_of_the_last_turn_is_part_of_its_context():
    selector = a_fleet(SOFT)
    book(selector, "s", tokens=40, reservation_id="a")
    for _ in range(3):
        selector.add_output_block("a", None, 1.0)
    selector.free_reservation("a", 2.0)
    assert session_of(selector, "s", 2.0).binding.context_tokens == 52


def test_confirmed_blocks_beyond_the_floor_count():
    selector = a_fleet(SOFT)
    book(selector, "s", tokens=64, allowed_worker_ids=[2], reservation_id="a")
    selector.free_reservation("a", 1.0)
    store(selector, Rank(2, 0), 60)
    assert look(selector, "s", 2.0, tokens=64).overlap.gpu == 60


def test_a_child_knows_the_rank_of_its_parent_only_softly():
    selector = a_fleet(SOFT)
    book(selector, "p", tokens=64, allowed_worker_ids=[3], reservation_id="a")
    selector.free_reservation("a", 1.0)
    context = {"session_id": "child", "parent_session_id": "p"}
    child = look(selector, None, 2.0, tokens=64, session_context=context)
    assert (child.worker_id, child.overlap.gpu, child.session.reason) == (3, 48, "new")
    hard = look(selector, None, 2.0, tokens=64, session_context=context, affinity="hard")
    assert hard.overlap.gpu == 0


def test_the_context_wins_and_the_final_turn_ends_the_session():
    selector = a_fleet(SOFT)
    context = {"session_id": "s", "session_final": True}
    book(selector, "t", session_context=context, reservation_id="a")
    assert session_of(selector, "t") is None
    assert session_of(selector, "s").is_final
    selector.free_reservation("a", 1.0)
    assert session_of(selector, "s", 1.0) is None
    assert len(selector.decisions.sessions.directory) == 0
    selector.check_invariants()


def test_dynamo_ignores_the_final_turn():
    selector = a_fleet(HARD)
    context = {"session_id": "s", "session_final": True}
    book(selector, None, session_context=context, reservation_id="a")
    selector.free_reservation("a", 1.0)
    assert session_of(selector, "s", 1.0) is not None


def test_ids_are_bounded_where_sessions_are_configured():
    selector = a_fleet(SOFT)
    book(selector, "é" * 128)
    with pytest.raises(BadRequest, match="must not exceed 256 bytes"):
        book(selector, "é" * 128 + "x")
    unset = a_fleet(SessionSettings())
    answer = book(unset, "x" * 257)
    assert answer.session.reason == "id_too_long"
    with pytest.raises(BadRequest, match="has 257"):
        book(unset, "x" * 257, affinity="soft")
    # The empty id is a session like any other.
    book(unset, "", allowed_worker_ids=[2])
    assert look(unset, "", affinity="hard").worker_id == 2


def test_a_rank_out_of_rotation_is_not_followed():
    selector = a_fleet()
    book(selector, "s", allowed_worker_ids=[2])
    table = selector.fleet.partitions[KEY].table
    table.set_weight(table.find_slot(Rank(2, 0)), 0.0, "draining")
    answer = book(selector, "s")
    assert answer.session.reason == "unavailable"


def test_a_moved_reservation_takes_its_session_along():
    selector = a_fleet()
    book(selector, "s", allowed_worker_ids=[2], reservation_id="a")
    before = session_of(selector, "s").binding.version
    partition = selector.fleet.partitions[KEY]
    booking = selector.ledger.find_active("a")
    selector.ledger.move(
        booking, MoveTarget(Rank(3, 0), partition.table.find_slot(Rank(3, 0)), 8), 1.0
    )
    session = session_of(selector, "s", 1.0)
    assert (session.binding.worker_id, session.leases) == (3, 1)
    assert session.binding.version > before
    selector.free_reservation("a", 2.0)
    assert session_of(selector, "s", 2.0).leases == 0
    selector.check_invariants()


def test_a_changed_worker_keeps_its_sessions():
    selector = a_fleet()
    book(selector, "s", allowed_worker_ids=[2])
    hog(selector, 2)
    selector.patch_worker(2, a_patch(taints=["x"]))
    assert look(selector, "s").worker_id == 2
    selector.patch_worker(2, a_patch(endpoint=""))
    selector.run_pending(1.0)
    assert look(selector, "s").session.reason == "gone"
    selector.patch_worker(2, a_patch(endpoint="http://w2:8000"))
    assert look(selector, "s").worker_id == 2


def test_a_full_table_evicts_the_longest_idle_or_reports_failure():
    selector = a_fleet(SOFT)
    directory = selector.decisions.sessions.directory
    book(selector, "a", 0.0, reservation_id="a")
    book(selector, "b", 1.0, reservation_id="b")
    directory.find_table(KEY).limit_count(2)
    assert book(selector, "c", 2.0).session.reason == "table_full"
    selector.free_reservation("b", 3.0)
    selector.free_reservation("a", 4.0)
    assert book(selector, "c", 5.0).session.reason == "new"
    assert session_of(selector, "b", 5.0) is None
    assert session_of(selector, "a", 5.0) is not None
    assert (directory.counts.evicted, directory.counts.refused) == (1, 1)
    selector.check_invariants()


def test_an_ended_session_is_forgotten_at_once_and_its_leases_later():
    selector = a_fleet()
    book(selector, "s", allowed_worker_ids=[2], reservation_id="a")
    directory = selector.decisions.sessions.directory
    assert directory.end_session(KEY, "s", 1.0).leases == 1
    assert directory.end_session(KEY, "s", 1.0) is None
    book(selector, "s", 1.0, allowed_worker_ids=[3], reservation_id="b")
    selector.check_invariants()
    selector.free_reservation("a", 2.0)
    session = session_of(selector, "s", 2.0)
    assert (session.binding.worker_id, session.leases) == (3, 1)
    selector.check_invariants()


def test_the_table_of_a_vanished_scope_is_freed_when_its_last_session_ends():
    selector = a_fleet(SOFT)
    directory = selector.decisions.sessions.directory
    for tenant in ("t1", "t2"):
        selector.register_worker(a_worker(10 + int(tenant[1]), tenant_id=tenant))
        request = a_select_and_reserve(tenant_id=tenant, session_id="s", reservation_id=tenant)
        selector.select_and_reserve(request, 0.0)
    book(selector, "other", reservation_id="r")
    list_page = selector.session_views.list_page
    page = list_page(SessionFilter(limit=1), 1.0)
    assert [row.tenant_id for row in page.sessions] == ["t1"]
    counts = directory.counts
    for worker_id in (11, 12):
        selector.delete_worker(worker_id, 1.0)
    selector.drain_removed_ranks(1.0)
    directory.expire_sessions(2.0)
    assert len(list(directory.tables())) == 3, "sessions live on without workers"
    directory.expire_sessions(100.0)
    assert [key.tenant_id for key, _ in directory.tables()] == ["default"]
    assert directory.counts.created == counts.created
    # Pages refer to tables by permanent numbers.
    page = list_page(SessionFilter(limit=1, after=page.next), 100.0)
    assert [row.session_id for row in page.sessions] == ["other"]
    selector.register_worker(a_worker(11, tenant_id="t1"))
    request = a_select_and_reserve(tenant_id="t1", session_id="s", reservation_id="t1")
    selector.select_and_reserve(request, 101.0)
    assert len(directory) == 2
    selector.free_reservation("r", 101.0)
    directory.expire_sessions(1000.0)
    assert len(list(directory.tables())) == 2, "a scope with workers keeps its table"
    selector.check_invariants()
