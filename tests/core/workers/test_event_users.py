"""Tests of the users of event endpoints, with few objects: a single rank needs no table."""

from select_service.core.identity import Rank
from select_service.core.workers.event_endpoint_index import EventEndpointIndex
from select_service.core.workers.worker_catalog import RegisteredWorker
from tests.builders import a_worker

A, B = "tcp://a:1", "tcp://b:1"


def entered(users, worker_id, *endpoints):
    given = a_worker(
        worker_id,
        data_parallel_size=len(endpoints),
        kv_events_endpoints=dict(enumerate(endpoints)),
    )
    worker = RegisteredWorker(given, "schedulable")
    users.add_worker(worker)
    return worker


def test_a_rank_that_is_alone_at_its_endpoint_is_all_there_is():
    users = EventEndpointIndex()
    worker = entered(users, 1, A, B)
    assert list(users._ranks.values()) == list(worker.list_ranks())
    assert users.has_worker(worker)
    assert users.find_other_rank(A, Rank(1, 0)) is None
    users.remove_worker(worker)
    assert not users._ranks
    assert not users.has_worker(worker)


def test_ranks_at_one_endpoint_are_listed_in_the_order_of_registration():
    users = EventEndpointIndex()
    first, second = entered(users, 1, A, B), entered(users, 2, A, A)
    users.check_invariants([first, second])
    assert users.find_other_rank(A, Rank(1, 0)) == Rank(2, 0)
    assert users.find_other_rank(A, Rank(2, 1)) == Rank(1, 0)
    users.remove_worker(second)
    users.check_invariants([first])
    assert users.find_other_rank(A, Rank(1, 0)) is None
    second = entered(users, 2, A)
    users.remove_worker(first)
    users.check_invariants([second])
    assert users.has_worker(second)
    assert not users.has_worker(first)
