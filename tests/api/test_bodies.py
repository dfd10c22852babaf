"""Tests of the checks of a body before the service reads the content, and of their order."""

import json

import msgspec
import pytest

from select_service.http.body_codec import BODY_BYTES_MAX, BODY_STRINGS_MAX
from select_service.http.lenient_decode import BodySchema
from tests.builders import worker_body
from tests.builders.routes import ROUTES

NULLABLE = (
    "tenant_id",
    "routing_constraints",
    "selection_id",
    "block_hashes",
    "sequence_hashes",
    "isl_tokens",
    "lora_name",
    "is_eagle",
    "pinned_worker",
    "allowed_worker_ids",
    "router_config_override",
)


def refusal_text(answer, status, code):
    assert answer.status == status
    assert set(answer.body) - {"warnings"} == {"error", "code"}
    assert answer.body["code"] == code
    assert answer.headers["content-type"] == "application/json"
    return answer.body["error"]


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/vnd.api+json",
        " application/json ;x=y",
    ],
)
def test_json_content_types_are_read(fleet, kind):
    body = b'{"model_name":"m","token_ids":[1]}'
    assert fleet.post("/select", body, content_type=kind).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "", "application/jsonp", "text/json", "json"])
def test_other_content_types_are_unsupported(fleet, kind):
    error = refusal_text(
        fleet.post("/select", b"{", content_type=kind), 415, "unsupported_media_type"
    )
    seen = f"got `{kind}`" if kind else "got no content type"
    assert error == (
        "expected a JSON body with content type `application/json`, "
        f"{seen}; with curl: -H 'content-type: application/json'"
    )


def test_a_missing_body_has_no_content_type(fleet):
    refusal_text(fleet.post("/select"), 415, "unsupported_media_type")


def test_an_output_block_needs_no_body(fleet):
    fleet.post("/select_and_reserve", {"model_name": "m", "token_ids": [1], "reservation_id": "x"})
    path = "/reservations/x/output_block"
    assert fleet.post(path).body == {"status": "ok"}
    assert fleet.get("/reservations/x").body["output_blocks"] == 1
    for kind in ("application/json", "application/x-www-form-urlencoded", ""):
        assert fleet.post(path, b"", content_type=kind).status == 200
    assert fleet.get("/reservations/x").body["output_blocks"] == 4
    refusal_text(fleet.post(path, b"{}", content_type=""), 415, "unsupported_media_type")
    big = b"x" * (BODY_BYTES_MAX + 1)
    refusal_text(fleet.post(path, big, content_type="text/plain"), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("method", "path"), [("PATCH", "/workers/1"), ("PUT", "/log_level"), ("POST", "/workers")]
)
def test_every_route_with_a_body_names_missing_fields(fleet, method, path):
    error = refusal_text(fleet.call(method, path), 415, "unsupported_media_type")
    assert "got no content type; with curl: -H 'content-type: application/json'" in error


def test_an_empty_body_is_called_so(fleet):
    error = refusal_text(fleet.post("/select", b""), 400, "malformed_json")
    assert error == "the request body is empty; expected a JSON object"


def test_the_content_type_is_looked_at_before_the_size(api):
    big = b"x" * (BODY_BYTES_MAX + 1)
    refusal_text(api.post("/select", big, content_type="text/plain"), 415, "unsupported_media_type")


def test_one_byte_too_many_is_too_large(fleet):
    body = b'{"model_name":"m","token_ids":[1],"x":"' + b"x" * BODY_BYTES_MAX
    fits = body[: BODY_BYTES_MAX - 2] + b'"}'
    assert fleet.post("/select", fits).status == 200
    error = refusal_text(fleet.post("/select", b" " + fits), 413, "body_too_large")
    assert "length limit exceeded" in error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{]",
        b"nul",
        b'{"a":}',
        b"{} {}",
        b"{}x",
        b"\xff",
        b'{"model_name":"\xff"}',
        b'{"isl_tokens":NaN}',
        b'{"isl_tokens":01}',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":"\\ud800"}',
        b'{"a":' + b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\x00",
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_without_json_is_malformed(fleet, body):
    refusal_text(fleet.post("/select", body), 400, "malformed_json")


@pytest.mark.parametrize(
    "body",
    [
        [],
        1,
        None,
        "x",
        {"token_ids": "x"},
        {"token_ids": [1.5]},
        {"token_ids": [-1]},
        {"token_ids": [2**32]},
        {"token_ids": [True]},
        {"token_ids": [None]},
        {"tenant_id": 1},
        {"isl_tokens": -1},
        {"isl_tokens": 1.0},
        {"pinned_worker": {}},
        {"block_hashes": [10**30], "sequence_hashes": [1], "isl_tokens": 4},
        {"allowed_worker_ids": ["1"]},
        {"router_config_override": {"overlap_score_credit": -0.5}},
        {"router_config_override": {"router_temperature": -1}},
    ],
    ids=repr,
)
def test_json_of_the_wrong_shape_is_an_invalid_body(fleet, body):
    if isinstance(body, dict):
        body = {"model_name": "m", "token_ids": [1]} | body
        if "block_hashes" in body:
            del body["token_ids"]
    refusal_text(fleet.post("/select", json.dumps(body).encode()), 422, "invalid_body")


