"""Tests of requests that wait for a worker, over real sockets: the time and content of answers.

Unlike the real service, the services here do not poll their queues: an answer follows from the
event that made the answer possible. docs/measurements/speed.md has the delays.
"""

import contextlib
import signal
import time
from collections.abc import Iterator

import pytest

from tests.builders import worker_body
from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.running import Running, request
from tests.builders.waiting_clients import (
    PROMPT,
    QUEUE,
    a_full_worker,
    count_reservations,
    metric,
    pending,
    waiting,
)

pytestmark = pytest.mark.process

TIMES = 4
MANY = 2000
CLOCK_S = 0.001
"""Difference allowed between the clocks of two processes, seconds."""


def without_ticks(*flags: str) -> Running:
    return Running("--threads", "1", *flags, module="tests.process.without_ticks")


def prefill_completes(service: Running) -> None:
    assert service.call("POST", "/reservations/full-1/prefill_complete").status == 200


def reservation_ends(service: Running) -> None:
    assert service.call("DELETE", "/reservations/full-1").status == 200


def worker_takes_more(service: Running) -> None:
    larger = {"max_num_batched_tokens": 1024}
    assert service.call("PATCH", "/workers/1", larger).status == 200


def worker_comes(service: Running) -> None:
    body = worker_body(2, max_num_batched_tokens=1024)
    assert service.call("POST", "/workers", body).status == 201


CAUSES = (prefill_completes, reservation_ends, worker_takes_more, worker_comes)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with without_ticks(*QUEUE) as service:
        yield service


@pytest.fixture
def service(running: Running) -> Iterator[Running]:
    """Yield a service whose only worker is full; empty the service after the test."""
    a_full_worker(running)
    yield running
    for worker in running.call("GET", "/workers").body:
        running.call("DELETE", f"/workers/{worker['worker_id']}")
    eventually(lambda: pending(running) == count_reservations(running) == 0)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_waiting_request_is_answered_as_soon_as_there_is_room(service, cause):
    for _ in range(TIMES):
        with waiting(service, reservation_id="waited") as client:
            cause(service)
            assert client.answer().status == 200
        assert service.call("DELETE", "/reservations/waited").status == 200
        for worker_id in (1, 2):
            service.call("DELETE", f"/workers/{worker_id}")
        a_full_worker(service)


def test_a_waiting_request_is_answered_as_soon_as_a_threshold_lets_another_worker_take_it(service):
    """Check worker 2, which has room in its batch but counts as full by its KV cache."""
    body = worker_body(2, max_num_batched_tokens=1024, total_kv_blocks=4)
    assert service.call("POST", "/workers", body).status == 201
    booked = {**PROMPT, "worker_id": 2, "reservation_id": "cached", "effective_prefill_tokens": 0}
    assert service.call("POST", "/reservations", booked).status == 201
    for _ in range(TIMES):
        change = {"model": "m", "active_decode_blocks_threshold": 0.9}
        assert service.call("POST", "/busy_threshold", change).status == 200
        with waiting(service, "/select") as client:
            change["active_decode_blocks_threshold"] = 1.0
            assert service.call("POST", "/busy_threshold", change).status == 200
            assert client.answer().status == 200
    change = {"model": "m", "active_decode_blocks_threshold": None}
    assert service.call("POST", "/busy_threshold", change).status == 200


def test_a_waiting_request_is_answered_when_the_lease_before_it_expires():
    with Running("--threads", "1", "--reservation-ttl-secs", "1", *QUEUE) as service:
        a_full_worker(service)
        with waiting(service, "/select") as client:
            assert client.answer().status == 200
        assert count_reservations(service) == 0


@pytest.mark.parametrize("route", ["/select", "/select_and_reserve"])
def test_deleting_the_only_worker_answers_queued_requests_at_once(service, route):
    for _ in range(TIMES):
        with waiting(service, route) as client:
            assert service.call("DELETE", "/workers/1").status == 200
            answer = client.answer()
            assert (answer.status, answer.body["code"]) == (503, "no_schedulable_workers")
        a_full_worker(service)


def test_a_request_that_may_wait_only_so_long_is_answered_then(service):
    for timeout_ms in (100, 200, 300, 400, 500):
        begin = time.monotonic()
        with waiting(service, timeout_ms=timeout_ms) as client:
            answer = client.answer()
        assert time.monotonic() - begin >= timeout_ms / 1000 - CLOCK_S
        assert (answer.status, answer.body["code"]) == (503, "queue_timeout")
        assert int(answer.headers["retry-after"]) >= 1
    assert count_reservations(service) == 1


