"""Tests of the warnings for partly understood requests."""

import gzip
import json

import pytest

from select_service.http.lenient_decode import LIST_BYTES_MAX
from select_service.http.request_warnings import WARNINGS_HEADER, WARNINGS_MAX
from tests.builders import worker_body
from tests.builders.in_process import Api

PROMPT = {"model_name": "m", "token_ids": [1, 2]}


def header_warnings(answer):
    return json.loads(answer.headers[WARNINGS_HEADER])


def deep_mm_infos(n_bytes):
    objects = [{"mm_hash": 1, "offsets": [], "x": 1}]
    infos = [{"mm_objects": objects}]
    return infos + [None] * ((n_bytes - len(json.dumps(infos))) // 5)


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"model": "m"}, "unknown field `model`: did you mean `model_name`?"),
        ({"selectionId": "x"}, "unknown field `selectionId`: did you mean `selection_id`?"),
        ({"TokenIds": []}, "unknown field `TokenIds`: did you mean `token_ids`?"),
        ({"prompt": "hello"}, "unknown field `prompt`: did you mean `token_ids`?"),
        ({"reservation_id": "x"}, "unknown field `reservation_id`"),
        ({"id": "x"}, "unknown field `id`"),
        ({"xyz": {"deep": [1, {"a": None}]}}, "unknown field `xyz`"),
        ({"x" * 99: 1}, f"unknown field `{'x' * 64}...`"),
        ({"a\nb": 1}, "unknown field `a\\nb`"),
        (
            {"router_config_override": {"overlap_weight": 5}},
            "unknown field `overlap_weight` in `router_config_override`: "
            "did you mean `overlap_score_weight`?",
        ),
        (
            {"pinned_worker": {"worker_id": 1, "dp_rank": 0, "rank": 0}},
            "unknown field `rank` in `pinned_worker`: did you mean `dp_rank`?",
        ),
        (
            {"routing_constraints": {"taints": []}},
            "unknown field `taints` in `routing_constraints`: did you mean `required_taints`?",
        ),
        (
            {"block_mm_infos": [None, {"mm_objects": [{"mm_hash": 1, "offsets": [], "x": 1}]}]},
            "unknown field `x` in `block_mm_infos[1].mm_objects[0]`",
        ),
    ],
)
def test_an_unknown_field_is_a_warning_with_the_nearest_name(fleet, fields, warning):
    answer = fleet.post("/select", PROMPT | fields)
    assert answer.status == 200
    assert answer.body["warnings"] == [warning]


def test_an_answer_to_a_request_without_unknown_fields_has_no_warnings(fleet):
    answer = fleet.post("/select", PROMPT)
    assert "warnings" not in answer.body
    assert WARNINGS_HEADER not in answer.headers


def test_known_fields_beside_unknown_ones_count(fleet):
    body = {"reservationId": "a", **PROMPT, "reservation_id": "b", "token_ids": list(range(9))}
    answer = fleet.post("/select_and_reserve", body)
    assert answer.body["reservation_id"] == "b"
    assert answer.body["effective_prefill_tokens"] == 9


def test_a_refusal_has_the_warnings_too(api):
    answer = api.post("/select", {"model": "qwen", "token_ids": [1]})
    assert answer.status == 503
    assert answer.body["warnings"] == ["unknown field `model`: did you mean `model_name`?"]
    answer = api.post("/workers", {"workerId": 1})
    assert answer.status == 422
    assert answer.body["error"] == "the body: the field `worker_id` is missing"
    assert answer.body["warnings"] == ["unknown field `workerId`: did you mean `worker_id`?"]


def test_fixed_bodies_have_the_warnings_in_a_header(fleet):
    answer = fleet.post("/potential_loads", PROMPT | {"modell": 1})
    assert isinstance(answer.body, list)
    assert header_warnings(answer) == ["unknown field `modell`: did you mean `model_name`?"]
    fleet.post("/select_and_reserve", PROMPT | {"reservation_id": "x"})
    answer = fleet.post("/reservations/x/output_block", {"decay": 0.5, "\u00e4": 1})
    assert answer.body == {"status": "ok"}
    assert header_warnings(answer) == [
        "unknown field `decay`: did you mean `decay_fraction`?",
        "unknown field `\u00e4`",
    ]