def test_a_missing_field_is_named(api):
    error = refusal_text(api.post("/workers", {"endpoint": "http://x"}), 422, "invalid_body")
    assert "worker_id" in error


def test_bytes_that_are_no_text_behind_a_wrong_type_are_malformed(api):
    body = b'{"worker_id":1,"kv_events_endpoints":{"a":"x","\xbd":1}}'
    refusal_text(api.post("/workers", body), 400, "malformed_json")


def test_a_wrong_type_before_malformed_json_is_an_invalid_body(api):
    refusal_text(api.post("/workers", b'1,"a","a"}'), 422, "invalid_body")


@pytest.mark.parametrize(
    "number", ["18446744073709551616", "1" + "0" * 5000, "-" + "9" * 400, "1e400", "-0.5"]
)
def test_a_number_that_fits_nowhere_is_an_invalid_body(api, number):
    body = f'{{"worker_id":{number}}}'.encode()
    answer = api.post("/workers", body)
    assert answer.status in (400, 422)
    assert answer.body["code"] in ("invalid_body", "malformed_json")


@pytest.mark.parametrize(
    "body",
    [
        '{"model_name":"m","token_ids":[1],"model_name":"m"}',
        '{"model_name":"m","token_ids":[1],"token_ids":[2]}',
        '{"model_name":"m","token_ids" : [1],"token_ids"\n:[2]}',
        '{"model_name":"m","token_ids":[1],"token\\u005fids":[2]}',
        '{"model_name":"m","selection_id":"\\"","token_ids":[1],"token_ids":[2]}',
        '{"model_name":"m","token_ids":[1],"pinned_worker":'
        '{"worker_id":1,"worker_id":2,"dp_rank":0}}',
    ],
)
def test_a_field_given_twice_is_an_invalid_body(fleet, body):
    error = refusal_text(fleet.post("/select", body.encode()), 422, "invalid_body")
    assert "duplicate field" in error


@pytest.mark.parametrize(
    "body",
    [
        {"tenant_id": "m", "selection_id": "m"},
        {"selection_id": "model_name"},
        {"selection_id": 'a\\"b', "x": [{"a": 1}, {"a": 2}]},
        {"x": {"token_ids": 1, "model_name": 2}},
        {"selection_id": ":", "x": '":"'},
    ],
    ids=repr,
)
def test_equal_values_and_equal_keys_at_different_places_are_fine(api, body):
    api.post("/workers", worker_body(1))
    api.post("/workers", worker_body(2, tenant_id="m"))
    answer = api.post("/select", {"model_name": "m", "token_ids": [1]} | body)
    assert answer.status == 200
    assert answer.body.get("selection_id") == body.get("selection_id")


def test_more_strings_than_any_request_needs_are_an_invalid_body(fleet):
    body = {"model_name": "m", "token_ids": [1], "x": ["a"] * BODY_STRINGS_MAX}
    refusal_text(fleet.post("/select", body), 422, "invalid_body")


def test_null_is_like_absent_where_a_field_is_optional(fleet):
    body = {"model_name": "m", "token_ids": [1], **dict.fromkeys(NULLABLE)}
    answer = fleet.post("/select", body)
    assert answer.status == 200
    assert "selection_id" not in answer.body


NOT_NULL = {"advisory", "router_hint_source_control_endpoints"}
"""Fields that Dynamo 1.6 refuses to read from null."""


@pytest.mark.parametrize("route", [r for r in ROUTES if r.body], ids=lambda r: r.operation_id)
def test_null_means_the_same_as_leaving_out_every_field_that_may_be_left_out(route):
    fields = msgspec.structs.fields(route.body.type)
    optional = [f.encode_name for f in fields if not f.required and f.encode_name not in NOT_NULL]
    nulls = json.dumps(dict.fromkeys(optional, None)).encode()
    example = next(iter(route.body.examples.values()))
    given = json.dumps(dict.fromkeys(optional, None) | example).encode()
    form = BodySchema(route.body.type)
    if route.operation_id != "set_busy_threshold":  # null clears thresholds
        assert form.decode(form.prune_body(given).body) == form.decode(json.dumps(example).encode())
    assert form.prune_body(nulls).warnings == []


def test_a_route_without_a_body_ignores_one(fleet):
    body = {"model_name": "m", "token_ids": [1], "reservation_id": "r"}
    assert fleet.post("/select_and_reserve", body).status == 200
    answer = fleet.call("POST", "/reservations/r/renew", b"{", content_type="x/y")
    assert answer.status == 200
