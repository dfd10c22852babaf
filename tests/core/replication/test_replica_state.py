"""Tests of the rules of the replica plane, one by one."""

import msgspec
import numpy as np
import pytest

from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import new_reservation as load_booking
from select_service.core.load import reservations
from select_service.core.load.compiled import observation_layout
from select_service.core.load.histogram_bins import N_PROMPTS
from select_service.core.load.reservations import ReservationFilter
from select_service.core.replication import digest as replica_digest
from select_service.core.replication import repair as replica_repair
from select_service.core.replication import tombstones
from select_service.core.replication.digest import LoadDifference
from select_service.core.replication.load_events import (
    PeerFrameError,
    PrefillCompleted,
    ReservationAdmitted,
    ReservationFreed,
)
from select_service.core.replication.peer_agreement import (
    PERSISTENT_DIGESTS,
    RETRY_S_MAX,
    PeerAgreement,
)
from select_service.core.replication.repair import (
    Repair,
    RepairResult,
    ReservationPageAnswer,
    UnexpectedProcess,
    validate_row,
)
from select_service.core.replication.tombstones import Tombstones
from tests.builders import a_reservation, a_select_and_reserve, a_selector, a_worker
from tests.builders.ticks import ticked

KEY = PartitionKey("m", "default")
RANK = Rank(1, 0)


def a_replica(seed=0, ttl_s=3600.0, workers=2):
    selector = a_selector(seed=seed, ttl_s=ttl_s)
    for worker_id in range(1, workers + 1):
        selector.register_worker(a_worker(worker_id, data_parallel_size=2))
    selector.said = []
    selector.followers.replicas.start_sending(selector.said.append)
    return selector


def an_event(kind, name="r", rank=RANK, router_id=7, **fields):
    if kind is ReservationAdmitted:
        fields = {
            "sequence_hashes": np.arange(3, dtype=np.uint64),
            "prefill_tokens_hint": 8,
        } | fields
    common = {"model_name": "m", "tenant_id": "default", "block_size": 4, **fields}
    return kind(reservation_id=name, rank=rank, router_id=router_id, **common)


def list_bookings(selector):
    return {b.reservation_id: (b.rank, b.prefill_tokens) for b in selector.ledger.reservations}


def compare(here, there, agreement, now, number=0):
    digest = there.followers.replicas.make_digest(number, len(there.said), 80, None)
    return here.followers.replicas.compare_digest(digest, agreement, now)


def follow(walk, page_of, now, delay_s=0.0):
    """Run a repair to its end; return the number of its pauses."""
    turns, wanted = 0, next(walk)
    while True:
        answer = (
            None if wanted is None else ReservationPageAnswer(page_of(wanted), now, now + delay_s)
        )
        try:
            wanted = walk.send(answer)
        except StopIteration:
            return turns
        turns += wanted is None


def repair(here, there, now, delay_s=0.0):
    """Repair `here` once from the list of `there`."""
    pass_ = Repair(here.followers.replicas, there.followers.replicas.router_id, now)

    def page_of(wanted):
        page = there.inspection.list_reservations(wanted._replace(limit=2), now)
        page = msgspec.json.decode(msgspec.json.encode(page), type=type(page))
        assert page.reservations == [validate_row(row) for row in page.reservations]
        return page

    follow(pass_.run_repair(), page_of, now, delay_s)
    here.check_invariants()
    return pass_.result


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_name": "x"}, "unknown_partition"),
        ({"tenant_id": "x"}, "unknown_partition"),
        ({"block_size": 8}, "block_size"),
    ],
)
@pytest.mark.parametrize("kind", [ReservationAdmitted, PrefillCompleted, ReservationFreed])
def test_an_event_of_an_unknown_scope_changes_nothing(kind, fields, reason):
    selector = a_replica()
    assert selector.followers.replicas.apply_event(an_event(kind, **fields), 0.0) == reason
    assert (list_bookings(selector), len(selector.followers.replicas.tombstones)) == ({}, 0)
    assert set(selector.fleet.partitions) == {KEY}


