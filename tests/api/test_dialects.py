"""Tests of requests and answers in the names of Dynamo 1.3 and 1.6, both at once."""

import uuid

import pytest

from indexer.hashing.block_hashing import compute_block_hashes, compute_sequence_hashes
from tests.api.test_reservations import load_of
from tests.builders import worker_body
from tests.builders.in_process import Api

TOKENS = list(range(34))
PROMPT = {"model_name": "m", "token_ids": TOKENS}
HASHES = compute_sequence_hashes(compute_block_hashes(TOKENS, 4)).view("int64").tolist()


def reserve(api, **fields):
    return api.post("/select_and_reserve", {**PROMPT, **fields})


def book(api, **fields):
    return api.post("/reservations", {**PROMPT, "worker_id": 1, **fields})


def test_a_selection_id_names_the_reservation_through_its_life(fleet):
    answer = reserve(fleet, selection_id="s").body
    assert (answer["selection_id"], answer["reservation_id"]) == ("s", "s")
    assert fleet.get("/reservations/s").body["isl_tokens"] == 34
    assert fleet.post("/reservations/s/prefill_complete").status == 200
    assert fleet.post("/reservations/s/output_block", {}).status == 200
    assert fleet.delete_worker("/reservations/s").status == 200
    assert fleet.delete_worker("/reservations/s").status == 404


def test_the_reservation_id_wins_over_the_selection_id(fleet):
    for answer in (
        reserve(fleet, selection_id="s", reservation_id="r").body,
        book(fleet, selection_id="s", reservation_id="q").body,
    ):
        assert answer["selection_id"] == "s"
    assert fleet.get("/reservations/s").status == 404
    assert fleet.get("/reservations/r").status == fleet.get("/reservations/q").status == 200


def test_without_ids_one_id_is_generated_for_both(fleet):
    answer = reserve(fleet).body
    assert answer["selection_id"] == answer["reservation_id"]
    assert str(uuid.UUID(answer["selection_id"], version=4)) == answer["selection_id"]


def test_the_empty_text_names_a_reservation(fleet):
    assert reserve(fleet, selection_id="").body["reservation_id"] == ""
    assert reserve(fleet, selection_id="").status == 409


@pytest.mark.parametrize("again", [reserve, book])
def test_a_selection_id_in_use_is_a_conflict_over_all_scopes(fleet, again):
    fleet.post("/workers", worker_body(2, model_name="other"))
    assert reserve(fleet, selection_id="s").status == 200
    assert again(fleet, selection_id="s").status == 409
    assert again(fleet, selection_id="s", reservation_id="r").status in (200, 201)
    assert again(fleet, selection_id="s", model_name="other", worker_id=2).status == 409


def test_an_id_in_use_is_refused_before_the_prompt_is_read(fleet):
    assert reserve(fleet, selection_id="s").status == 200
    assert reserve(fleet, selection_id="s", token_ids=None).status == 409
    assert reserve(fleet, selection_id="s", token_ids=None, model_name="none").status != 409


def test_a_repeated_booking_is_found_by_its_selection_id(fleet):
    first = reserve(fleet, selection_id="s").body
    assert reserve(fleet, selection_id="s", repeat=True).body == first
    assert book(fleet, selection_id="s", repeat=True).body["worker_id"] == 1
    assert fleet.get("/reservations").body["total"] == 1


def test_answers_have_the_names_of_both_in_order(fleet):
    scope = ["model_name", "tenant_id", "routing_group", "worker_id", "dp_rank", "endpoint"]
    booked = reserve(fleet, selection_id="s").body
    assert list(booked) == [
        *("selection_id", "reservation_id", "sequence_hashes", "isl_tokens"),
        *("track_prefill_tokens", *scope, "block_size", "overlap"),
        *("effective_prefill_tokens", "potential_decode_blocks"),
    ]
    assert booked["routing_group"] == booked["tenant_id"] == "default"
    assert (booked["isl_tokens"], booked["track_prefill_tokens"]) == (34, True)
    assert list(book(fleet, selection_id="t").body) == ["selection_id", "reservation_id", *scope]


@pytest.mark.parametrize(
    ("fields", "has_hashes"),
    [
        ({}, True),
        ({"selection_id": "s"}, True),
        ({"routing_group": "default"}, True),
        ({"reservation_id": None}, True),
        ({"reservation_id": "r"}, False),
        ({"selection_id": "s", "reservation_id": "r"}, False),
        ({"tenant_id": "default"}, False),
        ({"selection_id": "s", "return_hashes": False}, False),
        ({"selection_id": "s", "return_hashes": None}, True),
        ({"reservation_id": "r", "return_hashes": True}, True),
    ],
)
def test_hashes_are_returned_by_the_dialect_of_the_request(fleet, fields, has_hashes):
    answer = reserve(fleet, **fields).body
    assert answer.get("sequence_hashes") == (HASHES if has_hashes else None)
    assert answer["isl_tokens"] == 34
    assert any(number < 0 for number in HASHES)


