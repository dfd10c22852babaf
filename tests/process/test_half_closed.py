"""Tests that clients which close their sending side after a request get an answer on every path."""

import json
import socket
import time
from collections.abc import Iterator

import pytest

from select_service.http.half_closed_poller import FIRST_POLL_S
from tests.builders import worker_body
from tests.builders.polling import eventually
from tests.builders.running import Client, Running, request
from tests.builders.waiting_clients import (
    PROMPT,
    QUEUE,
    a_full_worker,
    count_reservations,
    pending,
    waiting,
)

pytestmark = pytest.mark.process

PATHS = {"fast": (), "ordinary": ("--no-fast-path",)}
WORKER = worker_body(1, max_num_batched_tokens=1_000_000)
LONG = {**PROMPT, "token_ids": list(range(20_000))}


@pytest.fixture(scope="module", params=PATHS.values(), ids=PATHS)
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    with Running(*QUEUE, *request.param) as service:
        yield service


@pytest.fixture
def service(running: Running) -> Iterator[Running]:
    """Yield the service without workers; delete all workers afterwards."""
    yield running
    for worker in running.call("GET", "/workers").body:
        running.call("DELETE", f"/workers/{worker['worker_id']}")
    eventually(lambda: pending(running) == count_reservations(running) == 0)


def everything(client: Client) -> bytes:
    """Return all data until the service closes the connection."""
    read = b""
    while data := client.socket.recv(65536):
        read += data
    return read


def answer_half_closed(service: Running, sent: bytes) -> bytes:
    """Send the bytes, close the sending side at once, and return the answer."""
    with service.client() as client:
        client.send(sent)
        client.socket.shutdown(socket.SHUT_WR)
        return everything(client)


def status_of(answer: bytes) -> int:
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 ")
    return int(answer.split()[1])


@pytest.mark.parametrize(
    "sent",
    [
        request("GET", "/health"),
        request("POST", "/select", PROMPT),
        request("POST", "/select", LONG),
        request("POST", "/select_and_reserve", PROMPT),
        request("GET", "/workers"),
    ],
    ids=["health", "select", "long", "reserve", "list"],
)
def test_a_half_closed_client_is_answered(service: Running, sent: bytes) -> None:
    assert service.call("POST", "/workers", WORKER).status == 201
    for _ in range(10):
        assert status_of(answer_half_closed(service, sent)) == 200


def test_all_requests_before_the_end_are_answered(service: Running) -> None:
    assert service.call("POST", "/workers", WORKER).status == 201
    sent = request("GET", "/workers") + request("POST", "/select", PROMPT)
    answers = answer_half_closed(service, sent * 200)
    assert answers.count(b"HTTP/1.1 200 OK") == 400


def test_a_request_that_is_not_complete_is_refused(service: Running) -> None:
    whole = request("POST", "/select", LONG)
    for part in (whole[:20], whole[:-1]):
        answer = answer_half_closed(service, part)
        assert status_of(answer) == 400
        assert "incomplete request" in json.loads(answer.split(b"\r\n\r\n")[1])["error"]


def test_a_client_without_a_request_gets_no_answer(service: Running) -> None:
    assert answer_half_closed(service, b"") == b""
    with service.client() as client:
        client.send(request("GET", "/health"))
        assert client.answer().status == 200
        client.socket.shutdown(socket.SHUT_WR)
        assert client.ended()


def test_a_half_closed_client_stays_in_the_queue(service: Running) -> None:
    a_full_worker(service)
    with waiting(service, reservation_id="waits") as client:
        client.socket.shutdown(socket.SHUT_WR)
        time.sleep(4 * FIRST_POLL_S)  # the service must not mistake this client for one that left
        assert pending(service) == 1
        assert service.call("DELETE", "/reservations/full-1").status == 200
        answer = everything(client)
        assert status_of(answer) == 200
        assert json.loads(answer.split(b"\r\n\r\n")[1])["reservation_id"] == "waits"
    assert count_reservations(service) == 1


def test_a_refusal_reaches_a_half_closed_client_in_the_queue(service: Running) -> None:
    a_full_worker(service)
    with waiting(service, timeout_ms=500) as client:
        client.socket.shutdown(socket.SHUT_WR)
        assert status_of(everything(client)) == 503
    assert pending(service) == 0


@pytest.mark.parametrize("closes_first", [False, True], ids=["at once", "half-closed before"])
def test_a_disconnected_client_leaves_the_queue(service: Running, closes_first: bool) -> None:
    a_full_worker(service)
    client = waiting(service, reservation_id="goes")
    if closes_first:
        client.socket.shutdown(socket.SHUT_WR)
        time.sleep(4 * FIRST_POLL_S)
        assert pending(service) == 1
    client.socket.close()
    eventually(lambda: pending(service) == 0)
    assert service.call("DELETE", "/reservations/full-1").status == 200
    assert count_reservations(service) == 0
