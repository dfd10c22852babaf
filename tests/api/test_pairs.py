"""Tests of POST /select_pair and the life of pairs, over the whole path."""

import pytest

from tests.builders import worker_body
from tests.builders.in_process import Api

PROMPT = {"model_name": "m", "token_ids": list(range(400))}
SPEED = {"prefill_tokens_per_s": 33_000.0}


def transfer(host, kind="nixl", **fields):
    return {"host": host, "kind": kind, "bytes_per_token": 131072, "link_gbps": 100.0, **fields}


@pytest.fixture
def pair_fleet():
    """Yield two workers of each role, on separate hosts."""
    with Api() as api:
        for worker_id in range(1, 5):
            role = "prefill" if worker_id < 3 else "decode"
            body = worker_body(worker_id, role=role, kv_transfer=transfer(f"h{worker_id}"), **SPEED)
            assert api.post("/workers", body).status == 201
        yield api


def reserve(api, name, **fields):
    body = {**PROMPT, "reservation_id": name, **fields}
    return api.post("/select_pair_and_reserve", body)


def loads(api):
    """Return {worker: booked prefill tokens}."""
    rows = api.get("/loads").body[0]["loads"]
    return {row["worker_id"]: row["potential_prefill_tokens"] for row in rows}


def test_a_pair_names_both_legs_and_the_hand_over(pair_fleet):
    answer = reserve(pair_fleet, "a", local="never")
    assert answer.status == 200
    body = answer.body
    assert (body["path"], body["reason"]) == ("remote", "requested")
    prefill, decode = body["legs"]
    assert prefill["leg"] == "prefill"
    assert prefill["worker_id"] in (1, 2)
    assert decode["leg"] == "decode"
    assert decode["worker_id"] in (3, 4)
    assert body["move_tokens"] == 400
    assert body["remote_cost"] is not None
    assert body["local_cost"] is None
    assert body["handoff"]["order"] == "sequential"
    assert body["handoff"]["pass_on"] == "kv_transfer_params"


def test_the_calls_of_its_life_free_one_thing_after_the_other(pair_fleet):
    legs = reserve(pair_fleet, "a", local="never").body["legs"]
    prefill, decode = (leg["worker_id"] for leg in legs)
    assert loads(pair_fleet)[prefill] == 400
    assert loads(pair_fleet)[decode] == 0
    assert pair_fleet.post("/reservations/a/prefill_complete").status == 200
    assert loads(pair_fleet)[prefill] == 0
    assert pair_fleet.post("/reservations/a/first_token").status == 200
    assert pair_fleet.call("DELETE", "/reservations/a").status == 200
    assert pair_fleet.call("DELETE", "/reservations/a").status == 404
    assert pair_fleet.get("/reservations").body["total"] == 0


def test_lists_show_a_pair_as_one_row_with_its_legs(pair_fleet):
    legs = reserve(pair_fleet, "a", local="never").body["legs"]
    page = pair_fleet.get("/reservations").body
    assert page["total"] == 1
    (row,) = page["reservations"]
    ranks = [(leg["leg"], leg["worker_id"]) for leg in legs]
    assert [(leg["leg"], leg["worker_id"]) for leg in row["legs"]] == ranks
    assert "1fprefill" not in pair_fleet.get("/reservations").body.__repr__()
    for _, worker_id in ranks:
        found = pair_fleet.get(f"/reservations?worker_id={worker_id}").body["reservations"]
        assert [each["reservation_id"] for each in found] == ["a"]
    assert pair_fleet.get("/reservations/a").body["legs"] == row["legs"]
    pair_fleet.post("/reservations/a/prefill_complete")
    assert "legs" not in pair_fleet.get("/reservations/a").body


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/renew"),
        ("POST", "/prefill_complete"),
        ("POST", "/output_block"),
        ("POST", "/first_token"),
    ],
)
def test_callers_cannot_name_a_prefill_leg(pair_fleet, method, path):
    reserve(pair_fleet, "a", local="never")
    assert pair_fleet.call(method, f"/reservations/a%1Fprefill{path}").status == 404
    assert pair_fleet.get("/reservations?separate_legs=true").body["total"] == 2


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/select_and_reserve", {"reservation_id": "a\x1fprefill"}),
        ("/reservations", {"reservation_id": "a\x1fprefill", "worker_id": 3}),
        ("/reservations", {"selection_id": "a\x1fprefill", "worker_id": 3}),
    ],
)
def test_bookings_cannot_have_the_name_of_a_leg(pair_fleet, path, fields):
    answer = pair_fleet.post(path, {**PROMPT, **fields})
    assert (answer.status, answer.body["code"]) == (400, "bad_request")
    assert "choose another id" in answer.body["error"]


