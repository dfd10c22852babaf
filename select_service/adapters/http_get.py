"""HTTP client for GET requests to engines, replicas and peers, bounded in time and bytes.

All requests share one connection pool: metrics of engines, lists of replicas, dumps of peers.
The client has no redirects, cookies, proxies or compression.  Addresses are checked against the
egress policy before a connection is opened, see `indexer.sockets.egress_guard`.

With https, the certificate must be valid for the requested host and be issued by a CA that the
system trusts (or SSL_CERT_FILE or SSL_CERT_DIR of the environment), or by a configured CA.

`select_service.net.http_client` parses responses and limits the work for all of them together.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.async_resolver import resolve_host
from select_service.adapters.http_error import HttpError
from select_service.adapters.peer_api_key import authorization_header, peer_key_file
from select_service.net.http_client.connection_opener import ConnectionTls
from select_service.net.http_client.connection_pool import ConnectionPool, HttpResponse
from select_service.net.http_client.request_error import RequestError
from select_service.net.tls.current_tls import ClientTls

CONNECTIONS_MAX = 1024
OTHER_PURPOSE = "other"
"""Default purpose of requests, for the count of refused addresses."""


class HttpClient:
    """HTTP client.  Belongs to one event loop; no connection is opened before the first request."""

    def __init__(
        self,
        names: Resolver,
        connections_max: int = CONNECTIONS_MAX,
        key_file: Path | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """connections_max: maximum number of connections, including idle ones; at least 2
        key_file: file with the API key for other selectors; None means no key is sent
        tls: trusted CAs; None means the CAs of the system
        """
        self.tls = tls
        self._key_file = None if key_file is None else peer_key_file(key_file)
        self._names = names
        self._pool = ConnectionPool(self._addresses_of, connections_max)

    async def close(self) -> None:
        """Cancel running requests and close all connections."""
        await self._pool.close()
        if self._key_file is not None:
            await self._key_file.close()

    async def get_body(
        self,
        url: str,
        *,
        accept: str,
        bytes_max: int,
        timeout_s: float,
        purpose: str = OTHER_PURPOSE,
        with_key: bool = False,
    ) -> bytes:
        """Return the complete body of a GET response.  Raises HttpError.

        timeout_s: time limit from name resolution to the last byte, seconds
        purpose: label under which a refusal of the address is counted
        with_key: True when the peer is a configured selector that may receive the API key
        """
        try:
            async with (
                asyncio.timeout(timeout_s),
                self.open_get(url, accept, purpose=purpose, with_key=with_key) as answer,
            ):
                return await answer.read_body(bytes_max)
        except TimeoutError:
            text = f"no complete answer within {timeout_s:g} s"
            raise HttpError("timeout", text) from None

    @contextlib.asynccontextmanager
    async def open_get(
        self, url: str, accept: str, *, purpose: str = OTHER_PURPOSE, with_key: bool = False
    ) -> AsyncIterator[HttpResponse]:
        """Send a GET request and yield the response (status 200); read its body inside the context.

        purpose, with_key: see `body`
        The caller limits time and bytes; its own TimeoutError is passed through.  Raises HttpError.
        """
        headers = {"accept": accept}
        if with_key and self._key_file is not None:
            headers["authorization"] = await authorization_header(self._key_file)
        tls = None if self.tls is None else ConnectionTls(self.tls.context)
        try:
            async with self._pool.open_request("GET", url, headers, tls=tls) as answer:
                if answer.status != 200:
                    raise HttpError("http_status", f"status {answer.status}")
                # Never decompressed: a small compressed body could expand beyond every limit.
                encoding = answer.headers.get("content-encoding", "identity")
                if encoding != "identity":
                    text = f"content-encoding is {encoding[:40]}, although `identity` was requested"
                    raise HttpError("unreadable", text)
                yield answer
        except RequestError as error:
            if error.failure == "not_allowed":
                self._names.egress_guard.count_refusal(purpose)
            raise to_http_error(error) from None

    async def _addresses_of(self, host: str) -> Sequence[str]:
        return await resolve_allowed(self._names, host)


async def resolve_allowed(names: Resolver, host: str) -> Sequence[str]:
    """Return the addresses of a host, all permitted by the egress policy.  Raises RequestError."""
    addresses = await resolve_host(names, host)
    if addresses.is_refused:
        raise RequestError("not_allowed", addresses.error or "")
    if not addresses.found:
        raise RequestError("unreachable", f"name not found: {addresses.error}")
    return addresses.found


def to_http_error(error: RequestError) -> HttpError:
    """Return the error with the failure name used in the metrics of the service."""
    match error.failure:
        case "refused" | "closed":
            return HttpError("unreachable", str(error))
        case failure:
            return HttpError(failure, str(error))
