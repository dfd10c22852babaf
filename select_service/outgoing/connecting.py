"""Opens connections: to the first address that answers, with TLS, through a proxy."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from select_service.outgoing.http_connection import HttpConnection
from select_service.outgoing.reading_budget import reading_budget
from select_service.outgoing.request_error import RequestError

NEXT_ADDRESS_S = 0.25
"""After which the next address of a name is tried as well, as RFC 8305 proposes."""
PORTS = {"http": 80, "https": 443}

Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Host -> addresses that may be connected to, at least one.  Raises RequestError."""


class Origin(NamedTuple):
    """Where connections lead."""

    scheme: str
    host: str
    port: int

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"


class Tls(NamedTuple):
    """Whom a connection trusts.  server_name: in the certificate; None means the host"""

    context: ssl.SSLContext
    server_name: str | None = None


def split_url(url: str) -> tuple[Origin, str, str]:
    """Return the origin, the value of `host` and the target of a request line.

    Raises RequestError for a URL that cannot be requested.
    """
    try:
        parts = urlsplit(url)
        origin = Origin(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme])
    except (ValueError, KeyError):
        raise RequestError("unreachable", f"`{url}` is no URL of HTTP") from None
    host = parts.netloc.rpartition("@")[2]
    behind = host.rpartition("]")[2].partition(":")[0] if "]" in host else ""  # urlsplit drops it
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not origin.host or behind or not is_plain:
        raise RequestError("unreachable", f"`{url}` is no URL of HTTP")
    return origin, host, _target(parts)


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def request_message(
    method: str, target: str, host: str, headers: Sequence[tuple[str, str]], body: bytes | None
) -> bytes:
    """Return a whole request.  Raises RequestError for headers that no request can have."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise RequestError("unreachable", "a header of the request has control characters")
    return "\r\n".join((*lines, "", "")).encode() + (body or b"")


async def resolve_name(host: str) -> Sequence[str]:
    """Ask the system for the addresses.  Raises RequestError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=1)
    except OSError as error:
        raise RequestError("unreachable", f"name not found: {host}: {error.strerror}") from None
    return [str(address[0]) for *_, address in found]


async def open_connection(
    origin: Origin, resolve: Resolve, tls: Tls | None = None, proxy: str | None = None
) -> HttpConnection:
    """Raises RequestError.

    tls: of an origin with https; None means whom the system trusts
    proxy: URL of a proxy that is asked to CONNECT
    """
    if origin.is_tls and tls is None:
        tls = Tls(await asyncio.to_thread(system_trust))
    used = tls if origin.is_tls else None
    if proxy is not None:
        return await _through_proxy(origin, resolve, used, proxy)
    addresses = list(await resolve(origin.host))
    return await _first_opened(addresses, origin, used)


@cache
def system_trust() -> ssl.SSLContext:
    """Return what trusts whom the system trusts.  Reads files, for some 30 ms."""
    return ssl.create_default_context()


async def _first_opened(addresses: list[str], origin: Origin, tls: Tls | None) -> HttpConnection:
    """Try the addresses one after the other, each a moment after the one before."""
    if len(addresses) == 1:
        return await _opened(addresses[0], origin, tls)
    waiting, attempts = addresses[::-1], set[asyncio.Task[HttpConnection]]()
    failure = RequestError("unreachable", f"{origin.host} has no address")
    try:
        while waiting or attempts:
            if waiting:
                attempts.add(asyncio.create_task(_opened(waiting.pop(), origin, tls)))
            patience = NEXT_ADDRESS_S if waiting else None
            done, attempts = await asyncio.wait(
                attempts, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                error = each.exception()
                if error is None:
                    attempts |= done - {each}
                    return each.result()
                if not isinstance(error, RequestError):
                    raise error
                failure = error
        raise failure
    finally:
        for each in attempts:
            each.add_done_callback(_close_late)
            each.cancel()
        del failure


def _close_late(attempt: "asyncio.Task[HttpConnection]") -> None:
    """Close what another address was faster than."""
    with contextlib.suppress(asyncio.CancelledError, RequestError, OSError):
        attempt.result().close()


async def _opened(address: str, origin: Origin, tls: Tls | None) -> HttpConnection:
    """Raises RequestError."""
    connection = HttpConnection(reading_budget())
    try:
        await asyncio.get_running_loop().create_connection(lambda: connection, address, origin.port)
    except OSError as error:
        raise _refusal(error, origin) from None
    if tls is not None:
        await _start_tls(connection, origin, tls)
    return connection


async def _start_tls(connection: HttpConnection, origin: Origin, tls: Tls) -> None:
    """Raises RequestError, and has closed the connection then."""
    try:
        await connection.start_tls(tls.context, tls.server_name or origin.host)
    except RequestError as error:
        connection.close()
        text = f"cannot connect to {origin.host}:{origin.port}: {error}"
        raise RequestError("unreachable", text) from None
    except BaseException:
        connection.close()
        raise


def _refusal(error: OSError, origin: Origin) -> RequestError:
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else str(error)
    text = f"cannot connect to {origin.host}:{origin.port}: {reason}"
    is_refused = isinstance(error, ConnectionRefusedError)
    return RequestError("refused" if is_refused else "unreachable", text)


async def _through_proxy(
    origin: Origin, resolve: Resolve, tls: Tls | None, proxy: str
) -> HttpConnection:
    """Raises RequestError."""
    place, *_ = split_url(proxy)
    if tls is None or place.is_tls:
        text = f"the proxy {place.host}: only an http proxy in front of an https server is used"
        raise RequestError("unreachable", text)
    connection = await _first_opened(list(await resolve(place.host)), place, None)
    try:
        target = f"{origin.host}:{origin.port}"
        connection.send(request_message("CONNECT", target, target, (), None))
        answer = await connection.head()
        if answer.status != 200:
            text = f"the proxy {place.host} refuses {target}: status {answer.status}"
            raise RequestError("unreachable", text)
    except BaseException:
        connection.close()
        raise
    await _start_tls(connection, origin, tls)
    return connection
