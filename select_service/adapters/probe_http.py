"""Timed POST request over a fresh connection; responses of any status are returned.

`http_get` suits pages; this module suits timed requests.  A request never waits for a pooled
connection, a stale connection cannot fail it, and the clock starts with the first byte sent.
Engines close idle connections after some seconds, so reuse would be rare.  The same rules
apply: bounds on time and bytes, no redirects, cookies, proxies or compression.  With https, the
certificate must be valid for the requested host and issued by a trusted CA.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import counting_refusals, resolve_allowed
from select_service.net.http_client.connection_opener import (
    ConnectionTls,
    Origin,
    encode_request,
    open_connection,
    split_url,
)
from select_service.net.http_client.connection_pool import DEFAULT_HEADERS
from select_service.net.http_client.http_connection import HttpConnection
from select_service.net.http_client.http_error import HttpError
from select_service.net.tls.current_tls import ClientTls

_HEADERS = {
    **DEFAULT_HEADERS,
    "connection": "close",
    "accept": "application/json",
    "content-type": "application/json",
}


class TimedResponse(NamedTuple):
    """Response with any status."""

    status: int
    retry_after: bool
    """Whether the response has a Retry-After header."""
    body: bytes
    fault: str | None
    """Reason why the body is incomplete; None when complete."""
    seconds: float
    """Seconds from the first byte sent to the last byte received."""


class TimedHttpClient(NamedTuple):
    """Sender of timed POST requests.

    tls: trusted CAs; None means the CAs of the system
    """

    names: Resolver
    tls: ClientTls | None = None

    async def post(
        self,
        url: str,
        content: bytes,
        headers: Mapping[str, str],
        *,
        bytes_max: int,
        timeout_s: float,
    ) -> TimedResponse:
        """Send a POST request and return the response.

        url: URL accepted by `urls.engine_url_error`
        headers: further headers
        bytes_max: size limit of the response body
        timeout_s: time limit from name resolution to the last byte, seconds
        Raises HttpError: `timeout`, `not_allowed`, `refused`, `closed` or `unreachable` before a
        status was received, `unreadable` when the response is not HTTP.
        """
        origin, host, target = split_url(url)
        all_headers = list({**_HEADERS, **headers}.items())
        message = encode_request("POST", target, host, all_headers, content)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(origin, message, bytes_max)
        except TimeoutError:
            raise HttpError("timeout", f"no complete answer within {timeout_s:g} s") from None

    async def accepts_connection(self, url: str, *, timeout_s: float) -> bool:
        """Return whether the server of a URL accepts a connection; nothing is sent.

        url: URL accepted by `urls.engine_url_error`
        timeout_s: time limit from name resolution to the end of the TLS handshake, seconds
        """
        origin, _, _ = split_url(url)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._open(origin)
        except (HttpError, TimeoutError):
            return False
        connection.close()
        return True

    async def _open(self, origin: Origin) -> HttpConnection:
        """Open a new connection.  Raises HttpError."""
        tls = None if self.tls is None else ConnectionTls(self.tls.context)
        with counting_refusals(self.names, "canary"):
            resolve = partial(resolve_allowed, self.names)
            return await open_connection(origin, resolve, tls)

    async def _exchange(self, origin: Origin, message: bytes, bytes_max: int) -> TimedResponse:
        """Send the message over a new connection and read the response.  Raises HttpError."""
        connection = await self._open(origin)
        try:
            connection.send_request(message)
            return await _read_response(connection, bytes_max)
        finally:
            connection.close()


async def _read_response(connection: HttpConnection, bytes_max: int) -> TimedResponse:
    """Read a response.  Raises HttpError when no status was received."""
    answer = await connection.read_head()
    body, fault = bytearray(), None
    try:
        while part := await connection.read_some():
            body += part
            if len(body) > bytes_max:
                fault = f"response body has more than {bytes_max} bytes"
                break
    except HttpError as error:
        fault = str(error)
    # Times of the transport, not of this coroutine: a late event loop must not count as engine
    # time.
    seconds = connection.received_at - connection.sent_at
    retry_after = "retry-after" in answer.headers
    return TimedResponse(answer.status, retry_after, bytes(body[:bytes_max]), fault, seconds)
