"""Tests of connections that are kept, that end early, and that lead through a proxy."""

import asyncio
import contextlib
import socket
import ssl
import threading

import pytest
import uvloop

from select_service.net.http_client import connection_opener
from select_service.net.http_client.connection_opener import (
    ConnectionTls,
    Origin,
    open_connection,
    split_url,
)
from select_service.net.http_client.connection_pool import ConnectionPool
from select_service.net.http_client.http_connection import TLS_PIECE_BYTES
from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.tls_stream import OVERHEAD_BYTES_MAX, TlsStream
from tests.adapters.test_http_client import CERTIFICATE, TLS
from tests.builders.polling import PATIENCE_S, eventually_on_loop

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


async def here(host):
    return ["127.0.0.1"]


class Server:
    """Server that answers with the next item of `answers`; None closes the connection."""

    def __init__(self, *answers, tls=None):
        self.heads, self.connections, self.closes = [], 0, False
        self._answers, self._tls = list(answers), tls

    async def __aenter__(self):
        self._server_keys = await asyncio.start_server(self._talk, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server_keys.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server_keys.close()

    async def _talk(self, reader, writer):
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                answer = self._answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                if self.closes:
                    break
        writer.close()


async def body_of(pool, url, method="GET", tls=None):
    async with asyncio.timeout(PATIENCE_S), pool.open_request(method, url, {}, tls=tls) as answer:
        return await answer.read_body(100)


@LOOPS
async def test_a_connection_that_ended_meanwhile_is_made_anew(run):
    pool = ConnectionPool(here, 4)
    async with Server(OK, None, OK) as server:
        url = f"http://name:{server.port}/"
        assert await body_of(pool, url) == b"hi"
        assert await body_of(pool, url) == b"hi"
        assert (server.connections, len(server.heads)) == (2, 3)
        await pool.close()


@LOOPS
async def test_only_get_is_repeated_on_a_new_connection(run):
    pool = ConnectionPool(here, 4)
    async with Server(OK, None, OK) as server:
        url = f"http://name:{server.port}/"
        assert await body_of(pool, url) == b"hi"
        with pytest.raises(HttpError) as caught:
            await body_of(pool, url, "POST")
        assert caught.value.failure == "closed"
        assert server.heads[1].startswith(b"POST / ")
        assert await body_of(pool, url) == b"hi"
        assert server.connections == 2
        await pool.close()


LAST = [
    OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
    OK + b"more",
    b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
]


@LOOPS
@pytest.mark.parametrize("answer", LAST)
async def test_a_connection_is_used_again_only_where_that_is_safe(run, answer):
    pool = ConnectionPool(here, 4)
    async with Server(answer, OK) as server:
        url = f"http://name:{server.port}/"
        assert await body_of(pool, url) == b"hi"
        assert await body_of(pool, url) == b"hi"
        assert server.connections == 2
        await pool.close()


@LOOPS
async def test_bytes_without_a_request_end_the_connection(run):
    pool = ConnectionPool(here, 4)
    async with Server(OK, OK) as server:
        url = f"http://name:{server.port}/"
        await body_of(pool, url)
        (kept,) = pool._kept.values()
        connection = kept.connection
        connection._budget.buffer[:4] = b"HTTP"
        connection.buffer_updated(4)
        assert not connection.is_reusable
        await body_of(pool, url)
        assert server.connections == 2
        await pool.close()


@LOOPS
async def test_an_unread_answer_ends_the_connection(run):
    pool = ConnectionPool(here, 4)
    async with Server(OK[:-1], OK) as server:
        url = f"http://name:{server.port}/"
        async with pool.open_request("GET", url, {}) as answer:
            assert answer.status == 200
        assert await body_of(pool, url) == b"hi"
        assert server.connections == 2
        await pool.close()


@LOOPS
async def test_the_end_of_a_pool_ends_running_requests(run):
    pool = ConnectionPool(here, 4)
    async with Server(b"", b"") as server:
        url = f"http://name:{server.port}/"
        asking = [asyncio.create_task(body_of(pool, url, each)) for each in ("GET", "POST")]
        await eventually_on_loop(lambda: len(server.heads) == 2)
        await pool.close()
        done, _ = await asyncio.wait(asking, timeout=PATIENCE_S)
        assert [type(each.exception()) for each in done] == [HttpError] * 2


def both_sides():
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(CERTIFICATE, TLS / "key.pem")
    return own, [ssl.create_default_context(cafile=CERTIFICATE) for _ in range(2)]


@LOOPS
async def test_a_connection_of_another_trust_is_not_used(run):
    own, (first, second) = both_sides()
    pool = ConnectionPool(here, 4)
    async with Server(OK, OK, OK, tls=own) as server:
        url = f"https://peer.test:{server.port}/"
        for context in (first, first, second):
            assert await body_of(pool, url, tls=ConnectionTls(context)) == b"hi"
        assert server.connections == 2
        await pool.close()


@contextlib.asynccontextmanager
async def proxy(answer):
    """Serve a proxy that forwards bytes to the CONNECT target on this machine, after `answer`."""
    asked, pumps = [], set()

    async def pump(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def talk(reader, writer):
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        writer.write(answer)
        port = int(asked[-1].split()[1].rpartition(":")[2])
        to = await asyncio.open_connection("127.0.0.1", port)
        pumps.update(
            {asyncio.create_task(pump(reader, to[1])), asyncio.create_task(pump(to[0], writer))}
        )

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


@LOOPS
async def test_a_proxy_gets_a_connect_request(run):
    own, (trust, _) = both_sides()
    async with Server(OK, OK, tls=own) as server, proxy(b"HTTP/1.1 200 Go\r\n\r\n") as (url, asked):
        pool = ConnectionPool(here, 4, url)
        place = f"https://peer.test:{server.port}/"
        for _ in range(2):
            assert await body_of(pool, place, tls=ConnectionTls(trust)) == b"hi"
        assert asked == [f"CONNECT peer.test:{server.port} HTTP/1.1"]
        await pool.close()


@LOOPS
async def test_a_proxy_that_refuses_is_named(run):
    own, (trust, _) = both_sides()
    answer = b"HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n"
    async with Server(tls=own) as server, proxy(answer) as (url, _):
        pool = ConnectionPool(here, 4, url)
        with pytest.raises(HttpError, match=r"proxy 127.0.0.1 rejected .*status 407"):
            await body_of(pool, f"https://peer.test:{server.port}/", tls=ConnectionTls(trust))
        with pytest.raises(HttpError, match="only an http proxy for an https"):
            await body_of(pool, "http://peer.test/")
        await pool.close()


async def test_an_address_that_does_not_answer_holds_up_the_next_one_for_a_moment(monkeypatch):
    """The addresses are as of two internet protocols, and one of the two leads nowhere."""
    opened, tried, ended = connection_opener._connect, [], []

    async def opening(address, origin, tls):
        tried.append(address)
        if address == "127.0.0.1":
            return await opened(address, origin, tls)
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.append(address)

    async def several(host):
        return ["2001:db8::1", "2001:db8::2", "127.0.0.1"]

    monkeypatch.setattr(connection_opener, "_connect", opening)
    async with Server(OK) as server:
        connection = await open_connection(Origin("http", "name", server.port), several)
        connection.close()
        await eventually_on_loop(lambda: len(ended) == 2)
    assert tried == ["2001:db8::1", "2001:db8::2", "127.0.0.1"]


URLS = {
    "http://a": (Origin("http", "a", 80), "a", "/"),
    "https://a:8/b?c=%20": (Origin("https", "a", 8), "a:8", "/b?c=%20"),
    "http://[::1]:9/": (Origin("http", "::1", 9), "[::1]:9", "/"),
    "http://a?b": (Origin("http", "a", 80), "a", "/?b"),
}


@pytest.mark.parametrize("url", URLS)
def test_a_url_gives_the_origin_and_the_target(url):
    assert split_url(url) == URLS[url]


BAD = [
    "",
    "a",
    "ftp://a/",
    "http://",
    "http://a b/",
    "http://a/\r\nx: y",
    "http://[::1]x/",
    "http://a:x/",
]


@pytest.mark.parametrize("url", BAD)
def test_a_bad_url_is_refused_before_anything_is_sent(url):
    with pytest.raises(HttpError):
        split_url(url)


def records_of_a_byte(listener, own):
    """Serve TLS with records of a byte each, without end."""
    connection, _ = listener.accept()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = own.wrap_bio(incoming, outgoing, server_side=True)
    has_request = False
    with connection, contextlib.suppress(OSError):
        while not has_request:
            try:
                tls.do_handshake()
                has_request = bool(tls.read(1 << 16))
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(1 << 16))
        tls.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            for _ in range(1000):
                tls.write(b"x")
            connection.sendall(outgoing.read())


@LOOPS
def test_records_of_tls_that_carry_little_are_refused(run, monkeypatch):
    own, (trust, _) = both_sides()
    sizes, receive = [], TlsStream.decrypt_piece

    def noting(layer, piece):
        sizes.append(len(piece))
        return receive(layer, piece)

    async def scene(port):
        pool = ConnectionPool(here, 4)
        with pytest.raises(HttpError, match=r"TLS bytes carry \d+ bytes: the limit is"):
            async with pool.open_request(
                "GET", f"https://peer.test:{port}/", {}, tls=ConnectionTls(trust)
            ) as answer:
                await answer.read_body(1 << 30)
        await pool.close()

    monkeypatch.setattr(TlsStream, "decrypt_piece", noting)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=records_of_a_byte, args=(listener, own), daemon=True)
        thread.start()
        run(scene(listener.getsockname()[1]))
        thread.join(PATIENCE_S)
    assert max(sizes) <= TLS_PIECE_BYTES
    assert sum(sizes) <= 2 * OVERHEAD_BYTES_MAX


@LOOPS
async def test_the_end_of_tls_ends_a_body_without_a_length(run):
    own, (trust, _) = both_sides()
    pool = ConnectionPool(here, 4)
    async with Server(b"HTTP/1.1 200 OK\r\n\r\nhello", tls=own) as server:
        server.closes = True
        url = f"https://peer.test:{server.port}/"
        assert await body_of(pool, url, tls=ConnectionTls(trust)) == b"hello"
        await pool.close()


@LOOPS
async def test_a_server_without_tls_is_not_taken_for_one(run):
    _, (trust, _) = both_sides()
    pool = ConnectionPool(here, 4)

    async def talk(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(HttpError, match=r"cannot connect to peer.test:\d+: TLS failed"):
        await body_of(pool, f"https://peer.test:{port}/", tls=ConnectionTls(trust))
    server.close()
    await pool.close()