def test_the_refusal_of_busy_workers_keeps_its_form(fleet):
    threshold = {"model": "m", "active_prefill_tokens_threshold": 0}
    assert fleet.post("/busy_threshold", threshold).status == 200
    for _ in range(2):
        fleet.post("/select_and_reserve", PROMPT)
    answer = fleet.post("/select", PROMPT | {"modell": 1})
    assert set(answer.body) == {"message", "type", "code"}
    assert len(header_warnings(answer)) == 1


@pytest.mark.parametrize(
    ("path", "warning"),
    [
        ("/workers?model=m", "unknown query parameter `model`: did you mean `model_name`?"),
        ("/loads?tenant=m", "unknown query parameter `tenant`: did you mean `tenant_id`?"),
        ("/health?x=1", "unknown query parameter `x`"),
        ("/metrics?x=1", "unknown query parameter `x`"),
        ("/dump?x=1", "unknown query parameter `x`"),
    ],
)
def test_an_unknown_query_parameter_is_a_warning(fleet, path, warning):
    answer = fleet.get(path)
    assert answer.status == 200
    assert header_warnings(answer) == [warning]


def test_objects_have_the_warnings_of_their_query_in_the_body(fleet):
    answer = fleet.get("/reservations?worker=1")
    assert answer.body["warnings"] == [
        "unknown query parameter `worker`: did you mean `worker_id`?"
    ]


def test_a_prompt_in_two_forms_is_a_warning_like_others(fleet):
    text = "block_hashes, sequence_hashes and isl_tokens are ignored, because token_ids are given"
    answer = fleet.post("/select", PROMPT | {"block_hashes": [1]})
    assert (answer.body["warnings"], WARNINGS_HEADER in answer.headers) == ([text], False)
    answer = fleet.post("/select", PROMPT | {"block_hashes": [1], "x": 1})
    assert answer.body["warnings"] == ["unknown field `x`", text]
    answer = fleet.post("/potential_loads", PROMPT | {"block_hashes": [1]})
    assert header_warnings(answer) == [text]


def test_warnings_are_bounded(fleet):
    answer = fleet.post("/select", PROMPT | {f"x{i}": i for i in range(WARNINGS_MAX + 5)})
    assert len(answer.body["warnings"]) == WARNINGS_MAX
    query = "&".join(f"x{i}=1" for i in range(WARNINGS_MAX + 5))
    assert len(header_warnings(fleet.get(f"/workers?{query}"))) == WARNINGS_MAX


