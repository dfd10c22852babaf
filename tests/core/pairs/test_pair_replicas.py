"""Tests of pairs between replicas: both legs everywhere, ended by a call at any replica."""

import msgspec
import numpy as np
import pytest

from select_service.core.identity import Rank
from select_service.core.load.compiled.observation_layout import TTFT
from select_service.core.load.histogram_bins import TIME_BINS
from select_service.core.load.prefill_legs import prefill_leg_of
from select_service.core.load.reservations import ReservationFilter
from select_service.core.pairs.pair_book import EXAMINED_S, ORPHAN_S
from select_service.core.placement.router_config import RouterConfig
from select_service.core.replication.load_events import (
    LoadEventEncoder,
    ReservationAdmitted,
    decode_event,
)
from select_service.core.replication.repair import Repair, ReservationPageAnswer
from select_service.core.replication.replica_liveness import LIVENESS_TIMEOUT_S
from select_service.schemas.pairs import LegConstraints, PairRecord
from select_service.schemas.reservations import ReservationPage
from tests.builders import a_selector
from tests.core.pairs.test_pair_life import a_pair, a_pair_worker


class Replicas:
    """Two replicas with immediate delivery of events, unless dropped."""

    def __init__(self):
        self.selectors = [a_selector(RouterConfig(policy="work"), seed=k) for k in range(2)]
        self.is_cut = False
        self.now = 0.0
        encode = LoadEventEncoder().encode_event
        for k, selector in enumerate(self.selectors):
            for worker_id in (1, 2, 4, 5):
                selector.register_worker(a_pair_worker(worker_id))
            selector.followers.replicas.start_sending(
                lambda event, k=k: self.carry(k, encode(event))
            )

    def carry(self, sender, payload):
        if not self.is_cut:
            other = self.selectors[1 - sender].followers.replicas
            other.apply_event(decode_event(payload), self.now)

    def settle(self):
        for selector in self.selectors * 3:
            selector.run_pending(self.now)
        for selector in self.selectors:
            selector.check_invariants()

    def booked_legs(self):
        self.settle()
        return [
            {b.reservation_id: b.rank.worker_id for b in selector.ledger.reservations}
            for selector in self.selectors
        ]

    def waiting(self):
        self.settle()
        found = []
        for selector in self.selectors:
            (partition,) = selector.fleet.partitions.values()
            found.append(selector.pairs.links.links_of(partition).placer.waiting_by_host())
        return found


@pytest.fixture
def replicas():
    return Replicas()


def book(replicas, k, name="a"):
    request = a_pair(name, list(range(40)), "never")
    return replicas.selectors[k].select_pair(request, replicas.now).pair


def test_both_legs_and_the_booked_links_are_known_everywhere(replicas):
    legs = {leg.leg: leg.worker_id for leg in book(replicas, 0).legs}
    one, other = replicas.booked_legs()
    assert one == other == {"a": legs["decode"], prefill_leg_of("a"): legs["prefill"]}
    one, other = replicas.waiting()
    assert one == other
    assert sum(one[0].values()) == 40


@pytest.mark.parametrize("reporting", [0, 1])
def test_the_end_of_the_prefill_ends_the_leg_everywhere(replicas, reporting):
    book(replicas, 0)
    replicas.selectors[reporting].complete_prefill("a", 0.0)
    one, other = replicas.booked_legs()
    assert one == other
    assert one.keys() == {"a"}
    replicas.selectors[reporting].report_first_token("a", 0.0)
    assert replicas.waiting() == [({}, {})] * 2


@pytest.mark.parametrize("prefill_at", [None, 0, 1])
@pytest.mark.parametrize("first_at", [0, 1])
def test_a_first_token_is_observed_once_where_the_pair_was_booked(replicas, prefill_at, first_at):
    replicas.now = 1.0  # 0 would mean an unknown time
    book(replicas, 0)
    if prefill_at is not None:
        replicas.selectors[prefill_at].complete_prefill("a", 1.0)
    for at in (first_at, 1 - first_at):  # a repetition changes nothing
        replicas.selectors[at].report_first_token("a", 1.0)
        assert replicas.waiting() == [({}, {})] * 2
    for selector in replicas.selectors:
        assert not selector.expire_reservations(60.0).ended_ids
        assert not selector.pairs.book.counts.unreported
    (key,) = replicas.selectors[0].fleet.partitions
    booked, other = (each.ledger.reservations.sums for each in replicas.selectors)
    assert booked.find_observed(key)[TTFT : TTFT + TIME_BINS].sum() == 1
    assert other.find_observed(key) is None
    assert sum(each.pairs.book.counts.first_tokens for each in replicas.selectors) == 1


