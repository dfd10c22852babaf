"""Tests of the bounds of a connection: every endless part of a request is cut off.

The sender continues until there is an answer or LIMIT bytes are sent, so a missing bound is a
failure and not an endless test.
"""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator

import pytest

from select_service.http import bounded_protocol
from select_service.http.request_head import HEADERS_MAX
from tests.builders.polling import eventually
from tests.builders.running import Client, request
from tests.http.conftest import PROMPT, Server

pytestmark = pytest.mark.process

LIMIT = 16 * 1024 * 1024
HEAD = b"POST /select HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
BODY = json.dumps(PROMPT).encode()


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def sent_until_answered(client: Client, parts: Iterable[bytes]) -> int:
    """Return the number of bytes sent before the service answered or closed."""
    sent = 0
    client.socket.setblocking(True)
    with contextlib.suppress(ConnectionError):
        for part in parts:
            client.send(part)
            sent += len(part)
            if sent > LIMIT:
                raise AssertionError(f"still taken after {LIMIT} bytes")
            with contextlib.suppress(BlockingIOError):
                client.socket.setblocking(False)
                if client.socket.recv(1, 2) is not None:  # MSG_PEEK
                    break
            client.socket.setblocking(True)
    client.socket.settimeout(20)
    return sent


def endless(first: bytes, then: bytes) -> Iterator[bytes]:
    return itertools.chain([first], itertools.repeat(then * (4096 // len(then) + 1)))


UNBOUNDED = {
    "trailers": endless(CHUNKED + chunk(BODY) + b"0\r\n", b"a: b\r\n"),
    "one trailer": endless(CHUNKED + chunk(BODY) + b"0\r\na: ", b"b"),
    "name of a trailer": endless(CHUNKED + chunk(BODY) + b"0\r\n", b"b"),
    "chunk extension": endless(CHUNKED + b"5;", b"e"),
    "extensions of many chunks": endless(CHUNKED, chunk(b" ", b";" + b"e" * 50)),
    "extension of the last chunk": endless(CHUNKED + chunk(BODY) + b"0;", b"e"),
    "size of a chunk": endless(CHUNKED, b"0"),
    "chunks of one byte": endless(CHUNKED, chunk(b" ")),
    "url": endless(b"GET /", b"a"),
    "method": endless(b"", b"A"),
    "header value": endless(b"GET / HTTP/1.1\r\na: ", b"b"),
    "header name": endless(b"GET / HTTP/1.1\r\n", b"b"),
    "headers": endless(b"GET / HTTP/1.1\r\n", b"a: b\r\n"),
    "empty headers": endless(b"GET / HTTP/1.1\r\n", b"a:\r\n"),
}


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_bytes_around_a_body_are_bounded(server: Server, kind: str) -> None:
    with server.client() as client:
        sent_until_answered(client, UNBOUNDED[kind])
        with contextlib.suppress(ConnectionResetError):  # more bytes were in transit
            answer = client.answer()
            assert answer.status in (400, 431)
            assert answer.body["code"] in ("malformed_http", "head_too_large")
        eventually(lambda: not server.connections)
    assert server.is_alive()


@pytest.mark.parametrize("around", [b"a: %s\r\n", b"%s"], ids=["a line", "half a name"])
def test_trailers_have_the_room_of_a_head(server: Server, around: bytes) -> None:
    with server.client() as client:
        client.send(
            CHUNKED + chunk(BODY) + b"0\r\n" + around % (b"x" * bounded_protocol.HEAD_BYTES_MAX)
        )
        answer = client.answer()
        assert (answer.status, answer.body["code"]) == (431, "head_too_large")
        assert answer.headers["connection"] == "close"
        assert client.ended()


def test_trailers_are_read_and_mean_nothing(server: Server) -> None:
    trailers = b"content-type: text/plain\r\nx: " + b"y" * 60_000 + b"\r\n\r\n"
    with server.client() as client:
        for _ in range(3):
            client.send(CHUNKED + chunk(BODY) + b"0\r\n" + trailers)
            assert client.answer().status == 200


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_a_body_in_many_chunks_is_one_body(server: Server, size: int) -> None:
    body = json.dumps({**PROMPT, "token_ids": list(range(2000))}).encode()
    chunks = [chunk(body[at : at + size]) for at in range(0, len(body), size)]
    with server.client() as client:
        for _ in range(3):
            client.send(CHUNKED + b"".join(chunks) + b"0\r\n\r\n")
            assert client.answer().body["effective_prefill_tokens"] == 2000


def test_a_long_body_may_come_in_small_chunks(server: Server) -> None:
    """Each eight bytes of the body have five bytes around."""
    with server.client() as client:
        client.send(CHUNKED + chunk(b" " * 8) * 100_000 + chunk(BODY) + b"0\r\n\r\n")
        assert client.answer().status == 200


def test_many_headers_are_refused(server: Server) -> None:
    fields = {f"x-{n}": "1" for n in range(HEADERS_MAX)}
    with server.client() as client:
        client.send(request("GET", "/health", **dict(itertools.islice(fields.items(), 250))))
        assert client.answer().status == 200
        client.send(request("GET", "/health", **fields))
        answer = client.answer()
        assert (answer.status, answer.body["code"]) == (431, "head_too_large")


HOSTS = {
    "none": (b"", 400),
    "empty": (b"host:\r\n", 200),
    "name": (b"host: service.example\r\n", 200),
    "name and port": (b"host: my_service.example.:8092\r\n", 200),
    "port": (b"host: :8092\r\n", 200),
    "IPv4": (b"host: 10.0.0.1:80\r\n", 200),
    "IPv6": (b"host: [fe80::1%25eth0]:8092\r\n", 200),
    "two": (b"host: x\r\nHost: x\r\n", 400),
    "bare IPv6": (b"host: fe80::1\r\n", 400),
    "path": (b"host: x/y\r\n", 400),
    "user": (b"host: a@x\r\n", 400),
    "two in one": (b"host: a b\r\n", 400),
    "no port": (b"host: x:http\r\n", 400),
    "long": (b"host: " + b"x" * 400 + b"\r\n", 400),
}


@pytest.mark.parametrize("kind", HOSTS)
def test_a_request_names_one_host(server: Server, kind: str) -> None:
    line, status = HOSTS[kind]
    with server.client() as client:
        for _ in range(2 if status == 200 else 1):
            client.send(b"GET /health HTTP/1.1\r\n" + line + b"\r\n")
            assert client.answer().status == status
        assert status == 200 or client.ended()


@pytest.mark.parametrize(("hosts", "status"), [(0, 200), (1, 200), (2, 400)])
def test_http_1_0_needs_no_host(server: Server, hosts: int, status: int) -> None:
    with server.client() as client:
        client.send(b"GET /health HTTP/1.0\r\n" + b"host: x\r\n" * hosts + b"\r\n")
        assert client.answer().status == status
        assert client.ended()