def test_one_rank_does_both_where_that_is_cheaper(pair_fleet):
    body = reserve(pair_fleet, "a").body
    assert body["path"] == "local"
    assert "handoff" not in body
    assert body["legs"][0]["worker_id"] == body["legs"][1]["worker_id"] in (3, 4)
    assert body["local_cost"] < body["remote_cost"]


def test_a_failed_prefill_leg_moves_to_another_rank(pair_fleet):
    before = reserve(pair_fleet, "a", local="never").body["legs"]
    answer = pair_fleet.post("/reservations/a/move", {"leg": "prefill"})
    assert answer.status == 200
    after = answer.body["legs"]
    assert after[0]["worker_id"] == 3 - before[0]["worker_id"]
    assert after[1]["worker_id"] == before[1]["worker_id"]


def test_a_prefill_leg_lost_with_its_worker_is_reported_and_replaced(pair_fleet):
    legs = reserve(pair_fleet, "a", local="never").body["legs"]
    lost = legs[0]["worker_id"]
    assert pair_fleet.call("DELETE", f"/workers/{lost}").status == 200
    for path in ("renew", "output_block", "renew"):
        answer = pair_fleet.post(f"/reservations/a/{path}")
        assert answer.body == {"status": "ok", "lost_leg": "prefill"}
    moved = pair_fleet.post("/reservations/a/move", {"leg": "prefill"})
    assert moved.status == 200
    assert moved.body["legs"][0]["worker_id"] == 3 - lost
    assert moved.body["handoff"]["kind"] == "nixl"
    assert pair_fleet.post("/reservations/a/renew").body == {"status": "ok"}
    assert pair_fleet.call("DELETE", "/reservations/a").status == 200
    assert set(loads(pair_fleet).values()) == {0}


def test_decisions_and_explanations_show_both_paths(pair_fleet):
    asked = pair_fleet.post("/explain", {**PROMPT, "pair": True})
    assert asked.status == 200
    answer = reserve(pair_fleet, "a", local="never").body
    for view in asked.body, pair_fleet.get("/decisions/a").body:
        pair = view["pair"]
        assert [leg["leg"] for leg in pair["legs"]] == ["prefill", "decode"]
        assert pair["remote_cost"] > 0
        assert "handoff" not in pair
        assert view["candidates"] == []
    assert pair["legs"] == answer["legs"]
    assert (view["reserved"], view["policy"]) == (True, "work")
    assert asked.body["pair"]["local_cost"] > 0
    assert asked.body["reserved"] is False
    assert pair_fleet.get("/decisions/b").status == 404
    assert pair_fleet.get("/reservations").body["total"] == 1


