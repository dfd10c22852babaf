"""Tests of the ranks that a fallback may choose from, and of the choice."""

import msgspec
import pytest

from select_service.client import Unavailable, least_in_flight, raise_unavailable, round_robin
from select_service.client.fallbacks import eligible_ranks
from select_service.schemas.workers import WorkerRecord
from tests.client.world import worker


def record(worker_id, **fields):
    return msgspec.convert({**worker(worker_id), **fields}, WorkerRecord)


def places(*records):
    return [(rank.worker_id, rank.dp_rank) for rank in eligible_ranks(records)]


def test_every_rank_of_a_schedulable_worker_may_be_chosen():
    ranked = record(1, data_parallel_start_rank=2, data_parallel_size=3)
    assert places(ranked, record(2)) == [(1, 2), (1, 3), (1, 4), (2, 0)]


@pytest.mark.parametrize(
    "fields", [{"lifecycle": "unschedulable"}, {"endpoint": None}, {"block_size": None}]
)
def test_a_worker_that_is_not_schedulable_is_not_chosen(fields):
    assert places(record(1, **fields), record(2)) == [(2, 0)]


def test_round_robin_takes_one_after_the_other():
    ranks = eligible_ranks([record(1), record(2), record(3)])
    assert [round_robin(ranks, {}, turn).worker_id for turn in range(4)] == [1, 2, 3, 1]


def test_least_in_flight_takes_the_idlest_and_turns_among_equals():
    ranks = eligible_ranks([record(1), record(2), record(3)])
    in_flight = {(1, 0): 2, (2, 0): 1, (3, 0): 1}
    assert [least_in_flight(ranks, in_flight, turn).worker_id for turn in range(3)] == [2, 2, 3]


def test_without_a_fallback_no_rank_is_chosen():
    with pytest.raises(Unavailable):
        raise_unavailable(eligible_ranks([record(1)]), {}, 0)
