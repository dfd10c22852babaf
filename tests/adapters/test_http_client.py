"""Tests of the HTTP client, including names without an answering name server."""

import asyncio
import contextlib
import functools
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from aiohttp import web

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import HttpClient
from select_service.adapters.replicas import peer_list
from select_service.adapters.replicas.peer_list import PeerListUnavailable, fetch_page
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX
from select_service.core.load.reservations import ReservationFilter
from select_service.net.http_client.http_error import HttpError
from tests.builders.polling import PATIENCE_S

ROW = {
    "reservation_id": "r",
    "model_name": "m",
    "tenant_id": "t",
    "worker_id": 1,
    "dp_rank": 0,
    "state": "prefill",
    "isl_tokens": 8,
    "prompt_blocks": 2,
    "output_blocks": 0,
    "prefill_tokens": 8,
    "age_seconds": 0.5,
    "expires_in_seconds": None,
    "origin": "local",
    "router_id": 7,
}


TLS = Path(__file__).parents[1] / "builders" / "tls"
CERTIFICATE = TLS / "certificate.pem"
"""Self-signed certificate of `peer.test`, valid for a hundred years."""
ASK = """\
import asyncio, sys
from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import HttpClient

async def ask():
    http = HttpClient(Resolver(lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", 0))]))
    print(await http.get_body(sys.argv[1], accept="*/*", bytes_max=9, timeout_s=60.0))
    await http.close()

asyncio.run(ask())
"""


