"""Tests of POST /select and /select_and_reserve over the whole path."""

import asyncio
import json
import logging
import uuid

import pytest

from select_service.api.application import ApiApplication
from select_service.core.placement.prompt import BOOKED_PROMPT_MISSING, PROMPT_MISSING
from select_service.core.views.no_worker_error import SCOPES_SHOWN_MAX
from select_service.http.client_connection import EXTENSION_KEY, ClientConnection
from tests.builders import worker_body
from tests.builders.in_process import Api

PROMPT = {"model_name": "m", "token_ids": list(range(34))}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def loads(api):
    return api.get("/loads").body[0]["loads"]


def test_a_selection_has_every_field_in_order(fleet):
    answer = fleet.post("/select", {**PROMPT, "selection_id": "s"})
    assert answer.status == 200
    assert list(answer.body) == [
        "selection_id",
        "model_name",
        "tenant_id",
        "routing_group",
        "worker_id",
        "dp_rank",
        "endpoint",
        "block_size",
        "overlap",
        "effective_prefill_tokens",
        "potential_decode_blocks",
    ]
    assert answer.body["overlap"] == {
        "longest_matched": 0,
        "gpu": 0,
        "dp": {"0": 0, "1": 0},
        "cpu": 0,
        "disk": 0,
    }
    assert answer.body["effective_prefill_tokens"] == 34


def test_select_books_nothing(fleet):
    assert fleet.post("/select", {**PROMPT, "reservation_id": "r"}).status == 200
    assert fleet.get("/reservations").body["total"] == 0
    assert all(row["active_requests"] == 0 for row in loads(fleet))


def test_select_and_reserve_books_the_load_it_answers(fleet):
    answer = fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": "r"})
    assert answer.status == 200
    assert list(answer.body)[:2] == ["selection_id", "reservation_id"]
    chosen = answer.body["dp_rank"]
    assert {
        (row["dp_rank"], row["potential_prefill_tokens"], row["potential_decode_blocks"])
        for row in loads(fleet)
    } == {(chosen, 34, 8), (1 - chosen, 0, 0)}


def test_a_repeat_is_answered_with_the_booking(fleet):
    wanted = {**PROMPT, "reservation_id": "r"}
    first = fleet.post("/select_and_reserve", wanted)
    loads_then = loads(fleet)
    again = fleet.post("/select_and_reserve", {**wanted, "repeat": True})
    assert (again.status, again.body) == (200, first.body)
    assert loads(fleet) == loads_then
    for other in (wanted, {**wanted, "repeat": True, "token_ids": [1]}):
        assert fleet.post("/select_and_reserve", other).body["code"] == "conflict"


def test_hashes_of_an_answer_book_the_same_blocks_elsewhere(fleet):
    """Check ingress replicas, which pass bookings on to the selectors of other replicas."""
    wanted = {**PROMPT, "reservation_id": "r", "include_hashes": True}
    answer = fleet.post("/select_and_reserve", wanted).body
    assert list(answer)[2:4] == ["sequence_hashes", "isl_tokens"]
    (row,) = fleet.get("/reservations?sequence_hashes=true").body["reservations"]
    assert row["sequence_hashes"] == answer["sequence_hashes"]
    told = {key: answer[key] for key in ("worker_id", "dp_rank", "sequence_hashes", "isl_tokens")}
    with Api() as other:
        other.post("/workers", worker_body(1, data_parallel_size=2))
        other.post("/reservations", {"model_name": "m", "reservation_id": "r", **told})
        assert loads(other) == loads(fleet)


def test_requests_one_after_the_other_see_each_other(fleet):
    ranks = [fleet.post("/select_and_reserve", PROMPT).body["dp_rank"] for _ in range(10)]
    assert ranks.count(0) == ranks.count(1) == 5


def test_an_id_is_made_when_none_is_given(fleet):
    made = fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": None}).body
    assert str(uuid.UUID(made["reservation_id"], version=4)) == made["reservation_id"]


def test_the_empty_text_is_an_id(fleet):
    body = {**PROMPT, "reservation_id": "", "selection_id": ""}
    answer = fleet.post("/select_and_reserve", body).body
    assert (answer["selection_id"], answer["reservation_id"]) == ("", "")


def test_an_id_in_use_is_a_conflict_in_every_partition(fleet):
    fleet.post("/workers", worker_body(2, model_name="other"))
    assert fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": "r"}).status == 200
    again = {"model_name": "other", "token_ids": [1], "reservation_id": "r"}
    answer = fleet.post("/select_and_reserve", again)
    assert (answer.status, answer.body["code"]) == (409, "conflict")
    assert fleet.get("/reservations").body["total"] == 1


def test_without_workers_the_answer_is_unavailable(api):
    answer = api.post("/select", PROMPT)
    assert answer.status == 503
    assert answer.body == {
        "error": "no schedulable workers are available: none is registered; register "
        "one with POST /workers",
        "code": "no_schedulable_workers",
    }
    api.post("/workers", {"worker_id": 1})
    assert api.post("/select", PROMPT).body["error"] == (
        "no schedulable workers are available: none of 1 registered workers is "
        "schedulable; see GET /workers"
    )


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/select", PROMPT_MISSING),
        ("/select_and_reserve", PROMPT_MISSING),
        ("/potential_loads", PROMPT_MISSING),
        ("/overlap_scores", PROMPT_MISSING),
        ("/reservations", BOOKED_PROMPT_MISSING),
    ],
)
def test_missing_workers_are_reported_before_a_missing_prompt(api, path, error):
    """Check Dynamo's order: a lack of workers comes first."""
    body = {"reservation_id": "r", "worker_id": 1, "prompt": "hello"}
    for _ in range(2):
        answer = api.post(path, body)
        assert (answer.status, answer.body["error"][:23]) == (503, "no schedulable workers ")
        api.post("/workers", worker_body(1, model_name="other"))
    api.post("/workers", worker_body(2))
    answer = api.post(path, body | {"worker_id": 2, "model_name": "m"})
    assert (answer.status, answer.body["error"]) == (400, error)


