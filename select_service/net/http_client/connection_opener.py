"""Opening of connections: to the first address that answers, with TLS, through a proxy."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from select_service.net.http_client.http_connection import HttpConnection
from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.reading_budget import reading_budget

NEXT_ADDRESS_S = 0.25
"""Delay before the next address of a name is tried in parallel, in seconds (RFC 8305)."""
PORTS = {"http": 80, "https": 443}

Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Function that returns at least one permitted address of a host.  Raises HttpError."""


class Origin(NamedTuple):
    """Scheme, host and port of a server."""

    scheme: str
    host: str
    port: int

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"


class ConnectionTls(NamedTuple):
    """TLS settings of a connection.

    server_name: name expected in the certificate; None means the host
    """

    context: ssl.SSLContext
    server_name: str | None = None


def split_url(url: str) -> tuple[Origin, str, str]:
    """Return the origin, the `host` header and the request target of a URL.

    Raises HttpError for a URL that cannot be requested.
    """
    try:
        parts = urlsplit(url)
        origin = Origin(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme])
    except (ValueError, KeyError):
        raise HttpError("unreachable", f"`{url}` is no URL of HTTP") from None
    host = parts.netloc.rpartition("@")[2]
    behind = host.rpartition("]")[2].partition(":")[0] if "]" in host else ""  # else dropped
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not origin.host or behind or not is_plain:
        raise HttpError("unreachable", f"`{url}` is no URL of HTTP")
    return origin, host, _request_target(parts)


def _request_target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def encode_request(
    method: str, target: str, host: str, headers: Sequence[tuple[str, str]], body: bytes | None
) -> bytes:
    """Return an encoded request.  Raises HttpError for invalid headers."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    # A line break in a header value would inject a second header or request.
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise HttpError("unreachable", "request header has control characters")
    return "\r\n".join((*lines, "", "")).encode() + (body or b"")


async def resolve_name(host: str) -> Sequence[str]:
    """Return the addresses of a host from the system resolver.  Raises HttpError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=1)
    except OSError as error:
        raise HttpError("unreachable", f"name not found: {host}: {error.strerror}") from None
    return [str(address[0]) for *_, address in found]


async def open_connection(
    origin: Origin, resolve: Resolve, tls: ConnectionTls | None = None, proxy: str | None = None
) -> HttpConnection:
    """Return an open connection.  Raises HttpError.

    tls: settings for https; None means the CAs of the system
    proxy: URL of a proxy used with CONNECT
    """
    if origin.is_tls and tls is None:
        tls = ConnectionTls(await asyncio.to_thread(system_ssl_context))
    used = tls if origin.is_tls else None
    if proxy is not None:
        return await _through_proxy(origin, resolve, used, proxy)
    addresses = list(await resolve(origin.host))
    return await _connect_first(addresses, origin, used)


@cache
def system_ssl_context() -> ssl.SSLContext:
    """Return a context with the CAs of the system.  Reads files for about 30 ms."""
    return ssl.create_default_context()


async def _connect_first(
    addresses: list[str], origin: Origin, tls: ConnectionTls | None
) -> HttpConnection:
    """Try the addresses in order, each a moment after the one before.

    Return the first connection.
    """
    if len(addresses) == 1:
        return await _connect(addresses[0], origin, tls)
    # "Happy eyeballs": a dead address costs 0.25 s instead of a TCP timeout.
    waiting, attempts = addresses[::-1], set[asyncio.Task[HttpConnection]]()
    failure = HttpError("unreachable", f"{origin.host} has no address")
    try:
        while waiting or attempts:
            if waiting:
                attempts.add(asyncio.create_task(_connect(waiting.pop(), origin, tls)))
            patience = NEXT_ADDRESS_S if waiting else None
            done, attempts = await asyncio.wait(
                attempts, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                error = each.exception()
                if error is None:
                    attempts |= done - {each}
                    return each.result()
                if not isinstance(error, HttpError):
                    raise error
                failure = error
        raise failure
    finally:
        for each in attempts:
            # An attempt may succeed in the iteration in which it is cancelled.
            each.add_done_callback(_close_late)
            each.cancel()
        del failure


def _close_late(attempt: "asyncio.Task[HttpConnection]") -> None:
    """Close a connection that lost the race against another address."""
    with contextlib.suppress(asyncio.CancelledError, HttpError, OSError):
        attempt.result().close()


async def _connect(address: str, origin: Origin, tls: ConnectionTls | None) -> HttpConnection:
    """Connect to an address.  Raises HttpError."""
    connection = HttpConnection(reading_budget())
    try:
        await asyncio.get_running_loop().create_connection(lambda: connection, address, origin.port)
    except OSError as error:
        raise _connect_error(error, origin) from None
    if tls is not None:
        await _start_tls(connection, origin, tls)
    return connection


async def _start_tls(connection: HttpConnection, origin: Origin, tls: ConnectionTls) -> None:
    """Start TLS; closes the connection on failure.  Raises HttpError."""
    try:
        await connection.start_tls(tls.context, tls.server_name or origin.host)
    except HttpError as error:
        connection.close()
        text = f"cannot connect to {origin.host}:{origin.port}: {error}"
        raise HttpError("unreachable", text) from None
    except BaseException:
        connection.close()
        raise


def _connect_error(error: OSError, origin: Origin) -> HttpError:
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else str(error)
    text = f"cannot connect to {origin.host}:{origin.port}: {reason}"
    is_refused = isinstance(error, ConnectionRefusedError)
    return HttpError("refused" if is_refused else "unreachable", text)


async def _through_proxy(
    origin: Origin, resolve: Resolve, tls: ConnectionTls | None, proxy: str
) -> HttpConnection:
    """Connect through a proxy.  Raises HttpError."""
    place, *_ = split_url(proxy)
    if tls is None or place.is_tls:
        text = f"proxy {place.host}: only an http proxy for an https server is supported"
        raise HttpError("unreachable", text)
    connection = await _connect_first(list(await resolve(place.host)), place, None)
    try:
        target = f"{origin.host}:{origin.port}"
        connection.send_request(encode_request("CONNECT", target, target, (), None))
        answer = await connection.read_head()
        if answer.status != 200:
            text = f"proxy {place.host} rejected {target}: status {answer.status}"
            raise HttpError("unreachable", text)
    except BaseException:
        connection.close()
        raise
    await _start_tls(connection, origin, tls)
    return connection
