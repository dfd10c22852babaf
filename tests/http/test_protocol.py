"""Tests of time and number limits of a connection over real sockets, with shortened times."""

import contextlib
import threading

import pytest

from select_service.http import body_codec, bounded_protocol
from tests.builders.polling import eventually
from tests.builders.running import Client, request
from tests.http.conftest import PROMPT

pytestmark = pytest.mark.process

SHORT_S = 0.3


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    """Shorten the times of the connections that a test opens."""
    monkeypatch.setattr(bounded_protocol, "REQUEST_READ_S_MAX", SHORT_S)
    monkeypatch.setattr(bounded_protocol, "UNREAD_S_MAX", SHORT_S)
    monkeypatch.setattr(bounded_protocol, "WATCH_EVERY_S", SHORT_S / 10)


def refusal(client):
    answer = client.answer()
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.body) == {"error", "code"}
    return answer.status, answer.body["code"]


@pytest.mark.parametrize("sent", [0, 1, 30, -1], ids=["nothing", "a byte", "half a head", "body"])
def test_a_request_that_does_not_come_to_its_end_is_timed_out(server, sent):
    with Client(server.port) as client:
        client.send(request("POST", "/select", PROMPT)[:sent])
        assert refusal(client) == (408, "timeout")
        assert client.ended()
    assert server.is_alive()


def test_a_request_sent_byte_by_byte_is_timed_out(server):
    whole = request("POST", "/select", PROMPT)
    with Client(server.port) as client, contextlib.suppress(ConnectionError):
        client.socket.settimeout(SHORT_S / 20)
        for byte in whole * 100:
            client.send(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                assert refusal(client) == (408, "timeout")
                return
        raise AssertionError("never timed out")


def test_an_idle_connection_is_kept_after_its_answer(server):
    with Client(server.port) as client:
        for _ in range(3):
            client.send(request("GET", "/health"))
            assert client.answer().status == 200
            threading.Event().wait(2 * SHORT_S)


def test_a_refused_body_that_goes_on_gets_no_second_answer(server):
    with Client(server.port) as client:
        head = request("POST", "/select", None, content_length=str(body_codec.BODY_BYTES_MAX + 1))
        client.send(head)
        assert refusal(client) == (413, "body_too_large")
        assert client.ended()


def answers_until_the_end(client):
    """Return the number of answers that can still be read."""
    answers = 0
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            client.answer()
            answers += 1
    return answers


def test_a_client_that_does_not_read_is_cut_off(server):
    """The answers are larger than the buffers of two sockets."""
    asked = 100
    with Client(server.port) as client:
        client.send(request("GET", "/docs/swagger-ui-bundle.js") * asked)
        eventually(lambda: server.connections)
        eventually(lambda: not server.connections)
        assert answers_until_the_end(client) < asked
    assert server.is_alive()


def test_a_client_that_reads_no_answers_is_not_read_either_and_cut_off(server):
    with Client(server.port) as client, contextlib.suppress(ConnectionError):
        client.socket.settimeout(20)
        for _ in range(2000):
            client.send(request("POST", "/select", PROMPT) * 100)
        raise AssertionError("still read")
    eventually(lambda: not server.connections)
    assert server.is_alive()


def test_a_client_that_reads_late_gets_every_answer_in_order(server, monkeypatch):
    for bound in ("UNREAD_S_MAX", "REQUEST_READ_S_MAX"):
        monkeypatch.setattr(bounded_protocol, bound, 60)
    n = 3000
    fast, slow = request("POST", "/select", PROMPT), request("GET", "/ready")
    with Client(server.port) as client:
        sender = threading.Thread(target=client.send, args=((fast * 99 + slow) * (n // 100),))
        sender.start()
        eventually(lambda: server.connections)
        threading.Event().wait(SHORT_S)
        answers = [client.answer() for _ in range(n)]
        sender.join()
    assert {answer.status for answer in answers} == {200}
    places = [place for place, answer in enumerate(answers) if "worker_id" not in answer.body]
    assert places == list(range(99, n, 100))


def test_more_connections_than_allowed_are_refused(server, monkeypatch):
    eventually(lambda: not server.connections)
    monkeypatch.setattr(bounded_protocol, "CONNECTIONS_MAX", 3)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server.port)) for _ in range(3)]
        for client in clients:
            client.send(request("GET", "/health"))
            assert client.answer().status == 200
        one_too_many = stack.enter_context(Client(server.port))
        assert refusal(one_too_many) == (503, "capacity_exceeded")
        assert one_too_many.ended()
    assert server.is_alive()


def test_answers_of_the_connection_are_counted(server):
    with Client(server.port) as client:
        client.send(b"NONSENSE\r\n\r\n")
        assert refusal(client) == (400, "malformed_http")
    with Client(server.port) as client:
        client.send(request("GET", "/metrics"))
        text = client.answer().body.decode()
    wanted = 'select_service_requests_total{method="any",route="unknown",status="400"} '
    counts = [line.removeprefix(wanted) for line in text.splitlines() if line.startswith(wanted)]
    assert [float(count) >= 1.0 for count in counts] == [True]


def test_slow_large_bodies_are_refused_before_small_ones(server, monkeypatch):
    monkeypatch.setattr(body_codec.BODY_BUDGET, "total", 1024 * 1024)
    with Client(server.port) as client:
        client.send(request("POST", "/select", b"[" * 3 * 1024 * 1024)[:-1])
        assert refusal(client) == (503, "capacity_exceeded")
        assert server.is_alive()
        client.socket.close()
    eventually(lambda: body_codec.BODY_BUDGET.used == 0)
