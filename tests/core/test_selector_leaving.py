"""Tests of ranks that leave with many reservations, and many expired leases: a budget per turn."""

from itertools import count
from random import Random

import numpy as np
import pytest

from indexer.index.slot_table import SlotTable
from select_service.base.errors import CapacityExceeded, NotFound
from select_service.core.identity import Rank
from select_service.core.load import ledger
from select_service.core.selector_builder import SelectorConfig, build_selector
from tests.builders import a_reservation, a_select, a_selector, a_worker
from tests.builders.selector_scenes import KEY, store
from tests.builders.steps import lines_of
from tests.builders.ticks import ticked

MANY = 20
BLOCKS = 2  # per reservation
PER_TURN = 4
WORK = PER_TURN * (ledger.RELEASE_WORK + BLOCKS)


def loaded(workers=2, ttl_s=3600.0):
    """Return a selector with many reservations on worker 1."""
    selector = a_selector(ttl_s=ttl_s)
    for worker_id in range(1, workers + 1):
        selector.register_worker(a_worker(worker_id))
    for number in range(MANY):
        selector.reserve(a_reservation(f"r{number}", 1), 0.0)
    return selector


def turns_of(selector, verb):
    """Return the number of reservations left after each turn of a verb."""
    left = [len(selector.ledger.reservations)]
    while verb():
        left.append(len(selector.ledger.reservations))
        selector.check_invariants()
    return [*left, len(selector.ledger.reservations)]


def test_leases_that_end_at_once_are_released_a_budget_at_a_time():
    selector = loaded(ttl_s=10.0)
    left = turns_of(selector, lambda: selector.expire_reservations(10.0, WORK).has_more)
    assert left == list(range(MANY, -1, -PER_TURN))
    assert selector.ledger.expired_count == MANY


def test_reservations_of_a_rank_that_left_are_released_a_budget_at_a_time():
    selector = loaded()
    selector.delete_worker(1, 0.0)
    left = turns_of(selector, lambda: selector.drain_removed_ranks(0.0, WORK))
    assert left == list(range(MANY, -1, -PER_TURN))
    assert selector.ledger.released_with_rank == MANY


