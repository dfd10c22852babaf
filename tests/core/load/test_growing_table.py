"""Tests of active load's tables, which grow in bounded steps: the work is counted for any size."""

import resource
from itertools import count

import numpy as np
import pytest

from select_service.core.load import growing_table
from select_service.core.load.compiled import load_layout as layout
from select_service.core.load.compiled.table_kernels import (
    FIELDS,
    MARK,
    MOVED_AT_ONCE_MAX,
    MOVED_PER_ENTRY,
    move_rows,
    row_of,
)
from select_service.core.load.growing_table import (
    INITIAL_ROWS,
    MOVED_IN_A_STEP,
    ROWS_RESERVED,
    GrowingTable,
)
from select_service.core.load.ledger import MANY_BLOCKS
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX
from tests.core.load.loads import Loads

PROMPT = 32
TABLES = layout.REFERENCES, layout.PREFIXES, layout.HOLDERS


def moved_rows(load):
    """Return the number of rows already moved out of growing tables."""
    header = load.header
    return sum(
        int(header[t + layout.MOVED_ROWS]) for t in TABLES if header[t + layout.OLD_TABLE + 1]
    )


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


def test_a_large_booking_moves_rows_in_proportion_to_its_size():
    loads = loads_of(1000)
    loads.add("large", 0, np.arange(10**6, 10**6 + BOOKED_BLOCKS_MAX), 1)
    loads.load.check_invariants()
    moved = sum(int(loads.load.header[t + layout.MOVED_ROWS]) for t in TABLES)
    assert 0 < moved <= 4 * len(TABLES) * BOOKED_BLOCKS_MAX


def test_blocks_released_while_a_table_grows_are_gone():
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

    monkeypatch.setattr(growing_table, "zeroed_array", none)
    before = load.totals.copy()
    with pytest.raises(MemoryError):
        load.reserve_room(2 * BOOKED_BLOCKS_MAX)
    assert np.array_equal(load.totals, before)
    load.check_invariants()


def test_the_longest_prompt_is_booked_by_a_process_that_has_run_out_of_memory(monkeypatch):
    loads = Loads()

    def none(*_):
        raise MemoryError

    monkeypatch.setattr(growing_table, "zeroed_array", none)
    loads.add("longest", 0, np.arange(BOOKED_BLOCKS_MAX), 1)
    loads.load.check_invariants()
    loads.remove("longest")
    loads.add("another", 0, np.arange(10**6, 10**6 + BOOKED_BLOCKS_MAX), 1)
    loads.load.check_invariants()


def test_a_replaced_table_is_given_back_in_steps(monkeypatch):
    given = []
    monkeypatch.setattr(growing_table, "RETURN_STEP_BYTES", 1 << 16)
    monkeypatch.setattr(growing_table, "return_pages", lambda _, at, size: given.append((at, size)))
    header = np.zeros(layout.HEADER_LENGTH, np.int64)
    table = GrowingTable(header, layout.PREFIXES, 2)
    table.reserve_entries(16 * INITIAL_ROWS)
    assert table.is_growing
    while table.is_growing:
        move_rows(header, layout.PREFIXES, 2, MOVED_IN_A_STEP)
    table.release_memory()
    assert given == [(0, INITIAL_ROWS * 2 * 8)]
    table.release_memory()
    assert len(given) == 1


def test_later_bookings_free_a_replaced_table():
    loads, number = loads_of(0), 0
    references = loads.load._references
    while not references.is_growing:
        book(loads, number)
        number += 1
    while references.is_growing:
        book(loads, number)
        number += 1
    assert len(references.old) == 0
    assert not loads.load.header[layout.REFERENCES + layout.MEMORY_TO_RELEASE]


def prepare_all(ledger):
    """Run preparation steps until none is left; return their number."""
    for step in count():
        if not ledger._preparing:
            return step
        ledger.prepare_step()
    raise AssertionError


def test_after_a_booking_of_many_blocks_the_pages_for_the_next_ones_are_touched_in_steps(
    monkeypatch,
):
    touched, real = [], GrowingTable._touch_pages

    def touch(table, which, pages):
        before = table._touched[which]
        is_new = real(table, which, pages)
        touched[-1] += table._touched[which] - before
        return is_new

    monkeypatch.setattr(GrowingTable, "_touch_pages", touch)
    loads = Loads()
    for number in range(11):
        first = number * BOOKED_BLOCKS_MAX
        loads.add(number, 0, np.arange(first, first + BOOKED_BLOCKS_MAX))
        while loads.ledger._preparing:
            touched.append(0)
            loads.ledger.prepare_step()
        with monkeypatch.context() as patch:
            patch.setattr(growing_table, "zeroed_array", None)
            loads.load.reserve_room(BOOKED_BLOCKS_MAX)
        for table in loads.load._all_tables():
            assert table._touched == [len(table.table), len(table._next)]
    loads.load.check_invariants()
    assert max(touched) == growing_table.TOUCHED_IN_A_STEP


