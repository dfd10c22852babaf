"""HTTP client for complete answers of other servers, bounded in time and bytes.

All requests of a session share one connection pool.  The client has no redirects, cookies, proxies
or compression.

With https, the certificate must be valid for the requested host and be issued by a CA that the
system trusts (or SSL_CERT_FILE or SSL_CERT_DIR of the environment), or by a configured CA.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from select_service.net.http_client.connection_opener import ConnectionTls, Resolve, resolve_name
from select_service.net.http_client.connection_pool import ConnectionPool, HttpResponse
from select_service.net.http_client.http_error import HttpError
from select_service.net.tls.current_tls import ClientTls
from select_service.net.token_file import TokenFile

CONNECTIONS_MAX = 256
TOKEN_S_MAX = 5.0
"""Time limit of a request for reading its token, in seconds."""
REFUSAL_BYTES_MAX = 1 << 16
REFUSAL_S_MAX = 1.0
"""Limits of reading the body of a response with a bad status."""


class HttpRequest(NamedTuple):
    """Request of a session.

    headers: headers by lower-case name
    token_file: file of the bearer token, read for each request; None means no token is sent
    """

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    token_file: Path | None = None


class HttpSession:
    """HTTP client.  Belongs to one event loop; no connection is opened before the first request."""

    def __init__(
        self,
        resolve: Resolve = resolve_name,
        connections_max: int = CONNECTIONS_MAX,
        tls: ClientTls | None = None,
    ) -> None:
        """connections_max: maximum number of connections, active and idle; at least 2
        tls: trusted CAs and client certificate; None means the CAs of the system
        """
        self.tls = tls
        self._pool = ConnectionPool(resolve, connections_max)
        self._token_files: dict[Path, TokenFile] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel running requests; close all connections and token files."""
        await self._pool.close()
        while self._token_files:
            await self._token_files.popitem()[1].close()

    async def fetch_body(self, request: HttpRequest, *, bytes_max: int, timeout_s: float) -> bytes:
        """Return the complete body of a good response, see `open_response`.  Raises HttpError.

        timeout_s: time limit from name resolution to the last byte, seconds
        """
        request = await self._with_token(request, min(TOKEN_S_MAX, timeout_s))
        try:
            async with asyncio.timeout(timeout_s), self.open_response(request) as answer:
                return await answer.read_body(bytes_max)
        except TimeoutError:
            text = f"no complete answer within {timeout_s:g} s"
            raise HttpError("timeout", text) from None

    @contextlib.asynccontextmanager
    async def open_response(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        """Send a request and yield a good response; read its body inside the context.

        A status is good if it is 200, or any 2xx for methods other than GET.  The caller limits
        time and bytes; its own TimeoutError is passed through.  Raises HttpError.
        """
        method, url, headers, body, _ = await self._with_token(request, TOKEN_S_MAX)
        # Read for each request, so that reloaded certificates apply without a restart.
        tls = None if self.tls is None else ConnectionTls(self.tls.context)
        async with self._pool.open_request(method, url, headers, body, tls) as answer:
            # A GET with another 2xx brings no page, or a part of one.
            if answer.status != 200 and (method == "GET" or not 200 <= answer.status < 300):
                refusal = await _read_refusal(answer)
                raise HttpError("http_status", f"status {answer.status}", answer.status, refusal)
            # Never decompressed: a small compressed body could expand beyond every limit.
            encoding = answer.headers.get("content-encoding", "identity")
            if encoding != "identity":
                text = f"content-encoding is {encoding[:40]}, although `identity` was requested"
                raise HttpError("unreadable", text)
            yield answer

    async def _with_token(self, request: HttpRequest, timeout_s: float) -> HttpRequest:
        """Return the request with its token as a header.  Raises HttpError."""
        path = request.token_file
        if path is None:
            return request
        if path not in self._token_files:
            self._token_files[path] = TokenFile(path)
        try:
            token = await self._token_files[path].read_token(timeout_s)
        except ValueError as error:
            raise HttpError("unreadable", f"token file {error}") from None
        except TimeoutError:
            text = f"token file `{path}`: file system did not answer within {timeout_s:g} s"
            raise HttpError("unreadable", text) from None
        headers = {**request.headers, "authorization": f"Bearer {token}"}
        return request._replace(headers=headers, token_file=None)


async def _read_refusal(answer: HttpResponse) -> bytes:
    """Return the body of a response with a bad status; empty if too large or too slow."""
    # The status is known and matters more than the body.
    with contextlib.suppress(HttpError, TimeoutError):
        async with asyncio.timeout(REFUSAL_S_MAX):
            return await answer.read_body(REFUSAL_BYTES_MAX)
    return b""