def test_a_tick_and_a_turn_take_no_more_than_their_budget(monkeypatch):
    monkeypatch.setattr(ledger, "RELEASE_WORK", ledger.TURN_WORK_MAX // PER_TURN)
    selector = loaded(ttl_s=10.0)
    assert len(ticked(selector, 10.0)) == PER_TURN
    selector.delete_worker(1, 10.0)
    selector.run_pending(10.0)
    assert len(selector.ledger.reservations) == MANY - 2 * PER_TURN


def test_a_leaving_rank_takes_no_load_and_keeps_its_slot():
    selector = loaded(workers=1)
    (partition,) = selector.fleet.partitions.values()
    slot = partition.table.find_slot(Rank(1, 0))
    selector.delete_worker(1, 0.0)
    assert selector.drain_removed_ranks(0.0, WORK)
    selector.register_worker(a_worker(2))
    for writer in selector.fleet.take_changes().retired:
        writer.close()
    assert selector.select(a_select(), 0.0).selection.worker_id == 2
    assert next(selector.inspection.partition_loads()).loads[0].active_requests == 0
    selector.register_worker(a_worker(1))
    assert selector.fleet.partitions[KEY].table.find_slot(Rank(1, 0)) is not None
    with pytest.raises(NotFound):
        selector.reserve(a_reservation("x", 1, dp_rank=1), 0.0)
    while selector.drain_removed_ranks(0.0, WORK):
        selector.check_invariants()
    (writer,) = selector.fleet.take_changes().retired
    assert writer.slot == slot


def test_the_id_of_a_reservation_on_a_leaving_rank_is_free():
    selector = loaded()
    selector.delete_worker(1, 0.0)
    selector.reserve(a_reservation("r7", 2), 0.0)
    assert selector.ledger.reservations.get_reservation("r7").rank == Rank(2, 0)
    selector.free_reservation("r3", 0.0)
    while selector.drain_removed_ranks(0.0, WORK):
        selector.check_invariants()
    assert [booking.reservation_id for booking in selector.ledger.reservations] == ["r7"]
    assert selector.ledger.released_with_rank == MANY - 1


def test_the_end_of_a_lease_finds_a_reservation_that_is_leaving():
    selector = loaded(ttl_s=10.0)
    selector.delete_worker(1, 0.0)
    assert len(ticked(selector, 10.0)) == MANY
    selector.run_pending(10.0)
    assert not selector.fleet.leaving
    selector.check_invariants()


def test_only_changed_workers_are_passed_to_listeners():
    selector = a_selector(use_kv_events=True)
    endpoint = {"kv_events_endpoint": "tcp://127.0.0.1:1"}
    for worker_id in (1, 2):
        selector.register_worker(a_worker(worker_id, **endpoint))
    changes = selector.fleet.take_changes()
    assert {w: len(sources) for w, sources in changes.sources.items()} == {1: 1, 2: 1}
    assert not selector.fleet.has_changes
    store(selector, Rank(2, 0), 8)
    selector.reserve(a_reservation("r", 2), 0.0)
    selector.delete_worker(2, 0.0)
    changes = selector.fleet.take_changes()
    assert (changes.sources, changes.retired) == ({2: []}, [])
    selector.run_pending(0.0)
    assert selector.fleet.has_changes
    assert [writer.slot for writer in selector.fleet.take_changes().retired] == [1]


def test_a_worker_costs_its_own_ranks_in_a_fleet_of_any_size():
    selector = a_selector()
    costs = []
    for worker_id in range(300):
        given = a_worker(worker_id, data_parallel_size=2, taints=["x"], total_kv_blocks=9)
        costs.append(lines_of(lambda given=given: selector.register_worker(given)))
    assert max(costs[250:]) <= 1.5 * max(costs[1:50])
    gone = [
        lines_of(lambda w=worker_id: selector.delete_worker(w, 0.0)) for worker_id in (280, 290)
    ]
    few = a_selector()
    for worker_id in range(3):
        few.register_worker(
            a_worker(worker_id, data_parallel_size=2, taints=["x"], total_kv_blocks=9)
        )
    assert max(gone) <= 1.5 * lines_of(lambda: few.delete_worker(1, 0.0))


@pytest.mark.parametrize("error", [MemoryError("no"), OSError(12, "Cannot allocate memory")])
def test_a_worker_without_memory_for_its_index_changes_nothing(error):
    def no_index():
        raise error

    selector = build_selector(SelectorConfig(use_kv_events=False), no_index, rng=Random(0))
    with pytest.raises(CapacityExceeded, match="out of memory"):
        selector.register_worker(a_worker(1))
    assert selector.list_workers() == []
    assert not selector.fleet.has_changes
    selector.check_invariants()


def test_a_worker_without_memory_for_its_slots_changes_nothing(monkeypatch):
    selector = a_selector()
    selector.register_worker(a_worker(1))
    opened, real = [], SlotTable.assign_lowest

    def enter(slots, writer):
        if len(opened) == 2:
            raise MemoryError
        real(slots, writer)
        opened.append(writer)

    monkeypatch.setattr(SlotTable, "assign_lowest", enter)
    with pytest.raises(CapacityExceeded):
        selector.register_worker(a_worker(2, data_parallel_size=3))
    assert [worker.worker_id for worker in selector.list_workers()] == [1]
    assert not any(writer.is_open for writer in opened)
    assert selector.select(a_select(), 0.0).selection.worker_id == 1
    opened.clear()
    assert selector.register_worker(a_worker(2, data_parallel_size=2)).lifecycle == "schedulable"
    selector.check_invariants()


def without_memory_after(patch, arrays):
    """Let this many arrays be allocated, and none after them."""
    left = [arrays]

    def failing(real):
        def make(*args, **kwargs):
            if not left[0]:
                raise MemoryError
            left[0] -= 1
            return real(*args, **kwargs)

        return make

    for name in ("zeros", "ones", "full", "empty", "vstack", "concatenate"):
        patch.setattr(np, name, failing(getattr(np, name)))


def test_a_worker_without_memory_for_any_array_changes_nothing(monkeypatch):
    """Check 73 slots, above the first 64 of index and load and the first 8 of the table."""
    few, many = a_worker(1, data_parallel_size=3), a_worker(2, data_parallel_size=70)
    for arrays in count():
        selector = a_selector()
        selector.register_worker(few)
        selector.reserve(a_reservation("r", 1), 0.0)
        with monkeypatch.context() as patch:
            without_memory_after(patch, arrays)
            try:
                selector.register_worker(many)
                break
            except CapacityExceeded:
                pass
        assert [worker.worker_id for worker in selector.list_workers()] == [1]
        selector.check_invariants()
        assert selector.register_worker(many).lifecycle == "schedulable"
        selector.reserve(a_reservation("s", 2, dp_rank=69), 0.0)
        selector.check_invariants()
    assert arrays > 10
