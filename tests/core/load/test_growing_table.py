"""Tables of active load grow in bounded steps: the work is counted, whatever their size."""

import numpy as np
import pytest

from select_service.core.load import growing_table, table_kernels
from select_service.core.load.active_load import ActiveLoad, OutputBlocks
from select_service.core.load.growing_table import (
    MOVED_AT_LEAST,
    MOVED_PER_ENTRY,
    ROWS_AT_FIRST,
    GrowingTable,
)

PROMPT = 32
LARGE = 20_000
TABLES = 3


@pytest.fixture
def moved(monkeypatch):
    """Rows that were looked at, by the call."""
    calls = []
    move_rows = table_kernels.move_rows

    def counting(table, old, fields, first, rows):
        end = move_rows(table, old, fields, first, rows)
        calls.append(end - first)
        return end

    monkeypatch.setattr(table_kernels, "move_rows", counting)
    return calls


def prompt(number):
    return np.arange(number * PROMPT, (number + 1) * PROMPT, dtype=np.uint64)


def load_of(prompts):
    load = ActiveLoad()
    load.ensure_slots(2)
    for number in range(prompts):
        load.add(number % 2, prompt(number), 1)
    return load


def test_no_booking_moves_more_than_its_share(moved):
    load_of(20_000)
    assert sum(moved) > TABLES * 20_000 * PROMPT / 2
    assert max(moved) <= MOVED_AT_LEAST + MOVED_PER_ENTRY * PROMPT


def test_a_large_booking_moves_as_much_as_it_is_large(moved):
    load = load_of(1000)
    del moved[:]
    load.add(0, np.arange(10**6, 10**6 + LARGE, dtype=np.uint64), 1)
    load.check_invariants()
    assert sum(moved) <= 4 * TABLES * LARGE


def test_what_is_released_while_a_table_grows_is_gone():
    load = load_of(1000)
    while not load._references.is_growing:
        load.add(0, prompt(load._references.used), 1)
    for number in range(500):
        load.remove(number % 2, prompt(number), 1, OutputBlocks())
    load.check_invariants()
    assert load._references.is_growing
    assert load.totals[1].tolist() == [250, 250, 250 * PROMPT, 0]


def test_a_table_that_finds_no_memory_loses_nothing(monkeypatch):
    load = load_of(10)

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
    table = GrowingTable(2)
    table.reserve(16 * ROWS_AT_FIRST)
    assert table.is_growing
    while table.is_growing:
        table.step(1)
    table.step(1)
    assert given == [(0, ROWS_AT_FIRST * 2 * 8)]
    table.step(1)
    assert len(given) == 1
