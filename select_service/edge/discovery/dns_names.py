"""A name in the DNS, looked up again when its time is over.

A name that has no addresses now is a failure: what it had before goes on counting, since a name
server that knows nothing is more likely than a fleet that has gone as a whole.
"""

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from select_service.core.discovery.candidates import Candidate
from select_service.core.discovery.template import ENDPOINT, filled, in_url
from select_service.edge.discovery.completing import Completing
from select_service.edge.discovery.source import Readings
from select_service.settings.discovery import DnsSource

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

TTL_S_MIN, TTL_S_MAX = 1.0, 60.0
"""Between two looks, whatever the name server says."""
AGAIN_S = 5.0
"""After a failure."""
LOOKUP_S = 5.0
"""How long all servers together may take."""
FOUND_MAX = 4096


class Place(NamedTuple):
    """host: an address, or a name where the record is a SRV"""

    host: str
    port: int


class DnsNames:
    """Belongs to one event loop."""

    def __init__(
        self, source: DnsSource, readings: Readings, completing: Completing, resolver: "Resolver"
    ) -> None:
        self._readings = readings
        self._source = source
        self._completing = completing
        self._resolver = resolver

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._completing.run())
            both.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(await self._look())

    async def _look(self) -> float:
        """Returns seconds until the next look."""
        from dns.exception import DNSException

        try:
            places, ttl_s = await self._found()
        except DNSException as error:
            self._readings.failed(" ".join(str(error).split()) or type(error).__name__)
            return AGAIN_S
        if len(places) > FOUND_MAX:
            self._readings.failed(f"{len(places)} addresses, and there may be {FOUND_MAX}")
            return AGAIN_S
        self._readings.was_read()
        self._completing.want([self._candidate(each) for each in places])
        return min(max(ttl_s, TTL_S_MIN), TTL_S_MAX)

    async def _found(self) -> tuple[list[Place], float]:
        """In an order of their own, and how long it counts, in seconds.  Raises DNSException."""
        if self._source.is_srv:
            answer = await self._resolver.resolve(
                self._source.host, "SRV", search=True, lifetime=LOOKUP_S
            )
            found = {Place(each.target.to_text(omit_final_dot=True), each.port) for each in answer}
        else:
            answer = await self._addresses()
            found = {Place(each.address, self._source.port) for each in answer}
        return sorted(found), float(answer.rrset.ttl)

    async def _addresses(self) -> Any:
        """IPv4 where there is any: a host of both families is one engine."""
        from dns.resolver import NoAnswer

        host = self._source.host
        try:
            return await self._resolver.resolve(host, "A", search=True, lifetime=LOOKUP_S)
        except NoAnswer:
            return await self._resolver.resolve(host, "AAAA", search=True, lifetime=LOOKUP_S)

    def _candidate(self, place: Place) -> Candidate:
        values = {"host": in_url(place.host), "port": str(place.port)}
        fields = filled({"endpoint": ENDPOINT, **self._source.worker}, values)
        return Candidate(fields["endpoint"], fields)