@pytest.mark.parametrize("reporting", [0, 1])
def test_the_end_of_a_pair_ends_both_legs_everywhere(replicas, reporting):
    book(replicas, 0)
    replicas.selectors[reporting].free_reservation("a", 0.0)
    assert replicas.booked_legs() == [{}, {}]
    assert replicas.waiting() == [({}, {})] * 2


def test_a_replica_ends_the_legs_of_a_dead_one(replicas):
    book(replicas, 0)
    replicas.is_cut = True
    replicas.selectors[1].complete_prefill("a", 0.0)
    assert replicas.booked_legs()[1].keys() == {"a"}
    replicas.selectors[1].free_reservation("a", 0.0)
    assert replicas.booked_legs()[1] == {}


@pytest.mark.parametrize("booking", [0, 1])
def test_a_leg_without_its_pair_does_not_take_the_id(replicas, booking):
    """Check a booking replica lost before the decode leg was sent, and a lost decode rank."""
    carry = replicas.carry

    def carry_leg(sender, payload):
        event = decode_event(payload)
        if getattr(event, "reservation_id", "a") != "a":
            carry(sender, payload)

    replicas.carry = carry_leg
    book(replicas, 0)
    if booking == 0:
        replicas.selectors[0].ledger.free_by_id("a", "rank_left", 0.0)
    else:
        assert replicas.booked_legs()[1].keys() == {prefill_leg_of("a")}
    replicas.carry = carry
    legs = {leg.leg: leg.worker_id for leg in book(replicas, booking).legs}
    one, other = replicas.booked_legs()
    assert one == other == {"a": legs["decode"], prefill_leg_of("a"): legs["prefill"]}
    replicas.selectors[booking].free_reservation("a", 0.0)
    assert replicas.booked_legs() == [{}, {}]
    assert replicas.waiting() == [({}, {})] * 2


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_a_moved_leg_moves_everywhere_and_the_other_stays(replicas, leg):
    before = {leg.leg: leg.worker_id for leg in book(replicas, 0).legs}
    moved = replicas.selectors[0].pairs.move_leg("a", leg, 0.0)
    after = {leg.leg: leg.worker_id for leg in moved.legs}
    one, other = replicas.booked_legs()
    assert one == other
    assert before[leg] != after[leg]
    assert one["a"] == after["decode"]


def test_calls_of_a_pair_keep_both_legs_alive(replicas):
    selector = a_selector(RouterConfig(policy="work"), ttl_s=10.0)
    for worker_id in (1, 4):
        selector.register_worker(a_pair_worker(worker_id))
    selector.select_pair(a_pair("a", list(range(40)), "never"), 0.0)
    for now in (6.0, 12.0, 18.0):
        selector.renew_reservation("a", now)
        assert selector.expire_reservations(now).ended_ids == []
    assert len(selector.ledger.reservations) == 2
    assert not selector.expire_reservations(27.9).ended_ids
    assert "a" in selector.expire_reservations(28.1).ended_ids
    selector.run_pending(28.1)
    assert not len(selector.ledger.reservations)


def test_lists_show_a_pair_once_and_replicas_its_legs(replicas):
    book(replicas, 0)
    selector = replicas.selectors[1]
    page = selector.inspection.list_reservations(ReservationFilter(), 0.0)
    assert page.total == 1
    (row,) = page.reservations
    assert [leg.leg for leg in row.legs] == ["prefill", "decode"]
    assert row.reservation_id == "a"
    page = selector.inspection.list_reservations(ReservationFilter(separate_legs=True), 0.0)
    assert page.total == 2
    shown = {(row.reservation_id, row.leg) for row in page.reservations}
    assert shown == {("a", "prefill"), ("a", msgspec.UNSET)}
    # A leg alone, as after a lost event, is listed, too.
    selector.ledger.free_by_id("a", "replica", 0.0)
    (row,) = selector.inspection.list_reservations(ReservationFilter(), 0.0).reservations
    assert (row.reservation_id, row.leg) == ("a", "prefill")


