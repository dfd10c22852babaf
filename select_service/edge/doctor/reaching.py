"""EDGE: is there somebody who accepts connections at an address?"""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from indexer.endpoints import tcp_host
from indexer.sockets.names import Names
from select_service.edge.host_names import looked_up

CONNECT_S = 3.0
PURPOSE = "doctor"
"""Under which refusals are counted."""


async def url_fault(names: Names, url: str) -> str | None:
    """Of the host and port of an HTTP URL.  None: it accepts."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return await _fault(names, parts.hostname or "", port)


async def endpoint_fault(names: Names, endpoint: str) -> str | None:
    """Of an endpoint of ZMQ.  None: it accepts, or is none of TCP."""
    host = tcp_host(endpoint)
    if host is not None:
        return await _fault(names, host, int(endpoint.rpartition(":")[2]))
    scheme, _, path = endpoint.partition("://")
    is_there = scheme != "ipc" or await asyncio.to_thread(Path(path).exists)
    return None if is_there else "there is no such file"


async def _fault(names: Names, host: str, port: int) -> str | None:
    try:
        async with asyncio.timeout(CONNECT_S):
            return await _first_fault(names, host, port)
    except TimeoutError:
        return f"no connection within {CONNECT_S:g} s"


async def _first_fault(names: Names, host: str, port: int) -> str | None:
    addresses = await looked_up(names, host)
    if addresses.is_refused:
        names.boundary.count(PURPOSE)
        return f"refused: {addresses.error}"
    fault: str | None = f"name not found: {addresses.error}"
    loop = asyncio.get_running_loop()
    for address in addresses.found:
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, address, port)
        except OSError as error:
            fault = error.strerror or str(error)
        else:
            transport.close()
            return None
    return fault