def test_hashes_both_wanted_and_refused_are_an_error(fleet):
    answer = reserve(fleet, include_hashes=True, return_hashes=False)
    assert (answer.status, answer.body["code"]) == (422, "invalid_body")


def test_hashes_of_a_huge_prompt_are_left_out_with_a_warning(fleet):
    n = 131_073
    prompt = {"block_hashes": [1] * n, "sequence_hashes": [1] * n, "isl_tokens": 4 * n}
    body = {"model_name": "m", "selection_id": "s", **prompt}
    answer = fleet.post("/select_and_reserve", body).body
    assert "sequence_hashes" not in answer
    assert answer["warnings"] == [
        "`sequence_hashes` are left out: the prompt has more than 131072 blocks"
    ]
    required = {**body, "selection_id": "t", "return_hashes": True}
    assert fleet.post("/select_and_reserve", required).status == 400


def test_tracking_of_prefill_tokens_is_shown(fleet):
    override = {"router_config_override": {"track_prefill_tokens": False}}
    assert reserve(fleet, **override).body["track_prefill_tokens"] is False


# Decode blocks


def decode_blocks(api, tokens, **fields):
    body = {"model_name": "m", "token_ids": tokens, **fields}
    return api.post("/select", body).body["potential_decode_blocks"]


def test_the_begun_block_counts_as_potential_decode_block():
    with Api() as api:
        api.post("/workers", worker_body(1))
        assert [decode_blocks(api, TOKENS[:n]) for n in (0, 3, 20, 21)] == [0, 1, 5, 6]
        hashed = {"block_hashes": [1, 2, 3], "sequence_hashes": [1, 2, 3]}
        assert decode_blocks(api, None, **hashed, isl_tokens=30) == 8
        assert decode_blocks(api, None, **hashed, isl_tokens=3) == 3


def test_live_leading_blocks_and_output_count_once():
    with Api() as api:
        api.post("/workers", worker_body(1))
        assert reserve(api, selection_id="s").body["potential_decode_blocks"] == 9
        assert decode_blocks(api, TOKENS) == 9  # 8 live blocks, and the begun block
        assert decode_blocks(api, TOKENS[:8]) == 8
        assert decode_blocks(api, TOKENS[4:12]) == 10
        api.post("/reservations/s/output_block", {})
        assert decode_blocks(api, TOKENS[:8]) == 9


# Busy ranks, and advice

DECODE, PREFILL = (
    f"DYN_ROUTER_CONDITIONAL_DISAGG_{kind}_BUSY_THRESHOLD" for kind in ("DECODE", "PREFILL")
)


def test_decode_busy_compares_with_a_share_of_the_kv_blocks():
    with Api(**{DECODE: "0.5"}) as api:
        api.post("/workers", worker_body(1, total_kv_blocks=10))
        for tokens, is_busy in ((20, False), (21, True)):
            answer = api.post("/select", {**PROMPT, "token_ids": TOKENS[:tokens]}).body
            assert answer["decode_busy"] is is_busy
        api.patch("/workers/1", {"total_kv_blocks": 11})
        assert reserve(api).body["decode_busy"] is True


def test_decode_busy_is_absent_where_it_is_unknown(fleet):
    assert "decode_busy" not in reserve(fleet).body
    with Api(**{DECODE: "0.5"}) as api:
        api.post("/workers", worker_body(1))
        assert "decode_busy" not in reserve(api).body


def test_advice_has_the_load_before_the_request():
    with Api(**{PREFILL: "0.5"}) as api:
        api.post("/workers", worker_body(1, max_num_batched_tokens=16, total_kv_blocks=10))
        book(api, selection_id="b", effective_prefill_tokens=8)
        advice = api.post("/select", {**PROMPT, "advisory": True}).body["worker_load"]
        assert advice == {
            "active_prefill_tokens": 8,
            "prefill_token_capacity": 16,
            "total_kv_blocks": 10,
            "prefill_busy": False,
        }
        book(api, selection_id="c", effective_prefill_tokens=1)
        advice = api.post("/select", {**PROMPT, "advisory": True}).body["worker_load"]
        assert advice["prefill_busy"] is True
        assert "worker_load" not in api.post("/select", PROMPT).body