def test_long_lists_of_objects_are_not_looked_through(fleet):
    short = fleet.post("/select", PROMPT | {"block_mm_infos": deep_mm_infos(LIST_BYTES_MAX // 2)})
    assert (short.status, len(short.body["warnings"])) == (200, 1)
    long = fleet.post("/select", PROMPT | {"block_mm_infos": deep_mm_infos(2 * LIST_BYTES_MAX)})
    assert (long.status, long.body["code"]) == (422, "invalid_body")
    assert "unknown field `x`" in long.body["error"]


def test_warnings_are_counted(fleet):
    fleet.post("/select", PROMPT | {"x": 1, "y": 2})
    fleet.get("/workers?x=1")
    text = fleet.get("/metrics").body
    count = 'select_service_request_warnings_total{{kind="{}",route="{}"}} {}'
    assert count.format("unknown_field", "/select", 2.0) in text
    assert count.format("unknown_parameter", "/workers", 1.0) in text


def test_strict_fields_turns_warnings_into_errors():
    with Api("--strict-fields", "true") as api:
        api.post("/workers", worker_body(1))
        answer = api.post("/select", PROMPT | {"model": "m"})
        assert (answer.status, answer.body["code"]) == (422, "unknown_field")
        assert answer.body["error"] == "unknown field `model`: did you mean `model_name`?"
        assert "warnings" not in answer.body
        assert api.get("/workers?model=m").status == 422
        assert api.post("/select", PROMPT).status == 200
        assert api.post("/select", PROMPT | {"block_hashes": [1]}).status == 200


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "a prompt is missing: give token_ids, or block_hashes with sequence_hashes and"),
        ({"isl_tokens": "5"}, '`isl_tokens`: expected a whole number, got "5"'),
        ({"isl_tokens": -1}, "`isl_tokens`: expected a whole number of at least 0, got -1"),
        ({"token_ids": [1, "a"]}, '`token_ids[1]`: expected a whole number, got "a"'),
        ({"token_ids": {}}, "`token_ids`: expected a list, got an object"),
        ({"is_eagle": 1}, "`is_eagle`: expected true or false, got 1"),
        ({"selection_id": "x" * 600}, "`selection_id`: expected a text of at most 512 characters"),
        ({"pinned_worker": {"worker_id": 1}}, "`pinned_worker`: the field `dp_rank` is missing"),
        ({"pinned_worker": 5}, "`pinned_worker`: expected an object, got 5"),
        ({"timeout_ms": 10**9}, "`timeout_ms`: expected a whole number of at most 3600000, got"),
        ({"allowed_worker_ids": [], "token_ids": [1]}, "allowed_worker_ids is empty; leave it out"),
        ({"allowed_worker_ids": [5], "token_ids": [1]}, "none of the allowed workers (5) is sched"),
    ],
)
def test_errors_are_in_the_words_of_the_user(fleet, body, error):
    answer = fleet.post("/select", {"model_name": "m"} | body)
    assert answer.status in (400, 422, 503)
    assert error in answer.body["error"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ([], "the body: expected an object, got a list"),
        ({}, "the body: the field `worker_id` is missing"),
        ({"worker_id": None}, "`worker_id`: expected a whole number, got null"),
        (
            {"worker_id": 1, "kv_event_semantics": "sets"},
            '`kv_event_semantics`: expected "counted" or "set", got "sets"',
        ),
        (
            {"worker_id": 1, "kv_events_endpoints": {"a": "b"}},
            'a key of `kv_events_endpoints`: expected a whole number, got "a"',
        ),
        (
            {"worker_id": 1, "kv_events_endpoints": {"0": "tcp://a:1", "4294967296": "tcp://a:2"}},
            "a key of `kv_events_endpoints`: expected a whole number of at most 4294967295, "
            'got "4294967296"',
        ),
        (
            {"worker_id": 1, "kv_events_endpoints": {"0": "tcp://a:1", "1": 5558}},
            "`kv_events_endpoints.1`: expected a text, got 5558",
        ),
        (
            {"worker_id": 1, "topology_domains": {"a.b": 5}},
            "`topology_domains[...]`: expected a text, got a whole number",
        ),
        ({"worker_id": 2**64}, "18446744073709551616 does not fit in an unsigned 64-bit integer"),
        (
            {"worker_id": 1, "taints": ["a"] * 300},
            "`taints`: expected a list of at most 256 items, got 300 items",
        ),
    ],
)
def test_errors_of_a_registration_name_the_field_and_the_value(api, body, error):
    answer = api.post("/workers", body)
    assert answer.status == 422
    assert error in answer.body["error"]


def test_the_thresholds_take_either_name_of_the_model(fleet):
    change = {"active_prefill_tokens_threshold": 7}
    for name in ("model", "model_name"):
        assert fleet.post("/busy_threshold", {name: "m", **change}).body["model"] == "m"
    assert fleet.post("/busy_threshold", {"model": "m", "model_name": "m"}).status == 200
    answer = fleet.post("/busy_threshold", {"model": "m", "model_name": "x"})
    assert (answer.status, "differ" in answer.body["error"]) == (422, True)
    assert "`model_name` is missing" in fleet.post("/busy_threshold", change).body["error"]