@pytest.mark.parametrize("rank", [Rank(99, 0), Rank(1, 7)])
def test_an_admission_on_an_unknown_rank_changes_nothing(rank):
    selector = a_replica()
    assert (
        selector.followers.replicas.apply_event(an_event(ReservationAdmitted, rank=rank), 0.0)
        == "unknown_rank"
    )
    assert list_bookings(selector) == {}


def test_an_admission_on_another_rank_moves_the_booking_of_a_local_call_too():
    selector = a_replica()
    selector.reserve(a_reservation("r", 1), 0.0)
    assert (
        selector.followers.replicas.apply_event(an_event(ReservationAdmitted, rank=Rank(2, 1)), 1.0)
        is None
    )
    assert list_bookings(selector) == {"r": (Rank(2, 1), 8)}
    selector.check_invariants()


def test_an_admission_without_room_is_refused(monkeypatch):
    selector = a_replica()
    monkeypatch.setattr(reservations, "RESERVED_BLOCKS_MAX", 4)
    assert selector.followers.replicas.apply_event(an_event(ReservationAdmitted, "a"), 0.0) is None
    assert (
        selector.followers.replicas.apply_event(an_event(ReservationAdmitted, "b"), 0.0)
        == "capacity"
    )
    assert (
        selector.followers.replicas.apply_event(an_event(ReservationAdmitted, "a", Rank(2, 0)), 0.0)
        is None
    )


def test_an_ending_concerns_the_earlier_reservation_after_a_new_admission():
    selector = a_replica(ttl_s=10.0)
    for kind in (ReservationAdmitted, ReservationFreed, ReservationAdmitted):
        assert selector.followers.replicas.apply_event(an_event(kind), 0.0) is None
    ticked(selector, 10.0)
    assert selector.followers.replicas.apply_event(an_event(ReservationFreed), 11.0) == "not_booked"
    assert (
        selector.followers.replicas.apply_event(an_event(ReservationAdmitted), 12.0)
        == "freed_before"
    )


def test_reservations_of_peers_expire():
    selector = a_replica(ttl_s=10.0)
    selector.followers.replicas.apply_event(an_event(ReservationAdmitted), 0.0)
    assert ticked(selector, 10.0) == ["r"]
    assert selector.said == []


def test_a_leaving_rank_sends_no_events():
    selector = a_replica()
    selector.reserve(a_reservation("r", 1), 0.0)
    selector.said.clear()
    selector.delete_worker(1, 0.0)
    assert selector.said == []


def test_a_selection_sends_the_work_that_it_books():
    selector = a_replica()
    request = a_select_and_reserve(8, lora_name="ad", expected_output_tokens=5, reservation_id="x")
    selector.select_and_reserve(request, 0.0)
    (event,) = selector.said
    (booking,) = selector.ledger.reservations
    assert (event.prefill_tokens_hint, event.lora_name, event.expected_output_tokens) == (
        8,
        "ad",
        5,
    )
    assert event.sequence_hashes.tolist() == booking.sequence_hashes.tolist()
    selector.add_output_block("x", None, 0.0)
    selector.select(request, 0.0)
    assert len(selector.said) == 1


def test_own_work_is_sent_and_a_repair_keeps_it():
    """Check two prompts with a common prefix: the second is charged for the remainder alone."""
    here, there = a_replica(seed=1, workers=1), a_replica(seed=2, workers=1)
    for name, last in (("a", 1), ("b", 2)):
        tokens = [*range(16), *[last] * 8]
        asked = a_select_and_reserve(
            reservation_id=name, token_ids=tokens, pinned_worker=RANK._asdict()
        )
        there.select_and_reserve(asked, now=1.0)
    works = {booking.reservation_id: booking.prefill_work for booking in there.ledger.reservations}
    assert works == {"a": 24, "b": 8}
    first, second = there.said
    assert (first.work, second.work) == (None, 8)
    here.followers.replicas.apply_event(second, now=1.0)
    assert here.ledger.reservations.get_reservation("b").prefill_work == 8
    repair(here, there, now=2.0)
    assert {
        booking.reservation_id: booking.prefill_work for booking in here.ledger.reservations
    } == works


