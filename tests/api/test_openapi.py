"""Tests that the OpenAPI document is valid, complete and true of the service."""

import gzip
import hashlib
import importlib
import json
import pkgutil
import re
from importlib import resources

import jsonschema_rs
import msgspec
import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st

from select_service import schemas
from select_service.api.documentation import ENDPOINT_GROUPS
from select_service.api.openapi.document import U32_KEY, build_document
from select_service.api.request_parameters import PAGE_ROWS, PAGE_ROWS_MAX
from select_service.api.static_files import CSS, HTML, JAVASCRIPT
from select_service.base.errors import Overloaded
from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.builders.routes import BY_ID, ROUTES, path_of

DOCUMENT = build_document(ENDPOINT_GROUPS, "1.2.3")
COMPONENTS = DOCUMENT["components"]["schemas"]
BASES = {
    "RankAddress",
    "Struct",
    "RequestBody",
    "Scope",
    "WorkerFields",
    "PromptFields",
    "DecisionFacts",
}
REQUEST_EXAMPLES = [
    pytest.param(route, body, id=f"{route.operation_id}-{name}")
    for route in ROUTES
    if route.body
    for name, body in route.body.examples.items()
]
ANSWERS = [
    pytest.param(route, status, id=f"{route.operation_id}-{status}")
    for route in ROUTES
    for status, answer in route.answers.items()
    if answer.type is not None and route.operation_id != "openapi"
]
U64_FIELDS = [
    pytest.param(route.body.type, name, id=f"{route.operation_id}-{name}")
    for route in ROUTES
    if route.body
    for name, field in COMPONENTS[route.body.type.__name__]["properties"].items()
    if any(part.get("format") == "uint64" for part in (field, *field.get("anyOf", ())))
]


def references(part):
    if isinstance(part, dict):
        yield from (value for key, value in part.items() if key == "$ref")
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def operation(route):
    return DOCUMENT["paths"][route.path][route.method.lower()]


def assert_conforms(value, of):
    """Check that `value` is valid under a schema of the document."""
    jsonschema_rs.Draft202012Validator({**of, "components": DOCUMENT["components"]}).validate(value)


def schema_of(route, status):
    content, *_ = operation(route)["responses"][str(status)]["content"].values()
    return content["schema"]


def test_the_document_is_valid_openapi():
    schemathesis.openapi.from_dict(DOCUMENT).validate()


def test_every_reference_leads_somewhere_and_every_schema_is_used():
    used = {ref.removeprefix("#/components/schemas/") for ref in references(DOCUMENT)}
    assert used == set(COMPONENTS)


def test_every_body_of_the_schema_is_described():
    described = {
        name
        for module in pkgutil.iter_modules(schemas.__path__, f"{schemas.__name__}.")
        for name, kind in vars(importlib.import_module(module.name)).items()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind is not msgspec.Struct
    }
    assert described - BASES <= set(COMPONENTS)


def test_every_field_of_every_schema_has_a_description():
    silent = [
        f"{name}.{field}: put a string below the field"
        for name, schema in COMPONENTS.items()
        for field, of in schema.get("properties", {}).items()
        if not of.get("description", "").endswith((".", "?", "`"))
    ]
    assert silent == []


def test_every_schema_has_a_description():
    assert [name for name, schema in COMPONENTS.items() if not schema.get("description")] == []


def test_a_noun_is_a_tag_with_its_endpoints():
    for noun, tag in zip(ENDPOINT_GROUPS, DOCUMENT["tags"], strict=True):
        assert tag == {"name": noun.name, "description": noun.summary}
        assert noun.endpoints
        assert all(operation(each.route)["tags"] == [noun.name] for each in noun.endpoints)


def test_operations_have_distinct_ids_and_declared_path_parameters():
    assert len({route.operation_id for route in ROUTES}) == len(ROUTES)
    for route in ROUTES:
        declared = {p["name"] for p in operation(route).get("parameters", ()) if p["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", route.path))


def test_every_error_lists_its_codes():
    for route in ROUTES:
        for refusal in route.refusals:
            assert refusal.status not in route.answers
            schema = schema_of(route, refusal.status)
            forms = schema.get("anyOf", [schema])
            if refusal is Overloaded:
                assert {"$ref": "#/components/schemas/OverloadedBody"} in forms
            else:
                assert refusal.code in forms[0]["properties"]["code"]["enum"]


