"""Tables of active load grow in bounded steps: the work is counted, whatever their size."""

import numpy as np
import pytest

from select_service.core.load import growing_table
from select_service.core.load import load_layout as layout
from select_service.core.load.booking import BOOKED_BLOCKS_MAX
from select_service.core.load.growing_table import (
    MOVED_IN_A_STEP,
    ROWS_AT_FIRST,
    GrowingTable,
)
from select_service.core.load.table_kernels import MOVED_PER_ENTRY, move_rows
from tests.core.load.loads import Loads

PROMPT = 32
TABLES = layout.REFERENCES, layout.PREFIXES, layout.HOLDERS


def moved_rows(load):
    """Rows of tables that still move that need not be looked at any more."""
    header = load.header
    return sum(int(header[t + layout.MOVED_ROWS]) for t in TABLES if header[t + layout.OLD + 1])


def book(loads, number):
    loads.add(number, number % 2, np.arange(number * PROMPT, (number + 1) * PROMPT), 1)


def loads_of(prompts):
    loads = Loads()
    for number in range(prompts):
        book(loads, number)
    return loads


def test_no_booking_moves_more_than_its_share():
    loads, steps, before = loads_of(0), [], 0
    for number in range(20_000):
        book(loads, number)
        steps.append(moved_rows(loads.load) - before)
        before += steps[-1]
    assert sum(step > 0 for step in steps) > 5000
    assert max(steps) <= len(TABLES) * (MOVED_IN_A_STEP + MOVED_PER_ENTRY * PROMPT)


def test_a_large_booking_moves_as_much_as_it_is_large():
    loads = loads_of(1000)
    loads.add("large", 0, np.arange(10**6, 10**6 + BOOKED_BLOCKS_MAX), 1)
    loads.load.check_invariants()
    moved = sum(int(loads.load.header[t + layout.MOVED_ROWS]) for t in TABLES)
    assert 0 < moved <= 4 * len(TABLES) * BOOKED_BLOCKS_MAX


def test_what_is_released_while_a_table_grows_is_gone():
    loads, number = loads_of(1000), 1000
    while not loads.load._references.is_growing:
        book(loads, number)
        number += 2
    for number in range(1, 1000, 2):
        loads.remove(number)
    loads.load.check_invariants()
    assert loads.load._references.is_growing
    assert loads.load.totals[1].tolist() == [0, 0, 0, 0]


def test_a_table_that_finds_no_memory_loses_nothing(monkeypatch):
    load = loads_of(10).load

    def none(*_):
        raise MemoryError

    monkeypatch.setattr(growing_table, "zeros", none)
    before = load.totals.copy()
    with pytest.raises(MemoryError):
        load.reserve_room(10_000)
    assert np.array_equal(load.totals, before)
    load.check_invariants()


def test_a_replaced_table_is_given_back_in_steps(monkeypatch):
    given = []
    monkeypatch.setattr(growing_table, "GIVE_BACK_BYTES", 1 << 16)
    monkeypatch.setattr(growing_table, "give_back", lambda _, at, size: given.append((at, size)))
    header = np.zeros(layout.HEADER_LENGTH, np.int64)
    table = GrowingTable(header, layout.PREFIXES, 2)
    table.reserve(16 * ROWS_AT_FIRST)
    assert table.is_growing
    while table.is_growing:
        move_rows(header, layout.PREFIXES, 2, MOVED_IN_A_STEP)
    table.give_back()
    assert given == [(0, ROWS_AT_FIRST * 2 * 8)]
    table.give_back()
    assert len(given) == 1


def test_what_a_table_has_left_behind_goes_with_the_bookings_after_it():
    loads, number = loads_of(0), 0
    references = loads.load._references
    while not references.is_growing:
        book(loads, number)
        number += 1
    while references.is_growing:
        book(loads, number)
        number += 1
    assert len(references.old) == 0
    assert not loads.load.header[layout.REFERENCES + layout.RETIRED]