def test_faults_of_the_body_are_reported_before_missing_workers(api):
    answer = api.post("/select", {"block_hashes": [1], "sequence_hashes": [1]})
    assert answer.status == 503
    answer = api.post("/select", {**PROMPT, "sequence_hashes": [2**64]})
    assert (answer.status, answer.body["code"]) == (422, "invalid_body")


def test_an_unknown_scope_is_unavailable(fleet):
    answer = fleet.post("/select", {**PROMPT, "tenant_id": "t"})
    assert answer.status == 503
    assert answer.body["error"] == (
        "no schedulable workers for model=m tenant=t; there are some for model=m tenant=default"
    )


def test_the_error_names_only_some_of_many_scopes(api):
    for worker_id in range(20):
        api.post("/workers", worker_body(worker_id, model_name=f"model-{worker_id}"))
    error = api.post("/select", PROMPT).body["error"]
    assert error.count("model=model-") == SCOPES_SHOWN_MAX
    assert error.endswith(f" and {20 - SCOPES_SHOWN_MAX} more")


def test_the_tenant_may_be_called_routing_group(api):
    assert api.post("/workers", worker_body(1, routing_group="t")).body["tenant_id"] == "t"
    assert api.post("/select", {**PROMPT, "routing_group": "t"}).status == 200
    assert api.post("/select", {**PROMPT, "tenant_id": "t"}).body["tenant_id"] == "t"
    answer = api.post("/select", {**PROMPT, "tenant_id": "t", "routing_group": "u"})
    assert (answer.status, answer.body["code"]) == (400, "bad_request")


def test_unmet_constraints_have_distinct_errors(fleet):
    answer = fleet.post("/select", {**PROMPT, "allowed_worker_ids": []})
    assert (answer.status, answer.body["code"]) == (503, "no_eligible_rank")


def test_signed_and_unsigned_hashes_are_the_same(fleet):
    unsigned = [2**64 - 1, 2**63]
    signed = [-1, -(2**63)]
    for i, hashes in enumerate((unsigned, signed)):
        body = {
            "model_name": "m",
            "block_hashes": hashes,
            "sequence_hashes": hashes,
            "isl_tokens": 8,
            "reservation_id": str(i),
            "pinned_worker": {"worker_id": 1, "dp_rank": 0},
        }
        assert fleet.post("/select_and_reserve", body).status == 200
    assert loads(fleet)[0]["potential_decode_blocks"] == 2


def scope_of(path):
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }


class InProcessRequest:
    """One request of an in-process client, and its answer."""

    def __init__(self, path, body):
        self.scope = scope_of(path)
        self.sent = []
        self._body = body

    def of(self, connection):
        self.scope["extensions"] = {EXTENSION_KEY: connection}
        return self

    async def receive(self):
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message):
        self.sent.append(message)


@pytest.mark.parametrize("path", ["/select_and_reserve", "/reservations"])
def test_a_client_that_went_away_before_booking_books_nothing(fleet, path):
    body = json.dumps({**PROMPT, "reservation_id": "r", "worker_id": 1}).encode()
    app, closed = ApiApplication(fleet.service), ClientConnection()
    closed.mark_lost()
    gone = InProcessRequest(path, body).of(closed)
    asyncio.run(app(gone.scope, gone.receive, gone.send))
    assert gone.sent == []
    assert fleet.get("/reservations").body["total"] == 0
    here = InProcessRequest(path, body).of(ClientConnection())
    asyncio.run(app(here.scope, here.receive, here.send))
    assert here.sent[0]["status"] in (200, 201)
    assert fleet.get("/reservations").body["total"] == 1


def test_a_client_that_disconnects_while_sending_is_no_error(fleet, caplog):
    messages = iter(
        [
            {"type": "http.request", "body": b'{"model_', "more_body": True},
            {"type": "http.disconnect"},
        ]
    )

    async def receive():
        return next(messages)

    async def send(message):
        raise AssertionError(message)

    asyncio.run(ApiApplication(fleet.service)(scope_of("/select"), receive, send))
    assert caplog.records == []


def test_a_decision_is_one_debug_line_that_can_be_joined(fleet, caplog):
    with caplog.at_level(logging.DEBUG, "select_service"):
        body = {**PROMPT, "selection_id": "s", "reservation_id": "r"}
        answer = fleet.post("/select_and_reserve", body, traceparent=TRACE)
    (line,) = [record for record in caplog.records if record.message == "decision"]
    fields = line.fields
    assert fields["selection_id"] == "s"
    assert fields["reservation_id"] == "r"
    assert fields["traceparent"] == TRACE
    assert (fields["worker_id"], fields["dp_rank"]) == (1, answer.body["dp_rank"])
    assert len(fields["candidates"]) == 2


def test_a_decision_is_not_logged_above_debug(fleet, caplog):
    with caplog.at_level(logging.INFO, "select_service"):
        fleet.post("/select_and_reserve", PROMPT)
    assert caplog.records == []