@contextlib.asynccontextmanager
async def answering(answer, tls=None):
    """Yield the URL of a server that passes every request to `answer`."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
def silence():
    """Yield a resolver that gets no answer during the test."""
    over = threading.Event()

    def look_up(*_, **__):
        over.wait(10 * PATIENCE_S)
        raise OSError("over")

    yield Resolver(look_up)
    assert not over.is_set()
    over.set()


async def test_a_name_that_is_never_answered_costs_no_more_than_the_time_of_the_request(silence):
    http = HttpClient(silence)
    with pytest.raises(HttpError, match="no complete answer") as caught:
        await http.get_body("http://name:1/", accept="*/*", bytes_max=1, timeout_s=0.05)
    assert caught.value.failure == "timeout"
    await http.close()


async def test_the_end_of_the_loop_does_not_wait_for_names(silence):
    http = HttpClient(silence)
    body = http.get_body("http://name:1/", accept="*/*", bytes_max=1, timeout_s=PATIENCE_S)
    asking = asyncio.create_task(body)
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await http.close()


async def test_a_name_with_several_addresses_is_tried_until_one_answers():
    async def answer(request):
        return web.Response(text="yes")

    async with answering(answer) as url:
        port = url.rpartition(":")[2]
        several = [(2, 1, 6, "", ("127.0.0.2", 0)), (2, 1, 6, "", ("127.0.0.1", 0))]
        http = HttpClient(Resolver(lambda *_, **__: several))
        address = f"http://name:{port}/"
        body = await http.get_body(address, accept="*/*", bytes_max=9, timeout_s=PATIENCE_S)
        await http.close()
    assert body == b"yes"


def test_a_name_that_is_not_found_is_an_error():
    async def scene():
        def lookup(*_, **__):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        http = HttpClient(Resolver(lookup))
        try:
            await http.get_body("http://no-such/", accept="*/*", bytes_max=9, timeout_s=PATIENCE_S)
        finally:
            await http.close()

    with pytest.raises(HttpError) as caught:
        asyncio.run(scene())
    assert str(caught.value) == "name not found: no-such: Name or service not known"


def over_tls(ask):
    """Return the result of `ask(port)` for a server with the certificate of `peer.test`."""

    async def scene():
        async def answer(request):
            return web.Response(text="secret")

        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(CERTIFICATE, TLS / "key.pem")
        async with answering(answer, tls) as url:
            return await ask(url.rpartition(":")[2])

    return asyncio.run(scene())


@pytest.mark.parametrize(("host", "trusted"), [("peer.test", True), ("other.test", False)])
def test_over_https_a_certificate_that_the_system_trusts_must_be_of_the_host(host, trusted):
    async def ask(port):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ASK, f"https://{host}:{port}/"),
            env={**os.environ, "SSL_CERT_FILE": str(CERTIFICATE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return await asyncio.wait_for(process.communicate(), PATIENCE_S)

    out, error = over_tls(ask)
    assert (out == b"b'secret'\n") is trusted
    assert (b"HttpError" in error and b"certificate" in error) is not trusted


def test_over_https_untrusted_certificates_are_rejected():
    async def ask(port):
        http = HttpClient(Resolver(lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", 0))]))
        try:
            address = f"https://peer.test:{port}/"
            await http.get_body(address, accept="*/*", bytes_max=9, timeout_s=PATIENCE_S)
        finally:
            await http.close()

    told = "certificate is not trusted: self-signed certificate"
    with pytest.raises(HttpError, match=told) as caught:
        over_tls(ask)
    assert caught.value.metric_label == "unreachable"


class Origins:
    """Servers on separate ports, and their connections."""

    def __init__(self, count, silent=()):
        self.connected = set()
        self.most = 0
        self.made = 0
        self._count, self._silent = count, silent
        self._servers = []

    async def __aenter__(self):
        for number in range(self._count):
            talk = functools.partial(self._talk, number)
            self._servers.append(await asyncio.start_server(talk, "127.0.0.1", 0))
        return [
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/" for server in self._servers
        ]

    async def __aexit__(self, *_):
        for server in self._servers:
            server.close()
        for writer in self.connected:
            writer.transport.abort()

    async def _talk(self, number, reader, writer):
        self.connected.add(writer)
        self.made += 1
        self.most = max(self.most, len(self.connected))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                if number in self._silent:
                    await reader.read()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK")
        self.connected.discard(writer)
        writer.close()


async def test_connections_are_bounded_with_silent_servers():
    origins = Origins(40, silent=range(40))
    http = HttpClient(Resolver(), connections_max=8)
    async with origins as urls:
        asked = [
            asyncio.create_task(http.get_body(url, accept="*/*", bytes_max=9, timeout_s=PATIENCE_S))
            for url in urls + urls
        ]
        while origins.made < 8:
            await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(0)
        assert origins.most == 8
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)
        await http.close()


async def test_idle_connections_count_and_those_that_are_kept_are_used_again():
    origins = Origins(20)
    http = HttpClient(Resolver(), connections_max=8)
    async with origins as urls:
        for url in urls * 3:
            assert (
                await http.get_body(url, accept="*/*", bytes_max=9, timeout_s=PATIENCE_S) == b"OK"
            )
        await http.close()
    assert origins.made == 4 + 3 * 16
    assert origins.most <= 8


async def test_origins_that_never_answer_keep_no_kept_one_waiting():
    origins = Origins(30, silent=range(2, 30))
    http = HttpClient(Resolver(), connections_max=4)
    async with origins as (first, second, *silent):
        ask = functools.partial(http.get_body, accept="*/*", bytes_max=9, timeout_s=PATIENCE_S)
        await ask(first)
        await ask(second)
        hanging = [asyncio.create_task(ask(url)) for url in silent]
        while origins.made < 4:
            await asyncio.sleep(0.01)
        assert await ask(first) + await ask(second) == b"OKOK"
        for each in hanging:
            each.cancel()
        await asyncio.wait(hanging)
        await http.close()


def page_of(rows, wanted):
    """Return the page decoded from a peer's answer with these rows."""
    page = {"reservations": rows, "total": 1, "next": None, "router_id": 7}
    return answer_of(json.dumps(page).encode(), wanted)


def answer_of(body, wanted):
    """Return the page decoded from this body of a peer's answer."""

    async def scene():
        async def answer(request):
            return web.Response(body=body)

        async with answering(answer) as url:
            http = HttpClient(Resolver())
            try:
                return await fetch_page(http, url, wanted)
            finally:
                await http.close()

    return asyncio.run(scene())


