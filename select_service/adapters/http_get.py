"""HTTP client for GET requests to engines, replicas and peers, see `HttpSession`.

Addresses are checked against the egress policy before a connection is opened, see
`indexer.sockets.egress_guard`.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.async_resolver import resolve_host
from select_service.net.http_client.connection_pool import HttpResponse
from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.http_session import HttpRequest, HttpSession
from select_service.net.tls.current_tls import ClientTls

CONNECTIONS_MAX = 1024
OTHER_PURPOSE = "other"
"""Default purpose of requests, for the count of refused addresses."""


class HttpClient(HttpSession):
    """HTTP session limited to addresses that the egress policy permits."""

    def __init__(
        self,
        names: Resolver,
        connections_max: int = CONNECTIONS_MAX,
        key_file: Path | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """key_file: file with the API key for other selectors; None means no key is sent
        connections_max, tls: see `HttpSession`
        """
        super().__init__(partial(resolve_allowed, names), connections_max, tls)
        self._key_file = key_file
        self._names = names

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
        """Return the complete body of a GET response, see `fetch_body`.  Raises HttpError.

        purpose: label under which a refusal of the address is counted
        with_key: True when the peer is a configured selector that may receive the API key
        """
        request = self._get_request(url, accept, with_key)
        return await self.send_checked(
            request, bytes_max=bytes_max, timeout_s=timeout_s, purpose=purpose
        )

    async def send_checked(
        self, request: HttpRequest, *, bytes_max: int, timeout_s: float, purpose: str
    ) -> bytes:
        """Return the complete body of a response, see `fetch_body`; `purpose` as in `get_body`.

        Raises HttpError.
        """
        with counting_refusals(self._names, purpose):
            return await self.fetch_body(request, bytes_max=bytes_max, timeout_s=timeout_s)

    @contextlib.asynccontextmanager
    async def open_get(
        self, url: str, accept: str, *, purpose: str = OTHER_PURPOSE, with_key: bool = False
    ) -> AsyncIterator[HttpResponse]:
        """Yield the response of a GET request, see `open_response`.  Raises HttpError.

        purpose, with_key: see `get_body`
        """
        request = self._get_request(url, accept, with_key)
        with counting_refusals(self._names, purpose):
            async with self.open_response(request) as answer:
                yield answer

    def _get_request(self, url: str, accept: str, with_key: bool) -> HttpRequest:
        key_file = self._key_file if with_key else None
        return HttpRequest("GET", url, {"accept": accept}, token_file=key_file)


async def resolve_allowed(names: Resolver, host: str) -> Sequence[str]:
    """Return the addresses of a host, all permitted by the egress policy.  Raises HttpError."""
    addresses = await resolve_host(names, host)
    if addresses.is_refused:
        raise HttpError("not_allowed", addresses.error or "")
    if not addresses.found:
        raise HttpError("unreachable", f"name not found: {addresses.error}")
    return addresses.found


@contextlib.contextmanager
def counting_refusals(names: Resolver, purpose: str) -> Iterator[None]:
    """Count an address that the egress policy refuses to the requests of the block."""
    try:
        yield
    except HttpError as error:
        if error.failure == "not_allowed":
            names.egress_guard.count_refusal(purpose)
        raise
