"""Tests of the spans of a real service, as a collector receives them."""

import signal
import time

import pytest

from tests.builders import worker_body
from tests.builders.keys import bearer, entry, keys_file
from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.running import Running, complaint, request, run_to_end
from tests.process.otlp_receiver import Receiver

pytestmark = pytest.mark.process

PROMPT = {"model_name": "m", "token_ids": list(range(64))}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
SERVER, ERROR = 2, 2
FLUSH_S_MAX = 2.0
WALL_CLOCK_S = 0.001
"""Tolerance in seconds: spans use the time of day, which may be adjusted; queues use another clock.
"""


def tracing(receiver, *flags, **environment):
    given = {**receiver.environment, **environment}
    return Running("--threads", "1", "--otel", *flags, **given)


def metric(service, name, labels=""):
    text = service.call("GET", "/metrics").body.decode()
    line = f"select_service_tracing_{name}{labels} "
    (found,) = [each for each in text.splitlines() if each.startswith(line)]
    return float(found.removeprefix(line))


@pytest.fixture(scope="module")
def receiver():
    with Receiver() as receiving:
        yield receiving


@pytest.fixture(scope="module")
def service(receiver):
    """Yield a service that traces requests sampled by callers, with a queue for requests."""
    only_callers = {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}
    with tracing(receiver, "--queue-threshold=1.0", **only_callers) as running:
        body = worker_body(1) | {"max_num_batched_tokens": 1000}
        assert running.call("POST", "/workers", body).status == 201
        yield running


def span_of(receiver, service, method, path, body, **headers):
    """Return the answer and the span of the request."""
    seen = len(receiver.spans)
    answer = service.call(method, path, body, traceparent=SAMPLED, **headers)
    (span,) = eventually(lambda: receiver.spans[seen:])
    assert (span.trace_id, span.parent_id, span.kind) == (TRACE, PARENT, SERVER)
    return answer, span


def test_a_selection_has_a_span_below_that_of_its_caller(receiver, service):
    asked = PROMPT | {"reservation_id": "r1", "selection_id": "s1"}
    path = "/select_and_reserve"
    answer, span = span_of(receiver, service, "POST", path, asked, tracestate="a=b,c=d")
    assert answer.status == 200
    decision = service.call("GET", "/decisions").body["decisions"][0]
    assert (span.name, span.trace_state, span.status) == (f"POST {path}", "a=b,c=d", 0)
    assert span.attributes == {
        "http.request.method": "POST",
        "http.route": path,
        "url.path": path,
        "url.scheme": "http",
        "server.address": "127.0.0.1",
        "server.port": service.port,
        "http.response.status_code": 200,
        "gen_ai.request.model": "m",
        "select_service.tenant_id": "default",
        "select_service.outcome": "selected",
        "select_service.worker_id": "1",
        "select_service.dp_rank": 0,
        "select_service.endpoint": answer.body["endpoint"],
        "select_service.block_size": 4,
        "select_service.overlap.gpu_tokens": 0,
        "select_service.overlap.cpu_tokens": 0,
        "select_service.overlap.disk_tokens": 0,
        "select_service.overlap.blocks": 0,
        "select_service.effective_prefill_tokens": 64,
        "select_service.reservation_id": "r1",
        "select_service.selection_id": "s1",
        "select_service.decision": decision["decision"],
        "select_service.policy": "work",
        "select_service.candidates": 1,
        "select_service.prompt.tokens": 64,
        "select_service.prompt.blocks": 16,
    }
    assert span.resource["service.name"] == "select-service"
    assert span.resource["service.version"]
    assert 0.0 < span.seconds < PATIENCE_S
    assert service.call("DELETE", "/reservations/r1").status == 200


def test_a_reservation_has_one_and_other_routes_have_none(receiver, service):
    body = PROMPT | {"reservation_id": "r2", "worker_id": 1, "effective_prefill_tokens": 7}
    answer, span = span_of(receiver, service, "POST", "/reservations", body)
    assert answer.status == 201
    found = span.attributes
    assert found["select_service.reservation_id"] == "r2"
    assert found["select_service.effective_prefill_tokens"] == 7
    assert (found["select_service.worker_id"], found["select_service.outcome"]) == ("1", "selected")
    for method, path in (
        ("GET", "/reservations"),
        ("POST", "/reservations/r2/renew"),
        ("DELETE", "/reservations/r2"),
    ):
        assert service.call(method, path, traceparent=SAMPLED).status == 200
    _, span = span_of(receiver, service, "POST", "/select", PROMPT)
    assert span.name == "POST /select"