def test_own_work_missing_in_an_event_is_its_prefill():
    here = a_replica()
    here.followers.replicas.apply_event(
        an_event(ReservationAdmitted, prefill_tokens_hint=8), now=1.0
    )
    assert here.ledger.reservations.get_reservation("r").prefill_work == 8
    untracked = an_event(ReservationAdmitted, name="s", track_prefill_tokens=False)
    here.followers.replicas.apply_event(untracked, now=1.0)
    assert here.ledger.reservations.get_reservation("s").prefill_work == 0


def test_endings_are_bounded(monkeypatch):
    monkeypatch.setattr(tombstones, "TOMBSTONES_MAX", 3)
    remembered = Tombstones()
    for number in range(5):
        remembered.record_freed(f"r{number}", 7, float(number))
    assert [remembered.ending_of(f"r{n}", 5.0) is not None for n in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    remembered.drop_expired(1000.0)
    assert len(remembered) == 0


def test_replicas_with_all_events_do_not_differ():
    a, b = a_replica(1), a_replica(2)
    a.reserve(a_reservation("r", 1), 0.0)
    b.followers.replicas.apply_event(a.said[0], 0.0)
    agreement = PeerAgreement()
    assert compare(b, a, agreement, 0.0) is None
    assert agreement.total_difference == (0, 0)


def test_a_missed_admission_is_a_difference_and_repaired_at_once_when_the_peer_is_new():
    a, b, agreement = a_replica(1), a_replica(2), PeerAgreement()
    a.reserve(a_reservation("r", 1), 0.0)
    compare(b, a, agreement, 0.0)
    assert agreement.differences == {KEY: LoadDifference(1, 8)}
    assert agreement.is_repair_due(0.0)
    assert repair(b, a, 1.0).added == 1
    assert list_bookings(b) == list_bookings(a)
    compare(b, a, agreement, 2.0, 1)
    assert agreement.total_difference == (0, 0)


def test_a_difference_must_persist_and_repairs_that_change_nothing_become_seldom():
    a, b, agreement = a_replica(1, workers=3), a_replica(2), PeerAgreement()
    compare(b, a, agreement, 0.0)
    a.reserve(a_reservation("r", 3), 0.0)  # b lacks this worker
    for number in range(1, PERSISTENT_DIGESTS + 1):
        assert not agreement.is_repair_due(0.0)
        compare(b, a, agreement, 0.0, number)
    pauses, now = [], 0.0
    for _ in range(6):
        assert agreement.is_repair_due(now)
        done = repair(b, a, now)
        assert (done.refused, done.has_progress) == (1, False)
        agreement.record_repair(done.has_progress, now)
        pauses.append(next(s for s in range(100) if agreement.is_repair_due(now + s)))
        now += pauses[-1]
    assert pauses == [4, 8, RETRY_S_MAX, RETRY_S_MAX, RETRY_S_MAX, RETRY_S_MAX]
    agreement.record_repair(False, now)
    agreement.reset_pause()
    assert agreement.is_repair_due(now)


def test_events_that_did_not_arrive_are_counted():
    a, b, agreement = a_replica(1), a_replica(2), PeerAgreement()
    compare(b, a, agreement, 0.0)
    for name in "xyz":
        a.reserve(a_reservation(name, 1), 0.0)
    agreement.count_event(a.followers.replicas.router_id)
    compare(b, a, agreement, 1.0, 1)
    assert agreement.lost == 2


def test_a_digest_of_ones_own_or_one_that_was_overtaken_is_ignored():
    a, b, agreement = a_replica(1), a_replica(2), PeerAgreement()
    assert compare(a, a, agreement, 0.0) == "own"
    assert compare(a, b, agreement, 0.0, 5) is None
    assert compare(a, b, agreement, 0.0, 4) == "stale"


def test_a_digest_survives_its_bytes_and_damage_raises_only_decode_error():
    a = a_replica(1)
    a.reserve(a_reservation("r", 1), 0.0)
    digest = a.followers.replicas.make_digest(3, 4, 8092, "http://a:1")
    payload = replica_digest.encode_digest(digest)
    assert replica_digest.decode_digest(payload) == digest
    for cut in range(len(payload)):
        with pytest.raises(PeerFrameError):
            replica_digest.decode_digest(payload[:cut])


def test_a_free_that_the_peer_missed_is_sent_again():
    a, b = a_replica(1), a_replica(2)
    a.reserve(a_reservation("r", 1), 0.0)
    b.followers.replicas.apply_event(a.said[0], 0.1)
    b.free_reservation("r", 5.0)
    b.said.clear()
    done = repair(b, a, 9.0)
    assert (done.repeated, done.added, list_bookings(b)) == (1, 0, {})
    assert a.followers.replicas.apply_event(b.said[0], 9.0) is None
    assert list_bookings(a) == {}


def test_a_freed_id_that_is_admitted_again_is_another_reservation():
    a, b = a_replica(1), a_replica(2)
    a.reserve(a_reservation("r", 1), 0.0)
    b.followers.replicas.apply_event(a.said[0], 0.1)
    b.free_reservation("r", 5.0)
    a.followers.replicas.apply_event(b.said[0], 5.1)
    a.reserve(a_reservation("r", 2), 6.0)
    assert repair(b, a, 9.0).added == 1
    assert list_bookings(b) == list_bookings(a)


def test_a_free_that_we_missed_is_made_up_for():
    a, b = a_replica(1), a_replica(2)
    a.reserve(a_reservation("r", 1), 0.0)
    b.followers.replicas.apply_event(a.said[0], 0.0)
    a.free_reservation("r", 1.0)
    b.reserve(a_reservation("ours", 1), 0.0)
    assert repair(b, a, 9.0).dropped == 1
    assert set(list_bookings(b)) == {"ours"}


def test_admissions_during_the_transfer_of_the_list_stay():
    a, b = a_replica(1), a_replica(2)
    pass_ = Repair(b.followers.replicas, a.followers.replicas.router_id, 0.0)
    walk = pass_.run_repair()
    page = a.inspection.list_reservations(next(walk), 0.0)
    a.reserve(a_reservation("new", 1), 0.1)
    b.followers.replicas.apply_event(a.said[0], 0.1)
    with pytest.raises(StopIteration):
        walk.send(ReservationPageAnswer(page, 0.0, 0.2))
    assert set(list_bookings(b)) == {"new"}


def test_a_list_of_another_process_is_not_followed():
    a, b = a_replica(1), a_replica(2)
    walk = Repair(b.followers.replicas, 12345, 0.0).run_repair()
    page = a.inspection.list_reservations(next(walk), 0.0)
    with pytest.raises(UnexpectedProcess):
        walk.send(ReservationPageAnswer(page, 0.0, 0.0))


def test_a_repaired_reservation_ends_when_it_ends_at_the_peer():
    a, b = a_replica(1, ttl_s=100.0), a_replica(2, ttl_s=100.0)
    a.reserve(a_reservation("r", 1), 0.0)
    repair(b, a, 90.0)
    assert ticked(b, 99.0) == []
    assert len(ticked(b, 101.0)) == 1


def test_prefill_that_is_over_at_one_is_over_at_both():
    a, b = a_replica(1), a_replica(2)
    for name in ("x", "y"):
        a.reserve(a_reservation(name, 1), 0.0)
    for event in a.said:
        b.followers.replicas.apply_event(event, 0.0)
    a.complete_prefill("x", 1.0)
    b.complete_prefill("y", 1.0)
    b.said.clear()
    done = repair(b, a, 9.0)
    assert (done.changed, done.repeated) == (1, 1)
    a.followers.replicas.apply_event(b.said[0], 9.0)
    assert list_bookings(a) == list_bookings(b) == {"x": (Rank(1, 0), 0), "y": (Rank(1, 0), 0)}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prefill_tokens", -1),
        ("isl_tokens", 2**63),
        ("age_seconds", -1.0),
        ("router_id", 2**64),
        ("sequence_hashes", [-1]),
    ],
)
def test_a_list_with_numbers_out_of_range_is_refused(field, value):
    a = a_replica(1)
    a.reserve(a_reservation("r", 1), 0.0)
    page = a.inspection.list_reservations(ReservationFilter(sequence_hashes=True), 0.0)
    setattr(page.reservations[0], field, value)
    with pytest.raises(ValueError, match="out of range"):
        validate_row(page.reservations[0])


