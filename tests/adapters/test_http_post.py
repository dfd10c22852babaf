"""Tests of one POST against servers with good answers, and with every kind of fault."""

import asyncio
import contextlib
import gc
import socket
import ssl

import pytest
import uvloop

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.probe_http import TimedHttpClient
from select_service.net.http_client import connection_opener
from select_service.net.http_client.http_connection import HttpConnection
from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.response_parser import ResponseParser
from tests.adapters.metric_servers import send_parts, send_repeatedly, speaking
from tests.builders.certificates import CERTIFICATE, TLS
from tests.builders.polling import PATIENCE_S, eventually_on_loop

OK = b"HTTP/1.1 200 OK\r\n"
SHORT_S = 0.1
LOOPS = [asyncio.run, uvloop.run]
"""Event loops with slightly different transports."""
BYTES_MAX = 1000


def send_post(url, timeout_s=PATIENCE_S, names=None, content=b"{}"):
    return TimedHttpClient(names or Resolver()).post(
        url, content, {"x-more": "1"}, bytes_max=BYTES_MAX, timeout_s=timeout_s
    )


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request):
    return request.param


async def reply_to(speak, timeout_s=PATIENCE_S):
    """Return the reply of a server to `TimedHttpClient`."""
    async with speaking(speak) as url:
        return await send_post(url, timeout_s)


def failure_of(run, speak, timeout_s=PATIENCE_S):
    with pytest.raises(HttpError) as caught:
        run(reply_to(speak, timeout_s))
    return caught.value.metric_label


