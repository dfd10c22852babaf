"""Tests of connection probes over real sockets."""

import asyncio
import socket

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.health.connection_prober import ConnectionProber
from select_service.adapters.probe_http import TimedHttpClient
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually_on_loop
from tests.builders.toy_engine import ToyEngine, serving


class Owner:
    def __init__(self, *endpoints):
        self.waiting, self.found = list(endpoints), {}

    def next_connection_probe(self):
        return self.waiting.pop(0) if self.waiting else None

    def process_connection(self, endpoint, is_open, now):
        self.found[endpoint] = is_open


async def probe(*endpoints):
    owner = Owner(*endpoints)
    prober = ConnectionProber(owner, TimedHttpClient(Resolver()), GuardedCallbacks())
    assert not prober.send_due(0.0)
    try:
        await eventually_on_loop(lambda: len(owner.found) == len(endpoints))
    finally:
        await prober.stop()
    return owner.found


async def test_a_listening_engine_accepts_and_a_closed_port_does_not():
    engine, closed = ToyEngine(), f"http://127.0.0.1:{free_port()}"
    async with serving(engine) as endpoint:
        assert await probe(endpoint, closed) == {endpoint: True, closed: False}
    assert engine.requests == []


async def test_a_name_that_does_not_exist_is_no_connection():
    assert await probe("http://no-such-host.invalid:1") == {"http://no-such-host.invalid:1": False}


async def test_a_server_without_tls_is_no_connection_for_https():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        assert await probe(url) == {url: False}


async def test_running_attempts_end_with_the_process():
    owner = Owner("https://127.0.0.1:1")
    prober = ConnectionProber(owner, TimedHttpClient(Resolver()), GuardedCallbacks())
    prober.send_due(0.0)
    await asyncio.wait_for(prober.stop(), 5.0)