def test_a_page_has_no_more_rows_than_requested():
    assert len(page_of([ROW] * 3, ReservationFilter(limit=3)).reservations) == 3
    with pytest.raises(PeerListUnavailable, match="more than the requested 3 rows"):
        page_of([ROW] * 4, ReservationFilter(limit=3))


def test_a_page_has_a_bound_in_bytes(monkeypatch):
    monkeypatch.setattr(peer_list, "PAGE_BYTES_MAX", 100)
    with pytest.raises(PeerListUnavailable, match="more than 100 bytes"):
        page_of([ROW], ReservationFilter(limit=3))


class RecordingDecoder:
    """Decoder that records the number of bytes per call."""

    def __init__(self, decode):
        self.decode, self.sizes = decode, []

    def __call__(self, text):
        self.sizes.append(len(text))
        return self.decode(text)


PADDING = 4_000_000
HOSTILE = [
    ("does not begin a row", b'{"reservations":[' + b"0," * (PADDING // 2) + b"0]}"),
    (
        "more than the requested 3 rows",
        b'{"reservations":[' + b"ROW," * (PADDING // 400) + b"ROW]}",
    ),
    ("missing required field", b'{"reservations":[' + b"{}," * (PADDING // 3) + b"{}]}"),
    ("list envelope is larger", b'{"reservations":[],"x":[' + b"0," * (PADDING // 2) + b"0]}"),
    ("does not begin a row", b'{"reservations":[' + b'{"x":"' + b"a" * PADDING + b'"}]}'),
    ("does not begin a row", b'{"reservations":[' + b'{"x":"' + b'\\"' * PADDING + b'"}]}'),
    ("does not begin a row", b'{"reservations":[' + b" " * PADDING + b"{}]}"),
    ("does not begin a row", b'{"reservations":[' + b"{" * PADDING + b"]}"),
    ("no list", b" " * PADDING + b'{"reservations":[]}'),
    ("no list", b'{"x":' + b"[" * PADDING),
    ("truncated", b'{"reservations":[]'),
]


@pytest.mark.parametrize(("error", "body"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_page_is_not_decoded_beyond_its_bounds(error, body, monkeypatch):
    rows = RecordingDecoder(peer_list._row_of)
    monkeypatch.setattr(peer_list, "_row_of", rows)
    with pytest.raises(PeerListUnavailable, match=error):
        answer_of(body.replace(b"ROW", json.dumps(ROW).encode()), ReservationFilter(limit=3))
    assert len(rows.sizes) <= 3
    assert all(size <= peer_list.ROW_BYTES_MAX for size in rows.sizes)


def test_a_page_is_decoded_in_any_notation():
    row = {**ROW, "reservation_id": 'a"}, {"b\\', "later": {"x": [1, "}"]}}
    page = {"later": [], "reservations": [row, row], "total": 2, "next": "x", "router_id": 7}
    wanted = ReservationFilter(limit=3)
    for indent in (None, 3):
        read = answer_of(json.dumps({**page, "more": ["a"]}, indent=indent).encode(), wanted)
        assert [each.reservation_id for each in read.reservations] == ['a"}, {"b\\'] * 2
        assert (read.total, read.next, read.router_id) == (2, "x", 7)


def test_only_the_booked_ones_of_many_hashes_are_decoded():
    hashes = [2**64 - 1 - n for n in range(BOOKED_BLOCKS_MAX + 5000)]
    wanted = ReservationFilter(limit=3, sequence_hashes=True)
    (row,) = page_of([{**ROW, "sequence_hashes": hashes}], wanted).reservations
    assert row.sequence_hashes == hashes[: len(row.sequence_hashes)]
    assert len(row.sequence_hashes) > 0.9 * BOOKED_BLOCKS_MAX
    (row,) = page_of([{**ROW, "sequence_hashes": [3, 4]}], wanted).reservations
    assert row.sequence_hashes == [3, 4]


@pytest.mark.parametrize("hashes", [[-1], [2**64], ["x"], [[]], "x"])
def test_invalid_hashes_are_rejected(hashes):
    with pytest.raises(PeerListUnavailable):
        page_of([{**ROW, "sequence_hashes": hashes}], ReservationFilter(limit=3))