def test_a_refusal_has_its_code(receiver, service):
    nowhere = PROMPT | {"model_name": "nobody's", "tenant_id": "t"}
    answer, span = span_of(receiver, service, "POST", "/select", nowhere)
    code = answer.body["code"]
    assert span.attributes["http.response.status_code"] == answer.status
    assert span.attributes["select_service.outcome"] == "refused"
    assert span.attributes["select_service.refusal.code"] == code
    assert span.attributes["gen_ai.request.model"] == "nobody's"
    assert span.attributes["select_service.tenant_id"] == "t"
    answer, span = span_of(receiver, service, "POST", "/select", b"{")
    assert (answer.status, span.status) == (400, 0)
    assert span.attributes["select_service.refusal.code"] == answer.body["code"]
    assert "error.type" not in span.attributes


@pytest.fixture
def full(service):
    """Yield the id of a reservation that fills the worker."""
    body = {"model_name": "m", "token_ids": list(range(2000)), "reservation_id": "full"}
    assert service.call("POST", "/select_and_reserve", body).status == 200
    yield body["reservation_id"]
    service.call("DELETE", "/reservations/full")


def test_the_span_has_the_time_in_the_queue(receiver, service, full):
    hurried, patient = PROMPT | {"timeout_ms": 100}, PROMPT | {"timeout_ms": 60_000}
    answer, span = span_of(receiver, service, "POST", "/select", hurried)
    assert (answer.status, span.status) == (503, ERROR)
    assert span.attributes["error.type"] == "queue_timeout"
    assert span.seconds >= 0.1 - WALL_CLOCK_S
    seen = len(receiver.spans)
    with service.client() as waiting:
        waiting.send(request("POST", "/select", patient, traceparent=SAMPLED))
        eventually(lambda: service.call("GET", "/admission").body["waiting_requests"] == 1)
        service.call("DELETE", f"/reservations/{full}")
        assert waiting.answer().status == 200
    (span,) = eventually(lambda: receiver.spans[seen:])
    assert span.attributes["select_service.queue.wait"] > 0.0
    assert span.attributes["select_service.queue.position"] == 1
    assert span.attributes["select_service.queue.policy_class"]


def test_unsampled_requests_take_the_fast_path_and_have_no_span(receiver, service):
    seen, aside = len(receiver.spans), metric(service, "aside_total")
    with service.client() as client:
        for headers in ({}, {"traceparent": UNSAMPLED}, {"traceparent": "nonsense"}):
            client.send(request("POST", "/select", PROMPT, **headers))
            assert client.answer().status == 200
    assert metric(service, "aside_total") == aside
    _, span = span_of(receiver, service, "POST", "/select", PROMPT)
    assert receiver.spans[seen:] == [span]
    assert metric(service, "aside_total") == aside + 1
    exported = lambda: metric(service, "spans_total", '{result="exported"}')  # noqa: E731
    eventually(lambda: exported() == len(receiver.spans))
    assert metric(service, "waiting") == 0


