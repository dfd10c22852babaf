"""Discovery source for a DNS name, resolved again after its TTL.

A name without addresses counts as a failure and the previous addresses are kept: a broken name
server is more likely than a fleet that disappears as a whole.
"""

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from select_service.adapters.discovery.engine_prober import EngineProber
from select_service.adapters.discovery.source_status import SourceStatus
from select_service.config.discovery_sources import DnsSource
from select_service.core.registry.discovery.engine_candidates import EngineCandidate
from select_service.core.registry.discovery.record_template import (
    DEFAULT_ENDPOINT,
    fill_template,
    host_in_url,
)

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

TTL_S_MIN, TTL_S_MAX = 1.0, 60.0
"""Bounds of the interval between lookups, in seconds, whatever TTL the name server sends."""
RETRY_S = 5.0
"""Delay after a failed lookup, in seconds."""
LOOKUP_S = 5.0
"""Time limit of a lookup over all name servers, in seconds."""
ADDRESSES_MAX = 4096


class DnsAddress(NamedTuple):
    """Engine address.

    host: IP address, or a name for SRV records
    """

    host: str
    port: int


class DnsDiscoverySource:
    """Source for a DNS name.  Belongs to one event loop."""

    def __init__(
        self,
        source: DnsSource,
        readings: SourceStatus,
        completing: EngineProber,
        resolver: "Resolver",
    ) -> None:
        self._readings = readings
        self._source = source
        self._completing = completing
        self._resolver = resolver

    async def run(self) -> None:
        """Resolve the name and probe the engines until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._completing.run_prober())
            both.create_task(self._resolve_repeatedly())

    async def _resolve_repeatedly(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            pause_s = await self._resolve_once()
            # dnspython calls asyncio.wait_for, which in Python 3.11 drops a cancellation that
            # arrives together with the answer.
            if task.cancelling():
                return
            await asyncio.sleep(pause_s)

    async def _resolve_once(self) -> float:
        """Resolve the name and publish the candidates; return the seconds until the next lookup."""
        from dns.exception import DNSException

        try:
            places, ttl_s = await self._resolve_addresses()
        except DNSException as error:
            self._readings.record_failure(" ".join(str(error).split()) or type(error).__name__)
            return RETRY_S
        if len(places) > ADDRESSES_MAX:
            self._readings.record_failure(f"{len(places)} addresses found (limit {ADDRESSES_MAX})")
            return RETRY_S
        self._readings.record_success()
        self._completing.set_candidates([self._make_candidate(each) for each in places])
        return min(max(ttl_s, TTL_S_MIN), TTL_S_MAX)

    async def _resolve_addresses(self) -> tuple[list[DnsAddress], float]:
        """Return the sorted addresses and their TTL in seconds.  Raises DNSException."""
        if self._source.is_srv:
            answer = await self._resolver.resolve(
                self._source.host, "SRV", search=True, lifetime=LOOKUP_S
            )
            found = {
                DnsAddress(each.target.to_text(omit_final_dot=True), each.port) for each in answer
            }
        else:
            answer = await self._resolve_hosts()
            found = {DnsAddress(each.address, self._source.port) for each in answer}
        # Sorted: name servers rotate their answers, which is no change of the fleet.
        return sorted(found), float(answer.rrset.ttl)

    async def _resolve_hosts(self) -> Any:
        """Resolve IPv4 addresses, or IPv6 if there are none: a dual-stack host is one engine."""
        from dns.resolver import NoAnswer

        host = self._source.host
        try:
            return await self._resolver.resolve(host, "A", search=True, lifetime=LOOKUP_S)
        except NoAnswer:
            return await self._resolver.resolve(host, "AAAA", search=True, lifetime=LOOKUP_S)

    def _make_candidate(self, place: DnsAddress) -> EngineCandidate:
        values = {"host": host_in_url(place.host), "port": str(place.port)}
        fields = fill_template({"endpoint": DEFAULT_ENDPOINT, **self._source.worker}, values)
        return EngineCandidate(fields["endpoint"], fields)
