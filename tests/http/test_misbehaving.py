"""Tests of right and wrong clients on a raw socket: each gets an answer, and so does the next."""

import contextlib
import json
import socket
from typing import NamedTuple

import pytest

from select_service.http import body_codec, bounded_protocol
from tests.builders.running import Client, request
from tests.http.conftest import PROMPT

pytestmark = pytest.mark.process

GET = request("GET", "/health")
SELECT = request("POST", "/select", PROMPT)
BODY = json.dumps(PROMPT).encode()
HEAD = b"POST /select HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
TLS_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(range(64))


class Case(NamedTuple):
    """Bytes to send, statuses of the answers, and whether the service closes after the answers."""

    sent: bytes
    statuses: list[int]
    closes: bool = False


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def head(line: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join([line, b"host: x", *fields, b"", b""])


GOOD = {
    "one request": Case(SELECT, [200]),
    "requests behind each other": Case(SELECT * 20 + GET, [200] * 21),
    "chunked": Case(CHUNKED + chunks(BODY[:5], BODY[5:], b""), [200]),
    "chunked with trailers": Case(CHUNKED + chunks(BODY) + b"0\r\na: b\r\n\r\n" + GET, [200, 200]),
    "chunk extensions": Case(CHUNKED + b'%x;a="b"\r\n%s\r\n0\r\n\r\n' % (len(BODY), BODY), [200]),
    "empty lines before": Case(b"\r\n\r\n" + GET, [200]),
    "empty lines between": Case(GET + b"\r\n" + GET + b"\r\n", [200, 200]),
    "HTTP/1.0": Case(b"GET /health HTTP/1.0\r\n\r\n", [200], closes=True),
    "close": Case(request("GET", "/health", connection="close") + GET, [200], closes=True),
    "absolute form": Case(head(b"GET http://x/health HTTP/1.1"), [200]),
    "body where none is read": Case(request("GET", "/health", b"x" * 1000) + GET, [200, 200]),
    "offer of h2c": Case(
        request("POST", "/select", PROMPT, connection="Upgrade, HTTP2-Settings", upgrade="h2c"),
        [200],
    ),
    "offer of a websocket": Case(
        request("GET", "/health", connection="Upgrade", upgrade="websocket") + GET, [200, 200]
    ),
    "asterisk": Case(head(b"OPTIONS * HTTP/1.1"), [404]),
    "unknown path": Case(request("GET", "/nope") + GET, [404, 200]),
    "unknown encoding": Case(HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", [400]),
}
BAD = {
    "garbage": Case(b"\x00\xff\xfe garbage\r\n\r\n", [400], closes=True),
    "TLS": Case(TLS_HELLO, [400], closes=True),
    "HTTP/2": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400], closes=True),
    "a version that is none": Case(b"GET / HTTP/9.9\r\nhost: x\r\n\r\n", [400], closes=True),
    "a method that is none": Case(head(b"BREW /health HTTP/1.1"), [400], closes=True),
    "CONNECT": Case(head(b"CONNECT x:80 HTTP/1.1") + GET, [400], closes=True),
    "good, then garbage": Case(SELECT + GET + b"?\r\n\r\n", [200, 200, 400], closes=True),
    "two lengths": Case(HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", [400], True),
    "length and chunked": Case(
        HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", [400], True
    ),
    "negative length": Case(HEAD + b"content-length: -1\r\n\r\n", [400], closes=True),
    "encoding without chunks": Case(HEAD + b"transfer-encoding: gzip\r\n\r\n", [400], True),
    "space before a colon": Case(head(b"GET / HTTP/1.1", b"a : b"), [400], closes=True),
    "folded header": Case(head(b"GET / HTTP/1.1", b"a: b", b" c"), [400], closes=True),
    "line feeds alone": Case(b"GET / HTTP/1.1\nhost: x\n\n", [400], closes=True),
    "NUL in a header": Case(head(b"GET / HTTP/1.1", b"a: \x00"), [400], closes=True),
    "size of a chunk": Case(CHUNKED + b"xyz\r\n", [400], closes=True),
    "size of a chunk is too large": Case(CHUNKED + b"f" * 17 + b"\r\n", [400], closes=True),
    "chunk longer than its size": Case(CHUNKED + b"1\r\nabc\r\n", [400], closes=True),
    "long head": Case(head(b"GET / HTTP/1.1", b"a: " + b"b" * 70_000), [431], closes=True),
    "long url": Case(head(b"GET /" + b"a" * 70_000 + b" HTTP/1.1"), [431], closes=True),
    "long body": Case(
        HEAD + b"content-length: %d\r\n\r\n" % (body_codec.BODY_BYTES_MAX + 1), [413]
    ),
    "long chunked body": Case(CHUNKED + chunks(b" " * (body_codec.BODY_BYTES_MAX + 1)), [413]),
}


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_every_request_is_answered(server, name):
    case = {**GOOD, **BAD}[name]
    with server.client() as client:
        client.send(case.sent)
        assert [client.answer().status for _ in case.statuses] == case.statuses
        if case.closes:
            assert client.ended()
        elif name in GOOD:
            client.send(GET)
            assert client.answer().status == 200
    assert server.is_alive()


def test_a_fault_behind_an_offer_of_another_protocol_is_reported(server):
    with server.client() as client:
        offer = request("GET", "/health", connection="Upgrade", upgrade="h2c")
        client.send(offer + b"GET /health HTTP/1.1\r\n\r\n")
        assert client.answer().status == 200
        refusal = client.answer()
        assert refusal.status == 400
        assert "needs a `Host` header" in refusal.body["error"]


def test_a_client_that_expects_100_gets_a_continue(server):
    with server.client() as client:
        for _ in range(2):
            client.send(HEAD + b"content-length: %d\r\nexpect: 100-continue\r\n\r\n" % len(BODY))
            assert client.answer().status == 100
            client.send(BODY)
            assert client.answer().status == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"content-type: application/json\r\ncontent-length: 9999999\r\n", 413),
        (b"content-type: text/plain\r\ncontent-length: 2\r\n", 415),
    ],
)
def test_a_body_that_would_be_refused_gets_no_continue(server, fields, status):
    line = b"POST /select HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
    with server.client() as client:
        client.send(line + fields + b"\r\n")
        assert client.answer().status == status


@pytest.mark.parametrize(
    ("sent", "status"),
    [(GET, 200), (SELECT, 200), (SELECT[:-1], 400), (SELECT[:20], 400), (CHUNKED, 400)],
)
def test_a_client_that_sends_no_more_gets_its_answer(server, sent, status):
    with server.client() as client:
        client.send(sent)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.answer().status == status
        assert client.ended()
    assert server.is_alive()


def test_slow_clients_do_not_hold_up_others(server):
    """Each client has sent one byte more than the client before."""
    with contextlib.ExitStack() as stack:
        clients: list[Client] = []
        for n in range(len(SELECT)):
            clients.append(stack.enter_context(server.client()))
            clients[-1].send(SELECT[:n])
        assert server.is_alive()
        for n, client in enumerate(clients):
            client.send(SELECT[n:])
        assert {client.answer().status for client in clients} == {200}
    assert len(SELECT) < bounded_protocol.CONNECTIONS_MAX
