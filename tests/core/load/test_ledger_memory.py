"""Tests of the ledger's rows, names and chunks: found, reused, bounded."""

from random import Random

import numpy as np
import pytest

from select_service.base.errors import CapacityExceeded
from select_service.core.load import ledger_memory, reservations
from select_service.core.load.compiled import ledger_layout as layout
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX
from select_service.core.load.reservations import ReservationFilter
from tests.core.load.loads import Loads

NAMES = 3000


def number(loads, which):
    return int(loads.ledger.reservations.memory.header[which])


def a_name(rng):
    return "n" * rng.choice((0, 1, 7, 8, 100, 500)) + str(rng.getrandbits(60))


def test_names_come_and_go_by_thousands_and_are_found():
    rng, loads, live = Random(1), Loads(), {}
    for turn in range(3):
        while len(live) < NAMES:
            hashes = [rng.getrandbits(64) for _ in range(rng.choice((0, 1, 15, 16, 40)))]
            name = a_name(rng)
            live[name] = hashes
            loads.add(name, 0, hashes)
        held = loads.ledger.reservations
        for name, hashes in live.items():
            assert held.get_reservation(name).sequence_hashes.tolist() == hashes
        assert held.find_reservation("n") is None
        held.check_invariants()
        for name in rng.sample(sorted(live), NAMES if turn == 2 else NAMES // 2):
            loads.remove(name)
            del live[name]
    assert number(loads, layout.CHUNKS_TAKEN) == 0
    assert number(loads, layout.ROWS_USED) == NAMES + 1
    assert number(loads, layout.BUCKETS) >= NAMES - 1
    loads.load.check_invariants()


def test_a_released_row_is_the_next_that_is_taken_and_no_view_is_equal_to_the_other():
    loads = Loads()
    loads.add("a", 0, [1])
    old = loads.ledger.reservations.get_reservation("a")
    loads.remove("a")
    loads.add("a", 0, [1])
    new = loads.ledger.reservations.get_reservation("a")
    assert (old.row, old == new, new == loads.ledger.reservations.get_reservation("a")) == (
        new.row,
        False,
        True,
    )


def test_marks_are_equal_in_every_process_and_differ_by_rank_and_id():
    marks = []
    for loads in (Loads(), Loads()):
        for name, slot in (("", 0), ("a", 1), ("b", 1), ("ab" * 200, 0)):
            loads.add(name, slot, [])
        marks.append([booking.fingerprint for booking in loads.ledger.reservations])
    assert marks[0] == marks[1]
    moved = Loads()
    moved.add("a", 0, [])
    assert len({*marks[0], moved.ledger.reservations.get_reservation("a").fingerprint}) == 5


def test_pages_continue_after_the_last_row_even_if_rows_have_gone():
    loads = Loads()
    for name in range(50):
        loads.add(name, name % 2, [name])
    for name in range(10, 30):
        loads.remove(name)
    loads.add("new", 0, [])
    found, after = [], None
    while after is not None or not found:
        wanted = ReservationFilter(limit=4, after=after, sequence_hashes=True)
        page = loads.ledger.reservations.list_page(wanted, 0.0)
        found += [row.reservation_id for row in page.reservations]
        after = page.next
    assert found == [str(name) for name in (*range(10), *range(30, 50))] + ["new"]
    assert loads.ledger.reservations.list_from(12, 1)[0].reservation_id == "30"


def test_a_full_ledger_rejects_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(ledger_memory, "RESERVATIONS_MAX", 3)
    monkeypatch.setattr(reservations, "RESERVATIONS_MAX", 3)
    monkeypatch.setattr(ledger_memory, "RESERVED_BLOCKS_MAX", 20)
    monkeypatch.setattr(reservations, "RESERVED_BLOCKS_MAX", 20)
    monkeypatch.setattr(ledger_memory, "CHUNKS_MAX", 8)
    loads = Loads()
    loads.add("a", 0, range(10))
    with pytest.raises(CapacityExceeded, match="prompt blocks"):
        loads.add("b", 0, range(11))
    with pytest.raises(CapacityExceeded, match="ids"):
        loads.add("b" * 512 * 2, 0, [])
    loads.add("b", 0, range(10))
    loads.add("c", 0, [])
    with pytest.raises(CapacityExceeded, match=r"reservation limit reached \(3\)"):
        loads.add("d", 0, [])
    loads.add("c", 1, [])  # takes the place of the other
    assert [b.reservation_id for b in loads.ledger.reservations] == ["a", "b", "c"]
    loads.ledger.check_invariants()


def test_the_scratch_of_a_reservation_fits_the_most_named_blocks():
    loads = Loads()
    loads.add("a", 0, np.arange(BOOKED_BLOCKS_MAX + 5))
    assert loads.active() == BOOKED_BLOCKS_MAX
    loads.output_block("a", 0.5)
    loads.remove("a")
    assert loads.active() == 0