def test_advice_about_an_unknown_capacity_has_ten_million():
    with Api() as api:
        api.post("/workers", worker_body(1, max_num_batched_tokens=None))
        advice = api.post("/select", {**PROMPT, "advisory": True}).body["worker_load"]
        assert advice == {"active_prefill_tokens": 0, "prefill_token_capacity": 10_000_000}


def test_advice_passes_the_queue_and_its_limits():
    with Api("--queue-threshold", "0.5", "--queue-timeout-secs", "0.01") as api:
        api.post("/workers", worker_body(1, max_num_batched_tokens=16))
        book(api, selection_id="b", effective_prefill_tokens=16)
        assert api.post("/select", PROMPT).body["code"] == "queue_timeout"
        for fields in ({}, {"pinned_worker": {"worker_id": 1, "dp_rank": 0}}, {"timeout_ms": 0}):
            answer = api.post("/select", {**PROMPT, **fields, "advisory": True})
            assert answer.body["worker_load"]["active_prefill_tokens"] == 16
        admission = api.get("/admission").body
        assert admission["outcomes"]["queue_timeout"] == 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"allowed_worker_ids": []}, 503),
        ({"pinned_worker": {"worker_id": 9, "dp_rank": 0}}, 503),
        ({"pinned_worker": {"worker_id": 1, "dp_rank": 0}, "allowed_worker_ids": [2]}, 400),
        ({"advisory": None}, 422),
        ({"advisory": 1}, 422),
    ],
)
def test_advice_is_refused_as_a_selection_is(fleet, fields, status):
    assert fleet.post("/select", {**PROMPT, "advisory": True, **fields}).status == status


def test_a_booking_warns_that_it_is_no_advice(fleet):
    answer = reserve(fleet, advisory=True).body
    assert "worker_load" not in answer
    assert answer["warnings"] == [
        "`advisory` is ignored: this route books; ask for advice with POST /select"
    ]


# Reservations on a rank chosen by the caller


def test_a_reservation_needs_an_id_and_a_worker_or_a_selection(fleet):
    refused = [
        book(fleet),
        fleet.post("/reservations", {**PROMPT, "reservation_id": "r"}),
        fleet.post("/reservations", {**PROMPT, "reservation_id": "r", "worker_id": None}),
    ]
    assert {(each.status, each.body["code"]) for each in refused} == {(422, "invalid_body")}
    for fields in ({}, {"worker_id": None}):
        answer = fleet.post("/reservations", {"model_name": "m", "selection_id": "s", **fields})
        assert answer.status == 404
        assert answer.body["error"].startswith(
            "no pending selection s for model=m routing_group=default"
        )


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 34),
        ({"effective_prefill_tokens": 5}, 5),
        ({"effective_prefill_tokens": 5, "track_prefill_tokens": False}, 0),
        ({"track_prefill_tokens": False}, 0),
        ({"track_prefill_tokens": None}, 34),
        ({"router_config_override": {"track_prefill_tokens": False}}, 0),
        (
            {
                "router_config_override": {"track_prefill_tokens": False},
                "track_prefill_tokens": True,
            },
            34,
        ),
    ],
)
def test_tracking_decides_over_the_prefill_load(fleet, fields, tokens):
    assert book(fleet, reservation_id="r", **fields).status == 201
    assert load_of(fleet)["potential_prefill_tokens"] == tokens


@pytest.mark.parametrize(
    ("policy", "by_selection"), [("reference", 0), ("work", 34), ("least_work", 34)]
)
def test_without_a_number_dynamo_1_6_books_no_prefill_tokens(fleet, policy, by_selection):
    """Check Dynamo's rule, which holds for Dynamo's own policy alone."""
    fleet.call("PUT", "/policy", {"policy": policy})
    book(fleet, selection_id="s", track_prefill_tokens=True)
    assert load_of(fleet)["potential_prefill_tokens"] == by_selection
    book(fleet, reservation_id="r", dp_rank=1)
    assert load_of(fleet, 1)["potential_prefill_tokens"] == 34


def test_too_many_prefill_tokens_are_refused_tracked_or_not(fleet):
    for tracked in (None, True, False):
        answer = book(
            fleet,
            selection_id="s",
            effective_prefill_tokens=35,
            track_prefill_tokens=tracked,
        )
        assert answer.status == 400


@pytest.mark.parametrize(("credit", "status"), [(0, 200), (1.5, 200), (1e300, 200), (-0.1, 422)])
def test_the_overlap_credit_of_a_request_has_no_upper_bound(fleet, credit, status):
    override = {"router_config_override": {"overlap_score_credit": credit}}
    assert fleet.post("/select", {**PROMPT, **override}).status == status