def test_a_repair_books_nothing_from_a_peer_with_another_block_size():
    a, b = a_replica(1), a_replica(2, workers=0)
    b.register_worker(a_worker(1, block_size=8))
    a.reserve(a_reservation("r", 1, tokens=400), 0.0)
    assert repair(b, a, 1.0) == RepairResult(refused=1)
    assert list_bookings(b) == {}


def test_a_peer_without_a_block_size_is_trusted():
    a, b = a_replica(1), a_replica(2)
    a.reserve(a_reservation("r", 1), 0.0)

    def page_of(wanted):
        page = a.inspection.list_reservations(wanted, 1.0)
        assert [row.block_size for row in page.reservations] == [4]
        page.reservations[0].block_size = msgspec.UNSET
        return page

    follow(
        Repair(b.followers.replicas, a.followers.replicas.router_id, 1.0).run_repair(), page_of, 1.0
    )
    assert set(list_bookings(b)) == {"r"}


def test_a_repair_lets_others_have_their_turn(monkeypatch):
    monkeypatch.setattr(replica_repair, "TURN_WORK_MAX", 20)
    a, b = a_replica(1), a_replica(2)
    for n in range(50):
        a.reserve(a_reservation(f"r{n}", 1), 0.0)
    walk = Repair(b.followers.replicas, a.followers.replicas.router_id, 1.0).run_repair()
    turns = follow(walk, lambda wanted: a.inspection.list_reservations(wanted, 1.0), 1.0)
    assert list_bookings(b) == list_bookings(a)
    assert turns >= 25