def test_the_pages_of_reservations_are_as_long_as_documented(fleet):
    for number in range(PAGE_ROWS + 1):
        body = {"model_name": "m", "token_ids": [1], "reservation_id": str(number)}
        fleet.post("/select_and_reserve", body)
    assert len(fleet.get("/reservations").body["reservations"]) == PAGE_ROWS
    assert fleet.get(f"/reservations?limit={PAGE_ROWS_MAX}").status == 200
    assert fleet.get(f"/reservations?limit={PAGE_ROWS_MAX + 1}").status == 400
    assert fleet.get("/reservations?limit=0").status == 400


def test_unsigned_64_bit_fields_are_found():
    assert len(U64_FIELDS) > 10
    assert COMPONENTS["MmObject"]["properties"]["mm_hash"]["maximum"] == 2**64 - 1


@pytest.mark.parametrize(("body", "name"), U64_FIELDS)
def test_the_bounds_of_unsigned_64_bit_fields_are_enforced(body, name):
    one_of_each = {"worker_id": 1, "reservation_id": "r", "token_ids": [1]}
    known = {field.encode_name for field in msgspec.structs.fields(body)}
    for value, fits in ((2**64 - 1, True), (2**64, False), (-1, False)):
        given_body = {field: v for field, v in one_of_each.items() if field in known}
        given_body[name] = value
        if fits:
            msgspec.convert(given_body, body)
        else:
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert(given_body, body)


def test_an_i64_and_a_u64_hash_are_valid_and_wider_ones_are_not():
    hashes = COMPONENTS["SelectRequest"]["properties"]["block_hashes"]
    for value in (-(2**63), 2**64 - 1, 0):
        assert_conforms([value], hashes)
    for value in (-(2**63) - 1, 2**64):
        with pytest.raises(jsonschema_rs.ValidationError):
            assert_conforms([value], hashes)


@given(st.integers(min_value=0, max_value=2**34) | st.integers(2**32 - 300, 2**32 + 300))
def test_the_pattern_of_number_keys_admits_exactly_32_bits(number):
    assert bool(re.fullmatch(U32_KEY, str(number))) == (number < 2**32)


@pytest.mark.parametrize("key", ["", "-0", "01", "1.0", "+1", " 1", "a"])
def test_a_number_key_has_one_spelling(key):
    assert not re.fullmatch(U32_KEY, key)


@pytest.mark.parametrize(("route", "body"), REQUEST_EXAMPLES)
def test_a_request_example_is_accepted_by_schema_and_service(route, body):
    content = operation(route)["requestBody"]["content"]["application/json"]
    assert_conforms(body, content["schema"])
    msgspec.json.decode(json.dumps(body), type=route.body.type)


@pytest.mark.parametrize(("route", "status"), ANSWERS)
def test_an_answer_example_is_valid_and_complete(route, status):
    answer = route.answers[status]
    assert_conforms(answer.example, schema_of(route, status))
    decoded = msgspec.json.decode(json.dumps(answer.example), type=answer.type)
    assert msgspec.to_builtins(decoded, str_keys=True) == answer.example


ELSEWHERE = {"stream_migrations", "confirm_migration", "stream_fleet"}
"""Two operations never end, another needs a moved reservation: see test_migrations, test_live."""


def call_all(service):
    """Yield each operation's answer to the first example, in an order in which all succeed."""
    for worker_id in (1, 2):
        yield from _call(service, "register_worker", worker_id)
    order = ["select", "select_and_reserve", "prefill_complete", "output_block"]
    order += ["renew_reservation", "list_reservations", "loads", "potential_loads"]
    order += [
        "overlap_scores",
        "list_workers",
        "get_worker",
        "get_reservation",
        "ready",
        "health",
        "config",
        "dump",
        "metrics",
    ]
    order += ["list_peers", "register_peer", "replica_status", "deregister_peer"]
    order += ["set_busy_threshold", "busy_thresholds", "shed", "admission_state"]
    order += ["list_decisions", "get_decision", "explain"]
    order += ["list_sessions", "get_session", "end_session"]
    order += ["set_policy", "policies", "remove_policy", "shadow"]
    order += ["begin_experiment", "list_experiments", "get_experiment", "end_experiment"]
    order += ["set_log_level", "openapi", "docs", "docs_file", "page", "page_file"]
    order += ["clear_cache", "check_worker", "drain_worker", "undrain_worker", "report_outcome"]
    order += ["list_migrations", "fleet_health", "discovery", "shared_caches", "state"]
    order += ["learn_canaries", "observe"]
    order += ["free_reservation", "select_pair", "select_pair_and_reserve", "first_token"]
    order += ["move_leg", "free_reservation", "create_reservation", "patch_worker"]
    for operation_id in [*order, "delete_worker", "doctor"]:
        yield from _call(service, operation_id)