def test_a_disconnected_client_leaves_the_queue_and_books_nothing(service):
    gone = metric(service, "select_service_admission_requests_total", outcome="client_gone")
    assert gone is not None
    for _ in range(TIMES):
        with waiting(service, reservation_id="gone"):
            pass
        eventually(lambda: pending(service) == 0)
    prefill_completes(service)
    assert count_reservations(service) == 1
    outcome = "select_service_admission_requests_total"
    assert metric(service, outcome, outcome="client_gone") == gone + TIMES
    again = {**PROMPT, "reservation_id": "gone"}
    assert service.call("POST", "/select_and_reserve", again).status == 200


def test_the_order_of_answers_is_that_of_the_queue(service):
    """Check that each request takes the free room in turn; only strict_priority overtakes."""
    clients = {
        name: waiting(service, reservation_id=name, **fields)
        for name, fields in {"a": {}, "b": {}, "urgent": {"strict_priority": 1}}.items()
    }
    with contextlib.ExitStack() as stack:
        for client in clients.values():
            stack.enter_context(client)
        before = "full-1"
        for name in ("urgent", "a", "b"):
            assert service.call("DELETE", f"/reservations/{before}").status == 200
            assert clients[name].answer().body["reservation_id"] == name
            before = name


def test_the_end_of_the_process_answers_queued_requests_at_once():
    with without_ticks(*QUEUE) as service, contextlib.ExitStack() as stack:
        a_full_worker(service)
        clients = [stack.enter_context(waiting(service)) for _ in range(20)]
        service.process.send_signal(signal.SIGTERM)
        for client in clients:
            answer = client.answer()
            assert (answer.status, answer.body["code"]) == (503, "shutting_down")
        assert service.process.wait(PATIENCE_S) == 0
        assert {line["level"] for line in service.log()} == {"INFO"}


def test_the_end_of_the_process_ends_every_poll_and_stream_at_once(tmp_path):
    canaries = tmp_path / "canaries.yaml"
    canaries.write_text("model-a: []\n")
    flags = ("--health-checks", "on", "--canary-config", str(canaries))
    paths = ("/live", "/migrations/stream", "/migrations?timeout_ms=60000")
    with Running("--threads", "1", *flags) as service, contextlib.ExitStack() as stack:
        clients = {path: stack.enter_context(service.client()) for path in paths}
        for path, client in clients.items():
            client.send(request("GET", path))
        live, stream, poll = clients.values()
        assert live.answer().status == stream.answer().status == 200
        assert service.stop() == 0
        assert poll.answer().status == 200
        for client in (live, stream):
            assert client.rest().endswith(b"0\r\n\r\n")
        assert {line["level"] for line in service.log()} == {"INFO"}


def test_a_decision_after_a_wait_is_marked_in_the_log():
    with Running("--threads", "1", "--log-level", "debug", *QUEUE) as service:
        a_full_worker(service)
        with waiting(service, reservation_id="first"), waiting(service, "/select") as second:
            reservation_ends(service)
            line = service.line("decision")
            assert (line["reservation_id"], line["policy_class"]) == ("first", "default")
            assert line["queue_position"] == 1
            assert line["queue_wait_s"] > 0.0
            service.call("DELETE", "/reservations/first")
            assert second.answer().status == 200
            assert service.line("decision", 2)["queue_position"] == 2
            assert service.call("POST", "/select", PROMPT).status == 200
            assert "queue_position" not in service.line("decision", 3)


def test_two_thousand_waiting_clients_break_nothing_and_the_next_is_refused():
    flags = ("--queue-max-requests", str(MANY), "--queue-timeout-secs", "0", *QUEUE)
    with Running("--threads", "1", *flags) as service, contextlib.ExitStack() as stack:
        a_full_worker(service)
        sent = request("POST", "/select", PROMPT)
        clients = [stack.enter_context(service.client()) for _ in range(MANY)]
        for client in clients:
            client.send(sent)
        eventually(lambda: pending(service) == MANY)
        refused = service.call("POST", "/select", PROMPT)
        assert (refused.status, refused.body["code"]) == (503, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        prefill_completes(service)
        assert {client.answer().status for client in clients} == {200}
        assert pending(service) == 0
        assert service.stop() == 0