def test_a_long_prompt_has_its_first_blocks_booked_by_name(monkeypatch):
    monkeypatch.setattr(load_booking, "BOOKED_BLOCKS_MAX", 3)
    monkeypatch.setattr(replica_repair, "BOOKED_BLOCKS_MAX", 3)
    a, b, c = a_replica(1), a_replica(2), a_replica(3)
    a.reserve(a_reservation("r", 1, tokens=40), 0.0)
    assert [row.potential_decode_blocks for row in next(a.inspection.partition_loads()).loads] == [
        10,
        0,
        0,
        0,
    ]
    assert [
        (row.prompt_blocks, row.output_blocks)
        for row in a.ledger.reservations.list_page(ReservationFilter(), 0.0).reservations
    ] == [(10, 0)]
    b.followers.replicas.apply_event(a.said[0], 0.0)
    assert repair(c, a, 1.0).added == 1
    for replica in (b, c):
        booking = replica.ledger.reservations.find_reservation("r")
        assert (booking.prompt_blocks, booking.untracked_blocks) == (3, 7)
        loads = [
            row.potential_decode_blocks for row in next(replica.inspection.partition_loads()).loads
        ]
        assert loads == [
            row.potential_decode_blocks for row in next(a.inspection.partition_loads()).loads
        ]
        assert repair(replica, a, 2.0) == RepairResult()
    b.followers.replicas.apply_event(
        an_event(ReservationFreed, router_id=a.followers.replicas.router_id), 3.0
    )
    assert [row.potential_decode_blocks for row in next(b.inspection.partition_loads()).loads] == [
        0
    ] * 4
    b.check_invariants()


def test_old_endings_are_forgotten_a_few_per_turn(monkeypatch):
    monkeypatch.setattr(tombstones, "EXPIRED_PER_TURN_MAX", 2)
    remembered = Tombstones()
    for number in range(5):
        remembered.record_freed(f"r{number}", 1, 0.0)
    left, more = [], True
    while more:
        more = remembered.drop_expired(tombstones.TOMBSTONE_S_MAX)
        left.append(len(remembered))
    assert left == [3, 1, 0]


def test_bookings_of_peers_are_observed_there_alone():
    selector = a_replica()
    selector.followers.replicas.apply_event(an_event(ReservationAdmitted), 1.0)
    selector.select_and_reserve(a_select_and_reserve(reservation_id="ours"), 1.0)
    selector.followers.replicas.apply_event(an_event(PrefillCompleted), 1.5)
    counted = selector.ledger.reservations.sums.find_observed(KEY)
    assert counted[observation_layout.PROMPTS + N_PROMPTS] == 1
    assert counted[observation_layout.TTFT_US] == 0
    selector.complete_prefill("ours", 1.5)
    assert counted[observation_layout.TTFT_US] == 500_000
