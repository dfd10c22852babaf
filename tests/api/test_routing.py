"""Tests of the paths and methods that reach a handler, and of all other requests."""

import errno
import logging

import pytest

from tests.builders import worker_body
from tests.builders.routes import ROUTES

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
REQUESTS = 'select_service_requests_total{{method="{}",route="{}",status="{}"}} 1.0'
PATHS = sorted({route.path for route in ROUTES})


def methods_of(path):
    found = {route.method for route in ROUTES if route.path == path}
    return found | ({"HEAD"} if "GET" in found else set())


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/nope", None),
        ("/reservations/x/complete", "/reservations/{reservation_id}/prefill_complete"),
        ("/reservations/x/output-block", "/reservations/{reservation_id}/output_block"),
        ("/worker/1", "/workers/{worker_id}"),
        ("/v1/chat/completions", None),
        ("/Health", "/health"),
        ("/health/", "/health"),
        ("/healthz", "/health"),
        ("/%68ealth", "/health"),
        ("/metric", "/metrics"),
        ("/workers/", "/workers"),
        ("/workers/1/", "/workers/{worker_id}"),
        ("/select/", "/select"),
        ("/select-and-reserve", "/select_and_reserve"),
        ("/reservations/", "/reservations"),
        ("/reservations/x/renew/", "/reservations/{reservation_id}/renew"),
        ("/reservations/x/free", "DELETE /reservations/{reservation_id}"),
        ("/workers/7/remove/", "DELETE /workers/{worker_id}"),
    ],
)
def test_an_unknown_path_is_not_found_and_the_nearest_one_is_named(api, path, meant):
    answer = api.get(path)
    proposal = "; see /docs" if meant is None else f": did you mean `{meant}`?"
    assert answer.status == 404
    assert answer.body == {"error": f"route not found{proposal}", "code": "route_not_found"}
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_method_gets_the_allowed_ones(api, path):
    for method in sorted(set(METHODS) - methods_of(path)):
        answer = api.call(method, path.replace("{worker_id}", "1"))
        assert answer.status == 405, method
        assert set(answer.headers["allow"].split(",")) == methods_of(path)
        if method != "HEAD":
            assert answer.body["code"] == "method_not_allowed"
            assert all(right in answer.body["error"] for right in methods_of(path))


ENDLESS = "/live"
"""Path of an endless stream; test_live checks its head."""


@pytest.mark.parametrize("path", [p for p in PATHS if "HEAD" in methods_of(p) and p != ENDLESS])
def test_head_answers_like_get(api, path):
    assert api.call("HEAD", path).status == api.get(path).status


def test_a_path_segment_is_decoded_once(fleet):
    for reservation_id in ("a/b", "x/prefill_complete", "50%25", "a b", "ü", ".", "a?b"):
        body = {"model_name": "m", "token_ids": [1], "reservation_id": reservation_id}
        assert fleet.post("/select_and_reserve", body).status == 200
    for segment in ("a%2Fb", "x%2Fprefill_complete", "50%2525", "a%20b", "%C3%BC", "%2E", "a%3Fb"):
        assert fleet.post(f"/reservations/{segment}/renew").status == 200, segment
        assert fleet.delete_worker(f"/reservations/{segment}").status == 200, segment
    assert fleet.get("/reservations").body["total"] == 0


def test_a_path_segment_that_is_not_utf8_is_a_bad_request(api):
    answer = api.delete_worker("/reservations/%ff")
    assert answer.status == 400
    assert answer.body == {
        "error": "Invalid URL: Invalid UTF-8 in `reservation_id`",
        "code": "bad_request",
    }


@pytest.mark.parametrize(
    "segment", ["abc", "-1", "1.0", "18446744073709551616", "%20", "+1", "1_0"]
)
def test_a_worker_id_that_is_no_u64_is_a_bad_request(api, segment):
    answer = api.delete_worker(f"/workers/{segment}")
    assert answer.status == 400
    assert answer.body["code"] == "bad_request"
    assert "Cannot parse" in answer.body["error"]


def test_a_path_that_looks_like_a_template_is_an_id_like_any_other(api):
    assert api.delete_worker("/workers/{worker_id}").status == 400
    assert api.delete_worker("/reservations/{reservation_id}").status == 404


def test_the_largest_worker_id_is_one(api):
    answer = api.delete_worker("/workers/18446744073709551615")
    assert answer.status == 404
    assert answer.body["error"] == "worker 18446744073709551615 not found"


@pytest.mark.parametrize("path", ["/workers", "/loads", "/reservations"])
def test_a_query_parameter_given_twice_is_a_bad_request(api, path):
    answer = api.get(f"{path}?tenant_id=a&tenant_id=a")
    assert answer.status == 400
    assert "duplicate field `tenant_id`" in answer.body["error"]


@pytest.mark.parametrize("path", ["/workers", "/loads", "/reservations"])
def test_two_names_of_the_tenant_must_agree(api, path):
    assert api.get(f"{path}?tenant_id=a&routing_group=b").status == 400
    assert api.get(f"{path}?tenant_id=a&routing_group=a").status == 200


def test_unknown_query_parameters_do_no_harm(api):
    assert api.get("/workers?foo=1&foo=2&%ff=%ff").status == 200


def test_a_bug_in_a_handler_is_one_500_and_one_log_line(api, caplog, monkeypatch):
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(type(api.service.selector.inspection), "partition_loads", None)
        answer = api.get("/loads")
    assert answer.status == 500
    assert answer.body["code"] == "internal_error"
    assert "NoneType" not in answer.body["error"]
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert api.get("/health").status == 200
    assert REQUESTS.format("GET", "/loads", 500) in api.get("/metrics").body


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")], ids=["heap", "map"]
)
@pytest.mark.parametrize("path", ["/select", "/workers"])
def test_a_request_for_which_there_is_no_memory_is_refused(api, caplog, monkeypatch, path, error):
    def fail(*_):
        raise error

    assert api.post("/workers", worker_body(1)).status == 201
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(type(api.service.selector), "select", fail)
        patched.setattr(type(api.service.selector), "register_worker", fail)
        answer = api.post(path, {"token_ids": [1]} if path == "/select" else worker_body(2))
    assert (answer.status, answer.body["code"]) == (503, "capacity_exceeded")
    assert [record.message for record in caplog.records] == ["request failed"]
    assert REQUESTS.format("POST", path, 503) in api.get("/metrics").body
    assert api.get("/health").status == 200
