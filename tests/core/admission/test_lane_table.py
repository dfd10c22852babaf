"""Tests of lane rows against plain Python: wide masks, growth, removal and request order."""

from random import Random

import numpy as np
import pytest

from select_service.core.admission import flow_clock
from select_service.core.admission.flow_clock import FlowClock
from select_service.core.admission.lane_table import LaneRoom, LaneTable, LaneTickets
from select_service.core.admission.slot_bits import count_slots, pack_mask, unpack_mask
from select_service.core.admission.waiting_ticket import ConstraintLane
from select_service.core.identity import Rank

N_FLOWS = 3


class Ticket:
    """Ticket with the fields that a lane reads."""

    def __init__(self, order):
        self.order = order


def a_mask(rng, n_slots):
    """Return a mask of one slot, some slots, or all."""
    share = rng.choice([0.0, 0.02, 0.5, 1.0])
    mask = np.array([rng.random() < share for _ in range(n_slots)])
    mask[rng.randrange(n_slots)] = True
    return mask


def an_order(rng, number):
    """Return a sort key of strict priority, deadline and score, with ties."""
    due_at, score = rng.choice([1.5, 70.0, np.inf]), rng.choice([-3.25, -0.0, 0.0, 1e-9, 8.0])
    return -rng.choice([0, 0, 1]), due_at, score, number


class Both:
    """Table under test, and its lanes with the masks of their legs."""

    def __init__(self, seed):
        self.rng, self.table, self.lanes, self.count = Random(seed), LaneTable(), {}, 0

    def add(self, n_slots):
        self.count += 1
        pinned = Rank(1, 0) if self.rng.random() < 0.3 else None
        allowed = frozenset([self.count]) if self.rng.random() < 0.5 else None
        lane = LaneTickets(ConstraintLane(pinned, allowed, frozenset()), self.count % N_FLOWS, None)
        legs = [a_mask(self.rng, n_slots) for _ in range(self.rng.choice([1, 1, 2]))]
        self.table.add_lane(lane, tuple(map(pack_mask, legs)))
        order = an_order(self.rng, self.count)
        lane.tickets[order] = Ticket(order)
        self.table.note_first(lane)
        self.lanes[lane] = legs

    def remove(self):
        lane = self.rng.choice([*self.lanes])
        self.table.remove_lane(lane)
        del self.lanes[lane]

    def refresh(self, n_slots):
        lane = self.rng.choice([*self.lanes])
        self.lanes[lane] = [a_mask(self.rng, n_slots)]
        self.table.set_bits(lane, (pack_mask(self.lanes[lane][0]),))

    def check(self, n_slots):
        self.table.check_invariants()
        free, free_pinned = (
            np.array([self.rng.random() < 0.05 for _ in range(n_slots)]) for _ in range(2)
        )
        room = LaneRoom(pack_mask(free), pack_mask(free_pinned))
        able = [
            lane
            for lane, legs in self.lanes.items()
            if all(both(leg, free_pinned if lane.lane.pinned else free).any() for leg in legs)
        ]
        self.check_heads(room, able)
        awaited = np.zeros(self.table.width, np.int64)
        self.table.collect_awaited(room, awaited)
        idle = [a for a in self.lanes if a not in able and a.lane.is_constrained]
        assert slots_of(awaited) == {s for lane in idle for s in self.slots(lane)}
        found = np.zeros(self.table.width, np.int64)
        self.table.collect_candidates(found)
        assert slots_of(found) == {s for lane in self.lanes for s in self.slots(lane)}
        assert count_slots(found) == len(slots_of(found))

    def check_heads(self, room, able):
        heads = np.empty(N_FLOWS, np.int64)
        n_heads = self.table.find_heads(room, heads)
        highest = min((lane.first.order[0] for lane in able), default=None)
        expected = {}
        for lane in sorted(able, key=lambda lane: lane.first.order):
            if lane.first.order[0] == highest:
                expected.setdefault(lane.flow, lane)
        got = {f: self.table.lanes[row] for f, row in enumerate(heads.tolist()) if row >= 0}
        assert got == expected
        assert n_heads == len(expected)

    def check_rivals(self, n_slots):
        wanted = a_mask(self.rng, n_slots)
        both = [wanted, self.rng.choice([wanted, a_mask(self.rng, n_slots)])]
        packed = tuple(map(pack_mask, both))
        used = np.zeros(max(self.table.width, len(packed[0])), np.int64)
        got = self.table.find_rivals(packed, used, 1000)
        wanted = [set(np.flatnonzero(leg).tolist()) for leg in both]
        slots = set.union(*wanted)
        covering = [
            lane
            for lane, legs in self.lanes.items()
            if all(any(one <= set(np.flatnonzero(leg).tolist()) for one in wanted) for leg in legs)
        ]
        assert {lane for lane, _ in got} == set(covering)
        assert all(is_same == (self.slots(lane) == slots) for lane, is_same in got)
        assert slots_of(used) == {s for lane in covering for s in self.slots(lane)}
        assert len(self.table.find_rivals(packed, used, 1)) == min(1, len(covering))

    def slots(self, lane):
        return {s for leg in self.lanes[lane] for s in np.flatnonzero(leg).tolist()}


def both(one, other):
    n = min(len(one), len(other))
    return one[:n] & other[:n]


def slots_of(bits):
    return set(np.flatnonzero(unpack_mask(bits, 64 * len(bits))).tolist())


@pytest.mark.parametrize("seed", range(12))
def test_a_table_agrees_with_plain_python(seed):
    pair = Both(seed)
    for step in range(60):
        n_slots = pair.rng.choice([1, 5, 64, 65] + [200] * (step > 30))
        for _ in range(pair.rng.choice([1, 1, 4])):
            pair.add(n_slots)
        if pair.rng.random() < 0.4:
            pair.remove()
        if pair.lanes and pair.rng.random() < 0.4:
            pair.refresh(n_slots)
        pair.check(pair.rng.choice([1, 64, 130, 200]))
        pair.check_rivals(n_slots)


@pytest.mark.parametrize("n_slots", [1, 7, 8, 63, 64, 65, 200])
def test_masks_are_packed_and_unpacked(n_slots):
    mask = np.arange(n_slots) % 3 == 0
    bits = pack_mask(mask)
    assert len(bits) == -(-n_slots // 64)
    assert (unpack_mask(bits, n_slots) == mask).all()
    longer = unpack_mask(bits, 300)
    assert (longer[:n_slots] == mask).all()
    assert not longer[n_slots:].any()


def test_debts_of_absent_flows_are_bounded_and_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(flow_clock, "DEBTORS_MAX", 3)
    clock, bits = FlowClock(), np.array([1], np.int64)
    table, room = LaneTable(), LaneRoom(bits, bits)
    for name in "abcde":
        number = clock.add_flow(name)
        lane = LaneTickets(ConstraintLane(None, None, frozenset()), number, None)
        table.add_lane(lane, (bits,))
        lane.tickets[(0, np.inf, 0.0, number)] = Ticket((0, np.inf, 0.0, number))
        table.note_first(lane)
        assert clock.find_head(table, room, 0.0) is lane
        clock.charge_flow(number, 10.0)
        table.remove_lane(lane)
        clock.remove_flow(name, number)
    assert list(clock._debtors) == ["c", "d", "e"]
