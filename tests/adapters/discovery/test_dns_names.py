"""Tests of a followed DNS name; a name without addresses keeps the former addresses."""

import asyncio
import contextlib

import pytest

pytest.importorskip("dns")

from select_service.adapters.discovery import dns_source
from select_service.adapters.discovery import engine_prober as completing_module
from select_service.adapters.discovery.dns_source import DnsDiscoverySource
from select_service.adapters.discovery.engine_prober import EngineProber
from select_service.config.discovery_sources import DnsSource
from tests.adapters.discovery.name_server import name_server
from tests.adapters.discovery.test_completing import RecordedOffers
from tests.builders.polling import eventually_on_loop

NAME = "vllm.example."


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(dns_source, "TTL_S_MIN", 0.02)
    monkeypatch.setattr(dns_source, "RETRY_S", 0.02)
    monkeypatch.setattr(completing_module, "GATHER_S", 0.0)


@contextlib.asynccontextmanager
async def followed(is_srv=False, host="vllm.example", **worker):
    """Yield the server and the readings while the name is followed."""

    async with name_server() as (server, resolver):
        told = RecordedOffers()
        source = DnsSource("a", host, 8000, is_srv, worker, False)
        names = DnsDiscoverySource(
            source, told.readings, EngineProber(told.readings, None), resolver
        )
        task = asyncio.create_task(names.run())
        try:
            yield server, told
        finally:
            task.cancel()
            await asyncio.wait([task])


class LateResolver:
    """Resolver that drops a cancellation, as `asyncio.wait_for` of Python 3.11 may."""

    def __init__(self, resolver):
        self._resolver = resolver
        self.is_resolving = asyncio.Event()

    async def resolve(self, *arguments, **options):
        self.is_resolving.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return await self._resolver.resolve(*arguments, **options)


def endpoints(told):
    return sorted(worker.endpoint for worker in (told.desired or {}).values())


async def test_a_cancellation_that_the_resolver_drops_ends_the_source():
    async with name_server() as (server, resolver):
        server.records[NAME, "A"] = ["10.0.0.1"]
        late, offers = LateResolver(resolver), RecordedOffers()
        source = DnsSource("a", "vllm.example", 8000, False, {}, False)
        prober = EngineProber(offers.readings, None)
        task = asyncio.create_task(DnsDiscoverySource(source, offers.readings, prober, late).run())
        await late.is_resolving.wait()
        task.cancel()
        await eventually_on_loop(task.done)
        assert task.cancelled()


async def test_addresses_come_and_go():
    async with followed(kv_events_endpoint="tcp://{host}:5557") as (server, told):
        server.records[NAME, "A"] = ["10.0.0.1", "10.0.0.2"]
        await eventually_on_loop(
            lambda: endpoints(told) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
        )
        server.records[NAME, "A"] = ["10.0.0.2", "10.0.0.3"]
        await eventually_on_loop(
            lambda: endpoints(told) == ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]
        )
        (worker, _) = told.desired.values()
        assert worker.kv_events_endpoint == "tcp://10.0.0.2:5557"


async def test_addresses_of_the_sixth_version_count_where_there_are_no_others():
    async with followed() as (server, told):
        server.records[NAME, "AAAA"] = ["fd00::1"]
        await eventually_on_loop(lambda: endpoints(told) == ["http://[fd00::1]:8000"])
        server.records[NAME, "A"] = ["10.0.0.1"]
        await eventually_on_loop(lambda: endpoints(told) == ["http://10.0.0.1:8000"])


async def test_services_have_ports_of_their_own():
    async with followed(is_srv=True, host="_http._tcp.vllm.example") as (server, told):
        server.records["_http._tcp.vllm.example.", "SRV"] = [
            "0 1 8000 vllm-0.example.",
            "0 1 8001 vllm-1.example.",
        ]
        await eventually_on_loop(
            lambda: endpoints(told) == ["http://vllm-0.example:8000", "http://vllm-1.example:8001"]
        )


@pytest.mark.parametrize("how", ["gone", "empty", "broken"])
async def test_a_name_without_addresses_keeps_its_workers_and_reports_that(how):
    async with followed() as (server, told):
        server.records[NAME, "A"] = ["10.0.0.1"]
        await eventually_on_loop(lambda: endpoints(told) == ["http://10.0.0.1:8000"])
        if how == "gone":
            server.records.clear()
        elif how == "empty":
            server.records[NAME, "A"] = []
        else:
            server.fails = True
        await eventually_on_loop(lambda: told.readings.error)
        assert endpoints(told) == ["http://10.0.0.1:8000"]
        server.fails = False
        server.records[NAME, "A"] = ["10.0.0.2"]
        await eventually_on_loop(lambda: endpoints(told) == ["http://10.0.0.2:8000"])
        assert told.readings.error is None


async def test_the_time_that_a_record_counts_is_respected(monkeypatch):
    monkeypatch.setattr(dns_source, "TTL_S_MAX", 3600.0)
    async with followed() as (server, told):
        server.ttl_s = 3000
        server.records[NAME, "A"] = ["10.0.0.1"]
        await eventually_on_loop(lambda: endpoints(told) == ["http://10.0.0.1:8000"])
        asked = len(server.asked)
        await asyncio.sleep(0.2)
        assert len(server.asked) == asked
