"""Tests of the quotas of keys, as seen by callers."""

import pytest

from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.builders.keys import bearer, entry, keys_file


def service_with_keys(folder, *entries):
    return Api("--api-keys-file", str(keys_file(folder, *entries)))


def book(api, key, name):
    body = {"model_name": "m", "token_ids": [1, 2, 3], "reservation_id": name}
    return api.post("/select_and_reserve", body, authorization=bearer(key))


@pytest.fixture
def api(tmp_path):
    keys = [
        entry("few", "caller", reservations=2),
        entry("slow", "caller", requests_per_s=0.001, burst=3),
        entry("free", "caller"),
        entry("ops", "operator"),
        entry("small", "operator", workers=3),
    ]
    with service_with_keys(tmp_path, *keys) as api:
        assert api.post("/workers", worker_body(1), authorization=bearer("ops")).status == 201
        yield api


def test_a_quota_bounds_the_live_reservations_of_a_key(api):
    assert [book(api, "few", name).status for name in "abc"] == [200, 200, 429]
    refused = book(api, "few", "c")
    assert refused.body["code"] == "quota_exceeded"
    assert refused.headers["retry-after"] == "1"
    assert book(api, "free", "d").status == 200
    assert api.call("DELETE", "/reservations/a", authorization=bearer("few")).status == 200
    assert book(api, "few", "c").status == 200
    body = {"model_name": "m", "token_ids": [1], "reservation_id": "e", "worker_id": 1}
    assert api.post("/reservations", body, authorization=bearer("few")).status == 429


def test_a_refused_reservation_takes_no_place(api):
    assert book(api, "few", "a").status == 200
    assert [book(api, "few", "a").status for _ in range(3)] == [409] * 3
    assert book(api, "few", "b").status == 200


def test_a_repeated_booking_counts_once(api):
    body = {"model_name": "m", "token_ids": [1, 2, 3], "reservation_id": "a", "repeat": True}
    for _ in range(3):
        answer = api.post("/select_and_reserve", body, authorization=bearer("few"))
        assert answer.status == 200
    assert [book(api, "few", name).status for name in "bc"] == [200, 429]
    assert api.post("/select_and_reserve", body, authorization=bearer("few")).status == 200


def test_a_pair_counts_once_and_until_its_end(api):
    for worker_id in (2, 3):
        body = worker_body(worker_id)
        assert api.post("/workers", body, authorization=bearer("ops")).status == 201

    def pair(name):
        body = {"model_name": "m", "token_ids": [1, 2, 3], "reservation_id": name, "local": "never"}
        return api.post("/select_pair_and_reserve", body, authorization=bearer("few")).status

    assert [pair(name) for name in "abc"] == [200, 200, 429]
    path = "/reservations/a"
    assert api.post(f"{path}/prefill_complete", authorization=bearer("few")).status == 200
    assert pair("c") == 429
    moved = api.post(f"{path}/move", {"leg": "decode"}, authorization=bearer("few"))
    assert moved.status == 200
    assert pair("c") == 429
    assert api.call("DELETE", path, authorization=bearer("few")).status == 200
    assert pair("c") == 200


def test_a_quota_bounds_the_requests_of_a_key(api):
    assert [book(api, "slow", name).status for name in "abcd"] == [200, 200, 200, 429]
    refused = api.call("GET", "/loads", authorization=bearer("slow"))
    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 1000
    assert api.call("GET", "/health", authorization=bearer("slow")).status == 200
    assert book(api, "free", "e").status == 200


def test_one_key_cannot_register_so_much_that_another_is_locked_out(api):
    answers = [
        api.post("/workers", worker_body(n), authorization=bearer("small")).status
        for n in range(10, 4106)
    ]
    assert answers == [201] * 3 + [429] * 4093
    assert api.post("/workers", worker_body(5000), authorization=bearer("ops")).status == 201
    assert api.post("/workers", worker_body(10), authorization=bearer("small")).status == 201
    assert api.call("DELETE", "/workers/10", authorization=bearer("ops")).status == 200
    assert api.post("/workers", worker_body(13), authorization=bearer("small")).status == 201
    revived = api.call("PATCH", "/workers/10", {"taints": ["a"]}, authorization=bearer("small"))
    assert revived.status == 429


def test_refusals_for_quotas_are_counted(api):
    for name in "abcd":
        book(api, "few", name)
        book(api, "slow", name + "2")
    text = api.call("GET", "/metrics", authorization=bearer("ops")).body
    for key, n in (("few", 2), ("slow", 1)):
        labels = f'{{code="quota_exceeded",key="{key}",route="/select_and_reserve"}}'
        assert f"select_service_access_refusals_total{labels} {n}.0" in text
