"""EDGE: a host becomes addresses on a thread of `Names`, while the event loop goes on."""

import asyncio
import contextlib
from functools import lru_cache

from indexer.endpoints import is_address
from indexer.sockets.names import Addresses, Names

KNOWN_MAX = 8192
"""Hosts of which it is remembered whether they are addresses."""
_is_address = lru_cache(KNOWN_MAX)(is_address)


async def looked_up(names: Names, host: str) -> Addresses:
    """Whoever asks limits the time."""
    if _is_address(host):
        return names.judged(host, (host,))
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Addresses] = loop.create_future()

    def settle(addresses: Addresses) -> None:
        if not answer.done():
            answer.set_result(addresses)

    def tell(addresses: Addresses) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, addresses)

    names.look_up(host, tell)
    return await answer
