"""A name server over UDP that answers from a table."""

import asyncio
import contextlib

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
from dns.asyncresolver import Resolver


class NameServer(asyncio.DatagramProtocol):
    """Name server.

    records: texts by name and type; a name without records does not exist
    """

    def __init__(self):
        self.records = {}
        self.ttl_s = 0
        self.asked = []
        self.fails = False

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, address):
        question = dns.message.from_wire(data)
        answer = dns.message.make_response(question)
        (asked,) = question.question
        name, kind = asked.name.to_text(), dns.rdatatype.to_text(asked.rdtype)
        self.asked.append((name, kind))
        found = self.records.get((name, kind), ())
        if self.fails:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        if found and not self.fails:
            answer.answer.append(dns.rrset.from_text(name, self.ttl_s, "IN", kind, *found))
        self._transport.sendto(answer.to_wire(max_size=65535), address)


@contextlib.asynccontextmanager
async def name_server():
    """Yield the server, and a resolver that uses it."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    resolver = Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    resolver.cache = None
    try:
        yield server, resolver
    finally:
        transport.close()
