"""Asynchronous name resolution: a thread of `Resolver` resolves while the event loop continues."""

import asyncio
import contextlib
from functools import lru_cache

from indexer.sockets.dns_resolver import ResolvedAddresses, Resolver
from indexer.zmq_endpoints import is_address

LITERAL_CACHE_MAX = 8192
"""Size of the LRU cache that marks hosts as literal addresses."""
_is_address = lru_cache(LITERAL_CACHE_MAX)(is_address)


async def resolve_host(names: Resolver, host: str) -> ResolvedAddresses:
    """Return the addresses of a host.  The caller limits the time."""
    if _is_address(host):
        return names.filter_addresses(host, (host,))
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[ResolvedAddresses] = loop.create_future()

    def settle(addresses: ResolvedAddresses) -> None:
        # The caller may have been cancelled by its time limit before the resolver answered.
        if not answer.done():
            answer.set_result(addresses)

    def tell(addresses: ResolvedAddresses) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, addresses)

    names.resolve(host, tell)
    return await answer
