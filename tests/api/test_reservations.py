"""Tests of reservations over HTTP: creation, lifecycle, listing."""

import pytest

from tests.builders import worker_body

PROMPT = {"model_name": "m", "token_ids": list(range(34))}


def book(api, reservation_id, **fields):
    body = {**PROMPT, "reservation_id": reservation_id, "worker_id": 1, **fields}
    return api.post("/reservations", body)


def load_of(api, dp_rank=0):
    return api.get("/loads").body[0]["loads"][dp_rank]


def test_a_reservation_is_created_on_the_rank_that_was_named(fleet):
    answer = book(fleet, "r", dp_rank=1, effective_prefill_tokens=10)
    assert answer.status == 201
    assert answer.body == {
        "selection_id": "r",
        "reservation_id": "r",
        "model_name": "m",
        "tenant_id": "default",
        "routing_group": "default",
        "worker_id": 1,
        "dp_rank": 1,
        "endpoint": "http://w1:8000",
    }
    assert load_of(fleet, 1)["potential_prefill_tokens"] == 10


def test_the_whole_life_leaves_no_load(fleet):
    book(fleet, "r")
    assert load_of(fleet)["potential_prefill_tokens"] == 34
    assert fleet.post("/reservations/r/prefill_complete").body == {"status": "ok"}
    assert load_of(fleet)["potential_prefill_tokens"] == 0
    assert fleet.post("/reservations/r/output_block", {"decay_fraction": 0.5}).status == 200
    assert fleet.post("/reservations/r/renew").body == {"status": "ok"}
    assert fleet.delete_worker("/reservations/r").body == {"status": "ok"}
    rows = fleet.get("/loads").body[0]["loads"]
    assert {(row["potential_decode_blocks"], row["active_requests"]) for row in rows} == {(0, 0)}


@pytest.mark.parametrize("verb", ["prefill_complete", "renew"])
def test_a_verb_on_an_unknown_reservation_is_not_found(fleet, verb):
    answer = fleet.post(f"/reservations/x/{verb}")
    assert answer.status == 404
    assert answer.body == {"error": "reservation x not found", "code": "not_found"}


def test_freeing_twice_is_not_found(fleet):
    book(fleet, "r")
    assert fleet.delete_worker("/reservations/r").status == 200
    assert fleet.delete_worker("/reservations/r").status == 404


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"worker_id": 9}, 404, "not_found"),
        ({"dp_rank": 2}, 404, "not_found"),
        ({"effective_prefill_tokens": 35}, 400, "bad_request"),
        ({"tenant_id": "t"}, 503, "no_schedulable_workers"),
        ({"worker_id": -1}, 422, "invalid_body"),
    ],
)
def test_a_refused_reservation_changes_nothing(fleet, fields, status, code):
    answer = book(fleet, "r", **fields)
    assert (answer.status, answer.body["code"]) == (status, code)
    assert fleet.get("/reservations").body["total"] == 0


def test_a_reservation_id_in_use_is_a_conflict(fleet):
    assert book(fleet, "r").status == 201
    answer = book(fleet, "r")
    assert (answer.status, answer.body["code"]) == (409, "conflict")


def test_a_repeat_is_answered_with_the_reservation(fleet):
    first = book(fleet, "r", dp_rank=1)
    again = book(fleet, "r", dp_rank=1, repeat=True)
    assert (again.status, again.body) == (201, first.body)
    assert fleet.get("/reservations").body["total"] == 1
    answer = book(fleet, "r", dp_rank=1, repeat=True, token_ids=[1])
    assert (answer.status, answer.body["code"]) == (409, "conflict")


def test_a_decay_outside_its_range_is_a_bad_request(fleet):
    book(fleet, "r")
    answer = fleet.post("/reservations/r/output_block", {"decay_fraction": 1.5})
    assert (answer.status, answer.body["code"]) == (400, "bad_request")
    assert answer.body["error"] == "decay_fraction must be between 0.0 and 1.0, got 1.5"


def test_the_listing_shows_live_reservations(fleet):
    book(fleet, "r")
    page = fleet.get("/reservations").body
    (row,) = page["reservations"]
    assert row["age_seconds"] >= 0
    assert 0 < row["expires_in_seconds"] <= 3600
    known = {name: row[name] for name in row if not name.endswith("_seconds")}
    assert known == {
        "reservation_id": "r",
        "model_name": "m",
        "tenant_id": "default",
        "worker_id": 1,
        "dp_rank": 0,
        "block_size": 4,
        "state": "prefill",
        "isl_tokens": 34,
        "prompt_blocks": 8,
        "output_blocks": 0,
        "prefill_tokens": 34,
        "work": 34,
        "origin": "local",
        "router_id": page["router_id"],
    }


def test_the_listing_shows_sequence_hashes_on_request(fleet):
    book(fleet, "r", token_ids=None, sequence_hashes=[1, -1], isl_tokens=8)
    (row,) = fleet.get("/reservations?sequence_hashes=true").body["reservations"]
    assert row["sequence_hashes"] == [1, 2**64 - 1]
    (row,) = fleet.get("/reservations?sequence_hashes=false").body["reservations"]
    assert "sequence_hashes" not in row


def test_the_listing_comes_in_pages_oldest_first(fleet):
    ids = [f"r{i}" for i in range(7)]
    for reservation_id in ids:
        book(fleet, reservation_id)
    seen, after = [], ""
    while after is not None:
        page = fleet.get(f"/reservations?limit=3{after and '&after=' + after}").body
        assert page["total"] == 7
        assert len(page["reservations"]) <= 3
        seen += [row["reservation_id"] for row in page["reservations"]]
        after = page["next"]
    assert seen == ids


def test_the_listing_is_filtered_by_model_tenant_and_worker(fleet):
    fleet.post("/workers", worker_body(2))
    fleet.post("/workers", worker_body(3, tenant_id="t"))
    book(fleet, "a")
    book(fleet, "b", worker_id=2)
    book(fleet, "c", worker_id=3, tenant_id="t")

    def ids(query):
        rows = fleet.get(f"/reservations?{query}").body["reservations"]
        return [row["reservation_id"] for row in rows]

    assert ids("worker_id=2") == ["b"]
    assert ids("tenant_id=t") == ids("routing_group=t") == ["c"]
    assert ids("model_name=m&tenant_id=default") == ["a", "b"]
    assert ids("model_name=x") == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "limit=-1", "worker_id=x", "after=x", "sequence_hashes=1"],
)
def test_a_filter_that_makes_no_sense_is_a_bad_request(fleet, query):
    answer = fleet.get(f"/reservations?{query}")
    assert (answer.status, answer.body["code"]) == (400, "bad_request")