def _call(service, operation_id, worker_id=1):
    route, body = BY_ID[operation_id], None
    if route.body:
        body = next(iter(route.body.examples.values()))
    if operation_id == "register_worker":
        body = {**worker_body(worker_id), **body, "worker_id": worker_id}
    if operation_id == "select_and_reserve":
        body = {**body, "session_id": "conversation-7"}
    of_a_model = operation_id in ("observe", "get_session", "end_session")
    scope = "?model_name=llama-3-8b" if of_a_model else ""
    yield route, service.call(route.method, path_of(route) + scope, body)


@pytest.fixture
def complete():
    """Yield a service with an object for every route."""
    flags = ("--replica-sync-port=65535", "--shadow-policy=reference", "--health-checks=on")
    with Api(*flags) as service:
        yield service


def test_the_documented_examples_succeed_and_their_answers_are_as_documented(complete):
    seen = set()
    for route, answer in call_all(complete):
        seen.add(route.operation_id)
        assert answer.status in route.answers, (route.operation_id, answer.body)
        expected = route.answers[answer.status]
        assert answer.headers.get("content-type", "") == expected.media_type
        if expected.media_type:
            assert_conforms(answer.body, schema_of(route, answer.status))
    assert seen == {route.operation_id for route in ROUTES} - ELSEWHERE


def test_refusals_are_as_documented(api):
    cases = [
        ("ready", None, 503),
        ("select", b"{", 400),
        ("select", {"token_ids": "x"}, 422),
        ("select", {"token_ids": [1]}, 503),
        ("patch_worker", {}, 404),
        ("free_reservation", None, 404),
        ("output_block", {"decay_fraction": 7}, 400),
    ]
    for operation_id, body, status in cases:
        route = BY_ID[operation_id]
        answer = api.call(route.method, path_of(route), body)
        assert answer.status == status, (operation_id, answer.body)
        assert_conforms(answer.body, schema_of(route, status))


def test_the_service_serves_this_document(api):
    answer = api.get("/openapi.json")
    assert answer.body == json.loads(json.dumps(DOCUMENT))


MEDIA_TYPES = {"swagger-ui-bundle.js": JAVASCRIPT, "start.js": JAVASCRIPT, "swagger-ui.css": CSS}
VIEWER = resources.files("select_service.api") / "viewer"
MANIFEST = json.loads((VIEWER / "manifest.json").read_text())


def test_the_viewer_is_the_published_one_of_the_manifest():
    assert MANIFEST["licence"] == "Apache-2.0"
    assert "Apache License" in (VIEWER / "LICENSE").read_text()
    for name, digest in MANIFEST["sha256"].items():
        data = gzip.decompress((VIEWER / f"{name}.gz").read_bytes())
        assert hashlib.sha256(data).hexdigest() == digest


def test_the_page_loads_only_files_of_the_service(api):
    page = api.get("/docs")
    assert page.headers["content-type"] == HTML
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    links = set(re.findall(r'(?:src|href)="([^"]*)"', page.body)) - {"data:,", "openapi.json"}
    assert links == {f"docs/{name}" for name in MEDIA_TYPES}
    assert "<script>" not in page.body


@pytest.mark.parametrize("name", sorted(MEDIA_TYPES))
def test_a_file_of_the_page_is_compressed_if_accepted(api, name):
    packed = api.get(f"/docs/{name}")
    plain = api.call("GET", f"/docs/{name}", accept_encoding="identity")
    assert (packed.status, packed.headers["content-encoding"]) == (200, "gzip")
    assert "content-encoding" not in plain.headers
    assert packed.body == plain.body  # the test's client unpacks
    assert plain.headers["content-type"] == MEDIA_TYPES[name]
    if name in MANIFEST["sha256"]:
        assert hashlib.sha256(plain.body.encode()).hexdigest() == MANIFEST["sha256"][name]


def test_the_page_has_no_other_files(api):
    for name in ("manifest.json", "page.html", "..%2Fopenapi.py", "x"):
        assert api.get(f"/docs/{name}").status == 404