async def test_the_request_is_one_and_the_connection_its_own(run):
    seen = []

    async def listens(reader, writer):
        seen.append(await reader.readexactly(2))
        writer.write(OK + b"content-length: 2\r\n\r\nhi")

    heads = []

    async def keeps(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await listens(reader, writer)

    server = await asyncio.start_server(keeps, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reply = await send_post(f"http://127.0.0.1:{port}/v1/x", content=b"[]")
    server.close()
    (head,) = heads
    assert (reply.status, reply.body, reply.fault) == (200, b"hi", None)
    assert seen == [b"[]"]
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/x HTTP/1.1"
    assert {
        f"host: 127.0.0.1:{port}",
        "connection: close",
        "content-length: 2",
        "accept-encoding: identity",
        "content-type: application/json",
        "x-more: 1",
    } <= set(lines)


WHOLE = [
    (200, b"hi", OK + b"content-length: 2\r\n\r\nhi"),
    (200, b"hi", OK + b"transfer-encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"),
    (200, b"hi", OK + b"\r\nhi"),  # such a body ends with the connection
    (200, b"hi", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + OK + b"content-length: 2\r\n\r\nhi"),
    (204, b"", b"HTTP/1.1 204 No\r\n\r\n"),
    (302, b"", b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n"),
    (500, b"oh", b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\noh"),
    (200, b"hi", OK + b"content-length: 2\r\nconnection: close\r\n\r\nhi and more"),
]


@pytest.mark.parametrize(("status", "body", "answer"), WHOLE)
def test_a_whole_answer_is_taken_with_any_status(run, status, body, answer):
    reply = run(reply_to(send_parts(answer)))
    assert (reply.status, reply.body, reply.fault) == (status, body, None)
    assert 0.0 < reply.seconds < PATIENCE_S


def test_retry_after_is_reported(run):
    head = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n"
    assert run(reply_to(send_parts(head + b"Retry-After: 3\r\n\r\n"))).retry_after
    assert not run(reply_to(send_parts(head + b"\r\n"))).retry_after


BROKEN = [
    ("response incomplete", OK + b"content-length: 9\r\n\r\nhi"),
    ("response incomplete", OK + b"transfer-encoding: chunked\r\n\r\n9\r\nhi"),
    ("not HTTP", OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n"),
    ("more than 1000 bytes", OK + b"\r\n" + b"x" * 1001),
    ("more than 1000 bytes", OK + b"content-length: 5000\r\n\r\n" + b"x" * 5000),
]


@pytest.mark.parametrize(("fault", "answer"), BROKEN)
def test_an_incomplete_answer_has_a_reason(run, fault, answer):
    reply = run(reply_to(send_parts(answer)))
    assert reply.status == 200
    assert fault in reply.fault
    assert len(reply.body) <= BYTES_MAX


NOTHING = [
    ("unreachable", send_parts()),
    ("unreachable", send_parts(b"HTTP/1.1 2")),
    ("unreadable", send_parts(b"\x00\xff\x16\x03 is no HTTP\r\n\r\n")),
    ("unreadable", send_parts(b"HTTP/1.1 101 Up\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n..")),
    (
        "unreadable",
        send_repeatedly(b"HTTP/1.1 103 Early\r\n\r\n", b"HTTP/1.1 103 Early\r\n\r\n" * 999),
    ),
]


@pytest.mark.parametrize(("failure", "speak"), NOTHING)
def test_without_a_status_there_is_no_answer(run, failure, speak):
    assert failure_of(run, speak) == failure


LATE = [
    send_parts(hangs=True),
    send_parts(OK + b"content-length: 9\r\n\r\nhi", hangs=True),
    send_repeatedly(OK + b"\r\n", b"a", pause_s=0.01),
    send_repeatedly(OK, b"x-more: 1\r\n", pause_s=0.01),
]


@pytest.mark.parametrize("speak", LATE)
def test_an_answer_that_is_not_complete_in_time_is_none(run, speak):
    assert failure_of(run, speak, SHORT_S) == "timeout"


def test_a_head_without_end_is_bounded(run):
    assert failure_of(run, send_repeatedly(OK, b"x-more: 1\r\n" * 1000)) == "unreadable"


def test_a_connection_that_is_reset_is_unreachable(run):
    async def reset(reader, writer):
        writer.transport.abort()

    assert failure_of(run, reset) == "unreachable"


def test_a_port_without_a_server_is_unreachable(run):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(HttpError, match="Connect") as caught:
        run(send_post(f"http://127.0.0.1:{port}/"))
    assert caught.value.metric_label == "unreachable"


def test_a_name_that_is_not_found(run):
    def lookup(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(HttpError, match="name not found: no-such") as caught:
        run(send_post("http://no-such/", names=Resolver(lookup)))
    assert caught.value.metric_label == "unreachable"


async def test_a_name_with_several_addresses_is_tried_until_one_answers(run):
    several = [(2, 1, 6, "", ("127.0.0.2", 0)), (2, 1, 6, "", ("127.0.0.1", 0))]
    async with speaking(send_parts(OK + b"content-length: 2\r\n\r\nhi")) as url:
        port = url.rpartition(":")[2]
        reply = await send_post(f"http://name:{port}", names=Resolver(lambda *_, **__: several))
        assert reply.body == b"hi"


def over_tls(run, host, monkeypatch, trusts):
    """Return the answer of a server with the certificate of `peer.test`."""
    trust = ssl.create_default_context(cafile=CERTIFICATE if trusts else None)
    monkeypatch.setattr(connection_opener, "system_ssl_context", lambda: trust)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(CERTIFICATE, TLS / "key.pem")

    async def scene():
        async def talk(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK + b"content-length: 2\r\n\r\nhi")

        server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=own)
        port = server.sockets[0].getsockname()[1]
        names = Resolver(lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", 0))])
        try:
            return await send_post(f"https://{host}:{port}/", names=names)
        finally:
            server.close()

    return run(scene())


def test_over_https_the_certificate_of_the_host_is_accepted(run, monkeypatch):
    assert over_tls(run, "peer.test", monkeypatch, trusts=True).body == b"hi"


@pytest.mark.parametrize(("host", "trusts"), [("other.test", True), ("peer.test", False)])
def test_over_https_other_certificates_are_rejected(run, host, trusts, monkeypatch):
    with pytest.raises(HttpError, match="certificate") as caught:
        over_tls(run, host, monkeypatch, trusts)
    assert caught.value.metric_label == "unreachable"


async def test_a_cancelled_request_leaves_no_connection(run):
    seen = []

    async def waits(reader, writer):
        seen.append("asked")
        with contextlib.suppress(ConnectionError):
            await reader.read(9)
            await reader.read(9)
        seen.append("gone")

    async with speaking(waits) as url:
        asking = asyncio.create_task(send_post(url))
        await eventually_on_loop(lambda: seen)
        asking.cancel()
        await asyncio.wait([asking])
        await eventually_on_loop(lambda: "gone" in seen)


ENDS = [
    send_parts(OK + b"content-length: 2\r\n\r\nhi"),
    send_parts(OK + b"content-length: 9\r\n\r\nhi"),
    send_parts(b"\x00\xff\x16\x03 is no HTTP\r\n\r\n"),
    send_parts(),
    send_parts(hangs=True),
]
PARTS = (HttpConnection, ResponseParser, HttpError)


@pytest.mark.parametrize("speak", ENDS, ids=range(len(ENDS)))
def test_no_end_of_an_exchange_leaves_a_cycle(run, speak):
    """Check for cycles, since the service's collector examines only new objects."""

    async def scene():
        async with speaking(speak) as url:
            gc.collect()
            with contextlib.suppress(HttpError):
                await send_post(url, SHORT_S if speak is ENDS[-1] else PATIENCE_S)
            await asyncio.sleep(0.02)  # lets the transport close
            return [each for each in gc.get_objects() if type(each) in PARTS]

    gc.disable()
    try:
        assert run(scene()) == []
    finally:
        gc.enable()
