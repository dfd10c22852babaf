"""Reachability check: whether an address accepts connections."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from indexer.sockets.dns_resolver import Resolver
from indexer.zmq_endpoints import tcp_host
from select_service.adapters.async_resolver import resolve_host

CONNECT_S = 3.0
PURPOSE = "doctor"
"""Label under which refused addresses are counted."""


async def url_connection_error(names: Resolver, url: str) -> str | None:
    """Return why the host and port of an HTTP URL accept no connection, or None."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return await _connection_error(names, parts.hostname or "", port)


async def endpoint_connection_error(names: Resolver, endpoint: str) -> str | None:
    """Return why a ZMQ endpoint accepts no connection.

    None if it does or is neither tcp nor ipc.
    """
    host = tcp_host(endpoint)
    if host is not None:
        return await _connection_error(names, host, int(endpoint.rpartition(":")[2]))
    scheme, _, path = endpoint.partition("://")
    is_there = scheme != "ipc" or await asyncio.to_thread(Path(path).exists)
    return None if is_there else "no such file"


async def _connection_error(names: Resolver, host: str, port: int) -> str | None:
    try:
        async with asyncio.timeout(CONNECT_S):
            return await _first_connection_error(names, host, port)
    except TimeoutError:
        return f"no connection within {CONNECT_S:g} s"


async def _first_connection_error(names: Resolver, host: str, port: int) -> str | None:
    addresses = await resolve_host(names, host)
    if addresses.is_refused:
        names.egress_guard.count_refusal(PURPOSE)
        return f"refused: {addresses.error}"
    fault: str | None = f"name not found: {addresses.error}"
    loop = asyncio.get_running_loop()
    # All addresses in turn: a name may have an unreachable IPv6 address first.
    for address in addresses.found:
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, address, port)
        except OSError as error:
            fault = error.strerror or str(error)
        else:
            transport.close()
            return None
    return fault