@pytest.mark.parametrize(("origin", "is_ended"), [("own", True), ("live", False), ("gone", True)])
def test_the_owner_ends_a_leg_without_its_reservation(replicas, origin, is_ended):
    one, other = replicas.selectors
    book(replicas, 0)
    selector = one if origin == "own" else other
    replicas.is_cut = True
    # Not in a turn, which would end the leg as well.
    selector.ledger.free_by_id("a", "replica", 0.0)
    selector.pairs.book._ended_legs.clear()
    for now in (1.0, ORPHAN_S / 2, ORPHAN_S + EXAMINED_S + 1.0):
        if origin == "live":
            other.followers.replicas.liveness.record_digest(one.followers.replicas.router_id, now)
        while selector.pairs.book.release_orphans(now):
            pass
    left = {b.reservation_id for b in selector.ledger.reservations}
    assert left == (set() if is_ended else {prefill_leg_of("a")})


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_any_replica_moves_a_leg_by_the_constraints_of_the_request(replicas, leg, is_gone):
    one, other = replicas.selectors
    for selector in replicas.selectors:
        selector.register_worker(a_pair_worker(3))
        selector.register_worker(a_pair_worker(6))
    request = a_pair("a", list(range(42)), "never")
    allowed = {"prefill": LegConstraints(allowed_worker_ids=[1, 3])}
    allowed["decode"] = LegConstraints(allowed_worker_ids=[4, 6])
    request = msgspec.structs.replace(request, **allowed)
    booked = one.select_pair(request, 0.0).pair
    replicas.is_cut = is_gone
    moved = other.pairs.move_leg("a", leg, 0.0)
    before, after = ({each.leg: each.worker_id for each in pair.legs} for pair in (booked, moved))
    expected = dict(before)
    expected[leg] = ({1, 3} if leg == "prefill" else {4, 6}).difference(before.values()).pop()
    assert after == expected
    assert moved.handoff is not msgspec.UNSET
    held = replicas.booked_legs()
    place = {"a": after["decode"], prefill_leg_of("a"): after["prefill"]}
    assert held[1] == place
    waiting = replicas.waiting()
    assert sum(waiting[1][0].values()) == 42
    replicas.now = 1.0
    if not is_gone:
        assert held[0] == place
        assert waiting[0] == waiting[1]
        # Both replicas have the present ranks, and calls succeed at either.
        repeated = msgspec.structs.replace(request, repeat=True)
        for selector in replicas.selectors:
            again = selector.select_pair(repeated, 1.0).pair
            assert {each.leg: each.worker_id for each in again.legs} == after
        for name in place:
            legs = [each.ledger.reservations.get_reservation(name) for each in (one, other)]
            assert sorted(booking.origin is None for booking in legs) == [False, True]
        one.complete_prefill("a", 1.0)
        one.report_first_token("a", 1.0)
        assert replicas.waiting() == [({}, {})] * 2
    other.free_reservation("a", 1.0)
    assert replicas.booked_legs()[1] == {}
    assert is_gone or replicas.booked_legs() == [{}, {}]


@pytest.mark.parametrize("local", ["never", "always"])
def test_a_lost_decode_rank_is_left_at_any_replica(replicas, local):
    one, other = replicas.selectors
    one.select_pair(a_pair("a", list(range(40)), local), 0.0)
    before = replicas.booked_legs()[1]["a"]
    replicas.is_cut = True
    moved = other.pairs.move_leg("a", "decode", 0.0)
    assert moved.legs[1].worker_id != before
    assert moved.path == ("remote" if local == "never" else "local")
    assert other.pairs.book.find_pair("a").answer is moved


def delete_worker(selector, worker_id, now):
    selector.delete_worker(worker_id, now)
    selector.drain_removed_ranks(now)


@pytest.mark.parametrize("has_decode_leg", [True, False])
def test_a_pair_ends_everywhere_with_the_decode_rank_of_its_replica(replicas, has_decode_leg):
    """A decode rank that is missing at a peer alone ends no pair."""
    one, other = replicas.selectors
    replicas.now = 1.0
    if not has_decode_leg:
        for worker_id in (4, 5):
            delete_worker(other, worker_id, 1.0)
    legs = {leg.leg: leg.worker_id for leg in book(replicas, 0).legs}
    if has_decode_leg:
        delete_worker(other, legs["decode"], 1.0)
    prefill = {prefill_leg_of("a"): legs["prefill"]}
    assert replicas.booked_legs() == [{"a": legs["decode"], **prefill}, prefill]
    delete_worker(one, legs["decode"], 1.0)
    assert replicas.booked_legs() == [{}, {}]
    for selector in replicas.selectors:
        for worker_id in (4, 5):
            selector.register_worker(a_pair_worker(worker_id))
    legs = {leg.leg: leg.worker_id for leg in book(replicas, 1).legs}  # the id is free again
    held = {"a": legs["decode"], prefill_leg_of("a"): legs["prefill"]}
    assert replicas.booked_legs() == [held, held]