def test_one_worker_and_one_reservation_can_be_requested(fleet):
    (listed,) = fleet.get("/workers").body
    assert fleet.get("/workers/1").body == listed
    assert fleet.get("/workers/2").status == 404
    fleet.post("/select_and_reserve", PROMPT | {"reservation_id": "a/b"})
    (row,) = fleet.get("/reservations").body["reservations"]
    shown = fleet.get("/reservations/a%2Fb").body
    times = {"age_seconds", "expires_in_seconds"}
    assert {k: v for k, v in shown.items() if k not in times} == {
        k: v for k, v in row.items() if k not in times
    }
    assert fleet.get("/reservations/x").status == 404


def test_field_names_of_other_interfaces_are_recognized(api):
    body = {"id": 1, "url": "http://w", "dp_size": 2, "zmq_endpoint": "tcp://w:1"}
    told = api.post("/workers", {"worker_id": 7} | body).body["warnings"]
    meant = ["worker_id", "endpoint", "data_parallel_size", "kv_events_endpoint"]
    for name, field, text in zip(body, meant, told, strict=True):
        assert text == f"unknown field `{name}`: did you mean `{field}`?"
    told = api.post("/reservations", {"id": "r"}).body["warnings"]
    assert told == ["unknown field `id`: did you mean `reservation_id`?"]


def test_a_compressed_body_is_called_so(api):
    answer = api.post("/select", gzip.compress(b'{"token_ids": [1]}'))
    assert (answer.status, answer.body["code"]) == (400, "malformed_json")
    assert answer.body["error"] == "the request body is compressed: send it uncompressed"


CLASSES = """
default_policy_family: chat
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: chat_all, policy_family: chat, cache_bucket: all}
  - {name: batch}
"""
CLASS_HEADER = "x-dynamo-meta-policy-class"


@pytest.fixture
def classed(tmp_path):
    """Yield a service with a waiting queue and two policy classes."""
    path = tmp_path / "classes.yaml"
    path.write_text(CLASSES)
    with Api("--policy-config", str(path), "--strict-fields") as service:
        service.post("/workers", worker_body(1, max_num_batched_tokens=8192))
        yield service


@pytest.mark.parametrize("path", ["/select", "/select_and_reserve", "/explain"])
def test_an_unknown_policy_class_is_a_warning_and_changes_nothing_else(classed, path):
    said = classed.post(path, PROMPT, **{CLASS_HEADER: "batches"})
    assert said.status == 200
    assert said.body.pop("warnings") == [
        "unknown policy class or family `batches`, using `chat`: did you mean `batch`?"
    ]
    without = classed.post(path, PROMPT)
    assert said.body.keys() == without.body.keys()
    text = classed.get("/metrics").body
    name = "select_service_request_warnings_total"
    assert f'{name}{{kind="unknown_policy_class",route="{path}"}} 1.0' in text


@pytest.mark.parametrize("wanted", ["chat", "batch", ""])
def test_known_policy_classes_and_families_are_no_reason_to_warn(classed, wanted):
    answer = classed.post("/select", PROMPT, **{CLASS_HEADER: wanted})
    assert (answer.status, "warnings" in answer.body) == (200, False)


def test_without_a_queue_the_policy_class_is_not_checked(fleet):
    answer = fleet.post("/select", PROMPT, **{CLASS_HEADER: "batches"})
    assert (answer.status, "warnings" in answer.body) == (200, False)


def test_overrides_without_effect_on_the_policy_are_warnings(fleet):
    override = {"prefill_load_scale": 2.0, "router_temperature": 0.0}
    for path in ("/select", "/select_and_reserve", "/explain"):
        answer = fleet.post(path, PROMPT | {"router_config_override": override})
        assert answer.body["warnings"] == [
            "`prefill_load_scale` of `router_config_override`: used only by the policy "
            "`reference`; the active policy is `work`"
        ]
    fleet.call("PUT", "/policy", {"policy": "reference"})
    answer = fleet.post("/select", PROMPT | {"router_config_override": override})
    assert (answer.status, "warnings" in answer.body) == (200, False)