def test_metrics_count_pairs(pair_fleet):
    reserve(pair_fleet, "a", local="never")
    reserve(pair_fleet, "b", local="always")
    text = pair_fleet.get("/metrics").body
    for line in (
        'pair_decisions_total{path="remote"} 1.0',
        'pair_decisions_total{path="local"} 1.0',
        'pair_prompt_tokens_total{part="cached"} 0.0',
        'pair_prompt_tokens_total{part="computed"} 800.0',
        'pair_legs{leg="prefill"} 1.0',
        'pair_legs{leg="decode"} 2.0',
        'pair_moved_tokens_total{level="network"} 400.0',
        "pair_transfers 1.0",
    ):
        assert f"select_service_{line}\n" in text
    assert 'direction="leaving",host="h' in text
    pair_fleet.post("/reservations/a/prefill_complete")
    pair_fleet.post("/reservations/a/first_token")
    text = pair_fleet.get("/metrics").body
    for line in (
        'pair_first_tokens_total{end="reported"} 1.0',
        "pair_moves_measured_total 1.0",
        "pair_transfers 0.0",
    ):
        assert f"select_service_{line}\n" in text
    assert 'pair_move_seconds_total{kind="predicted"} 0.0\n' not in text


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"local": "sometimes"}, 422, "local"),
        ({"prefill": {"allowed_worker_ids": [3]}, "local": "never"}, 503, "0 for prefill"),
        (
            {"topology": {"domain": "rack", "enforcement": "required"}, "local": "never"},
            503,
            "rack",
        ),
        ({"reservation_id": "a\x1fprefill"}, 400, "choose another id"),
    ],
)
def test_wrong_requests_are_refused_and_book_nothing(pair_fleet, fields, status, text):
    answer = pair_fleet.post("/select_pair_and_reserve", {**PROMPT, **fields})
    assert answer.status == status
    assert text in answer.body["error"]
    assert pair_fleet.get("/reservations").body["total"] == 0


def test_only_legs_of_pairs_move(pair_fleet):
    assert pair_fleet.post("/reservations/x/move", {"leg": "decode"}).status == 404
    body = {**PROMPT, "reservation_id": "one"}
    assert pair_fleet.post("/select_and_reserve", body).status == 200
    assert pair_fleet.post("/reservations/one/move", {"leg": "decode"}).status == 404


@pytest.mark.parametrize("ranks", [1, 4])
def test_rooms_of_sglang_name_the_rank_of_the_prefill(ranks):
    with Api() as api:
        for worker_id, role in (1, "prefill"), (2, "decode"):
            given = transfer(f"h{worker_id}", "sglang", bootstrap_host="h1", bootstrap_port=8998)
            body = worker_body(worker_id, role=role, kv_transfer=given, data_parallel_size=ranks)
            assert api.post("/workers", body).status == 201
        for number in range(20):
            body = reserve(api, f"r{number}", local="never").body
            params = body["handoff"]["prefill_params"]
            assert params == body["handoff"]["decode_params"]
            assert 0 <= params["bootstrap_room"] < 1 << 63
            assert params["bootstrap_room"] % ranks == body["legs"][0]["dp_rank"]
            assert (params["bootstrap_host"], params["bootstrap_port"]) == ("h1", 8998)
            assert body["handoff"]["order"] == "concurrent"


def test_decisions_about_pairs_are_listed_among_the_others(pair_fleet):
    pair_fleet.post("/select", {**PROMPT, "selection_id": "one"})
    pair = reserve(pair_fleet, "a", local="never").body
    pair_fleet.post("/select", {**PROMPT, "selection_id": "two"})
    pair_fleet.post("/select_pair", {**PROMPT, "local": "always"})
    answer = pair_fleet.get("/decisions").body
    rows = answer["decisions"]
    assert [row["decision"] for row in rows] == [None, 2, None, 1]
    assert answer["kept"] == len(rows) == 4
    local, remote = (row for row in rows if row["decision"] is None)
    prefill, decode = pair["legs"]
    shown = remote["pair"]
    assert (remote["worker_id"], shown["prefill_worker_id"]) == (
        decode["worker_id"],
        prefill["worker_id"],
    )
    assert (shown["number"], shown["path"], shown["reason"]) == (1, "remote", "requested")
    assert (remote["cost"], remote["reserved"]) == (round(pair["remote_cost"], 3), True)
    assert (local["pair"]["path"], local["reserved"]) == ("local", False)
    newest = pair_fleet.get("/decisions?limit=2").body["decisions"]
    assert [row["decision"] for row in newest] == [None, 2]
    for leg in pair["legs"]:
        found = pair_fleet.get(f"/decisions?worker_id={leg['worker_id']}").body["decisions"]
        assert shown in [row.get("pair") for row in found]
    assert pair_fleet.get("/decisions?tenant_id=other").body["decisions"] == []
    by_number = pair_fleet.get("/decisions/1?by=pair").body
    assert by_number["pair"]["legs"] == pair_fleet.get("/decisions/a").body["pair"]["legs"]
    assert pair_fleet.get("/decisions/3?by=pair").status == 404