def test_a_table_that_grows_under_small_bookings_is_touched_ahead_once_large_ones_were_seen():
    loads, number = loads_of(1), 1
    assert prepare_all(loads.ledger) == 0
    loads.add("large", 0, np.arange(10**6, 10**6 + MANY_BLOCKS))
    assert prepare_all(loads.ledger) > 0
    while not loads.ledger._preparing:
        book(loads, number)
        number += 1
    assert loads.load._references.is_growing
    prepare_all(loads.ledger)
    for table in loads.load._all_tables():
        assert table._touched[0] == len(table.table)


def test_preparation_stops_without_memory(monkeypatch):
    loads = loads_of(1)
    loads.add("large", 0, np.arange(10**6, 10**6 + MANY_BLOCKS))

    def none(*_):
        raise MemoryError

    monkeypatch.setattr(growing_table, "zeroed_array", none)
    prepare_all(loads.ledger)
    loads.load.check_invariants()


def book_when_prepared(loads, number):
    """Prepare until a booking of the most blocks is bounded, then book; return the steps."""
    steps, first = 0, number * BOOKED_BLOCKS_MAX
    while not loads.ledger.may_book(loads.load, BOOKED_BLOCKS_MAX):
        loads.ledger.prepare_step()
        steps += 1
    loads.add(number, 0, np.arange(first, first + BOOKED_BLOCKS_MAX))
    return steps


def test_no_booking_of_many_blocks_touches_more_new_pages_than_a_step_of_preparing():
    def faults():
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

    book_when_prepared(Loads(), 0)  # loads and compiles everything, which touches pages as well
    loads, touched, steps = Loads(), [], []
    for number in range(25):
        while not loads.ledger.may_book(loads.load, BOOKED_BLOCKS_MAX):
            loads.ledger.prepare_step()
        before = faults()
        steps.append(book_when_prepared(loads, number))
        touched.append(faults() - before)
    assert not any(steps)
    assert max(touched) <= 3 * growing_table.TOUCHED_IN_A_STEP * 8 // 4096


def test_few_blocks_may_always_be_booked_and_prepare_nothing():
    loads = loads_of(1)
    assert loads.ledger.may_book(loads.load, MANY_BLOCKS - 1)
    assert loads.ledger.is_ready_for_max_booking(loads.load)
    assert loads.ledger.is_ready_everywhere()
    assert prepare_all(loads.ledger) == 0


def test_without_memory_for_preparation_a_booking_of_many_blocks_may_try(monkeypatch):
    loads = Loads()
    for number in range(10):
        book_when_prepared(loads, number)
    number = 10
    while loads.ledger.may_book(loads.load, BOOKED_BLOCKS_MAX):
        book_when_prepared(loads, number)
        number += 1

    def none(*_):
        raise MemoryError

    monkeypatch.setattr(growing_table, "zeroed_array", none)
    loads.load._references._next = loads.load._prefixes._next = growing_table._EMPTY_TABLE
    loads.load._holders._next = growing_table._EMPTY_TABLE
    prepare_all(loads.ledger)
    assert loads.ledger.may_book(loads.load, BOOKED_BLOCKS_MAX)


def test_no_booking_of_many_blocks_moves_more_rows_than_a_step_of_preparing():
    loads, steps, before = Loads(), [], 0
    for number in range(60):
        first = number * BOOKED_BLOCKS_MAX
        while not loads.ledger.may_book(loads.load, BOOKED_BLOCKS_MAX):
            loads.ledger.prepare_step()
        before = moved_rows(loads.load)
        loads.add(number, 0, np.arange(first, first + BOOKED_BLOCKS_MAX))
        steps.append(moved_rows(loads.load) - before)
    late = steps[5:]  # before, tables are hardly larger than a booking
    assert sum(step > 0 for step in late) > 2
    assert max(late) <= len(TABLES) * (MOVED_IN_A_STEP + MOVED_AT_ONCE_MAX)


def test_rows_move_in_steps_of_preparing_too():
    loads = Loads()
    for number in range(11):
        book_when_prepared(loads, number)
    assert loads.load._references.is_growing
    prepare_all(loads.ledger)
    assert not any(table.is_growing for table in loads.load._all_tables())


@pytest.mark.parametrize("owners", [1, 8, 64, 400, 512, 700, 1000, 1024])
@pytest.mark.parametrize("rows", [INITIAL_ROWS, ROWS_RESERVED, 2 * ROWS_RESERVED])
def test_searches_are_as_short_for_many_owners_of_a_key_as_for_one(rows, owners):
    """Check the mean search for a new entry: 4.1 rows at this load for random homes."""
    table = np.zeros(rows * FIELDS, np.uint64)
    keys = np.random.default_rng(1).integers(2**64, size=rows, dtype=np.uint64)
    for number in range(rows * 5 // 8):
        key, owner = keys[number // owners], np.uint64(number % owners)
        row = row_of(table, FIELDS, key, owner)
        table[row * FIELDS : row * FIELDS + FIELDS] = key, owner << np.uint64(32) | np.uint64(1)
    free = np.flatnonzero(table[MARK::FIELDS] == 0)
    lengths = np.diff(free, append=free[0] + rows).astype(float)
    assert (lengths * (lengths + 1) / 2).sum() / rows < 5.0
