"""EDGE: aiohttp as `http_client` uses it: its settings, our names, its errors in our words."""

import contextlib
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from indexer.endpoints import is_address
from indexer.sockets.names import Names
from select_service.edge.host_names import looked_up
from select_service.edge.http_error import HttpError

READ_BYTES = 1 << 18
"""Read ahead of whoever takes the body."""
KEEP_S = 15.0
"""How long a connection waits for the next request."""
HEADERS = {"accept-encoding": "identity"}


class _NotAllowed(OSError):
    """None of the addresses may be connected to."""


class _Resolver(AbstractResolver):
    def __init__(self, names: Names) -> None:
        self._names = names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises OSError."""
        addresses = await looked_up(self._names, host)
        if addresses.is_refused:
            raise _NotAllowed(addresses.error)
        if addresses.error is not None:
            raise OSError(addresses.error)
        return [_result(host, address, port) for address in addresses.found]

    async def close(self) -> None:
        """Nothing is held."""


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=0, flags=flags
    )


@dataclass(slots=True)
class _Kept:
    """The connection to an origin; `asked_at` is the end of the last request, in monotonic s."""

    is_used: bool = False
    asked_at: float = field(default_factory=monotonic)


class Sessions:
    """At most `connections_max` connections at a time, idle ones included.

    Half of them are kept from one request to the next, one of each origin, for those that were
    asked first and are still asked.  The other half is for what comes besides: further origins and
    requests to one whose connection is in use, each on a connection that ends with its answer.  So
    origins that never answer keep no others waiting but such ones.
    """

    def __init__(self, names: Names, connections_max: int) -> None:
        assert connections_max >= 2
        self._names = names
        self._kept_max = connections_max // 2
        self._kept: OrderedDict[URL, _Kept] = OrderedDict()
        """Those that were asked longest ago first."""
        self._keeping = _opened(names, limit=self._kept_max, keepalive_timeout=KEEP_S)
        self._passing = _opened(names, limit=connections_max - self._kept_max, force_close=True)

    async def close(self) -> None:
        await self._keeping.close()
        await self._passing.close()

    @contextlib.asynccontextmanager
    async def answered(
        self, url: str, headers: Mapping[str, str], trust: ssl.SSLContext | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A plain answer with status 200.  Raises HttpError, and TimeoutError as it is.

        trust: over https; None: whom the system trusts.  Connections with another one are not used
        """
        has_begun = False
        try:
            async with self._get(URL(url, encoded=True), headers, trust) as response:
                if response.status != 200:
                    raise HttpError("http_status", f"status {response.status}")
                encoding = response.headers.get("content-encoding", "identity")
                if encoding != "identity":
                    text = f"the answer is encoded as {encoding}, which nobody asked"
                    raise HttpError("unreadable", text)
                has_begun = True
                yield response
        except TimeoutError:
            raise
        except aiohttp.ClientResponseError as error:  # the rest of its text quotes the answer
            text = f"not HTTP: {error.message.partition(':')[0]}"
            raise HttpError("unreadable", text) from None
        except aiohttp.ClientPayloadError:
            raise HttpError("unreadable", "the answer breaks off") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if has_begun and isinstance(error, ValueError):
                raise  # not of the URL, but of what the caller makes of the answer
            if (cause := _not_allowed(error)) is not None:
                raise HttpError("not_allowed", str(cause)) from None
            raise HttpError("unreachable", _in_words(error)) from None

    @contextlib.asynccontextmanager
    async def _get(
        self, url: URL, headers: Mapping[str, str], trust: ssl.SSLContext | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Raises what aiohttp raises; ValueError for a URL without an origin."""
        self._refuse_unless_allowed(url.raw_host or "")
        with self._session_of(url) as session:
            async with session.get(
                url, allow_redirects=False, headers=headers, ssl=trust or True
            ) as response:
                yield response

    def _refuse_unless_allowed(self, host: str) -> None:
        """What the resolver is never asked for.  Raises HttpError."""
        if ":" not in host and not host.replace(".", "").isdigit():
            return
        if not is_address(host):
            raise HttpError("unreachable", f"`{host}` is no address")
        addresses = self._names.judged(host, (host,))
        if addresses.is_refused:
            raise HttpError("not_allowed", addresses.error or "")

    @contextlib.contextmanager
    def _session_of(self, url: URL) -> Iterator[aiohttp.ClientSession]:
        """For one request."""
        origin = url.origin()
        kept = self._kept.get(origin) or self._newly_kept(origin)
        if kept is None or kept.is_used:
            yield self._passing
            return
        kept.is_used = True
        try:
            yield self._keeping
        finally:
            kept.is_used, kept.asked_at = False, monotonic()
            self._kept.move_to_end(origin)

    def _newly_kept(self, origin: URL) -> _Kept | None:
        """In a place that is free, or whose connection has certainly been closed."""
        if len(self._kept) >= self._kept_max:
            oldest, kept = next(iter(self._kept.items()))
            if kept.is_used or monotonic() - kept.asked_at < 2 * KEEP_S + 1.0:
                return None
            del self._kept[oldest]
        self._kept[origin] = _Kept()
        return self._kept[origin]


def _not_allowed(error: Exception) -> _NotAllowed | None:
    """Was that the reason?"""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    return cause if isinstance(cause, _NotAllowed) else None


def _in_words(error: Exception) -> str:
    """Why there was no answer, without the library's own names."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {error.host} is not believed: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"name not found: {error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        reason = os.strerror(cause.errno) if cause.errno else str(cause)
        return f"cannot connect to {error.host}:{error.port}: {reason}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed before an answer came"
    return str(error) or type(error).__name__


def _opened(names: Names, **connector: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=_Resolver(names), ssl=True, **connector),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=HEADERS,
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        read_bufsize=READ_BYTES,
    )
