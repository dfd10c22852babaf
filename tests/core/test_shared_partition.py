"""What placements read changes under the lock of the index: other threads may place meanwhile."""

import threading

import numpy as np
import pytest
from numba import njit

from indexer.index.state_kernels import i64_view, mask_view
from indexer.mutex_kernels import acquire, release
from select_service.core.identity import Rank
from select_service.core.load.load_layout import N_TOTALS, PREFILL_TOKENS, REQUESTS, TOTALS
from select_service.core.workers.rank_layout import OPEN
from tests.builders import a_patch, a_reservation, a_selector, a_worker
from tests.lock_holder import held_by_another

DEADLINE_S = 60.0
TOKENS = 8


@pytest.fixture
def selector():
    selector = a_selector()
    selector.register(a_worker(1))
    selector.reserve(a_reservation("held", tokens=TOKENS), 0.0)
    return selector


def partition_of(selector):
    (partition,) = selector.fleet.partitions.values()
    return partition


CHANGES = {
    "book": lambda selector: selector.reserve(a_reservation("new", tokens=TOKENS), 0.0),
    "complete": lambda selector: selector.prefill_complete("held", 0.0),
    "output block": lambda selector: selector.output_block("held", None, 0.0),
    "decay": lambda selector: selector.output_block("held", 0.5, 0.0),
    "free": lambda selector: selector.free("held", 0.0),
    "register": lambda selector: selector.register(a_worker(2)),
    "patch": lambda selector: selector.patch(1, a_patch(total_kv_blocks=77)),
    "delete": lambda selector: selector.delete(1, 0.0),
    "weigh": lambda selector: selector.fleet.set_weight(Rank(1, 0), 0.5, "suspicious"),
    "more slots": lambda selector: partition_of(selector).account.ensure_slots(200),
    "more rows": lambda selector: partition_of(selector).table.ensure_slots(200),
    "more scratch": lambda selector: partition_of(selector).placing.reserve_slots(200),
    "more room": lambda selector: partition_of(selector).load.reserve_room(5000),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_waits_for_those_who_read(selector, what):
    with held_by_another(partition_of(selector).index.lock) as order:
        CHANGES[what](selector)
        order.append("changed")
    assert order == ["held", "changed"]


@njit(nogil=True)
def look_on(load, ranks, mutex, end):
    """Until end[0] is set: how often a slot had another number of tokens for its requests, or the
    tables were not of one size; and how often they were looked at."""
    torn = looked = 0
    while end[0] == 0:
        acquire(mutex)
        totals = i64_view(load, TOTALS)
        n_slots = totals.shape[0] // N_TOTALS
        torn += mask_view(ranks, OPEN).shape[0] > n_slots
        for slot in range(n_slots):
            row = slot * N_TOTALS
            torn += totals[row + PREFILL_TOKENS] != TOKENS * totals[row + REQUESTS]
        looked += 1
        release(mutex)
    return torn, looked


def test_threads_without_the_interpreter_read_whole_bookings(selector):
    partition, seen = partition_of(selector), []
    end = np.ones(1, np.int64)
    given = (partition.load.header, partition.table.header, partition.index.lock.address, end)
    look_on(*given)
    end[0] = 0
    threads = [
        threading.Thread(target=lambda: seen.append(look_on(*given)), daemon=True) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for number in range(2000):
        if number % 100 == 0:
            selector.register(a_worker(2 + number // 100, data_parallel_size=8))
        name = f"r{number}"
        selector.reserve(a_reservation(name, tokens=TOKENS), 0.0)
        if number % 3:
            selector.free(name, 0.0)
    end[0] = 1
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [torn for torn, _ in seen] == [0, 0]
    selector.check_invariants()
