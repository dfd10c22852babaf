"""Tests of the ledger against its naive twin: every cause of a change, budgets, and events."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from select_service.base.errors import Conflict, NotFound
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.compiled import load_layout as layout
from select_service.core.load.compiled.ledger_layout import N_COUNTED
from select_service.core.load.ledger import RELEASE_WORK, Ledger
from select_service.core.load.live_counter import LiveCounter
from select_service.core.load.new_reservation import LoadAccount, NewReservation
from select_service.core.load.reservation_move import MoveTarget
from select_service.core.load.reservations import Reservations
from tests.builders.hypothesis_profiles import explored
from tests.builders.refusals import is_refused
from tests.models.ledger_model import LedgerEntry, LedgerModel

TTL_S = 20.0
SLOTS = 3
KEYS = (PartitionKey("m", "a"), PartitionKey("m", "b"))
NAMES = st.sampled_from(["", "a", "abcdefgh", "abcdefghi", "é" * 70, "z" * 127])
PLACES = st.tuples(st.integers(0, 1), st.integers(0, SLOTS - 1))
ONE_RELEASE = RELEASE_WORK + 1
CAUSES = st.sampled_from(["client", "replica"])


class RecordingFollower:
    """Follower that stores its events."""

    def __init__(self):
        self.live, self.prefilling, self.causes = set(), set(), []
        self.completions = self.bookings = 0

    def on_booked(self, booking, cause, now):
        assert booking.reservation_id not in self.live
        self.live.add(booking.reservation_id)
        self.bookings += 1
        self.prefilling.add(booking.reservation_id)

    def on_prefill_completed(self, booking, cause, now):
        assert booking.reservation_id in self.live
        self.prefilling.discard(booking.reservation_id)
        self.completions += 1

    def on_released(self, booking, cause, now):
        self.live.remove(booking.reservation_id)
        self.prefilling.discard(booking.reservation_id)
        self.causes.append(cause)


class LedgerMatchesModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now, self.wakes = 0.0, 0
        self.touched = DirtyPartitions(self.wake)
        self.touched.watch_partitions(set(KEYS))
        self.ledger = Ledger(Reservations(TTL_S), self.touched)
        self.heard = RecordingFollower()
        self.ledger.add_listener(self.heard)
        self.accounts = [LoadAccount(key, 4) for key in KEYS]
        for account in self.accounts:
            account.ensure_slots(SLOTS)
        self.model = LedgerModel(TTL_S)
        self.counts = [LiveCounter(), LiveCounter()]

    def wake(self):
        self.wakes += 1

    @rule(
        name=NAMES,
        place=PLACES,
        hashes=st.lists(st.integers(0, 4), max_size=20),
        tokens=st.integers(0, 9),
        origin=st.sampled_from([None, 7]),
        lease_s=st.sampled_from([None, 5.0, 30.0]),
    )
    def book(self, name, place, hashes, tokens, origin, lease_s):
        if place in self.model.leaving:
            return
        cause = "client" if origin is None else "replica"
        old = self.model.held.get(name)
        taken = old is not None and (old.account, old.slot) not in self.model.leaving
        if cause == "client" and taken:
            is_refused(Conflict, self.ledger.check_id_free, name)
            return
        booking = NewReservation(
            name,
            self.accounts[place[0]],
            Rank(place[1], 0),
            place[1],
            np.array(hashes, np.uint64),
            8,
            tokens,
            self.now,
            origin=origin,
        )
        self.ledger.book(booking, cause, self.now, lease_s)
        self.model.held.pop(name, None)  # the newest is the last
        self.model.book(name, LedgerEntry(*place, hashes, tokens, origin, self.now), lease_s)

    @rule(name=NAMES, cause=CAUSES, renews=st.booleans())
    def complete_prefill(self, name, cause, renews):
        if name in self.model.held:
            touched, heard = dict(self.touched.partitions), self.heard.completions
            if renews:
                self.ledger.complete_by_id(name, cause, self.now)
                self.model.renew(name, self.now)
            else:
                self.ledger.complete_prefill(
                    self.ledger.reservations.get_reservation(name), cause, self.now
                )
            assert self.heard.completions == heard + 1  # the same after a repeated call
            if not self.model.held[name].prefill_tokens:
                assert self.touched.partitions == touched
            self.model.held[name].prefill_tokens = 0

    @rule(name=NAMES, fraction=st.sampled_from([None, 0.5]))
    def add_output_block(self, name, fraction):
        if name in self.model.held:
            self.ledger.add_output_block(name, fraction, self.now)
            self.model.renew(name, self.now)
            self.model.held[name].output_blocks += 1

    @rule(name=NAMES)
    def renew(self, name):
        if name in self.model.held:
            self.ledger.renew_lease(name, self.now)
            self.model.renew(name, self.now)

    @rule(name=NAMES)
    def unknown_names_are_not_found(self, name):
        if name not in self.model.held:
            is_refused(NotFound, self.ledger.renew_lease, name, self.now)
            is_refused(NotFound, self.ledger.complete_by_id, name, "client", self.now)
            is_refused(NotFound, self.ledger.add_output_block, name, None, self.now)
            is_refused(NotFound, self.ledger.free_by_id, name, "client", self.now)
            assert self.ledger.reservations.find_reservation(name) is None

    @rule(name=NAMES, cause=CAUSES, by_name=st.booleans())
    def release(self, name, cause, by_name):
        if name in self.model.held:
            if by_name:
                self.ledger.free_by_id(name, cause, self.now)
            else:
                self.ledger.release(self.ledger.reservations.get_reservation(name), cause, self.now)
            del self.model.held[name]
            assert self.heard.causes[-1] == cause

    @rule(name=NAMES, slot=st.integers(0, SLOTS - 1), tokens=st.none() | st.integers(0, 9))
    def move(self, name, slot, tokens):
        held = self.model.held.get(name)
        if held is None or (held.account, slot) in self.model.leaving:
            return
        booking, heard = self.ledger.reservations.get_reservation(name), self.heard.bookings
        was, age = booking.is_prefilling, booking.booked_at
        drained = booking.account.drained_totals
        self.ledger.move(booking, MoveTarget(Rank(slot, 0), slot, tokens), self.now)
        self.model.move(name, slot, tokens)
        moved = self.ledger.reservations.get_reservation(name)
        assert (moved.rank, moved.slot, moved.booked_at) == (Rank(slot, 0), slot, age)
        assert moved.is_prefilling == (was if tokens is None else True)
        assert moved.account.drained_totals == drained
        assert self.heard.causes[-1] == "moved"
        assert self.heard.bookings == heard + 1
        assert (name in self.heard.prefilling) == moved.is_prefilling

    @rule(name=NAMES, origin=st.sampled_from([None, 7, 8]))
    def assign(self, name, origin):
        if name in self.model.held:
            self.ledger.assign_origin(self.ledger.reservations.get_reservation(name), origin)
            self.model.held[name].origin = origin

    @rule(name=NAMES, number=st.integers(0, 1))
    def count(self, name, number):
        """Count a reservation while it lives, for the first counter only."""
        held = self.model.held.get(name)
        if held is not None:
            memory, row = (
                self.ledger.reservations.memory,
                self.ledger.reservations.get_reservation(name).row,
            )
            memory.count_while_live(row, self.counts[number])
            held.counted_by = number if held.counted_by is None else held.counted_by

    @rule(seconds=st.sampled_from([1.0, 5.0, 30.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(releases=st.integers(1, 4))
    def expire(self, releases):
        overdue = self.model.find_overdue(self.now)
        turn = self.ledger.expire_leases(self.now, releases * ONE_RELEASE)
        ended = set(turn.ended_ids)
        assert ended <= overdue
        assert len(ended) <= releases + 1
        assert turn.has_more == (ended < overdue)
        for name in ended:
            del self.model.held[name]

    @rule(place=PLACES)
    def leave(self, place):
        self.accounts[place[0]].leaving_slots.add(place[1])
        self.model.leaving.add(place)

    @precondition(lambda self: self.model.leaving)
    @rule(number=st.integers(0, 9), releases=st.integers(1, 3))
    def empty_slot(self, number, releases):
        place = sorted(self.model.leaving)[number % len(self.model.leaving)]
        account, before = self.accounts[place[0]], len(self.ledger.reservations)
        work = self.ledger.empty_slot(account, place[1], self.now, releases * ONE_RELEASE)
        assert work >= (before - len(self.ledger.reservations)) * RELEASE_WORK
        left = {b.reservation_id for b in self.ledger.reservations.iterate_slot(account, place[1])}
        gone = self.model.on(*place) - left
        assert len(gone) == before - len(self.ledger.reservations) <= releases
        for name in gone:
            del self.model.held[name]
        if not left:
            account.leaving_slots.discard(place[1])
            self.model.leaving.discard(place)

    @rule()
    def begin_turn(self):
        self.touched.begin_turn()
        self.touched.partitions.clear()
        self.wakes = 0

    @invariant()
    def they_agree(self):
        assert [b.reservation_id for b in self.ledger.reservations] == list(self.model.held)
        for b in self.ledger.reservations:
            held = self.model.held[b.reservation_id]
            assert b.sequence_hashes.tolist() == held.hashes
            assert (b.prefill_tokens, b.origin) == (held.prefill_tokens, held.origin)
            assert (b.renewed_at, b.output_blocks) == (held.renewed_at, held.output_blocks)
            assert b.lease_ends_at == self.model.end_of(held)
        for number, account in enumerate(self.accounts):
            for slot in range(SLOTS):
                totals = account.load.totals[slot]
                got = int(totals[layout.PREFILL_TOKENS]), int(totals[layout.REQUESTS])
                assert got == self.model.totals(number, slot)
        sums = self.ledger.reservations.sums.iterate_sums()
        got = {(KEYS.index(key), origin): s[:2] for (key, origin), s in sums}
        assert got == self.model.sums()
        counted = [held.counted_by for held in self.model.held.values()]
        assert [each.numbers[0] for each in self.counts] == [counted.count(0), counted.count(1)]
        blocks = [
            sum(len(h.hashes) for h in self.model.held.values() if h.counted_by == by)
            for by in (0, 1)
        ]
        assert [each.numbers[1] for each in self.counts] == blocks
        everybody = np.ones(len(self.ledger.reservations.sums.tenants_mask(frozenset())), np.bool_)
        everything = sum(len(h.hashes) for h in self.model.held.values())
        assert self.ledger.reservations.sums.count_reservations(everybody) == (
            len(counted),
            everything,
        )
        is_counted = self.ledger.reservations.memory.numbers[N_COUNTED]
        assert is_counted == len(counted) - counted.count(None)
        assert self.heard.live == self.model.held.keys()
        assert self.wakes <= 1
        assert bool(self.touched.partitions) <= bool(self.wakes)
        self.ledger.check_invariants()


TestLedger = explored(LedgerMatchesModel)