def test_by_default_a_request_without_a_parent_begins_a_trace():
    named = {"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "zone=a"}
    with Receiver() as receiver, tracing(receiver, **named) as service:
        service.call("POST", "/workers", worker_body(1))
        service.call("POST", "/select", PROMPT)
        service.call("POST", "/select", PROMPT, traceparent=UNSAMPLED)
        service.call("POST", "/select", PROMPT, traceparent="00-" + "0" * 32 + "-" + PARENT + "-01")
        first, second = eventually(lambda: len(receiver.spans) == 2 and receiver.spans)
        assert (first.parent_id, second.parent_id) == ("", "")
        assert first.trace_id != second.trace_id
        assert (first.resource["service.name"], first.resource["zone"]) == ("mine", "a")


def test_with_keys_only_permitted_calls_leave_spans(tmp_path):
    keys = keys_file(tmp_path, entry("web", "caller"), entry("ops", "operator"))
    with Receiver() as receiver, tracing(receiver, "--api-keys-file", str(keys)) as service:
        service.call("POST", "/workers", worker_body(1), authorization=bearer("ops"))
        with service.client() as client:
            for headers in (
                {},
                {"authorization": bearer("ops")},
                {"authorization": bearer("web")},
                {"authorization": bearer("web")},
            ):
                client.send(request("POST", "/select", PROMPT, traceparent=SAMPLED, **headers))
                client.answer()
            unsampled = {"authorization": bearer("web"), "traceparent": UNSAMPLED}
            client.send(request("POST", "/select", PROMPT, **unsampled))
            assert client.answer().status == 200
        assert service.stop() == 0
        assert [span.trace_id for span in receiver.spans] == [TRACE] * 2


def test_pending_spans_are_exported_at_the_end():
    late = {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    with Receiver() as receiver, tracing(receiver, **late) as service:
        service.call("POST", "/workers", worker_body(1))
        for _ in range(3):
            service.call("POST", "/select", PROMPT)
        assert metric(service, "waiting") == 3
        assert receiver.spans == []
        assert service.stop() == 0
        assert len(receiver.spans) == 3


def test_a_collector_that_hangs_holds_neither_requests_nor_the_end_up():
    bounds = {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}
    with Receiver() as receiver, tracing(receiver, **bounds) as service:
        receiver.hangs.set()
        service.call("POST", "/workers", worker_body(1))
        with service.client() as client:
            for _ in range(50):
                client.send(request("POST", "/select", PROMPT))
                assert client.answer().status == 200
        assert metric(service, "spans_total", '{result="dropped"}') == 46
        assert (metric(service, "waiting"), metric(service, "waiting_max")) == (4, 4)
        begin = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - begin >= FLUSH_S_MAX
        assert service.lines("spans not exported in time")


def test_a_collector_that_refuses_is_counted():
    with Receiver(status=400) as receiver, tracing(receiver) as service:
        service.call("POST", "/workers", worker_body(1))
        service.call("POST", "/select", PROMPT)
        eventually(lambda: metric(service, "spans_total", '{result="failed"}') == 1)
        assert metric(service, "spans_total", '{result="exported"}') == 0


@pytest.mark.parametrize("flags", [(), ("--otel",)])
def test_opentelemetry_is_imported_only_on_request(flags):
    environment = {"PYTHONPROFILEIMPORTTIME": "1", "OTEL_TRACES_EXPORTER": "console"}
    with Running("--threads", "1", *flags, **environment) as service:
        service.call("POST", "/workers", worker_body(1))
        assert service.call("POST", "/select", PROMPT, traceparent=SAMPLED).status == 200
        assert service.stop(signal.SIGINT) == 0
        log = service._launched.read_log()
        assert "| select_service.server.lifecycle" in log.replace("|   ", "| ").replace("  ", " ")
        assert ("opentelemetry" in log) == bool(flags)


@pytest.mark.parametrize(
    ("flags", "environment", "told"),
    [
        (("--otel",), {"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin"),
        (("--otel",), {"OTEL_TRACES_SAMPLER": "some"}, "OTEL_TRACES_SAMPLER=some"),
        (
            ("--otel",),
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
            "OTEL_TRACES_SAMPLER_ARG=2",
        ),
        (("--otel",), {"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "OTEL_BSP_MAX_QUEUE_SIZE=0"),
        (("--otel",), {"OTEL_EXPORTER_OTLP_PROTOCOL": "x"}, "OTEL_EXPORTER_OTLP_PROTOCOL=x"),
    ],
)
def test_settings_that_make_no_sense_stop_the_start(flags, environment, told):
    status, _, errors = run_to_end("--port", "0", *flags, **environment)
    assert status == 2
    assert complaint(errors).startswith(told)


def test_without_the_extra_the_error_names_the_package_to_install():
    command = ("--otel", "--port", "0")
    status, _, errors = run_to_end(*command, module="tests.process.without_otel")
    assert status == 2
    assert complaint(errors) == "--otel requires: pip install 'select-service[otel]'"


def test_mismatched_packages_are_reported_with_a_fix():
    command = ("--otel", "--port", "0")
    status, _, errors = run_to_end(*command, module="tests.process.with_other_otel")
    assert status == 2
    assert complaint(errors).startswith("--otel: the installed OpenTelemetry packages are")
    assert complaint(errors).endswith("pip install --upgrade 'select-service[otel]'")
