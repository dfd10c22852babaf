"""Tests that HTTP requests never reach a forbidden address, whatever the way to the address."""

import asyncio
import contextlib
import socket

import pytest
from aiohttp import web

from indexer.sockets.dns_resolver import Resolver
from indexer.sockets.egress_guard import EgressGuard
from select_service.adapters.doctor.reachability import (
    endpoint_connection_error,
    url_connection_error,
)
from select_service.adapters.engine_metrics import EngineMetricsScraper
from select_service.adapters.http_get import HttpClient
from select_service.adapters.probe_http import TimedHttpClient
from select_service.adapters.replicas.peer_list import PeerListUnavailable, fetch_page
from select_service.core.load.reservations import ReservationFilter
from select_service.core.workers.engine_load import EngineTarget
from select_service.net.egress_policy import EgressPolicy, parse_network
from select_service.net.http_client.http_error import HttpError
from tests.adapters.metric_servers import Owner, Page
from tests.builders.polling import PATIENCE_S

LISTED = EgressPolicy((parse_network("10.0.0.0/8"),), (".engines.test",), loopback=False)
LOCAL = EgressPolicy()
METADATA = "http://169.254.169.254/latest/meta-data/"


def resolving(destinations, *answers):
    """Return a resolver with these outcomes in turn; the last one repeats."""
    left = list(answers)

    def look_up(host, *_, **__):
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, 1, 6, "", (address, 0)) for address in found.split()]

    return Resolver(look_up, EgressGuard(destinations.address_refusal))


async def fetch(url, names, purpose="metrics", http=None):
    client = http or HttpClient(names)
    try:
        return await client.get_body(
            url, accept="*/*", bytes_max=99, timeout_s=PATIENCE_S, purpose=purpose
        )
    finally:
        if http is None:
            await client.close()


async def send_post(url, names):
    reply = await TimedHttpClient(names).post(url, b"{}", {}, bytes_max=99, timeout_s=PATIENCE_S)
    return reply.body


WAYS = pytest.mark.parametrize("way", [fetch, send_post], ids=["client", "post"])


def refusal_of(way, url, names):
    with pytest.raises(HttpError) as caught:
        asyncio.run(way(url, names))
    assert caught.value.failure == "not_allowed"
    return str(caught.value)


@contextlib.asynccontextmanager
async def listening(address="127.0.0.1"):
    """Yield a port, and the list of its connections."""
    came = []

    async def take(reader, writer):
        came.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(take, address, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], came


@WAYS
@pytest.mark.parametrize(
    "url",
    [
        METADATA,
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00:ec2::254]/latest/",
        "http://0.0.0.0:8000/",
        "https://169.254.169.254/",
    ],
)
def test_some_addresses_are_always_refused(way, url):
    names = resolving(LOCAL, "127.0.0.1")
    assert "always refused" in refusal_of(way, url, names)
    purpose = "metrics" if way is fetch else "canary"
    assert names.egress_guard.refusal_counts() == {purpose: 1}


@WAYS
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "evil.example", "10.1.1.1.x"])
async def test_nothing_arrives_where_only_others_may_be_connected_to(way, host):
    async with listening() as (port, came):
        names = resolving(LISTED, "127.0.0.1")
        with pytest.raises(HttpError, match="--connect-to-loopback"):
            await way(f"http://{host}:{port}/", names)
    assert not came


@pytest.mark.parametrize("host", ["127.1", "2130706433", "127.000.000.001"])
async def test_old_ways_to_write_an_address_lead_nowhere(host):
    """Check forms of 127.0.0.1 that a socket accepts but no address check covers."""

    async with listening() as (port, came):
        with pytest.raises(HttpError):
            await fetch(
                f"http://{host}:{port}/", Resolver(egress_guard=EgressGuard(LISTED.address_refusal))
            )
        with pytest.raises(HttpError, match="--connect-to-loopback"):
            await send_post(f"http://{host}:{port}/", resolving(LISTED, "127.0.0.1"))
    assert not came


@WAYS
async def test_only_the_permitted_ones_of_several_addresses_are_tried(way):
    page = Page(b"yes")
    async with serving_all(page) as port:
        names = resolving(LOCAL, "169.254.169.254 127.0.0.1")
        assert await way(f"http://engine:{port}/metrics", names) == b"yes"
    assert names.egress_guard.refusal_counts() == {}


@WAYS
async def test_a_rebound_name_is_refused_at_the_next_lookup(way):
    page = Page(b"yes", headers={"connection": "close"})
    async with serving_all(page) as port:
        names = resolving(LOCAL, "127.0.0.1", "169.254.169.254")
        url = f"http://engine:{port}/metrics"
        assert await way(url, names) == b"yes"
        assert "resolves to 169.254.169.254" in await refusal_text(way, url, names)
    assert len(page.requests) == 1


async def refusal_text(way, url, names):
    with pytest.raises(HttpError) as caught:
        await way(url, names)
    assert caught.value.failure == "not_allowed"
    return str(caught.value)


@WAYS
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(way, status):
    async with listening() as (port, came):
        there = {"location": f"http://127.0.0.1:{port}/"}
        async with serving_all(Page(b"", status, there)) as first:
            names = resolving(LOCAL, "127.0.0.1")
            url = f"http://engine:{first}/metrics"
            if way is fetch:
                with pytest.raises(HttpError, match=f"status {status}"):
                    await way(url, names)
            else:
                assert await way(url, names) == b""
    assert not came


async def test_metrics_at_a_name_that_leads_elsewhere():
    names = resolving(LOCAL, "169.254.169.254")
    http = HttpClient(names)
    owner = Owner(EngineTarget(1, "http://engine.example/metrics", (0,)))
    metrics = EngineMetricsScraper(owner, http, interval_s=0.02, timeout_s=PATIENCE_S)
    metrics.start()
    said = await owner.next_of(1)
    await metrics.stop()
    await http.close()
    counts, refused_ = metrics.counts, names.egress_guard.refusal_counts()
    assert "engine.example resolves to 169.254.169.254, which is link-local" in said
    assert counts["not_allowed"] == refused_["metrics"] >= 1


async def test_the_list_of_a_replica_where_only_we_can_ask():
    """Check the URL that a replica sends in a message."""

    names = resolving(LOCAL, "127.0.0.1")
    http = HttpClient(names)
    with pytest.raises(PeerListUnavailable, match="link-local"):
        await fetch_page(http, METADATA, ReservationFilter(limit=10), with_key=False)
    await http.close()
    assert names.egress_guard.refusal_counts() == {"replica_list": 1}


@pytest.mark.parametrize("host", ["10.0.0.1", "evil.example", "0xa9fea9fe", "2852039166"])
def test_the_doctor_reaches_only_permitted_addresses(host):
    names = resolving(EgressPolicy((parse_network("192.0.2.0/24"),)), "169.254.169.254")
    assert asyncio.run(url_connection_error(names, f"http://{host}:8000/")).startswith("refused: ")
    assert asyncio.run(endpoint_connection_error(names, f"tcp://{host}:5557")).startswith(
        "refused: "
    )
    assert names.egress_guard.refusal_counts() == {"doctor": 2}


@contextlib.asynccontextmanager
async def serving_all(page):
    """Yield the port of a server that serves the page for GET and POST."""
    app = web.Application()
    app.router.add_route("*", "/metrics", page.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
