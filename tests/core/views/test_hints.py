import pytest

from select_service.core.views.registration_hints import HINTS_MAX, RANKS_MAX, find_worker_hints
from select_service.core.workers.event_endpoint_index import EventEndpointIndex
from tests.builders import a_patch, a_selector, a_worker

RIGHT = {"kv_events_endpoint": "tcp://w:5557", "replay_endpoint": "tcp://w:5657"}


@pytest.fixture
def selector():
    return a_selector(use_kv_events=True)


def hints(selector, **fields):
    record = selector.register_worker(a_worker(1, **(RIGHT | fields)))
    selector.check_invariants()
    return record.hints or []


def test_a_correct_registration_has_no_hints(selector):
    assert hints(selector) == hints(selector, endpoint="ray://actor") == []
    assert hints(selector, endpoint=None) == hints(selector, replay_endpoint=None) == []


def test_an_endpoint_that_is_no_url(selector):
    expected = ["endpoint `w:8000` is not a URL: did you mean `http://w:8000`?"]
    assert hints(selector, endpoint="w:8000") == expected
    assert selector.patch_worker(1, a_patch(taints=["a"])).hints == expected
    assert not selector.patch_worker(1, a_patch(endpoint="http://w:8000")).hints


def test_an_address_that_only_an_engine_can_bind(selector):
    [hint] = hints(selector, kv_events_endpoint="tcp://*:5557")
    assert hint.startswith("KV events endpoint `tcp://*:5557` of dp_rank 0 is a bind")
    endpoints = {"kv_events_endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}
    assert len(hints(selector, **endpoints)) == 2


def test_replays_where_the_events_are(selector):
    [hint] = hints(selector, replay_endpoint="tcp://w:5557")
    assert "replay endpoint of dp_rank 0 is its KV events endpoint" in hint


def test_endpoints_of_missing_ranks(selector):
    endpoints = {0: "tcp://w:5557", 1: "tcp://w:5558"}
    [hint] = hints(selector, kv_events_endpoints=endpoints)
    assert hint == (
        "kv_events_endpoints has an entry for dp_rank 1, which the worker lacks: with "
        "data_parallel_start_rank 0 and data_parallel_size 1 its ranks are 0 to 0"
    )
    fields = {"data_parallel_size": 2, "data_parallel_start_rank": 1, "replay_endpoints": endpoints}
    [hint] = hints(selector, kv_events_endpoints={1: "tcp://w:5", 2: "tcp://w:6"}, **fields)
    assert hint.startswith("replay_endpoints has an entry for dp_rank 0, which")
    assert hint.endswith("its ranks are 1 to 2")


@pytest.mark.parametrize(("place", "count"), [(RANKS_MAX - 1, 1), (RANKS_MAX, 0), (-1, 1)])
def test_only_the_first_and_the_last_of_very_many_endpoints_are_checked(selector, place, count):
    ranks = [*range(RANKS_MAX + 9)]
    ranks[place] = 5000
    endpoints = {rank: f"tcp://v:{rank + 1}" for rank in ranks}
    fields = {"data_parallel_size": RANKS_MAX + 9, "replay_endpoint": None}
    events = {rank: f"tcp://w:{rank + 1}" for rank in range(RANKS_MAX + 9)}
    found = hints(selector, kv_events_endpoints=events, replay_endpoints=endpoints, **fields)
    assert len(found) == count


def test_two_ranks_on_one_endpoint_until_one_leaves(selector):
    selector.register_worker(a_worker(2, kv_events_endpoint="tcp://v:1"))
    assert hints(selector) == []
    ranks = {0: "tcp://v:1", 1: "tcp://w:5557"}
    selector.register_worker(a_worker(2, kv_events_endpoints=ranks, data_parallel_size=2))
    [hint] = hints(selector)
    assert "is also used by worker 2 dp_rank 1" in hint
    selector.delete_worker(2, 0.0)
    assert hints(selector) == []


@pytest.mark.parametrize("other", ["http://w:8000", "http://w:8000/"])
def test_two_workers_at_one_endpoint_until_one_leaves(other):
    selector = a_selector()
    selector.register_worker(a_worker(2, endpoint=other))
    [hint] = hints(selector, endpoint="http://w:8000")
    assert hint.startswith("endpoint `http://w:8000` is also used by worker 2: ")
    [hint] = selector.worker_record(selector.get_worker(2)).hints
    assert "is also used by worker 1" in hint
    selector.delete_worker(2, 0.0)
    assert not selector.worker_record(selector.get_worker(1)).hints
    assert not selector.worker_record(selector.get_worker(2)).hints
    assert selector.patch_worker(2, a_patch(taints=["back"])).hints
    assert not selector.patch_worker(2, a_patch(endpoint="http://v:8000")).hints
    assert not selector.worker_record(selector.get_worker(1)).hints
    selector.check_invariants()


@pytest.mark.parametrize(
    "other",
    [
        {"model_name": "an adapter of it"},
        {"tenant_id": "blue"},
        {"data_parallel_start_rank": 2},
        {"endpoint": None},
    ],
)
def test_one_endpoint_may_be_that_of_several_models_tenants_and_ranks(other):
    selector, same = a_selector(), {"endpoint": "http://w:8000", "data_parallel_size": 2}
    selector.register_worker(a_worker(2, **(same | other)))
    assert hints(selector, kv_events_endpoint=None, replay_endpoint=None, **same) == []


def test_without_kv_events_their_endpoints_do_not_matter():
    assert hints(a_selector(), kv_events_endpoint="tcp://*:5557") == []


def test_a_worker_of_many_ranks_has_a_bounded_number(selector):
    same = dict.fromkeys(range(1024), "tcp://*:5557")
    assert len(hints(selector, data_parallel_size=1024, kv_events_endpoints=same)) == HINTS_MAX


def test_only_the_first_of_very_many_ranks_are_checked(selector):
    endpoints = {rank: f"tcp://w:{rank + 1}" for rank in range(RANKS_MAX)}
    fields = {"data_parallel_size": RANKS_MAX + 1, "replay_endpoint": None}
    for last, count in ((RANKS_MAX, 0), (RANKS_MAX - 1, 1)):
        mistaken = {RANKS_MAX: "tcp://w:60000"} | endpoints | {last: "tcp://*:5557"}
        assert len(hints(selector, kv_events_endpoints=mistaken, **fields)) == count


def test_hints_before_the_registration_are_about_the_url_alone(selector):
    record = selector.register_worker(a_worker(1, endpoint="w:8000", block_size=None, **RIGHT))
    assert len(record.hints) == 1
    assert find_worker_hints(selector.get_worker(1), EventEndpointIndex(), None) == record.hints