def test_a_leg_ends_with_the_decode_rank_where_its_replica_is_gone(replicas):
    _, other = replicas.selectors
    legs = {leg.leg: leg.worker_id for leg in book(replicas, 0).legs}
    replicas.is_cut, replicas.now = True, LIVENESS_TIMEOUT_S
    delete_worker(other, legs["decode"], LIVENESS_TIMEOUT_S)
    assert replicas.booked_legs()[1] == {}


def test_a_peer_learns_of_a_leg_that_was_lost_with_its_rank(replicas):
    one, other = replicas.selectors
    legs = {leg.leg: leg.worker_id for leg in book(replicas, 0).legs}
    replicas.now = 1.0
    for selector in replicas.selectors:
        delete_worker(selector, legs["prefill"], 1.0)
    replicas.settle()
    assert list(one.pairs.book.lost_legs) == list(other.pairs.book.lost_legs) == ["a"]
    assert replicas.waiting() == [({}, {})] * 2
    moved = other.pairs.move_leg("a", "prefill", 1.0)
    assert moved.legs[0].worker_id not in legs.values()
    one_held, other_held = replicas.booked_legs()
    assert one_held == other_held
    one_waits, other_waits = replicas.waiting()
    assert one_waits == other_waits != ({}, {})
    assert not one.pairs.book.lost_legs
    assert not other.pairs.book.lost_legs


@pytest.mark.parametrize("name", [prefill_leg_of("a"), prefill_leg_of(prefill_leg_of("a"))])
def test_a_leg_that_claims_to_be_a_pair_leaves_nothing(replicas, name):
    one, other = replicas.selectors
    (partition,) = other.fleet.partitions.values()
    event = ReservationAdmitted(
        model_name="m",
        tenant_id="default",
        block_size=partition.block_size,
        reservation_id=name,
        rank=Rank(1, 0),
        router_id=one.followers.replicas.router_id,
        sequence_hashes=np.arange(4, dtype=np.uint64),
        pair=PairRecord(isl_tokens=16),
    )
    assert other.followers.replicas.apply_event(event, 0.0) is None
    assert not len(other.pairs.book)
    other.free_reservation(name, 1.0)
    assert replicas.booked_legs() == [{}, {}]


@pytest.mark.parametrize("value", [2**64, 10**30])
def test_a_record_with_an_id_of_no_worker_is_refused(value):
    text = msgspec.json.encode({"isl_tokens": 1, "allowed_worker_ids": []})
    text = text.replace(b"[]", b"[1, %d]" % value)
    with pytest.raises(msgspec.ValidationError, match="unsigned 64-bit"):
        msgspec.json.decode(text, type=PairRecord)


def test_a_late_replica_knows_pairs_from_the_list_of_another(replicas):
    one, late = replicas.selectors
    replicas.is_cut = True
    book(replicas, 0)
    rows = one.inspection.list_reservations(ReservationFilter(separate_legs=True), 0.0)
    page = msgspec.json.decode(msgspec.json.encode(rows), type=ReservationPage)
    assert [row.pair is msgspec.UNSET for row in page.reservations] == [True, False]
    repair = Repair(late.followers.replicas, one.followers.replicas.router_id, 1.0)
    steps, answer = repair.run_repair(), None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration:
            break
        listed = one.inspection.list_reservations(wanted, 0.0)
        listed = msgspec.json.decode(msgspec.json.encode(listed), type=ReservationPage)
        answer = ReservationPageAnswer(listed, 1.0, 1.1)
    held, waiting = replicas.booked_legs(), replicas.waiting()
    assert held[0] == held[1]
    assert waiting[0] == waiting[1] != ({}, {})
    moved = late.pairs.move_leg("a", "prefill", 2.0)
    assert moved.legs[0].worker_id != held[0][prefill_leg_of("a")]
