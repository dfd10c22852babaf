"""Tests of several reservations by one request, against as many single requests."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.builders.in_thread import InThread
from tests.builders.keys import bearer, entry, keys_file
from tests.builders.polling import eventually
from tests.builders.running import request
from tests.builders.waiting_clients import (
    PROMPT,
    QUEUE,
    a_full_worker,
    count_reservations,
    pending,
    waiting,
)

N_WORKERS = 3


@pytest.fixture(scope="module")
def two_services():
    with Api("--policy", "work") as group, Api("--policy", "work") as single:
        for api in (group, single):
            for worker_id in range(1, N_WORKERS + 1):
                size = 1 + worker_id % 2
                body = worker_body(worker_id, data_parallel_size=size, total_kv_blocks=64)
                assert api.post("/workers", body).status == 201
        yield group, single


def reserve(api, **fields):
    return api.post("/select_and_reserve", {"model_name": "m", **fields})


def free_all(api):
    for row in api.get("/reservations").body["reservations"]:
        assert api.call("DELETE", f"/reservations/{row['reservation_id']}").status == 200


PROMPTS = st.builds(
    lambda begin, tokens: list(range(begin, begin + tokens)),
    st.integers(0, 2),
    st.integers(1, 80),
)


@settings(deadline=None)
@given(
    groups=st.lists(st.tuples(PROMPTS, st.integers(1, 7), st.booleans()), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_a_group_equals_single_requests(two_services, groups, seed):
    group, single = two_services
    for api in two_services:
        free_all(api)
        api.service.selector.decisions.rng.seed(seed)
    for number, (tokens, n, has_hashes) in enumerate(groups):
        fields = {"token_ids": tokens, "return_hashes": has_hashes}
        answer = reserve(group, reservation_id=f"g{number}", n=n, **fields)
        assert answer.status == 200
        more = answer.body.pop("more", [])
        names = [f"g{number}-{i}" for i in range(n)] if n > 1 else [f"g{number}"]
        alone = [reserve(single, reservation_id=name, **fields).body for name in names]
        assert [answer.body, *more] == alone
    assert group.get("/loads").body == single.get("/loads").body


def test_members_without_an_id_get_ids_of_their_own(two_services):
    group, _ = two_services
    free_all(group)
    answer = reserve(group, token_ids=[1, 2, 3], n=64).body
    ids = {answer["reservation_id"], *(each["reservation_id"] for each in answer["more"])}
    assert len(ids) == 64
    assert group.get("/reservations").body["total"] == 64
    free_all(group)


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"n": 0}, 422, "n"),
        ({"n": 65}, 422, "n"),
        ({"n": 10, "reservation_id": "x" * 511}, 422, "shorter id"),
        ({"n": 3, "reservation_id": "taken"}, 409, "taken-1"),
    ],
)
def test_a_group_is_refused_as_a_whole(two_services, fields, status, text):
    group, _ = two_services
    free_all(group)
    assert reserve(group, token_ids=[1], reservation_id="taken-1").status == 200
    before = group.get("/loads").body
    answer = reserve(group, token_ids=[1, 2, 3], **fields)
    assert answer.status == status
    assert text in answer.body["error"]
    assert group.get("/reservations").body["total"] == 1
    assert group.get("/loads").body == before


def test_a_repeat_returns_the_group_and_keeps_it_when_it_fails(two_services):
    group, _ = two_services
    free_all(group)
    fields = {"token_ids": [1, 2, 3], "reservation_id": "again"}
    first = reserve(group, n=2, **fields).body
    again = reserve(group, n=2, repeat=True, **fields).body
    ranks = [(each["worker_id"], each["dp_rank"]) for each in (first, *first["more"])]
    assert [(each["worker_id"], each["dp_rank"]) for each in (again, *again["more"])] == ranks
    assert reserve(group, token_ids=[9], reservation_id="again-2").status == 200
    # The third member has another prompt.
    assert reserve(group, n=3, repeat=True, **fields).status == 409
    assert group.get("/reservations").body["total"] == 3


def test_pairs_have_no_groups(two_services):
    group, _ = two_services
    body = {"model_name": "m", "token_ids": [1], "n": 2}
    answer = group.post("/select_pair_and_reserve", body)
    assert answer.status == 400
    assert "n is 2" in answer.body["error"]


def test_every_member_counts_for_the_quota(tmp_path):
    keys = keys_file(tmp_path, entry("few", "caller", reservations=3), entry("ops", "operator"))
    with Api("--api-keys-file", str(keys)) as api:
        few, ops = ({"authorization": bearer(name)} for name in ("few", "ops"))
        assert api.post("/workers", worker_body(1), **ops).status == 201
        body = {"model_name": "m", "token_ids": [1]}
        assert api.post("/select_and_reserve", {**body, "n": 4}, **few).status == 429
        assert api.call("GET", "/reservations", **ops).body["total"] == 0
        assert api.post("/select_and_reserve", {**body, "n": 3}, **few).status == 200
        assert api.post("/select_and_reserve", body, **few).status == 429


def test_members_wait_in_the_queue_and_a_client_that_leaves_frees_all():
    with InThread(*QUEUE) as service:
        a_full_worker(service)
        client = waiting(service, n=2)
        assert service.call("DELETE", "/reservations/full-1").status == 200
        # The first member has filled the rank, and the second member waits.
        eventually(lambda: (count_reservations(service), pending(service)) == (1, 1))
        client.__exit__()
        eventually(lambda: (count_reservations(service), pending(service)) == (0, 0))


def test_a_group_is_served_when_there_is_room_again():
    with InThread(*QUEUE) as service:
        a_full_worker(service)
        client = waiting(service, n=2, reservation_id="g")
        assert service.call("DELETE", "/reservations/full-1").status == 200
        eventually(lambda: (count_reservations(service), pending(service)) == (1, 1))
        assert service.call("POST", "/reservations/g-0/prefill_complete").status == 200
        answer = client.answer()
        assert answer.status == 200
        assert b'"more"' in answer.body if isinstance(answer.body, bytes) else answer.body["more"]
        assert count_reservations(service) == 2


def test_a_deadline_is_that_of_the_whole_group():
    with InThread(*QUEUE) as service:
        a_full_worker(service)
        client = waiting(service, n=2, deadline_ms=2000)
        time.sleep(0.3)
        assert service.call("DELETE", "/reservations/full-1").status == 200
        answer = client.answer()
        assert (answer.status, answer.body["code"]) == (503, "deadline_exceeded")
        # The second member had the remaining time.
        assert int(answer.body["error"].split()[1]) <= 1700
        assert count_reservations(service) == 0


def test_the_fast_path_leaves_groups_to_the_ordinary_path():
    with InThread() as service:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        client = service.client()
        client.send(request("POST", "/select_and_reserve", {**PROMPT, "n": 2}))
        assert client.answer().status == 200
        assert count_reservations(service) == 2
